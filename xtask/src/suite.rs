//! `cargo xtask suite`: runs the test programs of the workspace, several beside one another.
//!
//! Called by `./test` and by people. `cargo test` runs one program after the other, and most of our tests wait for a peer, a
//! clock or a process. It decides which program runs when, and nothing about the tests inside one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;

use crate::shell::{self, Ended};
use crate::workspace::Workspace;

/// Programs that take longest, in order: what begins last would otherwise be what everything waits for.
const LONGEST: [(&str, &str); 7] = [
    ("tests", "main"),
    ("trunkline", "api"),
    ("mem", "ipc"),
    ("engine", "ipc"),
    ("softnic", "conformance"),
    ("engine", "tagged"),
    ("shmem", "programs"),
];

/// Programs that measure the machine's rates, or all of its processes: they run alone, after the others.
const ALONE: [(&str, &str); 1] = [("devq", "lines")];

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only unit tests: those inside libraries and commands
    #[arg(long)]
    unit: bool,
    /// Programs that run at the same time [default: one more than there are processors]
    #[arg(long)]
    jobs: Option<usize>,
    /// Minutes after which one program is stopped
    #[arg(long, default_value_t = 40)]
    limit_min: u64,
    /// Arguments for each program, as libtest takes them
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// One test program, and the folder that cargo would run it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The crate, without prefix.
    pub(crate) package: String,
    /// The test's or the command's name; `lib` for a library.
    pub(crate) target: String,
    /// The program.
    pub(crate) file: PathBuf,
    /// The crate's folder.
    pub(crate) dir: PathBuf,
}

impl TestProgram {
    /// What a program's place among the others follows from.
    fn rank(&self) -> usize {
        let is_it = |(package, target): &(&str, &str)| self.package == *package && self.target == *target;
        LONGEST.iter().position(is_it).unwrap_or(LONGEST.len())
    }

    fn runs_alone(&self) -> bool {
        ALONE.iter().any(|(package, target)| self.package == *package && self.target == *target)
    }
}

/// Builds and runs the programs; `false` when a test failed.
///
/// # Errors
/// The build fails, or a program cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let kinds: &[&str] = if options.unit { &["--lib", "--bins"] } else { &["--lib", "--bins", "--tests"] };
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["test", "--no-run", "--quiet", "--workspace", "--message-format=json-render-diagnostics"]);
    let out =
        command.args(kinds).stderr(std::process::Stdio::inherit()).output().context("starting cargo")?;
    if !out.status.success() {
        bail!("cargo test --no-run failed");
    }
    let mut programs = test_programs(workspace, &out.stdout)?;
    programs.sort_by_key(TestProgram::rank);
    let (alone, beside): (Vec<_>, Vec<_>) = programs.into_iter().partition(TestProgram::runs_alone);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let together = run_all(&beside, options.jobs.unwrap_or(processors + 1), options)?;
    Ok(run_all(&alone, 1, options)? && together)
}

/// The test programs that cargo says it has built.
///
/// # Errors
/// Cargo's messages cannot be read.
pub(crate) fn test_programs(workspace: &Workspace, messages: &[u8]) -> Result<Vec<TestProgram>> {
    let (mut programs, mut seen) = (Vec::new(), BTreeSet::new());
    for message in Message::parse_stream(messages) {
        let Message::CompilerArtifact(artifact) = message.context("cargo's messages")? else { continue };
        let Some(file) = artifact.executable.filter(|_| artifact.profile.test) else { continue };
        let manifest = artifact.manifest_path.as_std_path();
        let dir = manifest.parent().unwrap_or(Path::new("")).to_owned();
        let Some(package) = workspace.crates.iter().find(|c| c.dir == dir) else { continue };
        let is_bin_or_test = artifact.target.is_bin() || artifact.target.is_test();
        let target = if is_bin_or_test { artifact.target.name.clone() } else { "lib".to_owned() };
        if seen.insert(file.clone()) {
            let package = package.name.clone();
            programs.push(TestProgram { package, target, file: file.into_std_path_buf(), dir });
        }
    }
    Ok(programs)
}

/// Runs the programs, `jobs` at a time, and prints what each one printed when it has ended.
fn run_all(programs: &[TestProgram], jobs: usize, options: &Options) -> Result<bool> {
    let waiting = Mutex::new(programs.iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<bool> {
        let mut passed = true;
        while let Some(program) = next() {
            passed &= run_program(program, options)?;
        }
        Ok(passed)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_fold(true, |passed, thread| match thread.join() {
            Ok(ended) => Ok(ended? && passed),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Runs one program; its output is printed in one piece, so that lines of two programs never mix.
fn run_program(program: &TestProgram, options: &Options) -> Result<bool> {
    let began = Instant::now();
    let mut command = Command::new(&program.file);
    command.current_dir(&program.dir).env("CARGO_MANIFEST_DIR", &program.dir).args(&options.arguments);
    let limit = Duration::from_secs(60 * options.limit_min);
    let (ended, printed) = shell::run_limited(&mut command, limit)?;
    let name = format!("{} {}", program.package, program.target);
    let seconds = began.elapsed().as_secs_f64();
    print!("{}", report_of(&name, seconds, &ended, &printed));
    Ok(ended == Ended::Passed)
}

/// What is printed of a program that has ended. A program that told no result counts as one failed test.
fn report_of(name: &str, seconds: f64, ended: &Ended, printed: &str) -> String {
    let mut text = format!("\n     Running {name} ({seconds:.1} s)\n{printed}");
    if !printed.ends_with('\n') {
        text.push('\n');
    }
    let told = printed.lines().any(|line| line.starts_with("test result: FAILED"));
    if *ended != Ended::Passed && !told {
        let why = if *ended == Ended::TimedOut {
            "was stopped at its time limit"
        } else {
            "ended without a result"
        };
        text +=
            &format!("test {name} {why} ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> (tempfile::TempDir, TestProgram) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (package, target) = ("p".to_owned(), "t".to_owned());
        let program = TestProgram { package, target, file, dir: dir.path().to_owned() };
        (dir, program)
    }

    fn options() -> Options {
        Options { unit: false, jobs: None, limit_min: 1, arguments: Vec::new() }
    }

    #[test]
    fn programs_run_at_the_same_time() {
        // Each of two waits for the file that the other one makes.
        let meeting = tempfile::tempdir().unwrap();
        let meet = |own: &str, other: &str| {
            let (own, other) = (meeting.path().join(own), meeting.path().join(other));
            format!(
                "touch {}; for i in $(seq 600); do [ -e {} ] && exit 0; sleep 0.05; done; exit 1",
                own.display(),
                other.display()
            )
        };
        let (_first, one) = program(&meet("a", "b"));
        let (_second, two) = program(&meet("b", "a"));
        assert!(run_all(&[one, two], 2, &options()).unwrap());
    }

    #[test]
    fn a_failed_program_does_not_stop_the_others() {
        let done = tempfile::tempdir().unwrap();
        let (_first, bad) = program("exit 1");
        let (_second, good) = program(&format!("touch {}", done.path().join("ran").display()));
        assert!(!run_all(&[bad, good], 1, &options()).unwrap());
        assert!(done.path().join("ran").exists());
    }

    #[test]
    fn a_program_without_a_result_counts_as_a_failed_test() {
        let text = report_of("p t", 1.0, &Ended::Failed, "running 3 tests");
        assert!(text.contains("test p t ended without a result ... FAILED"), "{text}");
        assert!(text.ends_with("test result: FAILED. 0 passed; 1 failed; 0 ignored\n"), "{text}");
        let text =
            report_of("p t", 1.0, &Ended::Failed, "test result: FAILED. 2 passed; 1 failed; 0 ignored\n");
        assert_eq!(text.matches("test result").count(), 1, "{text}");
        let text = report_of("p t", 1.0, &Ended::TimedOut, "");
        assert!(text.contains("was stopped at its time limit"), "{text}");
    }

    #[test]
    fn long_programs_begin_first() {
        let named = |package: &str, target: &str| TestProgram {
            package: package.to_owned(),
            target: target.to_owned(),
            file: PathBuf::new(),
            dir: PathBuf::new(),
        };
        let mut programs = [named("topo", "lib"), named("trunkline", "api"), named("tests", "main")];
        programs.sort_by_key(TestProgram::rank);
        assert_eq!(programs.map(|program| program.target), ["main", "api", "lib"]);
    }
}
