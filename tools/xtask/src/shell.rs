//! Runs other programs: cargo, compilers, peers' benchmarks.
//!
//! The commands call this instead of `std::process`, so that errors always contain the program's name and output.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use wait_timeout::ChildExt as _;

/// The cargo that runs us, or the one on the path.
pub(crate) fn cargo_command(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Runs cargo with its output shown.
///
/// # Errors
/// It cannot start or fails.
pub(crate) fn run_cargo(root: &Path, args: &[&str]) -> Result<()> {
    let status = cargo_command(root).args(args).status().context("starting cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

/// Runs a program and returns its standard output.
///
/// # Errors
/// It cannot start or fails; the message carries its stderr.
pub(crate) fn run_captured(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    if !out.status.success() {
        bail!("{name} failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// How a run with a time limit ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    /// By itself, with status 0.
    Passed,
    /// By itself, with another status or by a signal.
    Failed,
    /// It was killed at the limit.
    TimedOut,
}

/// Runs a program for at most `limit`; its output is written to a file and returned. Processes that it has started and
/// left running are killed at the end.
///
/// # Errors
/// It cannot start or be waited for.
pub(crate) fn run_limited(command: &mut Command, limit: Duration) -> Result<(ProgramEnd, String)> {
    let name = command.get_program().to_string_lossy().into_owned();
    let log = tempfile::NamedTempFile::new().context("a temporary file")?;
    command.stdin(Stdio::null()).stdout(open_append(log.path())?).stderr(open_append(log.path())?);
    // A process group of its own, which exists until its last process has ended.
    let mut child = command.process_group(0).spawn().with_context(|| format!("starting {name}"))?;
    let group = Pid::from_child(&child);
    let ended = match child.wait_timeout(limit).with_context(|| format!("waiting for {name}"))? {
        Some(status) if status.success() => ProgramEnd::Passed,
        Some(_) => ProgramEnd::Failed,
        None => {
            child.kill().with_context(|| format!("killing {name}"))?;
            child.wait().with_context(|| format!("reaping {name}"))?;
            ProgramEnd::TimedOut
        }
    };
    // An error means that no process was left in the group.
    let _ = kill_process_group(group, Signal::KILL);
    let bytes = std::fs::read(log.path()).context("reading back a log")?;
    Ok((ended, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Processor time of this process and of its children that have ended, in ticks of 10 ms; zero without /proc.
pub(crate) fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 to 17 by proc(5): utime, stime, cutime, cstime. The name, field 2, may contain spaces and ends with the
    // last parenthesis.
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: u64 =
        after_name.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// Opens a file for appending, so that two streams may share it.
fn open_append(path: &Path) -> Result<std::fs::File> {
    std::fs::OpenOptions::new().append(true).open(path).context("a temporary file")
}

/// The variable of folders that programs search for libraries first.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// A program that finds its libraries as from a user's shell. Cargo puts folders of its build before all others, and a
/// program that was linked with optimized libraries would run with those of the tests.
pub(crate) fn user_command(program: impl AsRef<OsStr>, target: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some(path) = std::env::var_os(LIBRARIES) {
        command.env(LIBRARIES, strip_target_dirs(&path, target));
    }
    command
}

/// The path without folders of cargo's build.
fn strip_target_dirs(path: &OsStr, target: &Path) -> OsString {
    let kept = std::env::split_paths(path).filter(|folder| !folder.starts_with(target));
    std::env::join_paths(kept).unwrap_or_default()
}

/// Checks that a program, started as [`user_command`] does, loads a library from a folder.
///
/// # Errors
/// It loads another one, or none.
pub(crate) fn check_loads(program: &Path, target: &Path, library: &str, folder: &Path) -> Result<()> {
    let listed = run_captured(user_command("ldd", target).arg(program))?;
    let wanted = folder.join(library).display().to_string();
    let found = listed.lines().find(|line| line.contains(library)).unwrap_or("none").trim();
    if !found.contains(&wanted) {
        bail!("{} does not run with {wanted}: {found}", program.display());
    }
    Ok(())
}

/// The path of a program, if the search path contains it.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_cargo_are_left_out() {
        let path = OsStr::new("/src/target/debug/deps:/opt/lib:/src/target/debug:/usr/lib");
        assert_eq!(strip_target_dirs(path, Path::new("/src/target")), "/opt/lib:/usr/lib");
        assert_eq!(strip_target_dirs(OsStr::new("/src/target/debug"), Path::new("/src/target")), "");
    }

    #[test]
    fn program_with_another_library_is_refused() {
        let shell = Path::new("/bin/sh");
        let target = Path::new("/nowhere");
        let listed = run_captured(Command::new("ldd").arg(shell)).unwrap();
        let libc = listed.lines().find_map(|line| line.trim().strip_prefix("libc.so.6 => ")).unwrap();
        let folder = Path::new(libc.split(' ').next().unwrap()).parent().unwrap();
        assert!(check_loads(shell, target, "libc.so.6", folder).is_ok());
        assert!(check_loads(shell, target, "libc.so.6", target).is_err());
        assert!(check_loads(shell, target, "libnot.so", folder).is_err());
    }

    #[test]
    fn a_limited_run_ends_in_one_of_three_ways() {
        let run = |script: &str| {
            run_limited(Command::new("sh").args(["-c", script]), Duration::from_millis(500)).unwrap()
        };
        assert_eq!(run("echo out; echo err >&2"), (ProgramEnd::Passed, "out\nerr\n".to_owned()));
        assert_eq!(run("exit 3").0, ProgramEnd::Failed);
        assert_eq!(run("kill -SEGV $$").0, ProgramEnd::Failed);
        assert_eq!(run("exec sleep 20").0, ProgramEnd::TimedOut);
    }

    #[test]
    fn processor_time_counts_children_that_have_ended() {
        let before = processor_time();
        run_captured(Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]))
            .unwrap();
        assert!(processor_time() >= before + Duration::from_millis(20));
    }

    #[test]
    fn limited_run_leaves_no_process_behind() {
        for (script, ends) in [
            ("sleep 20 & echo $!; exit 3", ProgramEnd::Failed),
            ("sleep 20 & echo $!; wait", ProgramEnd::TimedOut),
        ] {
            let (ended, printed) =
                run_limited(Command::new("sh").args(["-c", script]), Duration::from_millis(500)).unwrap();
            assert_eq!(ended, ends);
            let status = format!("/proc/{}/status", printed.trim());
            // The process that reaps orphans may need a moment.
            let is_there = || std::fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"));
            let left = (0..100)
                .take_while(|_| is_there())
                .inspect(|_| std::thread::sleep(Duration::from_millis(10)));
            assert!(left.count() < 100, "{script}: it runs on");
        }
    }
}
