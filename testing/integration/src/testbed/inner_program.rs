//! Runs a test with a testbed: starts its test program again, in namespaces of its own.
//!
//! Called by tests. All processes, devices and namespaces that are made inside end with the inner program, which is the
//! first process of a PID namespace and dies with the outer test.

use std::any::type_name;
use std::fmt::Display;
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Testbed;

/// The variable that names the test which the inner program runs.
const INSIDE: &str = "TRUNKLINE_TESTBED";

/// The line that the inner program prints when the test has run to its end.
const DONE: &str = "TESTBED-DONE";

/// The start of the line that it prints, with the reason, if the test cannot run here.
const REFUSED: &str = "TESTBED-REFUSED ";

/// Longest time of one test.
const LIMIT: Duration = Duration::from_secs(100);

/// Arguments of `unshare` that create namespaces: as root, or as a user who is root in a user namespace.
const WAYS: [&[&str]; 2] = [
    &["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
    &["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
];

/// The payload of a panic which means that the test cannot run here.
struct TestbedUnavailable(String);

/// Ends the test, because it cannot run here.
pub(super) fn refuse_testbed(reason: String) -> ! {
    panic_any(TestbedUnavailable(reason))
}

/// Returns the result of a call of the kernel; if it failed, ends the test, because it cannot run here.
pub(super) fn require_granted<T, E: Display>(what: &str, got: Result<T, E>) -> T {
    got.unwrap_or_else(|error| refuse_testbed(format!("{what}: {error}")))
}

/// Runs a test with a testbed, or skips it with the reason if no testbed can be made.
///
/// The closure must be written directly in the test function, because the name of the test is derived from it. It runs
/// in another process, so it captures nothing.
///
/// # Panics
/// If the test fails.
pub fn run<F: FnOnce(&mut Testbed)>(test: F) {
    run_within(LIMIT, test);
}

/// Runs a test as [`run`] does, with a time limit of its own.
///
/// # Panics
/// If the test fails or exceeds the limit.
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

/// Returns the test's name as libtest knows it, without the crate, from the type name of a closure inside.
fn name_of<F>() -> String {
    let path = type_name::<F>().split("::{{closure}}").next().unwrap_or_default();
    path.split_once("::").map_or(path, |(_, name)| name).to_owned()
}

/// Runs the test in the inner program.
fn run_inside<F: FnOnce(&mut Testbed)>(test: F) {
    // The outer program holds the other end of our standard input until it ends.
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

/// Starts the inner program and waits for it. An error is the reason why the test cannot run here.
fn run_outside(name: &str, limit: Duration) -> Result<(), String> {
    let way = find_unshare_arguments()?;
    let program = std::env::current_exe()
        .unwrap_or_else(|error| panic!("cannot find the path of this program: {error}"));
    let (mut output, writer) = io::pipe().unwrap_or_else(|error| panic!("cannot create a pipe: {error}"));
    let second = writer.try_clone().unwrap_or_else(|error| panic!("cannot create a pipe: {error}"));
    let mut command = Command::new("unshare");
    command.args(way).arg(program).args([name, "--exact", "--nocapture", "--include-ignored"]);
    command.env(INSIDE, name).stdin(Stdio::piped()).stdout(writer).stderr(second);
    let mut inner =
        InnerProgram(command.spawn().unwrap_or_else(|error| panic!("cannot start unshare: {error}")));
    // The command holds a copy of our end of the pipe, which would keep the reader waiting.
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

/// Returns the arguments of `unshare` that create namespaces here.
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

/// The inner program, as the `unshare` process that waits for it. Killing `unshare` kills the inner program and all
/// processes that it started.
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
