//! The first start of a front end, which creates objects for the life of the process. Each refused allocation therefore
//! has its own process: its first run is refused, and the next ones succeed. The programs that act as the NCCL plugin
//! and as NVSHMEM's transport share this file.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::trials::Outcome;
use crate::{allocator, child};

/// The variable by which users name the fabric.
const FABRIC: &str = "TRUNKLINE_FABRIC";
const NTH: &str = "TRUNKLINE_REFUSALS_START";

/// Returns the allocation that this process is to refuse, if it is a child; 0 refuses none.
pub(crate) fn asked() -> Option<u64> {
    std::env::var(NTH).ok()?.parse().ok()
}

/// Executes the first run and two more. Prints how many large allocations the first one made and how many remain.
pub(crate) fn play(life: impl Fn() -> Outcome) {
    let nth = asked().unwrap_or(0);
    trunkline_mem::refuse_mappings(allocator::refuses);
    child::watch_panics();
    allocator::arm(nth);
    let first = life();
    let seen = end_refusals();
    println!();
    println!("first {first:?}");
    assert!(nth != 0 || first.is_ok(), "the first run failed without a refusal: {first:?}");
    for _ in 0..2 {
        life().unwrap();
    }
    let panics = child::panics();
    assert!(panics.is_empty(), "{panics:?}");
    println!("seen {seen} live {}", large_left());
}

/// Ends the refusals, and returns how many large allocations there were.
fn end_refusals() -> u64 {
    allocator::disarm().len() as u64
}

/// Large allocations that are not freed.
pub(crate) fn large_left() -> i64 {
    allocator::live().0
}

/// Executes `play` in a process whose environment names the software NIC: in this one, or in a child that it waits for.
pub(crate) fn with_software_nics(wire: &str, play: impl FnOnce()) {
    if std::env::var(FABRIC).is_ok_and(|fabric| fabric == wire) {
        return play();
    }
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program).args(std::env::args_os().skip(1)).env(FABRIC, wire).status().unwrap();
    assert!(status.success(), "the child ended with {status}");
}

fn start(nth: u64, environment: &[(&str, PathBuf)]) -> Output {
    child::child_command().envs(environment.iter().cloned()).env(NTH, nth.to_string()).output().unwrap()
}

/// Returns the numbers that a child has printed, or the output of a child without them.
fn numbers(out: &Output) -> Result<(u64, i64), String> {
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("seen "));
    let words = line.and_then(|line| line.split_once(" live ")).filter(|_| out.status.success());
    let numbers = words.and_then(|(seen, live)| Some((seen.parse().ok()?, live.parse().ok()?)));
    numbers.ok_or_else(|| {
        format!("the child ended with {}\n{text}\n{}", out.status, String::from_utf8_lossy(&out.stderr))
    })
}

/// Refuses each large allocation of the first run, or three of them.
pub(crate) fn all_hold(environment: &[(&str, PathBuf)]) {
    let (count, left) = numbers(&start(0, environment)).unwrap();
    let all = std::env::var("TRUNKLINE_FULL").is_ok_and(|full| full == "1");
    let stride = if all { 1 } else { count.div_ceil(3).max(1) };
    let mut wrong = Vec::new();
    let mut trials = 0;
    for nth in (1..=count).step_by(stride as usize) {
        trials += 1;
        match numbers(&start(nth, environment)) {
            // A trace for which the allocation failed is not recorded, and holds no memory.
            Ok((_, live)) if live <= left => {}
            Ok((_, live)) => wrong
                .push(format!("allocation {nth} refused: {live} large allocations remain, expected {left}")),
            Err(why) => wrong.push(format!("allocation {nth} refused: {why}")),
        }
        if let Some(last) = wrong.last() {
            eprintln!("{last}");
        }
    }
    eprintln!("the first init: {trials} trials of {count} allocations");
    assert!(wrong.is_empty() && count > 0, "{} of {trials} trials failed", wrong.len());
}
