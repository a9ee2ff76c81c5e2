//! The executor's thread sleeps when there is nothing, costs nothing then, and is woken by who rings.

use std::time::{Duration, Instant};

use trunkline_devq::Poll;

use crate::ranks::{NEAR, SHM, done, patience, ranks};

/// Jiffies that threads of executors have used so far.
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

/// In a process of its own, as other tests have executors, too.
#[test]
fn idle_queues_cost_no_processor() {
    if std::env::var_os("TRUNKLINE_TEST_IDLE").is_none() {
        let own = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(own);
        command.args(["--exact", "sleep::idle_queues_cost_no_processor", "--nocapture"]);
        let output = command.env("TRUNKLINE_TEST_IDLE", "1").output().unwrap();
        println!("{}", String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let ranks = ranks(2, SHM);
    let queues: Vec<_> = (0..200).map(|_| ranks[0].queues.queue(2).unwrap()).collect();
    for queue in &queues {
        done(queue, &[ranks[0].inline(&[1; 8], 1, 0)]);
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = jiffies();
    std::thread::sleep(Duration::from_millis(1500));
    let used = jiffies() - before;
    println!("two executors used {used} of 150 jiffies each while 200 queues were idle");
    // Of each of two processors a tenth.
    assert!(used <= 30, "{used} jiffies for nothing");
}

/// Nobody waits in a way that tells the executor so.
#[test]
fn whoever_rings_wakes_a_thread_that_is_about_to_sleep() {
    let ranks = ranks(1, NEAR);
    let queue = ranks[0].queues.queue(2).unwrap();
    let mut slowest = Duration::ZERO;
    for round in 0..600_u64 {
        if round % 50 == 0 {
            // It sleeps by now, whatever else this machine does.
            std::thread::sleep(Duration::from_millis(20));
        }
        // About as long as it stays awake.
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(60 + 3 * (round % 60)) {
            std::hint::spin_loop();
        }
        let rang = Instant::now();
        let ticket = queue.post(&[ranks[0].signal(0, 0, 1)], &mut patience()).unwrap();
        while queue.poll(ticket) == Ok(Poll::Busy) {
            std::thread::yield_now();
            assert!(rang.elapsed() < Duration::from_millis(1500), "nobody has woken it, round {round}");
        }
        slowest = slowest.max(rang.elapsed());
    }
    println!("the slowest of 600 was executed after {slowest:?}");
}
