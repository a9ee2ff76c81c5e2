//! A program that uses the device header unchanged, as threads of this machine: groups and single threads as producers
//! in C++, and the engine of the Rust core. `scripts/device-header` compiles the same kernels for GPUs.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[allow(dead_code, reason = "the library for acts is not used here")]
#[path = "header/fixture.rs"]
mod fixture;
#[allow(dead_code, reason = "only one of the two worlds is used here")]
#[path = "header/twin.rs"]
mod twin;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use libloading::Library;
use trunkline_device_queue::{HeapWords, QueueView, WordMemory, allocate_words};
use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus};

use common::is_full;
use fixture::{compile, library, skip, symbol};
use twin::{Mode, Plan, World, own, pointer, views};

/// `tests::QueueJob` of `header/kernels.h`.
#[repr(C)]
struct Job {
    views: *const QueueView,
    lanes: u32,
    rounds: u32,
    channel: *mut u64,
    slots: *mut u64,
    group: *mut u64,
    results: *mut u64,
    looks: u64,
}

// SAFETY: the threads share the job by reference, and all words that it points to are atomics or never written.
unsafe impl Sync for Job {}

type Exercise = unsafe extern "C" fn(*const Job, u32, u32);

const SIGNAL: u64 = 0;
const COUNTER: u64 = 16;
const COUNTER_BASE: u64 = (16 + 1) * 8;

/// The results of the program.
struct Left {
    /// The number of failed operations of each thread.
    results: Vec<u64>,
    slots: HeapWords,
}

/// Runs the program with this number of threads, whose group has met before. Aborts all queues after `entries` entries
/// of the first lane have completed.
fn run(library: &Library, plan: Plan, threads: u32, rounds: u32, entries: u64) -> Left {
    let world = World::new(&plan, plan.mode == Mode::Device);
    let own: Vec<_> = match plan.mode {
        Mode::Device => world.queues.iter().map(|_| own(plan.first)).collect(),
        _ => Vec::new(),
    };
    let (views, results) = (views(&world, &own), allocate_words(u64::from(threads) * 8));
    // State of an earlier kernel: a verdict, and a number of meetings.
    for (at, word) in [(0, 7), (96, 5)] {
        world.group.store(at, word, Relaxed);
    }
    let job = Job {
        views: views.as_ptr(),
        lanes: plan.lanes,
        rounds,
        channel: pointer(&world.channel),
        slots: pointer(&world.slots),
        group: pointer(&world.group),
        results: pointer(&results),
        looks: 50_000_000,
    };
    let exercise = symbol::<Exercise>(library, "exercise");
    let left = AtomicU32::new(threads);
    thread::scope(|scope| {
        for rank in 0..threads {
            let (job, left) = (&job, &left);
            scope.spawn(move || {
                // SAFETY: the job's words outlive the scope.
                unsafe { exercise(job, rank, threads) };
                left.fetch_sub(1, Relaxed);
            });
        }
        let mut is_aborted = false;
        while left.load(Relaxed) > 0 {
            world.answer(false);
            if world.pass() == 0 {
                thread::yield_now();
            }
            if !is_aborted && world.completed(0).wrapping_sub(plan.first) >= entries {
                is_aborted = true;
                for queue in &world.queues {
                    queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 3 });
                }
            }
        }
    });
    let results = (0..u64::from(threads)).map(|rank| results.get(rank * 8)).collect();
    Left { results, slots: world.slots.clone() }
}

fn library_of(test: &str) -> Option<Library> {
    let library = library("kernels.cpp", "-O2");
    if library.is_none() {
        skip(test, "no C++ compiler (Debian: g++)");
    }
    library
}

const PLAN: Plan = Plan { mode: Mode::Device, lanes: 2, depth: 64, first: 0, checked: true };

/// Acceptance cases T9 and T11: every operation takes effect exactly once, and every thread of a group gets the same
/// result.
#[test]
fn threads_execute_a_program_exactly_once() {
    let Some(library) = library_of("a program by the device header") else { return };
    let rounds = if is_full() { 400 } else { 15 };
    for mode in [Mode::Bits, Mode::Bytes, Mode::Device] {
        for (threads, depth, first) in [(1, 2, 0), (3, 4, u64::MAX - 60), (4, 64, 0xffff_ff00)] {
            let plan = Plan { mode, depth, first, ..PLAN };
            let left = run(&library, plan, threads, rounds, u64::MAX);
            assert_eq!(left.results, vec![0; threads as usize], "{plan:?}: failed operations");
            let (threads, rounds) = (u64::from(threads), u64::from(rounds));
            assert_eq!(left.slots.get(SIGNAL), 3 + rounds * (2 + threads), "signals");
            assert_eq!(left.slots.get(COUNTER), 2 + 2 * rounds, "counted");
            assert_eq!(left.slots.get(COUNTER_BASE), 2, "the counter's base must be set");
            assert_eq!(
                (left.slots.get(48), left.slots.get(64)),
                (17, 6),
                "the maximum, and the swapped value"
            );
        }
    }
}

/// A wait that takes too long ends with a reason. It ends the program only if the budget requests that.
#[test]
fn spent_budget_ends_the_kernel_on_request() {
    use std::os::unix::process::ExitStatusExt as _;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("last_wait");
    if !compile("c++", "last_wait.cpp", &["-O2", "-o", program.to_str().unwrap()]) {
        return skip("a wait that ends a program by the device header", "no C++ compiler (Debian: g++)");
    }
    for by in ["looks", "time"] {
        let run = |more: &[&str]| Command::new(&program).arg(by).args(more).output().unwrap();
        let told = run(&[]);
        assert_eq!((told.status.code(), &told.stdout[..]), (Some(0), &b"4\n"[..]), "{by}: TIMEOUT");
        let died = run(&["dies"]);
        assert_eq!((died.status.signal(), &died.stdout[..]), (Some(6), &b""[..]), "{by}: SIGABRT");
    }
}

/// A signal that arrived before its slot failed is a success, even if both happened between two polls.
#[test]
fn signal_before_a_failure_is_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("late_failure");
    if !compile("c++", "late_failure.cpp", &["-O2", "-o", program.to_str().unwrap()]) {
        return skip("a failure between two polls of the device header", "no C++ compiler (Debian: g++)");
    }
    let told = Command::new(&program).output().unwrap();
    let told = (told.status.code(), String::from_utf8(told.stdout).unwrap());
    assert_eq!(told, (Some(0), "0 1\n0 1\n2 0\n".to_owned()), "GOOD and the value, twice, and POISONED");
}

/// Acceptance case T9: an abort ends all waits of all threads.
#[test]
fn abort_ends_all_waits_of_a_program() {
    let Some(library) = library_of("an abort of a program by the device header") else { return };
    for entries in [0, 1, 7, 20, 33] {
        let left = run(&library, PLAN, 3, 30, entries);
        assert!(left.results.iter().all(|failed| *failed > 0), "after {entries}: {:?}", left.results);
    }
}
