//! Starts this test program again as the ranks of one test.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use trunkline::{World, WorldBuilder};
use trunkline_bootstrap::{JobSecret, free_port, trunkline_run};

use crate::over::{NICS, Over};

/// The time after which ranks are killed, and the test fails. Ten thousand rounds of 10 MiB both ways, which run with
/// `TRUNKLINE_FULL`, take minutes.
fn limit() -> Duration {
    Duration::from_secs(if std::env::var_os("TRUNKLINE_FULL").is_some() { 1800 } else { 120 })
}

/// The exit status of a rank that dies on purpose.
pub(crate) const DIES: i32 = 77;

/// Returns whether this process is a rank that a test started.
pub(crate) fn is_rank() -> bool {
    std::env::var_os(trunkline_run::RANK).is_some()
}

/// Runs `rank` in each of `size` processes, over each fabric. Called first in the test of that name.
pub(crate) fn run(name: &str, size: usize, rank: impl FnOnce(World)) {
    run_as(name, size, &|status| status == Some(0), World::builder, rank);
}

/// As [`run`], over those of these fabrics that are installed, with one NIC.
pub(crate) fn run_over(fabrics: &[&str], name: &str, size: usize, rank: impl FnOnce(World)) {
    run_over_as(fabrics, name, size, World::builder, rank);
}

/// As [`run`], over shared memory, with additional variables in the environment of ranks.
pub(crate) fn run_within(environment: &[(&str, &OsStr)], name: &str, size: usize, rank: impl FnOnce(World)) {
    let plain = Over::here(name).into_iter().filter(|over| over.is_plain() && over.fabric() == "soft:shm");
    over_each_within(environment, plain, name, size, &|status| status == Some(0), World::builder, rank);
}

/// The same over these fabrics; `ends` accepts the exit statuses of ranks.
pub(crate) fn run_within_over(
    environment: &[(&str, &OsStr)],
    fabrics: &[&str],
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    rank: impl FnOnce(World),
) {
    let plain =
        Over::here(name).into_iter().filter(|over| over.is_plain() && fabrics.contains(&over.fabric()));
    over_each_within(environment, plain, name, size, ends, World::builder, rank);
}

/// The same with a world of this builder, except for its NICs.
pub(crate) fn run_over_as(
    fabrics: &[&str],
    name: &str,
    size: usize,
    builder: impl FnOnce() -> WorldBuilder,
    rank: impl FnOnce(World),
) {
    let plain =
        Over::here(name).into_iter().filter(|over| over.is_plain() && fabrics.contains(&over.fabric()));
    over_each(plain, name, size, &|status| status == Some(0), builder, rank);
}

/// The same over these fabrics; `ends` accepts the exit statuses of ranks.
pub(crate) fn run_over_ends(
    fabrics: &[&str],
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    rank: impl FnOnce(World),
) {
    let plain =
        Over::here(name).into_iter().filter(|over| over.is_plain() && fabrics.contains(&over.fabric()));
    over_each(plain, name, size, ends, World::builder, rank);
}

/// The same over each fabric, with a world of this builder, except for its NICs; `ends` accepts the exit statuses.
pub(crate) fn run_as(
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    builder: impl FnOnce() -> WorldBuilder,
    rank: impl FnOnce(World),
) {
    over_each(Over::here(name), name, size, ends, builder, rank);
}

fn over_each(
    all: impl IntoIterator<Item = Over>,
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    builder: impl FnOnce() -> WorldBuilder,
    rank: impl FnOnce(World),
) {
    over_each_within(&[], all, name, size, ends, builder, rank);
}

fn over_each_within(
    environment: &[(&str, &OsStr)],
    all: impl IntoIterator<Item = Over>,
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    builder: impl FnOnce() -> WorldBuilder,
    rank: impl FnOnce(World),
) {
    if is_rank() {
        let nics = std::env::var(NICS).ok().and_then(|nics| nics.parse().ok()).unwrap_or(1);
        // Ranks end when the test is killed.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        let numbers: Vec<usize> = (0..nics).collect();
        return rank(builder().nics(&numbers).unwrap().start().unwrap());
    }
    for over in all {
        let folder = tempfile::tempdir().unwrap();
        over.prepare(folder.path());
        let began = Instant::now();
        let statuses = start(name, size, over, folder.path(), environment);
        println!("{over:?}: {:?}", began.elapsed());
        assert!(statuses.iter().all(|&status| ends(status)), "{over:?}: the ranks ended with {statuses:?}");
        over.look_at(folder.path(), statuses.iter().all(|&status| status == Some(0)).then_some(size));
    }
}

/// Starts the ranks and returns their exit statuses; `None` for a killed rank.
fn start(
    name: &str,
    size: usize,
    over: Over,
    folder: &Path,
    environment: &[(&str, &OsStr)],
) -> Vec<Option<i32>> {
    let port = free_port().unwrap();
    let secret = JobSecret::random().unwrap().to_hex();
    let spawn = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).stdout(Stdio::null());
        command.env(trunkline_run::RANK, rank.to_string()).env(trunkline_run::SIZE, size.to_string());
        command
            .env(trunkline_run::LOCAL_RANK, rank.to_string())
            .env(trunkline_run::LOCAL_SIZE, size.to_string());
        command.env(trunkline_run::STORE, format!("127.0.0.1:{port}")).env(trunkline_run::SECRET, &secret);
        command.env("NCCL_SOCKET_IFNAME", "=lo").envs(over.environment(rank, folder));
        command.envs(environment.iter().copied());
        command.spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..size).map(spawn).collect();
    let until = Instant::now() + limit();
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        if Instant::now() > until {
            eprintln!("{over:?}: ranks hang");
            children.iter_mut().for_each(|child| drop(child.kill()));
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    children.iter_mut().map(|child| child.wait().unwrap().code()).collect()
}
