//! The provider through the real libfabric, each case in a process of its own, as libfabric reads its environment once.
//!
//! A case is a function that runs in a child: this program again, told by `STRICT_CASE`. The parent looks at how the child
//! ended and at the report: exactly the violations that the case names, and none where it names none.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a block stands for an inline function of C's headers"
)]

mod breaking;
mod fi;
mod keeping;
mod pairs;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program in a child.
struct Case {
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// What each line of violation says, in order.
    violations: &'static [&'static str],
    run: fn(),
}

fn cases() -> Vec<&'static Case> {
    let leaves = std::slice::from_ref(&keeping::LEAVES);
    [keeping::CASES, leaves, breaking::CASES, pairs::CASES].into_iter().flatten().collect()
}

/// Not a test of its own: what a child runs.
#[test]
fn child() {
    let Ok(name) = std::env::var("STRICT_CASE") else { return };
    let case = cases().into_iter().find(|case| case.name == name).expect("a case of that name");
    (case.run)();
}

/// Notes a skip where libfabric is not there, and fails where it must be; `false` then.
fn is_possible(name: &str) -> bool {
    let Err(reason) = fi::library() else { return true };
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == "ofi"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot note a skip: {noted:?}");
    }
    false
}

/// A child with a case, whose provider is found in a folder.
fn start(case: &Case, folder: &Path, report: &Path, more: &[(&str, &str)]) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(&program);
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    command.env("STRICT_CASE", case.name).env("FI_PROVIDER_PATH", folder).env("FI_PROVIDER", "strict");
    // Other providers of libfabric write into the working folder when a process aborts.
    command.current_dir(folder).env("HFI_NO_BACKTRACE", "1");
    command.env("FI_STRICT_REPORT", report).env("STRICT_FOLDER", folder);
    command.envs(case.env.iter().copied()).envs(more.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A folder with the provider under the name that libfabric looks for.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    strict_fi::place_in(folder.path()).unwrap();
    folder
}

/// Waits for a child; what it said.
fn finish(case: &Case, mut child: Child) -> (bool, String) {
    let end = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{} does not end", case.name);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a case and looks at what it did; the report.
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
        // They meet again and again until they have read of it.
        found.dedup();
    }
    let fits = found.len() == case.violations.len()
        && found.iter().zip(case.violations).all(|(line, words)| line.contains(words));
    assert!(fits, "{}: {found:#?} instead of {:#?}", case.name, case.violations);
    report
}

/// What the accounts of a process say of one thing, added up.
fn sum(report: &str, of: &str) -> u64 {
    let accounts = report.lines().filter(|line| line.starts_with('{'));
    accounts.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()[of].as_u64().unwrap()).sum()
}

#[test]
fn weather_is_what_was_asked_for() {
    if is_possible("weather of libfabric") {
        let calm = check(keeping::CASES.iter().find(|case| case.name == "traffic").unwrap());
        let rough = check(keeping::CASES.iter().find(|case| case.name == "traffic, told again").unwrap());
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
fn programs_that_keep_the_rules_work() {
    if is_possible("programs that keep the rules of libfabric") {
        check_all(keeping::CASES);
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    if is_possible("programs that break the rules of libfabric") {
        check_all(breaking::CASES);
    }
}

#[test]
fn two_processes_talk() {
    if is_possible("libfabric between two processes") {
        pairs::run();
    }
}

#[test]
fn what_a_process_leaves_behind_is_in_its_account() {
    if is_possible("the account of a process that leaves objects of libfabric") {
        let report = check(&keeping::LEAVES);
        let line = report.lines().find(|line| line.starts_with('{')).expect("an account");
        let account: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(account["strict"], "exit", "{line}");
        let live = serde_json::json!({ "endpoints": 2, "registrations": 1, "queues": 2, "vectors": 2 });
        assert_eq!(account["live"], live, "{line}");
        let operations = serde_json::json!({ "inject": 1, "recv": 1 });
        assert_eq!((&account["operations"], &account["domain"]), (&operations, &"strict0".into()), "{line}");
    }
}

#[test]
fn a_violation_ends_the_process_where_that_is_asked_for() {
    if is_possible("a violation of libfabric's rules that aborts") {
        let (folder, case) = (folder(), &breaking::CASES[0]);
        let child = start(case, folder.path(), &folder.path().join("report"), &[("FI_STRICT_ABORT", "1")]);
        let (is_good, said) = finish(case, child);
        assert!(!is_good && said.contains(case.violations[0]), "{said}");
    }
}
