//! Random numbers of a run, all from its seed. Used by every part of the simulator; never by the engine, which draws
//! them through its host. Ranges are computed here, so that a seed means the same run with every version of `rand`.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

/// A source of numbers that depends on its seed alone.
#[derive(Clone, Debug)]
pub struct SimRng(Pcg64Mcg);

impl SimRng {
    /// Creates random stream number `stream` of a seed: different streams do not affect each other.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let state = (u128::from(mix_bits(seed)) << 64)
            | u128::from(mix_bits(stream ^ mix_bits(seed.rotate_left(17))));
        let mut dice = Self(Pcg64Mcg::new(state));
        dice.draw_u64();
        dice
    }

    /// Returns any 64 bits.
    pub fn draw_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns `true` `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// Returns `true` half of the time.
    pub fn coin(&mut self) -> bool {
        self.draw_u64() >> 63 == 1
    }

    /// Returns one of the choices.
    pub fn pick<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N as u64) as usize]
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            slice.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Spreads small numbers over 64 bits (the finisher of splitmix64).
pub(crate) fn mix_bits(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let mut a = SimRng::new(7, 1);
        let mut b = SimRng::new(7, 1);
        let mut c = SimRng::new(7, 2);
        let draw = |dice: &mut SimRng| (0..8).map(|_| dice.draw_u64()).collect::<Vec<_>>();
        let first = draw(&mut a);
        assert_eq!(first, draw(&mut b));
        assert_ne!(first, draw(&mut c));
    }

    #[test]
    fn numbers_stay_in_range() {
        let mut dice = SimRng::new(1, 1);
        for _ in 0..1000 {
            assert!((3..=9).contains(&dice.between(3, 9)));
            assert_eq!(dice.below(1), 0);
        }
        assert_eq!(dice.between(5, 5), 5);
        assert!(!dice.chance(0) && dice.chance(1000));
    }
}
