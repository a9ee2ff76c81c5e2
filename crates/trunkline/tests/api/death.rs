//! Ranks that die, and ranks that compute.

use std::time::{Duration, Instant};

use trunkline::{Compare, Error, World};

use crate::ranks::{DIES, run_as, run_over_as};

/// How long an error may take.
const SOON: Duration = Duration::from_secs(20);

fn is_of(error: &Error, wanted: usize) -> bool {
    matches!(error, Error::Gone { rank, .. } | Error::Failed { rank, .. } if *rank == wanted)
}

#[test]
fn a_rank_that_dies_is_named_by_every_call_that_needs_it() {
    let ends = |status: Option<i32>| status == Some(0) || status == Some(DIES);
    let name = "death::a_rank_that_dies_is_named_by_every_call_that_needs_it";
    run_as(name, 3, &ends, World::builder, |world| {
        let word = world.alloc_one::<u64>().unwrap();
        let data = world.alloc::<u8>(10_000).unwrap();
        if world.rank() == 2 {
            // What it did before it dies counts.
            world.set(0, &word, 5).unwrap();
            world.quiet().unwrap();
            std::process::exit(DIES);
        }
        let began = Instant::now();
        if world.rank() == 0 {
            assert_eq!(world.wait_until(&word, Compare::Equal, 5, 2).unwrap(), 5);
            let error = world.wait_until(&word, Compare::Equal, 6, 2).unwrap_err();
            assert!(matches!(error, Error::Gone { rank: 2, .. }), "{error}");
            assert!(error.to_string().contains("start the job anew"), "{error}");
            assert!(world.put(2, &data, &[1; 5000]).is_err_and(|error| is_of(&error, 2)));
            assert!(world.get(2, &data, &mut [1; 5000]).is_err_and(|error| is_of(&error, 2)));
            assert!(world.fetch_inc(2, &word).is_err_and(|error| is_of(&error, 2)));
        } else {
            // It has had nothing to do with that rank; a barrier needs it.
            let error = world.barrier().unwrap_err();
            assert!(is_of(&error, 2) || is_of(&error, 0), "{error}");
        }
        assert!(began.elapsed() < SOON);
        // The others are as they were.
        let other = 1 - world.rank();
        while let Err(error) = world.put(other, &data, &[3; 200]).and_then(|()| world.quiet()) {
            assert!(is_of(&error, 2), "{error}");
        }
        let own = world.context().unwrap();
        own.put(other, data.at(9000), &[4]).unwrap();
        own.quiet().unwrap();
        let done = Instant::now();
        while data.to_vec()[9000] != 4 && done.elapsed() < SOON {
            world.progress().unwrap();
        }
        assert_eq!(data.to_vec()[9000], 4);
        // Until the other has what it asked for.
        std::thread::sleep(Duration::from_millis(300));
    });
}

/// Rank 1 makes no call for a while. How long rank 0 takes for something there.
fn computes(world: World, passive: bool) {
    const COMPUTES: Duration = Duration::from_millis(800);
    let word = world.alloc_one::<u64>().unwrap();
    let data = world.alloc::<u8>(100_000).unwrap();
    world.fetch_inc(1 - world.rank(), &word).unwrap();
    world.barrier().unwrap();
    assert_eq!(world.is_passive(), passive);
    if world.rank() == 1 {
        std::thread::sleep(COMPUTES);
    } else {
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        world.put(1, &data, &[7; 1000]).unwrap();
        world.quiet().unwrap();
        assert_eq!(world.get_one::<u8>(1, data.at(999)).unwrap(), 7);
        assert_eq!(world.fetch_inc(1, &word).unwrap(), 1);
        let served = began.elapsed() < Duration::from_millis(400);
        assert_eq!(served, passive, "{:?}", began.elapsed());
    }
    world.finish().unwrap();
}

#[test]
fn a_rank_that_computes_is_served() {
    let well = |status| status == Some(0);
    run_as("death::a_rank_that_computes_is_served", 2, &well, World::builder, |world| computes(world, true));
}

#[test]
fn passive_progress_can_be_switched_off() {
    let builder = || World::builder().passive(false);
    let name = "death::passive_progress_can_be_switched_off";
    // Over others the other rank may still be in the barrier, as what lets it out needs calls of this one.
    let fabrics = ["soft:shm", "soft:tcp", "ofi:tcp"];
    run_over_as(&fabrics, name, 2, builder, |world| computes(world, false));
}
