//! Ranks that make no call, in the default configuration: they serve others all the same, in time, and cost next to nothing while
//! nobody asks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use trunkline::{Compare, Error, SignalOp, World};

use crate::over::FOLDER;
use crate::ranks::run_over;

/// Where it is promised.
const PROMISED: [&str; 3] = ["soft:shm", "soft:tcp", "ofi:tcp"];
/// How long a rank makes no call.
const COMPUTES: Duration = Duration::from_secs(2);
/// How often it does, on a machine that has much else to do.
const PERIODS: usize = 5;
/// What each operation may take then.
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

/// How long an operation takes.
fn timed(operation: impl FnOnce() -> Result<(), Error>) -> Duration {
    let began = Instant::now();
    operation().unwrap();
    began.elapsed()
}

#[test]
fn a_rank_that_computes_serves_each_operation_in_time() {
    // And over the one where only calls make progress.
    let all = [PROMISED[0], PROMISED[1], PROMISED[2], "ofi:strict"];
    run_over(&all, "passive::a_rank_that_computes_serves_each_operation_in_time", 2, |world: World| {
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
        // Both have links before one of them falls silent.
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
                // Each time the other is asleep.
                std::thread::sleep(Duration::from_millis(15));
                round += 1;
                for (at, time) in each(round).into_iter().enumerate() {
                    // What ends later may have been served by the barrier.
                    best[at] = if ends.exists() { best[at] } else { best[at].min(time) };
                }
            }
            // What else runs here may take the processor from any one of them: the best counts, in another period if need be.
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

/// Operations of a batch, batches at most, and sleeps of the other rank that a batch may have: those of other causes.
const BATCH: usize = 200;
const BATCHES: usize = 50;
const FEW: u64 = 5;

/// How often a thread has gone to sleep: the clock tells more of what else runs here.
fn sleeps_of(status: &str) -> u64 {
    let status = std::fs::read_to_string(status).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn a_rank_that_waits_for_long_is_awake_for_others() {
    run_over(&PROMISED, "passive::a_rank_that_waits_for_long_is_awake_for_others", 2, |world: World| {
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
            // Until the other one has long had nothing to do; it looks often before it sleeps, and longer where much else runs.
            std::thread::sleep(Duration::from_secs(1));
            (0..BATCHES / 5).for_each(|_| _ = sleeps_of_a_batch());
            // It may sleep where this rank itself was kept from its processor.
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

/// Of a core, of a rank that nobody asks: on a quiet machine of 2026 it takes half a percent, which much else there can make five times as dear.
const SHARE: f64 = 0.05;
/// Wakes a second of all its threads: one in four milliseconds, and what this test does itself.
const WAKES: f64 = 300.0;

#[test]
fn a_rank_that_nobody_asks_takes_next_to_no_processor() {
    run_over(&PROMISED, "passive::a_rank_that_nobody_asks_takes_next_to_no_processor", 2, |world: World| {
        let data = world.alloc::<u64>(100).unwrap();
        // Links are what there is to look at.
        world.put(1 - world.rank(), &data, &[7; 100]).unwrap();
        world.barrier().unwrap();
        assert!(world.is_passive(), "by default");
        let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
        let wakes = || -> u64 {
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            threads.map(|thread| sleeps_of(&format!("{}/status", thread.unwrap().path().display()))).sum()
        };
        // The least of several: others that run here make each wake dearer, not cheaper. More of them where it is busy.
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
        eprintln!("idle, of a core and wakes a second: {looks:?}");
        assert!(looks.iter().any(is_next_to_nothing), "{looks:?}");
        world.barrier().unwrap();
        world.finish().unwrap();
    });
}
