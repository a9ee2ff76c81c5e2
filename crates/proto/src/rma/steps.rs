//! Atomics built from the operations that NICs execute on words of 8 bytes: add, and compare and swap. Every other atomic reads the word, and then
//! repeats a compare-and-swap until the word did not change in between. Each compare-and-swap that fails was overtaken by a change of another atomic,
//! so one atomic makes progress in each round. The engine calls it for each result of a NIC.

use crate::rma::atomic::{AtomicAction, TypedAtomic};

/// An operation of a NIC on a word. It returns the old value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicStep {
    /// Adds to the word, wrapping.
    Add(u64),
    /// Replaces the word by `swap` if it is `expect`.
    CompareSwap {
        /// The expected value.
        expect: u64,
        /// The new value.
        swap: u64,
    },
}

/// Returns the next operation of an atomic on 8 bytes whose word was `before`, as far as that is known.
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

/// Returns the value to pass to the next call of [`next`], given that the operation after `before` returned `found`; `None` if the atomic is done.
#[inline]
#[must_use]
pub fn next_expected(atomic: TypedAtomic, before: Option<u64>, found: u64) -> Option<u64> {
    match (atomic.action(), before) {
        (AtomicAction::Add(_), _) if atomic.atomic_type().is_integer() => None,
        (AtomicAction::CompareSwap { .. } | AtomicAction::Fetch, _) => None,
        (_, Some(before)) if before == found => None,
        // An atomic that would not change the word took effect when the word was read.
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
        (0..8_u8, small.clone(), small).prop_filter_map("the type has this atomic", |(what, a, b)| {
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
                /// Each atomic takes effect once, as if it ran alone, in the order of the changes of the word.
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
    fn undisturbed_atomics_take_at_most_two_steps() {
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
