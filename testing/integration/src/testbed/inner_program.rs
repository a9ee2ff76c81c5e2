//! Where a test with a testbed runs: its test program again, in namespaces of its own.
//!
//! Called by tests. Whatever is made inside, processes, devices, namespaces, ends with the inner program, which is the
//! first process of a PID namespace and dies with the outer test.

use std::any::type_name;
use std::fmt::Display;
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Testbed;

/// Says which test the inner program is to run.
const INSIDE: &str = "TRUNKLINE_TESTBED";

/// What the inner program prints when the test has run to its end.
const DONE: &str = "TESTBED-DONE";

/// What it prints, with the reason, when it cannot run here.
const REFUSED: &str = "TESTBED-REFUSED ";

/// Longest time of one test.
const LIMIT: Duration = Duration::from_secs(100);

/// How to get namespaces: as root, or as a user who is root in a namespace of users.
const WAYS: [&[&str]; 2] = [
    &["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
    &["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
];

/// A panic with this means that the test cannot run here.
struct TestbedUnavailable(String);

/// Ends the test as one that cannot run here.
pub(super) fn refuse_testbed(reason: String) -> ! {
    panic_any(TestbedUnavailable(reason))
}

/// What the kernel gives, or the end of the test as one that cannot run here.
pub(super) fn require_granted<T, E: Display>(what: &str, got: Result<T, E>) -> T {
    got.unwrap_or_else(|error| refuse_testbed(format!("{what}: {error}")))
}

/// Runs a test with a testbed, or skips it with the reason where that cannot be had.
///
/// The closure must stand directly in the test function, from which it has its name. It runs in another process, so it
/// captures nothing.
///
/// # Panics
/// When the test fails.
pub fn run<F: FnOnce(&mut Testbed)>(test: F) {
    run_within(LIMIT, test);
}

/// As [`run`], with a limit of its own.
///
/// # Panics
/// When the test fails, or takes longer.
pub fn run_within<F: FnOnce(&mut Testbed)>(limit: Duration, test: F) {
    let name = name_of::<F>();
    if std::env::var(INSIDE).is_ok_and(|asked| asked == name) {
        return run_inside(test);
    }
    match run_outside(&name, limit) {
        Ok(()) => {}
        Err(reason) => crate::skip_test(&name, "hosts", &reason),
    }
}

/// The test's name, as libtest has it, from that of a closure inside: without its crate.
fn name_of<F>() -> String {
    let path = type_name::<F>().split("::{{closure}}").next().unwrap_or_default();
    path.split_once("::").map_or(path, |(_, name)| name).to_owned()
}

/// In the inner program.
fn run_inside<F: FnOnce(&mut Testbed)>(test: F) {
    // The outer program holds the other end of our input as long as it lives.
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let mut testbed = Testbed::new();
    match catch_unwind(AssertUnwindSafe(|| test(&mut testbed))) {
        Ok(()) => println!("\n{DONE}"),
        Err(panic) => match panic.downcast::<TestbedUnavailable>() {
            Ok(refused) => println!("\n{REFUSED}{}", refused.0.replace('\n', "; ")),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// In the outer program; an error is the reason why the test cannot run here.
fn run_outside(name: &str, limit: Duration) -> Result<(), String> {
    let way = find_unshare_arguments()?;
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("this program: {error}"));
    let (mut output, writer) = io::pipe().unwrap_or_else(|error| panic!("a pipe: {error}"));
    let second = writer.try_clone().unwrap_or_else(|error| panic!("a pipe: {error}"));
    let mut command = Command::new("unshare");
    command.args(way).arg(program).args([name, "--exact", "--nocapture", "--include-ignored"]);
    command.env(INSIDE, name).stdin(Stdio::piped()).stdout(writer).stderr(second);
    let mut inner = InnerProgram(command.spawn().unwrap_or_else(|error| panic!("unshare: {error}")));
    // It holds our end of the pipe.
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let status = inner.wait(limit);
    drop(inner);
    let said = reader.join().unwrap_or_else(|panic| resume_unwind(panic));
    let said = said.unwrap_or_else(|error| format!("its output cannot be read: {error}"));
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix(REFUSED)) {
        return Err(reason.to_owned());
    }
    let is_good = matches!(&status, Ok(Some(status)) if status.success());
    assert!(is_good, "{name} failed in its testbed ({}):\n{said}", describe_status(&status, limit));
    assert!(said.lines().any(|line| line == DONE), "{name} did not run in its testbed:\n{said}");
    Ok(())
}

fn describe_status(status: &io::Result<Option<std::process::ExitStatus>>, limit: Duration) -> String {
    match status {
        Ok(Some(status)) => status.to_string(),
        Ok(None) => format!("stopped after {limit:?}"),
        Err(error) => error.to_string(),
    }
}

/// Which way to get namespaces works here.
fn find_unshare_arguments() -> Result<&'static [&'static str], String> {
    let mut reason = String::new();
    for way in WAYS {
        match Command::new("unshare").args(way).arg("true").output() {
            Ok(output) if output.status.success() => return Ok(way),
            Ok(output) => reason = String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => reason = format!("unshare (package util-linux): {error}"),
        }
    }
    Err(reason)
}

/// The inner program, as `unshare` that waits for it. Killing that kills it, and with it all that it started.
struct InnerProgram(Child);

impl InnerProgram {
    fn wait(&mut self, limit: Duration) -> io::Result<Option<std::process::ExitStatus>> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }
}

impl Drop for InnerProgram {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}
