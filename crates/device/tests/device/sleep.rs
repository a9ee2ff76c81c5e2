//! The executor's thread sleeps while it has no work, uses no processor time then, and is woken by a doorbell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trunkline_device_queue::TicketPoll;
use trunkline_proto::wire::device_queue::{EntryWork, QueueEntry};

use crate::ranks::{NEAR, SHM, done, patience, ranks};

/// Returns the jiffies that threads of executors have used so far.
fn jiffies() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let of_executors = stats.filter(|stat| stat.contains("(trunkline-devq)"));
    let used = |stat: String| {
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|n| n.parse().unwrap())
            .collect();
        fields.iter().sum::<u64>()
    };
    of_executors.map(used).sum()
}

/// Returns the jiffies of a thread that polls and yields for a second and a half.
fn busy_for() -> u64 {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        std::thread::yield_now();
    }
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec.cast_unsigned() * 100 + used.tv_nsec.cast_unsigned() / 10_000_000
}

/// Runs a test in its own process, because other tests have executors, too.
fn run_alone(name: &str, run: impl FnOnce()) {
    if std::env::var_os("TRUNKLINE_TEST_ALONE").is_some() {
        return run();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env("TRUNKLINE_TEST_ALONE", "1");
    let output = command.output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn idle_queues_use_no_processor_time() {
    run_alone("sleep::idle_queues_use_no_processor_time", || {
        let ranks = ranks(2, SHM);
        let queues: Vec<_> = (0..200).map(|_| ranks[0].queues.make_queue(2).unwrap()).collect();
        for queue in &queues {
            done(queue, &[ranks[0].inline(&[1; 8], 1, 0)]);
        }
        std::thread::sleep(Duration::from_millis(50));
        let before = jiffies();
        let busy = std::thread::spawn(busy_for).join().unwrap();
        let used = jiffies() - before;
        println!(
            "two executors used {used} jiffies while 200 queues were idle; a thread that never sleeps uses {busy}"
        );
        // A tenth of the processor time that this machine leaves for a busy thread, per executor.
        assert!(used <= 4 + busy / 5, "{used} jiffies while idle; a thread that never sleeps uses {busy}");
    });
}

/// An entry waits for another one for a long time, and the executor sleeps briefly between its passes. A thread that
/// only yields never sleeps.
#[test]
fn stalled_work_uses_little_processor_time() {
    run_alone("sleep::stalled_work_uses_little_processor_time", || {
        let ranks = ranks(1, SHM);
        let [queue, other] = [2, 2].map(|depth| ranks[0].queues.make_queue(depth).unwrap());
        let first = done(&other, &[ranks[0].inline(&[1; 8], 0, 0)]);
        let next = EntryWork::Wait { queue: first.queue, index: first.index + 1 };
        let ticket = queue.post(&[QueueEntry::new(next)], &mut patience()).unwrap();
        let (began, mut asleep) = (Instant::now(), 0);
        while asleep < 20 {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the thread was found asleep only {asleep} times"
            );
            std::thread::sleep(Duration::from_millis(1));
            asleep += executors().iter().filter(|(_, sleeps)| *sleeps).count();
        }
        assert_eq!(queue.poll(ticket), Ok(TicketPoll::Busy));
        done(&other, &[ranks[0].inline(&[1; 8], 0, 0)]);
        queue.wait(ticket, &mut patience()).unwrap();
    });
}

/// Returns the threads of executors, and whether each sleeps.
fn executors() -> Vec<(std::path::PathBuf, bool)> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = threads.filter_map(|thread| {
        let path = thread.ok()?.path().join("stat");
        let stat = std::fs::read_to_string(&path).ok()?;
        let sleeps = stat.rsplit(')').next()?.trim_start().starts_with('S');
        stat.contains("(trunkline-devq)").then_some((path, sleeps))
    });
    stats.collect()
}

/// The waiter polls only, so the doorbell alone must wake the executor.
#[test]
fn doorbell_wakes_a_thread_that_falls_asleep() {
    let before = executors();
    let ranks = ranks(1, NEAR);
    let queue = ranks[0].queues.make_queue(2).unwrap();
    // The thread gets its name when it first runs.
    done(&queue, &[ranks[0].signal(0, 0, 1)]);
    let (thread, _) = executors().into_iter().find(|one| before.iter().all(|old| old.0 != one.0)).unwrap();
    let sleeps = || std::fs::read_to_string(&thread).is_ok_and(|stat| stat.contains(") S "));
    let mut slowest = Duration::ZERO;
    for round in 0..600_u64 {
        if round % 50 == 0 {
            // By now the thread sleeps, whatever the load of this machine.
            std::thread::sleep(Duration::from_millis(20));
        }
        // The time for which it stays awake, or the time until it has just fallen asleep, which is late on a busy machine.
        let (pause, turn) = (Instant::now(), round % 60);
        let limit = if round % 2 == 0 { 60 + 3 * turn } else { 50_000 };
        while pause.elapsed() < Duration::from_micros(limit) && (round % 2 == 0 || !sleeps()) {
            std::hint::spin_loop();
        }
        let rang = Instant::now();
        let ticket = queue.post(&[ranks[0].signal(0, 0, 1)], &mut patience()).unwrap();
        while queue.poll(ticket) == Ok(TicketPoll::Busy) {
            std::thread::yield_now();
            assert!(rang.elapsed() < Duration::from_millis(1500), "the thread was not woken, round {round}");
        }
        slowest = slowest.max(rang.elapsed());
    }
    println!("the slowest of 600 entries was executed after {slowest:?}");
}

/// A producer has a reservation, is not scheduled for a while, and then publishes. Another producer that cancels a
/// later reservation waits for the publication, and does not abort the queue.
#[test]
fn cancel_waits_for_a_delayed_producer() {
    let ranks = ranks(2, NEAR);
    let queue = ranks[0].queues.make_queue(8).unwrap();
    let (first, second) = (queue.reserve_entries(1).unwrap(), queue.reserve_entries(1).unwrap());
    let arrived = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let canceled = scope.spawn(|| {
            arrived.store(true, Ordering::Relaxed);
            second.cancel();
        });
        while !arrived.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // A thread that does not wait would have ended long before.
        std::thread::sleep(Duration::from_millis(25));
        assert!(!canceled.is_finished(), "the cancel did not wait for the publication");
        let ticket = first.publish().unwrap();
        queue.submit(ticket.index + 1);
        canceled.join().unwrap();
        assert_eq!(queue.abort_word(), None);
        queue.wait(ticket, &mut patience()).unwrap();
        done(&queue, &[ranks[0].inline(&[1; 8], 1, 0)]);
    });
}
