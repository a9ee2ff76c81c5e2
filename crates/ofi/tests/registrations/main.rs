//! Registrations that several requests share, over real providers: for TCP, where each rail has its domain, and `strict`, where they are bound
//! to endpoints or belong to the domain. Each case runs in a process of its own for each of these, because `strict` reads its demands from the
//! environment; violations that it reports are checked when the process has ended.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod at_random;
#[path = "../common/mod.rs"]
mod common;
mod fences;
mod kit;
mod serving;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::kit::{Over, Setup, fabric};

/// A case to run in a child.
struct Case {
    name: &'static str,
    /// The providers over which it runs.
    over: &'static [Over],
    /// Additional environment variables.
    env: &'static [(&'static str, &'static str)],
    /// Texts of the violations that the case causes on purpose; only these may be reported.
    violations: &'static [&'static str],
    run: fn(&Setup),
}

impl Case {
    pub(crate) const fn new(name: &'static str, over: &'static [Over], run: fn(&Setup)) -> Self {
        Self { name, over, env: &[], violations: &[], run }
    }

    pub(crate) const fn env(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    pub(crate) const fn wrong(self, violations: &'static [&'static str]) -> Self {
        Self { violations, ..self }
    }
}

fn cases() -> impl Iterator<Item = &'static Case> {
    [serving::CASES, fences::CASES, at_random::CASES].into_iter().flatten()
}

/// Not a test of its own: the entry point of a child.
#[test]
fn child() {
    let (Ok(name), Ok(over)) = (std::env::var("REGISTRATIONS_CASE"), std::env::var("REGISTRATIONS_OVER"))
    else {
        return;
    };
    let case = cases().find(|case| case.name == name).expect("no case has that name");
    let over = Over::ALL.into_iter().find(|one| one.name() == over).expect("no provider has that name");
    match fabric(over) {
        Ok(fabric) => (case.run)(&Setup { over, fabric }),
        Err(why) => common::skip(&format!("{name} over {}", over.name()), &why),
    }
}

/// Runs a case in a child; returns its failure.
fn run(case: &Case, over: Over, folder: &Path) -> Result<(), String> {
    let report = folder.join(format!("{} {}", case.name, over.name()));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    command.env("REGISTRATIONS_CASE", case.name).env("REGISTRATIONS_OVER", over.name());
    if let Some(demands) = over.demands() {
        command.env("FI_PROVIDER_PATH", folder).env("FI_STRICT_MR", demands);
        command.env("FI_STRICT_REPORT", &report).envs(case.env.iter().copied());
    }
    command.env("RUST_BACKTRACE", "0");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(100);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            return Err("the child did not end within the limit".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    for line in said.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("{line}");
    }
    if !out.status.success() {
        return Err(said);
    }
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    let wrong: Vec<_> = report.lines().filter_map(|line| line.strip_prefix("strict: violation: ")).collect();
    let is_meant = |line: &&&str| case.violations.iter().any(|words| line.contains(words));
    if wrong.iter().all(|line| is_meant(&line)) { Ok(()) } else { Err(format!("{wrong:#?}")) }
}

/// Runs all cases of a table, each in a child per provider.
fn check(table: &'static [Case]) {
    let folder = tempfile::tempdir().unwrap();
    strict_fi::place_in(folder.path()).unwrap();
    let mut wrong = Vec::new();
    for case in table {
        for &over in case.over {
            if let Err(why) = run(case, over, folder.path()) {
                wrong.push(format!("{} over {}: {why}", case.name, over.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a10_repeated_requests_use_existing_registrations() {
    check(serving::CASES);
}

#[test]
fn nothing_lands_in_deregistered_memory() {
    check(fences::CASES);
}

#[test]
fn random_registering_threads_agree_with_a_model() {
    check(at_random::CASES);
}
