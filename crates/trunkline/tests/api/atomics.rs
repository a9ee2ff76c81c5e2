//! Atomics of every word type, alone and concurrent, and values that arrive later.

use trunkline::{Error, FetchOp, Integer, Symmetric, World};

use crate::ranks::run;

/// Executes all atomics of an integer type on a word that no other rank uses.
fn integers<T>(world: &World, word: &Symmetric<T>, on: usize, from: impl Fn(i64) -> T)
where
    T: Integer + std::fmt::Debug,
{
    let it = |number| from(number);
    // Later atomics may overtake one that returns no value.
    let fence = || world.fence().unwrap();
    world.set(on, word, it(100)).unwrap();
    fence();
    assert_eq!(world.fetch_add(on, word, it(-30)).unwrap(), it(100));
    world.add(on, word, it(2)).unwrap();
    fence();
    assert_eq!(world.fetch_inc(on, word).unwrap(), it(72));
    world.inc(on, word).unwrap();
    fence();
    assert_eq!(world.fetch(on, word).unwrap(), it(74));
    assert_eq!(world.fetch_and(on, word, it(0b1111)).unwrap(), it(0b100_1010));
    world.or(on, word, it(0b101)).unwrap();
    fence();
    assert_eq!(world.fetch_xor(on, word, it(0b11)).unwrap(), it(0b1111));
    world.and(on, word, it(0b110)).unwrap();
    fence();
    assert_eq!(world.fetch_or(on, word, it(1)).unwrap(), it(0b100));
    world.xor(on, word, it(-1)).unwrap();
    fence();
    assert_eq!(world.swap(on, word, it(7)).unwrap(), it(-6));
    assert_eq!(world.compare_swap(on, word, it(8), it(9)).unwrap(), it(7));
    assert_eq!(world.compare_swap(on, word, it(7), it(-9)).unwrap(), it(7));
    assert_eq!(world.fetch(on, word).unwrap(), it(-9));
}

#[test]
fn atomics_work_on_every_word_type() {
    run("atomics::atomics_work_on_every_word_type", 2, |world: World| {
        macro_rules! each {
            ($($type:ty),*) => {$({
                let word = world.alloc_one::<$type>().unwrap();
                let beside = world.alloc::<$type>(3).unwrap();
                // Atomics on words of four bytes do not change the adjacent words.
                if world.rank() == 0 {
                    for on in [0, 1] {
                        integers(&world, &word, on, |number| number as $type);
                        world.fetch_add(on, beside.at(1), <$type>::MAX).unwrap();
                        world.fetch_add(on, beside.at(1), <$type>::MAX).unwrap();
                    }
                }
                world.barrier().unwrap();
                assert_eq!(beside.to_vec(), [0, <$type>::MAX.wrapping_add(<$type>::MAX), 0]);
                assert_eq!(word.load(), -9_i64 as $type);
            })*};
        }
        each!(u32, i32, u64, i64, usize, isize);
        let (single, double) = (world.alloc_one::<f32>().unwrap(), world.alloc_one::<f64>().unwrap());
        if world.rank() == 0 {
            for on in [0, 1] {
                world.set(on, &single, 1.5).unwrap();
                world.fence().unwrap();
                assert_eq!(world.swap(on, &single, -0.25).unwrap(), 1.5);
                assert_eq!(world.fetch(on, &single).unwrap(), -0.25);
                assert_eq!(world.swap(on, &double, 1e300).unwrap(), 0.0);
                assert_eq!(world.fetch(on, &double).unwrap(), 1e300);
                let add = world.fetch_nbi(on, &single, FetchOp::Add(0.75)).unwrap();
                assert_eq!(add.wait().unwrap(), -0.25);
            }
        }
        world.barrier().unwrap();
        assert_eq!((single.load(), double.load()), (0.5, 1e300));
        world.finish().unwrap();
    });
}

#[test]
fn concurrent_adds_have_the_exact_sum() {
    run("atomics::concurrent_adds_have_the_exact_sum", 3, |world: World| {
        let (sum, bits, best) = (
            world.alloc_one::<u64>().unwrap(),
            world.alloc_one::<u32>().unwrap(),
            world.alloc_one::<u64>().unwrap(),
        );
        let mut seen = Vec::new();
        for _ in 0..500 {
            // Rank 1 itself adds by the same calls, which it executes directly where NICs do not.
            seen.push(world.fetch_add(1, &sum, 3).unwrap());
            world.add(1, &sum, 4).unwrap();
            loop {
                let now = world.fetch(1, &best).unwrap();
                if world.compare_swap(1, &best, now, now + 1).unwrap() == now {
                    break;
                }
            }
        }
        world.fetch_or(1, &bits, 1 << world.rank()).unwrap();
        assert!(seen.is_sorted(), "a fetched sum is less than an earlier one");
        world.barrier().unwrap();
        if world.rank() == 1 {
            assert_eq!((sum.load(), bits.load(), best.load()), (3 * 500 * 7, 0b111, 1500));
        }
        world.finish().unwrap();
    });
}

#[test]
fn pending_fetches_keep_their_values() {
    run("atomics::pending_fetches_keep_their_values", 2, |world: World| {
        let word = world.alloc_one::<u64>().unwrap();
        let own = world.rank();
        for on in [1 - own, own] {
            world.set(on, &word, 0).unwrap();
            world.barrier().unwrap();
            let mut pending = Vec::new();
            for _ in 0..64 {
                pending.push(world.fetch_nbi(on, &word, FetchOp::Add(1)).unwrap());
                // Atomics in between reuse the engine's places of those that have been replied to.
                world.fence().unwrap();
                world.add(on, &word, 1000).unwrap();
                world.fence().unwrap();
                assert!(world.fetch(on, &word).unwrap() >= 1000);
            }
            let one_more = world.fetch_nbi(on, &word, FetchOp::Fetch);
            assert!(matches!(one_more, Err(Error::Argument(told)) if told.contains("64")));
            // Values are collected in reverse order, and one is discarded.
            drop(pending.remove(10));
            let mut at = 64;
            while let Some(one) = pending.pop() {
                at -= if at == 11 { 2 } else { 1 };
                assert_eq!(one.wait().unwrap(), at * 1001, "value {at} on rank {on}");
            }
            world.barrier().unwrap();
        }
        world.finish().unwrap();
    });
}

#[test]
fn threads_have_contexts_of_their_own() {
    run("atomics::threads_have_contexts_of_their_own", 2, |world: World| {
        let sum = world.alloc_one::<u64>().unwrap();
        let data = world.alloc::<[u64; 200]>(3).unwrap();
        let other = 1 - world.rank();
        for round in 0..3_u64 {
            let contexts = [(); 3].map(|()| world.context().unwrap());
            std::thread::scope(|scope| {
                for (thread, context) in contexts.into_iter().enumerate() {
                    let (sum, data) = (&sum, &data);
                    scope.spawn(move || {
                        for at in 0..100 {
                            context.fetch_inc(other, sum).unwrap();
                            context.put(other, data.at(thread), &[[round + at; 200]]).unwrap();
                            // Without a fence, puts to the same place are unordered over several NICs.
                            context.fence().unwrap();
                        }
                        context.quiet().unwrap();
                    });
                }
            });
            world.barrier().unwrap();
            assert_eq!(sum.load(), 300 * (round + 1));
            assert!(data.to_vec().iter().flatten().all(|&value| value == round + 99));
            world.barrier().unwrap();
        }
        let kept: Vec<_> = (0..15).map(|_| world.context().unwrap()).collect();
        assert!(world.context().unwrap_err().to_string().contains("16"));
        drop(kept);
        world.finish().unwrap();
    });
}
