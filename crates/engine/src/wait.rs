//! The one way to wait: spin a little, then give the processor away, then sleep for longer and longer, up to a bound.
//! Used by threads of ours, and by front ends whose calls wait; the engine's own calls never do.

use std::time::Duration;

/// Fruitless rounds in which the thread stays on its processor.
const SPINS: u32 = 16;
/// Fruitless rounds after those in which it lets others go first.
const YIELDS: u32 = 16;

/// Where a thread stands in its waiting.
#[derive(Debug)]
pub struct WaitBackoff {
    fruitless: u32,
    spins: u32,
    yields: u32,
}

/// What to do until the next round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BackoffStep {
    /// Stay.
    Spin,
    /// Let others go first.
    Yield,
    /// Sleep so long, unless woken.
    Park(Duration),
}

impl Default for WaitBackoff {
    fn default() -> Self {
        Self::with_spins(SPINS, YIELDS)
    }
}

impl WaitBackoff {
    /// Stays on its processor for so many fruitless rounds, and gives it away for so many more before it sleeps.
    #[must_use]
    pub const fn with_spins(spins: u32, yields: u32) -> Self {
        Self { fruitless: 0, spins, yields }
    }

    /// Something moved: more is likely to follow.
    pub fn reset_backoff(&mut self) {
        self.fruitless = 0;
    }

    /// Nothing moved. The first sleep is `first` long, each next one twice as long, none longer than `most`.
    pub fn next_step(&mut self, first: Duration, most: Duration) -> BackoffStep {
        let fruitless = self.fruitless;
        self.fruitless = fruitless.saturating_add(1);
        let awake = self.spins.saturating_add(self.yields);
        match fruitless {
            _ if fruitless < self.spins => BackoffStep::Spin,
            _ if fruitless < awake => BackoffStep::Yield,
            _ => {
                let doubled = (fruitless - awake).min(16);
                BackoffStep::Park(first.saturating_mul(1 << doubled).min(most))
            }
        }
    }
}

impl BackoffStep {
    /// Does it.
    pub fn wait_once(self) {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
            Self::Park(time) => std::thread::park_timeout(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_grows_to_its_bound_and_starts_anew() {
        let mut waiting = WaitBackoff::default();
        let first = Duration::from_micros(50);
        let most = Duration::from_millis(1);
        let mut pauses =
            || std::iter::repeat_with(|| waiting.next_step(first, most)).take(1000).collect::<Vec<_>>();
        let seen = pauses();
        let count = |wanted| seen.iter().filter(|pause| **pause == wanted).count();
        assert_eq!((count(BackoffStep::Spin), count(BackoffStep::Yield)), (16, 16));
        let micros = [50, 100, 200, 400, 800].map(|n| BackoffStep::Park(Duration::from_micros(n)));
        assert_eq!(seen[32..37], micros);
        assert!(seen[37..].iter().all(|pause| *pause == BackoffStep::Park(most)));
        waiting.reset_backoff();
        assert_eq!(waiting.next_step(first, most), BackoffStep::Spin);
    }
}
