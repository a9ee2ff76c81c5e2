//! Tests get their testbed, fail in it, or are skipped without it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use trunkline_integration::testbed;

/// The variable that enables the tests below; without it they do nothing.
const PART: &str = "TEST_PART";

fn is_part() -> bool {
    std::env::var_os(PART).is_some()
}

/// A command that runs this program again, for one of the tests below.
fn play(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("worlds::{name}"), "--exact", "--nocapture"]).env(PART, "1").stdin(Stdio::null());
    command.env_remove("TRUNKLINE_SKIP_LOG").env_remove("TRUNKLINE_REQUIRE");
    command
}

fn said(output: &Output) -> String {
    [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat()
}

#[test]
fn part_that_fails() {
    if is_part() {
        testbed::run(|testbed| {
            testbed.add_host("host");
            panic!("the message of an inner failure");
        });
    }
}

#[test]
fn part_that_takes_too_long() {
    if is_part() {
        testbed::run_within(Duration::from_millis(500), |_| std::thread::sleep(Duration::from_secs(1000)));
    }
}

#[test]
fn part_that_ends_early() {
    if is_part() {
        testbed::run(|_| std::process::exit(0));
    }
}

#[test]
fn part_that_starts_a_process() {
    if is_part() {
        testbed::run(|testbed| {
            let host = testbed.add_host("host");
            // Writes directly to the test's own output, bypassing the outer program's capture.
            let path = std::env::var_os("TEST_PIPE").unwrap();
            let pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", "echo started; sleep 1000"]).stdout(pipe);
            let _running = host.start_process(&mut command).unwrap();
            std::thread::sleep(Duration::from_secs(1000));
        });
    }
}

#[test]
fn part_that_runs() {
    if is_part() {
        testbed::run(|testbed| drop(testbed.add_host("host")));
    }
}

/// Whether testbeds are possible here; otherwise counts a skip.
fn is_possible(name: &str) -> bool {
    let output = play("part_that_runs").output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let skipped = said.lines().find_map(|line| line.strip_prefix("SKIPPED worlds::part_that_runs: "));
    if let Some(reason) = skipped {
        trunkline_integration::skip_test(name, "hosts", reason);
    }
    skipped.is_none()
}

#[test]
fn inner_failures_fail_outside_with_their_message() {
    if !is_possible("worlds::inner_failures_fail_outside_with_their_message") {
        return;
    }
    for (part, words) in [
        ("part_that_fails", "the message of an inner failure"),
        ("part_that_takes_too_long", "stopped after 500ms"),
        ("part_that_ends_early", "did not run in its testbed"),
    ] {
        let output = play(part).output().unwrap();
        let said = said(&output);
        assert!(!output.status.success() && said.contains(words), "{part}: {said}");
    }
}

#[test]
fn without_namespaces_the_test_is_skipped_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("skips");
    // No program can be found: neither unshare nor ip.
    let mut command = play("part_that_runs");
    command.env("PATH", directory.path()).env("TRUNKLINE_SKIP_LOG", &log);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let noted = std::fs::read_to_string(&log).unwrap();
    assert!(noted.starts_with("worlds::part_that_runs: unshare (package util-linux): "), "{noted}");
    // If it is required, the test fails instead.
    let output = command.env("TRUNKLINE_REQUIRE", "soft,hosts").output().unwrap();
    assert!(!output.status.success() && said(&output).contains("must run"), "{}", said(&output));
}

#[test]
fn kernel_refusals_inside_are_skips() {
    if !is_possible("worlds::kernel_refusals_inside_are_skips") {
        return;
    }
    // With unshare and without ip: the namespaces exist, and cables cannot be made.
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("sh").args(["-c", "command -v unshare"]).output().unwrap();
    let unshare = String::from_utf8(output.stdout).unwrap();
    for name in [unshare.trim(), "/bin/true"] {
        let file = directory.path().join(name.rsplit('/').next().unwrap());
        std::os::unix::fs::symlink(name, file).unwrap();
    }
    let output = play("part_that_runs").env("PATH", directory.path()).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("SKIPPED worlds::part_that_runs: ip (package iproute2): "), "{said}");
}

#[test]
fn inner_processes_die_with_the_test() {
    if !is_possible("worlds::inner_processes_die_with_the_test") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let mut command = play("part_that_starts_a_process");
    let mut outer =
        command.env("TEST_PIPE", &path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut reader = BufReader::new(std::fs::File::open(&path).unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    kill_process(Pid::from_child(&outer), Signal::KILL).unwrap();
    outer.wait().unwrap();
    // Ends when the last process that can write to it has ended.
    let end = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()).unwrap());
    let begun = std::time::Instant::now();
    while !end.is_finished() {
        assert!(begun.elapsed() < crate::traffic::LIMIT, "a process is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}
