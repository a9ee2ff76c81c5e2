//! Atomics by what NICs do: they add to a word of 8 bytes, and compare and swap it. Whatever else there is takes a look at the word,
//! and then a compare-and-swap until nobody was in between. Each of those that fails means that another's has not, so somebody is done
//! with every round. Called by the engine for each answer of a NIC.

use crate::rma::atomic::{AtomicAction, TypedAtomic};

/// What a NIC is to do with a word. It brings back what that was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicStep {
    /// Adds to it, wrapping.
    Add(u64),
    /// Replaces it by `swap` if it is `expect`.
    CompareSwap {
        /// What it is compared with.
        expect: u64,
        /// What it becomes.
        swap: u64,
    },
}

/// What is to be asked next of an atomic on 8 bytes whose word was `before`, as far as that is known.
#[inline]
#[must_use]
pub fn next(atomic: TypedAtomic, before: Option<u64>) -> AtomicStep {
    match (atomic.action(), before) {
        (AtomicAction::Add(value), _) if atomic.atomic_type().is_integer() => AtomicStep::Add(value),
        (AtomicAction::CompareSwap { expect, swap }, _) => AtomicStep::CompareSwap { expect, swap },
        (AtomicAction::Fetch, _) | (_, None) => AtomicStep::Add(0),
        (_, Some(expect)) => {
            let swap = atomic.apply_to(expect).unwrap_or(expect);
            AtomicStep::CompareSwap { expect, swap }
        }
    }
}

/// What the word was when the step after `before` came, and so what the next one is to follow; `None` if the atomic is done.
#[inline]
#[must_use]
pub fn next_expected(atomic: TypedAtomic, before: Option<u64>, found: u64) -> Option<u64> {
    match (atomic.action(), before) {
        (AtomicAction::Add(_), _) if atomic.atomic_type().is_integer() => None,
        (AtomicAction::CompareSwap { .. } | AtomicAction::Fetch, _) => None,
        (_, Some(before)) if before == found => None,
        // What would not change it has happened with the look.
        _ => atomic.apply_to(found).filter(|&new| new != found).map(|_| found),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::rma::atomic::AtomicType;

    fn execute(word: &mut u64, step: AtomicStep) -> u64 {
        let old = *word;
        match step {
            AtomicStep::Add(value) => *word = old.wrapping_add(value),
            AtomicStep::CompareSwap { expect, swap } if old == expect => *word = swap,
            AtomicStep::CompareSwap { .. } => {}
        }
        old
    }

    fn atomics() -> impl Strategy<Value = TypedAtomic> {
        let small = 0..4_u64;
        (0..8_u8, small.clone(), small).prop_filter_map("there is such an atomic", |(what, a, b)| {
            let action = match what {
                0 => AtomicAction::Fetch,
                1 => AtomicAction::Set(a),
                2 => AtomicAction::Add(a),
                3 => AtomicAction::And(a),
                4 => AtomicAction::Or(a),
                5 => AtomicAction::Xor(a),
                6 => {
                    return TypedAtomic::new(
                        AtomicType::F64,
                        AtomicAction::Add((a as f64 + 0.5).to_bits()),
                        true,
                    );
                }
                _ => AtomicAction::CompareSwap { expect: a, swap: b },
            };
            TypedAtomic::new(AtomicType::U64, action, true)
        })
    }

    proptest! {
        /// Whoever comes in between, each atomic happens once, as if nobody did: in the order in which they change the word.
        #[test]
        fn atomics_in_steps_are_atomic(
            all in prop::collection::vec(atomics(), 1..6),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let (mut word, mut model) = (1_u64, 1_u64);
            let mut open: Vec<(TypedAtomic, Option<u64>)> = all.into_iter().map(|atomic| (atomic, None)).collect();
            let mut order = order.into_iter();
            while !open.is_empty() {
                let at = order.next().map_or(0, |index| index.index(open.len()));
                let (atomic, before) = open[at];
                let found = execute(&mut word, next(atomic, before));
                match next_expected(atomic, before, found) {
                    None => {
                        prop_assert_eq!(found, model);
                        model = atomic.apply_to(model).unwrap_or(model);
                        open.remove(at);
                    }
                    following => open[at].1 = following,
                }
                prop_assert_eq!(word, model);
            }
        }
    }

    #[test]
    fn most_take_one_step_and_none_that_nobody_disturbs_more_than_two() {
        for (action, steps) in [
            (AtomicAction::Fetch, 1),
            (AtomicAction::Add(3), 1),
            (AtomicAction::CompareSwap { expect: 1, swap: 2 }, 1),
            (AtomicAction::Set(9), 2),
            (AtomicAction::Xor(1), 2),
            (AtomicAction::Or(1), 1),
        ] {
            let atomic = TypedAtomic::new(AtomicType::U64, action, true).unwrap();
            let mut word = 1;
            let mut before = None;
            let mut taken = 0;
            loop {
                let found = execute(&mut word, next(atomic, before));
                taken += 1;
                before = next_expected(atomic, before, found);
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(taken, steps, "{action:?}");
        }
    }
}
