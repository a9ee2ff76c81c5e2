//! The process of one check. It leads a process group. When it has ended or its time limit has passed, all processes that
//! it started are killed.
//!
//! Called by `selftest`, one check at a time. Orphans of a check become children of this process, which makes it their
//! subreaper first; so none outlives its check, whatever group or session it is in.

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

/// Most bytes that are kept of standard output, from its beginning.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Most bytes that are kept of standard error, from its end.
const ERROR_BYTES_MAX: usize = 16 << 10;
/// Interval between two polls of a running check.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// After a request to end, the time in which a launcher ends its ranks on other hosts.
const TERM_TIME: Duration = Duration::from_secs(3);
/// After SIGKILL, the time in which the kernel ends processes that are not stuck in a driver.
const KILL_TIME: Duration = Duration::from_secs(5);

/// How a check's process ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ChildEnding {
    Code(i32),
    Signal(i32),
    /// Its time was over.
    Overdue,
    /// This signal requested the end of this process.
    Interrupted,
}

/// The result of a check's process.
#[derive(Debug)]
pub(crate) struct EndedChild {
    pub(crate) ending: ChildEnding,
    pub(crate) elapsed: Duration,
    pub(crate) output: String,
    pub(crate) errors: String,
    /// Processes that could not be ended.
    pub(crate) left: usize,
}

/// Runs children one at a time. The process must have no other children except those it had before.
#[derive(Debug)]
pub(crate) struct ChildRunner {
    /// Children that this process had before: those of a shell that replaced itself by this program.
    earlier: Vec<Pid>,
    /// Whether orphans are children of this process.
    is_subreaper: bool,
}

impl ChildRunner {
    /// Makes this process the subreaper: orphans of later children become its children.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn new() -> std::io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self { earlier: own_children(), is_subreaper: true })
    }

    /// Runs a command until it exits, its time limit passes, or `signal` is set; then ends every process that it
    /// started.
    ///
    /// # Errors
    /// It cannot be started, or not be waited for.
    pub(crate) fn run_command(
        &self,
        command: &mut Command,
        limit: Duration,
        signal: &AtomicUsize,
    ) -> std::io::Result<EndedChild> {
        let begun = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let output = child
            .stdout
            .take()
            .map(|pipe| drain_pipe(pipe, OUTPUT_BYTES_MAX, KeptBytes::First))
            .transpose()?;
        let errors =
            child.stderr.take().map(|pipe| drain_pipe(pipe, ERROR_BYTES_MAX, KeptBytes::Last)).transpose()?;
        let ending = match wait_until(&mut child, begun + limit, Some(signal))? {
            Some(status) => ending_of(status),
            None => {
                let ending = if signal.load(Ordering::Relaxed) == 0 {
                    ChildEnding::Overdue
                } else {
                    ChildEnding::Interrupted
                };
                end_child(&mut child)?;
                ending
            }
        };
        let elapsed = begun.elapsed();
        let left = self.end_orphans();
        // A process that cannot be killed may hold the pipes open forever.
        let text = |thread: Option<JoinHandle<Vec<u8>>>| {
            let thread = thread.filter(|thread| left == 0 || thread.is_finished());
            let bytes = thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(EndedChild { ending, elapsed, output: text(output), errors: text(errors), left })
    }

    /// Kills every process that a child has left; returns the number of processes that did not exit.
    fn end_orphans(&self) -> usize {
        if !self.is_subreaper {
            return 0;
        }
        let until = Instant::now() + KILL_TIME;
        loop {
            // The children of an orphan become ours once it has exited.
            let mut orphans = own_children();
            orphans.retain(|orphan| !self.earlier.contains(orphan));
            if orphans.is_empty() || Instant::now() >= until {
                return orphans.len();
            }
            for orphan in orphans {
                let _ = kill_process(orphan, Signal::KILL);
                let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

fn ending_of(status: ExitStatus) -> ChildEnding {
    match (status.code(), status.signal()) {
        (Some(code), _) => ChildEnding::Code(code),
        (None, signal) => ChildEnding::Signal(signal.unwrap_or(0)),
    }
}

/// The status of a child that ends in time, before `signal` is set.
fn wait_until(
    child: &mut Child,
    until: Instant,
    signal: Option<&AtomicUsize>,
) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let is_interrupted = signal.is_some_and(|signal| signal.load(Ordering::Relaxed) != 0);
        if is_interrupted || Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sends SIGTERM to a child's group, then SIGKILL.
fn end_child(child: &mut Child) -> std::io::Result<()> {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let ended = wait_until(child, Instant::now() + TERM_TIME, None)?.is_some();
    // Other members of the group may still run, whether or not its leader does.
    let _ = kill_process_group(group, Signal::KILL);
    if !ended {
        wait_until(child, Instant::now() + KILL_TIME, None)?;
    }
    Ok(())
}

/// The children of this process, from `/proc`: not every kernel has the `children` files.
fn own_children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    pids.filter(|pid| parent_of(*pid) == Some(own)).collect()
}

/// The parent's id is the second field after the name; the name may contain any character.
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok().and_then(Pid::from_raw)
}

/// The part of an output that is kept if the output exceeds the limit.
#[derive(Clone, Copy)]
enum KeptBytes {
    First,
    Last,
}

/// Reads a pipe to its end, so that its writer never blocks.
fn drain_pipe(
    mut pipe: impl Read + Send + 'static,
    most: usize,
    kept: KeptBytes,
) -> std::io::Result<JoinHandle<Vec<u8>>> {
    thread::Builder::new().name("check output".into()).spawn(move || {
        let mut bytes = Vec::new();
        let mut part = [0; 8192];
        loop {
            let read = match pipe.read(&mut part) {
                Ok(0) => return bytes,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return bytes,
            };
            bytes.extend_from_slice(&part[..read]);
            let excess = bytes.len().saturating_sub(most);
            match kept {
                KeptBytes::First => bytes.truncate(most),
                KeptBytes::Last => drop(bytes.drain(..excess)),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration, signal: usize) -> EndedChild {
        // Other tests of this process have children, too.
        let runner = ChildRunner { earlier: Vec::new(), is_subreaper: false };
        runner.run_command(Command::new("sh").args(["-c", script]), limit, &AtomicUsize::new(signal)).unwrap()
    }

    #[test]
    fn a_child_is_read_to_its_end() {
        let long = Duration::from_secs(60);
        let ended = shell("echo out; echo err >&2; exit 3", long, 0);
        assert_eq!((ended.ending, &*ended.output, &*ended.errors), (ChildEnding::Code(3), "out\n", "err\n"));
        assert_eq!(shell("kill -KILL $$", long, 0).ending, ChildEnding::Signal(9));
        // The output is longer than the kept part: the end of standard error.
        let ended = shell("yes line | head -c 100000 >&2; echo last >&2", long, 0);
        assert!(ended.errors.len() == ERROR_BYTES_MAX && ended.errors.ends_with("line\nlast\n"));
    }

    #[test]
    fn a_child_ends_by_its_limit_or_a_signal() {
        let begun = Instant::now();
        assert_eq!(shell("sleep 300", Duration::from_millis(50), 0).ending, ChildEnding::Overdue);
        assert_eq!(shell("sleep 300", Duration::from_secs(200), 15).ending, ChildEnding::Interrupted);
        assert!(begun.elapsed() < Duration::from_secs(100));
    }
}
