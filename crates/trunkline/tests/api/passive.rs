//! Ranks that make no call, in the default configuration: their service thread serves other ranks in time, and uses
//! almost no processor time while there are no requests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use trunkline::{Compare, Error, SignalOp, World};

use crate::over::FOLDER;
use crate::ranks::run_over;

/// The fabrics with passive progress by default.
const PROMISED: [&str; 3] = ["soft:shm", "soft:tcp", "ofi:tcp"];
/// The time in which a rank makes no call.
const COMPUTES: Duration = Duration::from_secs(2);
/// The number of such periods, for machines with other load.
const PERIODS: usize = 5;
/// The limit for each operation in that time.
const SERVED: Duration = Duration::from_millis(5);

/// Keeps a processor busy.
fn compute(time: Duration) -> u64 {
    let began = Instant::now();
    let mut some = 1_u64;
    while began.elapsed() < time {
        for _ in 0..1000 {
            some = std::hint::black_box(some.wrapping_mul(0x9e37_79b9).rotate_left(7));
        }
    }
    some
}

/// Returns the duration of an operation.
fn timed(operation: impl FnOnce() -> Result<(), Error>) -> Duration {
    let began = Instant::now();
    operation().unwrap();
    began.elapsed()
}

#[test]
fn computing_rank_serves_each_operation_in_time() {
    // The strict fabric, where only calls make progress, is included.
    let all = [PROMISED[0], PROMISED[1], PROMISED[2], "ofi:strict"];
    run_over(&all, "passive::computing_rank_serves_each_operation_in_time", 2, |world: World| {
        let data = world.alloc::<u64>(100).unwrap();
        let sum = world.alloc_one::<u64>().unwrap();
        let count = world.alloc_one::<u64>().unwrap();
        let said = world.alloc::<u32>(2).unwrap();
        let other = 1 - world.rank();
        assert!(world.is_passive(), "by default");
        let each = |round: u64| {
            [
                timed(|| world.put(other, &data, &[round; 100]).and_then(|()| world.quiet())),
                timed(|| {
                    assert_eq!(world.get_one::<u64>(other, data.at(99))?, round);
                    Ok(())
                }),
                timed(|| {
                    assert_eq!(world.fetch_add(other, &sum, 2)?, 2 * round);
                    Ok(())
                }),
                timed(|| {
                    world.signal(other, &count, SignalOp::Add, 1)?;
                    world.quiet()
                }),
            ]
        };
        // Both ranks have links before one of them stops making calls.
        each(0);
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let (mut best, mut round) = ([Duration::MAX; 4], 0);
        for period in 0..PERIODS {
            let [begins, ends] = ["begins", "ends"].map(|what| folder.join(format!("{what}-{period}")));
            world.barrier().unwrap();
            if world.rank() == 1 {
                std::fs::write(&begins, "").unwrap();
                compute(COMPUTES);
                std::fs::write(&ends, "").unwrap();
            }
            while world.rank() == 0 && !begins.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            while world.rank() == 0 && !ends.exists() {
                // The service thread of the other rank sleeps before each operation.
                std::thread::sleep(Duration::from_millis(15));
                round += 1;
                for (at, time) in each(round).into_iter().enumerate() {
                    // Operations that end later may have been served by the other rank's barrier.
                    best[at] = if ends.exists() { best[at] } else { best[at].min(time) };
                }
            }
            // Other processes may delay any operation, so the fastest of each kind counts, if necessary in another
            // period.
            let done = best.iter().all(|&time| time < SERVED);
            world.all_gather(&[u32::from(done)], &said).unwrap();
            if said.load(0) == 1 {
                break;
            }
        }
        let names = ["put with quiet", "get", "fetch-add", "signal with quiet"];
        for (name, best) in names.into_iter().zip(best).filter(|_| world.rank() == 0) {
            eprintln!("{name}: {best:?} at best, in {round} rounds");
            assert!(best < SERVED, "{name}: {best:?}");
        }
        world.finish().unwrap();
    });
}

/// Operations per batch, the largest number of batches, and sleeps of the other rank per batch that have other causes.
const BATCH: usize = 200;
const BATCHES: usize = 50;
const FEW: u64 = 5;

/// Counts how often a thread has slept. Times would depend on other load of the machine.
fn sleeps_of(status: &str) -> u64 {
    let status = std::fs::read_to_string(status).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn long_wait_serves_requests_without_sleeping() {
    run_over(&PROMISED, "passive::long_wait_serves_requests_without_sleeping", 2, |world: World| {
        let data = world.alloc::<u64>(1).unwrap();
        let count = world.alloc_one::<u64>().unwrap();
        let who = world.alloc::<u32>(4).unwrap();
        let own = [std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()];
        world.all_gather(&own, &who).unwrap();
        if world.rank() == 1 {
            world.wait_until(&count, Compare::Greater, 0, 0).unwrap();
        } else {
            let status = format!("/proc/{}/task/{}/status", who.load(2), who.load(3));
            let put = || world.put(1, &data, &[7]).and_then(|()| world.quiet()).unwrap();
            let sleeps_of_a_batch = || {
                let before = sleeps_of(&status);
                (0..BATCH).for_each(|_| put());
                sleeps_of(&status) - before
            };
            // Afterwards the other rank has long been idle. It polls for a while before it sleeps, longer on a loaded
            // machine.
            std::thread::sleep(Duration::from_secs(1));
            (0..BATCHES / 5).for_each(|_| _ = sleeps_of_a_batch());
            // It may sleep in batches in which this rank itself was descheduled.
            let counts =
                (0..BATCHES).map(|_| sleeps_of_a_batch()).inspect(|count| eprint!("{count} sleeps; "));
            let few = { counts }.any(|count| count <= FEW);
            world.signal(1, &count, SignalOp::Add, 1).unwrap();
            assert!(few);
        }
        world.barrier().unwrap();
        world.finish().unwrap();
    });
}

/// The limit of an idle rank, as a fraction of a core. On an idle machine of 2026 it uses half a percent, and up to
/// five times as much on a loaded one.
const SHARE: f64 = 0.05;
/// The limit of wakes per second of all threads: one per four milliseconds, and those of this test.
const WAKES: f64 = 300.0;

#[test]
fn idle_rank_uses_almost_no_processor_time() {
    run_over(&PROMISED, "passive::idle_rank_uses_almost_no_processor_time", 2, |world: World| {
        let data = world.alloc::<u64>(100).unwrap();
        // The put creates links, which the service thread polls.
        world.put(1 - world.rank(), &data, &[7; 100]).unwrap();
        world.barrier().unwrap();
        assert!(world.is_passive(), "by default");
        let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
        let wakes = || -> u64 {
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            threads.map(|thread| sleeps_of(&format!("{}/status", thread.unwrap().path().display()))).sum()
        };
        // The lowest of several measurements counts, because other load only raises the cost of a wake.
        let look = || {
            let (began, before, woken) = (Instant::now(), used(), wakes());
            std::thread::sleep(Duration::from_millis(500));
            let time = began.elapsed().as_secs_f64();
            ((used() - before).as_secs_f64() / time, (wakes() - woken) as f64 / time)
        };
        let is_next_to_nothing = |(share, wakes): &(f64, f64)| *share < SHARE && *wakes < WAKES;
        let mut looks = Vec::new();
        while looks.len() < 2 || (looks.len() < 40 && !looks.iter().any(is_next_to_nothing)) {
            looks.push(look());
        }
        eprintln!("idle rank, fraction of a core and wakes per second: {looks:?}");
        assert!(looks.iter().any(is_next_to_nothing), "{looks:?}");
        world.barrier().unwrap();
        world.finish().unwrap();
    });
}
