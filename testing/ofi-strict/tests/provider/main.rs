//! Tests the provider through the real libfabric, each case in its own process, because libfabric reads its
//! environment once.
//!
//! A case is a function that runs in a child: this program again, with the name of the case in `STRICT_CASE`. The
//! parent checks the child's exit status and its report: exactly the violations of the case, or none.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at an unexpected error")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each block replaces an inline function of C's headers"
)]

mod breaking;
mod fi;
mod keeping;
mod pairs;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that runs in a child.
struct Case {
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// Texts of the expected violations, in order.
    violations: &'static [&'static str],
    run: fn(),
}

fn cases() -> Vec<&'static Case> {
    let leaves = std::slice::from_ref(&keeping::LEAVES);
    [keeping::CASES, leaves, breaking::CASES, pairs::CASES].into_iter().flatten().collect()
}

/// Runs a case in a child; passes at once otherwise.
#[test]
fn child() {
    let Ok(name) = std::env::var("STRICT_CASE") else { return };
    let case =
        cases().into_iter().find(|case| case.name == name).expect("STRICT_CASE names an existing case");
    (case.run)();
}

/// Returns whether libfabric is available. Without it notes a skip, or fails if `TRUNKLINE_REQUIRE` contains `ofi`.
fn is_possible(name: &str) -> bool {
    let Err(reason) = fi::library() else { return true };
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == "ofi"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot write to TRUNKLINE_SKIP_LOG: {noted:?}");
    }
    false
}

/// Starts a child with a case and the folder of the provider.
fn start(case: &Case, folder: &Path, report: &Path, more: &[(&str, &str)]) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(&program);
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    command.env("STRICT_CASE", case.name).env("FI_PROVIDER_PATH", folder).env("FI_PROVIDER", "strict");
    // Other providers of libfabric write a backtrace into the working folder when a process aborts.
    command.current_dir(folder).env("HFI_NO_BACKTRACE", "1");
    command.env("FI_STRICT_REPORT", report).env("STRICT_FOLDER", folder);
    command.envs(case.env.iter().copied()).envs(more.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns a folder with the provider's library under the name that libfabric expects.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    strict_fi::place_in(folder.path()).unwrap();
    folder
}

/// Waits for a child; returns whether it succeeded, and its output.
fn finish(case: &Case, mut child: Child) -> (bool, String) {
    let end = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("case {} did not end within 120 s", case.name);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a case and checks its violations; returns the report.
fn check(case: &Case) -> String {
    let folder = folder();
    let report = folder.path().join("report");
    let (is_good, said) = finish(case, start(case, folder.path(), &report, &[]));
    assert!(is_good, "{}: {said}", case.name);
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    let mut found: Vec<_> =
        report.lines().filter_map(|line| line.strip_prefix("strict: violation: ")).collect();
    let loud = said.lines().filter(|line| line.contains("strict: violation: ")).count();
    assert_eq!(loud, found.len(), "{}: {said}", case.name);
    if case.name.starts_with("two threads") {
        // The violation repeats until the threads have read it in the report.
        found.dedup();
    }
    let fits = found.len() == case.violations.len()
        && found.iter().zip(case.violations).all(|(line, words)| line.contains(words));
    assert!(fits, "{}: {found:#?} instead of {:#?}", case.name, case.violations);
    report
}

/// Returns the sum of one number over the accounts of a report.
fn sum(report: &str, of: &str) -> u64 {
    let accounts = report.lines().filter(|line| line.starts_with('{'));
    accounts.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()[of].as_u64().unwrap()).sum()
}

#[test]
fn eagain_occurs_only_on_request() {
    if is_possible("EAGAIN of libfabric") {
        let calm = check(keeping::CASES.iter().find(|case| case.name == "traffic").unwrap());
        let rough = check(keeping::CASES.iter().find(|case| case.name == "traffic with EAGAIN").unwrap());
        assert_eq!(sum(&calm, "eagain"), 0);
        assert!(sum(&rough, "eagain") > 100, "{rough}");
    }
}

fn check_all(table: &'static [Case]) {
    for case in table {
        check(case);
        println!("{}: as expected", case.name);
    }
}

#[test]
fn correct_programs_cause_no_violation() {
    if is_possible("programs that keep the rules of libfabric") {
        check_all(keeping::CASES);
    }
}

#[test]
fn every_broken_rule_is_reported() {
    if is_possible("programs that break the rules of libfabric") {
        check_all(breaking::CASES);
    }
}

#[test]
fn two_processes_communicate() {
    if is_possible("libfabric between two processes") {
        pairs::run();
    }
}

#[test]
fn account_lists_objects_left_open() {
    if is_possible("the account of a process with open objects of libfabric") {
        let report = check(&keeping::LEAVES);
        let line = report.lines().find(|line| line.starts_with('{')).expect("the report contains an account");
        let account: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(account["strict"], "exit", "{line}");
        let live = serde_json::json!({ "endpoints": 2, "registrations": 1, "queues": 2, "vectors": 2 });
        assert_eq!(account["live"], live, "{line}");
        let operations = serde_json::json!({ "inject": 1, "recv": 1 });
        assert_eq!((&account["operations"], &account["domain"]), (&operations, &"strict0".into()), "{line}");
    }
}

#[test]
fn violation_aborts_the_process_on_request() {
    if is_possible("a violation of libfabric's rules that aborts") {
        let (folder, case) = (folder(), &breaking::CASES[0]);
        let child = start(case, folder.path(), &folder.path().join("report"), &[("FI_STRICT_ABORT", "1")]);
        let (is_good, said) = finish(case, child);
        assert!(!is_good && said.contains(case.violations[0]), "{said}");
    }
}
