//! Ranks that make no call, in the default configuration: they serve others all the same, in time, and cost next to nothing while
//! nobody asks.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use trunkline::{Error, SignalOp, World};

use crate::ranks::run_over;

/// Where it is promised, and where only calls make progress.
const PROMISED: [&str; 4] = ["soft:shm", "soft:tcp", "ofi:tcp", "ofi:strict"];
/// How long a rank makes no call.
const COMPUTES: Duration = Duration::from_secs(2);
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
    run_over(&PROMISED, "passive::a_rank_that_computes_serves_each_operation_in_time", 2, |world: World| {
        let data = world.alloc::<u64>(100).unwrap();
        let sum = world.alloc_one::<u64>().unwrap();
        let count = world.alloc_one::<u64>().unwrap();
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
        world.barrier().unwrap();
        if world.rank() == 1 {
            compute(COMPUTES);
            let sum = sum.load();
            assert!(sum > 2, "nobody asked");
            world.barrier().unwrap();
        } else {
            let began = Instant::now();
            let mut times: [Vec<Duration>; 4] = Default::default();
            // Each round finds the other asleep, and the last one ends well before that makes a call.
            for round in 1.. {
                std::thread::sleep(Duration::from_millis(15));
                times.iter_mut().zip(each(round)).for_each(|(times, time)| times.push(time));
                if began.elapsed() > COMPUTES * 3 / 4 {
                    break;
                }
            }
            let names = ["put with quiet", "get", "fetch-add", "signal with quiet"];
            for (name, times) in names.into_iter().zip(&mut times) {
                times.sort_unstable();
                // What else runs here may take the processor from any one of them: the best quarter counts.
                let (quarter, median) = (times[times.len() / 4], times[times.len() / 2]);
                eprintln!("{name}: {quarter:?}, {median:?}, {:?}, {}", times[times.len() - 1], times.len());
                assert!(quarter < SERVED, "{name}: {times:?}");
            }
            world.barrier().unwrap();
        }
        world.finish().unwrap();
    });
}

#[test]
fn a_rank_that_nobody_asks_takes_next_to_no_processor() {
    run_over(&PROMISED, "passive::a_rank_that_nobody_asks_takes_next_to_no_processor", 2, |world: World| {
        let data = world.alloc::<u64>(100).unwrap();
        // Links are what there is to look at.
        world.put(1 - world.rank(), &data, &[7; 100]).unwrap();
        world.barrier().unwrap();
        assert!(world.is_passive(), "by default");
        let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
        // The least of several: others that run here make it dearer, not cheaper.
        let share = || {
            let (began, before) = (Instant::now(), used());
            std::thread::sleep(Duration::from_millis(500));
            (used() - before).as_secs_f64() / began.elapsed().as_secs_f64()
        };
        let mut shares = [(); 4].map(|()| share());
        shares.sort_unstable_by(f64::total_cmp);
        eprintln!("idle: {shares:?} of a core");
        assert!(shares[0] < 0.01, "{shares:?} of a core");
        world.barrier().unwrap();
        world.finish().unwrap();
    });
}
