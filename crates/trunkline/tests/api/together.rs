//! Collective calls: broadcasts, gathers, barriers, allocation and frees.

use trunkline::{Error, World};

use crate::ranks::{DIES, run, run_as};

#[test]
fn broadcasts_and_gathers_deliver_all_elements() {
    run("together::broadcasts_and_gathers_deliver_all_elements", 4, |world: World| {
        let (rank, size) = (world.rank(), world.size());
        let news = world.alloc::<u64>(1000).unwrap();
        for root in 0..size {
            news.fill(rank as u64);
            world.broadcast(root, &news).unwrap();
            assert!(news.to_vec().iter().all(|&value| value == root as u64), "root {root}");
        }
        let all = world.alloc::<[u32; 3]>(2 * size).unwrap();
        for round in 0..20_u32 {
            let own = rank as u32;
            world.all_gather(&[[own, round, 1], [own, round, 2]], &all).unwrap();
            let expected: Vec<_> =
                (0..size as u32).flat_map(|rank| [[rank, round, 1], [rank, round, 2]]).collect();
            assert_eq!(all.to_vec(), expected);
        }
        assert!(matches!(world.all_gather(&[[0; 3]; 3], &all), Err(Error::Range { .. })));
        world.finish().unwrap();
    });
}

#[test]
fn barrier_holds_every_rank_until_all_arrive() {
    run("together::barrier_holds_every_rank_until_all_arrive", 4, |world: World| {
        let came = world.alloc_one::<u64>().unwrap();
        for round in 1..=100 {
            world.inc(0, &came).unwrap();
            world.barrier().unwrap();
            assert_eq!(world.fetch(0, &came).unwrap(), 4 * round);
            world.sync().unwrap();
        }
        world.finish().unwrap();
    });
}

/// In a barrier of four ranks, rank 0 signals ranks 1 and 2. So its put to rank 3 precedes no signal.
#[test]
fn barrier_completes_puts_to_unsignalled_ranks() {
    const LEN: usize = 2 << 20;
    run("together::barrier_completes_puts_to_unsignalled_ranks", 4, |world: World| {
        let there = world.alloc::<u64>(LEN).unwrap();
        let own = world.alloc::<u64>(LEN).unwrap();
        for round in 1..=3 {
            if world.rank() == 0 {
                own.fill(round);
                world.put_nbi(3, &there, &own, LEN).unwrap();
            }
            world.barrier().unwrap();
            if world.rank() == 3 {
                assert_eq!([0, LEN / 2, LEN - 1].map(|at| there.load(at)), [round; 3]);
            }
            world.sync().unwrap();
        }
        world.finish().unwrap();
    });
}

#[test]
fn freed_memory_is_reused_and_zeroed() {
    run("together::freed_memory_is_reused_and_zeroed", 2, |world: World| {
        let keep = world.alloc::<u8>(100).unwrap();
        keep.fill(9);
        for round in 0..50 {
            // Most of the heap in each round, so that the allocation needs the memory of the round before.
            let large = world.alloc::<u64>(5 << 20).unwrap();
            let places = [0, 1, (5 << 20) - 1];
            assert_eq!(places.map(|at| large.load(at)), [0; 3], "round {round}");
            world.sync().unwrap();
            for at in places {
                world.put(1 - world.rank(), large.at(at), &[round + 1]).unwrap();
            }
            world.free(large).unwrap();
        }
        assert!(keep.to_vec().iter().all(|&byte| byte == 9));
        world.finish().unwrap();
    });
}

#[test]
fn different_collective_calls_fail_at_both_ranks() {
    let ends = |status| status == Some(DIES);
    run_as("together::different_collective_calls_fail_at_both_ranks", 2, &ends, World::builder, |world| {
        let error = match world.rank() {
            0 => world.alloc::<u64>(10).unwrap_err(),
            _ => world.alloc::<u64>(11).unwrap_err(),
        };
        assert!(matches!(error, Error::Differ { rank } if rank == 1 - world.rank()), "{error}");
        // Both ranks must detect the difference before one of them ends.
        std::thread::sleep(std::time::Duration::from_secs(3));
        std::process::exit(DIES);
    });
}
