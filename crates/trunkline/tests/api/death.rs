//! Ranks that die, and ranks that compute.

use std::time::{Duration, Instant};

use trunkline::{Compare, Error, World};

use crate::ranks::{DIES, run_as, run_over_as};

/// The limit for an error to be returned.
const SOON: Duration = Duration::from_secs(20);

fn is_of(error: &Error, wanted: usize) -> bool {
    matches!(error, Error::Gone { rank, .. } | Error::Failed { rank, .. } if *rank == wanted)
}

#[test]
fn every_call_names_the_dead_rank_it_needs() {
    let ends = |status: Option<i32>| status == Some(0) || status == Some(DIES);
    let name = "death::every_call_names_the_dead_rank_it_needs";
    run_as(name, 3, &ends, World::builder, |world| {
        let word = world.alloc_one::<u64>().unwrap();
        let data = world.alloc::<u8>(10_000).unwrap();
        if world.rank() == 2 {
            // Operations that rank 2 completed before its death count.
            world.set(0, &word, 5).unwrap();
            world.quiet().unwrap();
            std::process::exit(DIES);
        }
        let began = Instant::now();
        if world.rank() == 0 {
            assert_eq!(world.wait_until(&word, Compare::Equal, 5, 2).unwrap(), 5);
            let error = world.wait_until(&word, Compare::Equal, 6, 2).unwrap_err();
            assert!(matches!(error, Error::Gone { rank: 2, .. }), "{error}");
            assert!(error.to_string().contains("restart the job"), "{error}");
            assert!(world.put(2, &data, &[1; 5000]).is_err_and(|error| is_of(&error, 2)));
            assert!(world.get(2, &data, &mut [1; 5000]).is_err_and(|error| is_of(&error, 2)));
            assert!(world.fetch_inc(2, &word).is_err_and(|error| is_of(&error, 2)));
        } else {
            // Rank 1 has not communicated with rank 2, but a barrier needs it.
            let error = world.barrier().unwrap_err();
            assert!(is_of(&error, 2) || is_of(&error, 0), "{error}");
        }
        assert!(began.elapsed() < SOON);
        // Operations between the other ranks still work.
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
        // The process stays alive until the other rank's operations are complete.
        std::thread::sleep(Duration::from_millis(300));
    });
}

/// Rank 1 makes no call for a while. Checks whether operations of rank 0 on it complete in that time.
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
fn passive_progress_serves_requests_to_computing_ranks() {
    let well = |status| status == Some(0);
    run_as("death::passive_progress_serves_requests_to_computing_ranks", 2, &well, World::builder, |world| {
        computes(world, true)
    });
}

#[test]
fn passive_progress_can_be_switched_off() {
    let builder = || World::builder().passive(false);
    let name = "death::passive_progress_can_be_switched_off";
    // Over other fabrics rank 0 may still be in the barrier, because its last signal needs calls of rank 1.
    let fabrics = ["soft:shm", "soft:tcp", "ofi:tcp"];
    run_over_as(&fabrics, name, 2, builder, |world| computes(world, false));
}
