//! The process of a trial: how the tests start it, the resources that it holds, and its panics.

use std::panic;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::allocator;

/// Panics since the last check, except those of the tests' own code.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The resources that a process holds. Each of them reveals a leak: the heaps of [`trunkline_mem::Memory`] are
/// mappings, which bypass the allocator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Standing {
    pub(crate) descriptors: usize,
    pub(crate) memory_files: usize,
    pub(crate) threads: usize,
    pub(crate) heaps: usize,
    pub(crate) large: i64,
    pub(crate) bytes: i64,
}

impl Standing {
    pub(crate) fn now() -> Self {
        let entries = |of: &str| std::fs::read_dir(of).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let memory_files = maps.lines().filter(|line| line.contains("/memfd:")).count();
        drop(maps);
        let (descriptors, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
        let (large, bytes) = allocator::live();
        Self { descriptors, memory_files, threads, heaps: trunkline_mem::live_heaps(), large, bytes }
    }
}

/// Starts this program for the test `a_child_plays_its_trials` alone.
pub(crate) fn child_command() -> Command {
    let program = std::env::current_exe()
        .unwrap_or_else(|error| panic!("cannot find the path of this test program: {error}"));
    let mut command = Command::new(program);
    command.args(["--exact", "a_child_plays_its_trials", "--nocapture", "--test-threads=1"]);
    // An abort then prints where it happened.
    command.env("RUST_BACKTRACE", "1");
    command
}

pub(crate) fn panics() -> MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records panics, except those by which the tests' own code reports an error.
pub(crate) fn watch_panics() {
    panic::set_hook(Box::new(|info| {
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        if !at.contains("/conformance/") && !at.contains("tests/refusals/") {
            panics().push(format!("{info}"));
        }
    }));
}
