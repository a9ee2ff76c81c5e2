//! `cargo xtask suite`: runs the test programs of the workspace, several at the same time.
//!
//! Called by `./test` and by developers. `cargo test` runs one program after the other, and most of our tests wait for
//! a peer, a clock or a process. Tests that fail beside others run once more, alone: many claim a time, which a busy
//! machine may exceed. Those that then pass are listed. It decides which program runs when, and nothing about the tests
//! inside a program.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;

use crate::shell::{self, ProgramEnd};
use crate::workspace::Workspace;

/// The programs that take longest, in order. They start first; otherwise the whole run would wait for the last of them.
const LONGEST: [(&str, &str); 7] = [
    ("integration", "main"),
    ("trunkline", "api"),
    ("mem", "ipc"),
    ("node", "ipc"),
    ("softnic", "conformance"),
    ("node", "tagged"),
    ("shmem", "programs"),
];

/// Programs that measure the machine's rates or all of its processes, or flood it: they run alone, after the others.
const ALONE: [(&str, &str); 2] = [("device-queue", "lines"), ("integration", "hostile")];

/// Tests that claim times and mostly wait, by the beginning of their names: they run after all others, at the same time
/// as each other.
const WAITING_TESTS: [(&str, &str, &str); 1] = [("integration", "main", "hosts::cuts::")];

/// Programs that claim times of hosts and cables and mostly wait for those. The others run at a lower priority
/// meanwhile.
const TIMED: [(&str, &str); 1] = [("integration", "main")];

/// A part of the suite.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum SuitePart {
    /// Tests that mostly wait, and leave the processors to other work.
    Waiting,
    /// All other tests.
    Others,
}

/// Arguments of `cargo xtask suite`.
#[derive(Debug, clap::Args)]
pub(crate) struct SuiteOptions {
    /// Run only one part, as `./test` does beside other work [default: all].
    #[arg(long, value_enum)]
    part: Option<SuitePart>,
    /// Run only unit tests, which are inside libraries and commands.
    #[arg(long)]
    unit: bool,
    /// Run this many programs at the same time [default: the number of processors].
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop a program after this many minutes.
    #[arg(long, default_value_t = 40)]
    limit_min: u64,
    /// Pass these arguments of libtest to each program.
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
    /// The program's place in the order.
    fn order_rank(&self) -> usize {
        let is_it = |(package, target): &(&str, &str)| self.package == *package && self.target == *target;
        LONGEST.iter().position(is_it).unwrap_or(LONGEST.len())
    }

    fn runs_alone(&self) -> bool {
        self.is_in(&ALONE)
    }

    /// Beginning of the names of its tests that mostly wait.
    fn waiting_tests(&self) -> Option<&'static str> {
        let is_it =
            |(package, target, _): &&(&str, &str, &str)| self.package == *package && self.target == *target;
        WAITING_TESTS.iter().find(is_it).map(|(_, _, tests)| *tests)
    }

    fn is_timed(&self) -> bool {
        self.is_in(&TIMED)
    }

    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        list.iter().any(|(package, target)| self.package == *package && self.target == *target)
    }
}

/// Builds and runs the programs; `false` when a test failed.
///
/// # Errors
/// The build fails, or a program cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &SuiteOptions) -> Result<bool> {
    let kinds: &[&str] = if options.unit { &["--lib", "--bins"] } else { &["--lib", "--bins", "--tests"] };
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["test", "--no-run", "--quiet", "--workspace", "--message-format=json-render-diagnostics"]);
    let out =
        command.args(kinds).stderr(std::process::Stdio::inherit()).output().context("starting cargo")?;
    if !out.status.success() {
        bail!("cargo test --no-run failed");
    }
    let mut programs = test_programs(workspace, &out.stdout)?;
    programs.sort_by_key(TestProgram::order_rank);
    let (alone, beside): (Vec<_>, Vec<_>) = programs.into_iter().partition(TestProgram::runs_alone);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ended = Vec::new();
    if options.part != Some(SuitePart::Waiting) {
        ended.extend(run_all(&beside, options.jobs.unwrap_or(processors), options)?);
        ended.extend(run_all(&alone, 1, options)?);
    }
    if options.part != Some(SuitePart::Others) {
        for program in &beside {
            if let Some(tests) = program.waiting_tests() {
                ended.push(run_program(program, &[tests], options)?);
            }
        }
    }
    run_again(&ended, options)
}

/// Parses the test programs that cargo reports to have built.
///
/// # Errors
/// Cargo's messages cannot be read.
pub(crate) fn test_programs(workspace: &Workspace, messages: &[u8]) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    let mut seen = BTreeSet::new();
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

/// A program that has ended, before the final verdict on its failed tests.
#[derive(Debug)]
struct EndedProgram<'a> {
    program: &'a TestProgram,
    /// Whether it has failed definitely, because it reported no result.
    is_lost: bool,
    /// Tests that failed.
    failed: Vec<String>,
}

/// Runs the programs, `jobs` at a time, and prints the output of each when it has ended.
fn run_all<'a>(
    programs: &'a [TestProgram],
    jobs: usize,
    options: &SuiteOptions,
) -> Result<Vec<EndedProgram<'a>>> {
    let waiting = Mutex::new(programs.iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<Vec<EndedProgram<'a>>> {
        let mut ended = Vec::new();
        while let Some(program) = next() {
            let skip = program.waiting_tests().map(|tests| ["--skip", tests]);
            ended.push(run_program(program, skip.as_ref().map_or(&[], <[_; 2]>::as_slice), options)?);
        }
        Ok(ended)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok(ended.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

fn program_command(program: &TestProgram) -> Command {
    let mut command = match program.is_timed() || program.runs_alone() {
        true => Command::new(&program.file),
        false => {
            let mut nice = Command::new("nice");
            nice.args(["-n", "5"]).arg(&program.file);
            nice
        }
    };
    command.current_dir(&program.dir).env("CARGO_MANIFEST_DIR", &program.dir);
    command
}

/// Runs one program; its output is printed in one piece, so that lines of two programs never mix.
fn run_program<'a>(
    program: &'a TestProgram,
    filter: &[&str],
    options: &SuiteOptions,
) -> Result<EndedProgram<'a>> {
    let began = Instant::now();
    let limit = Duration::from_secs(60 * options.limit_min);
    let (ended, printed) =
        shell::run_limited(program_command(program).args(&options.arguments).args(filter), limit)?;
    let name = format!("{} {}", program.package, program.target);
    println!("\n     Running {name} ({:.1} s)", began.elapsed().as_secs_f64());
    let failed = if ended == ProgramEnd::Failed { failed_tests(&printed) } else { Vec::new() };
    let is_lost = ended != ProgramEnd::Passed && failed.is_empty();
    print!("{}", if is_lost { lost_report(&name, &ended, &printed) } else { open_report(&printed) });
    Ok(EndedProgram { program, is_lost, failed })
}

/// Runs each failed test once more, alone, and lists those that passed then; `false` when one failed again.
fn run_again(ended: &[EndedProgram<'_>], options: &SuiteOptions) -> Result<bool> {
    let mut passed = !ended.iter().any(|ended| ended.is_lost);
    let mut unsteady = Vec::new();
    for EndedProgram { program, failed, .. } in ended {
        for test in failed {
            let mut command = program_command(program);
            command.args(&options.arguments).args(["--exact", test, "--test-threads=1"]);
            let (ended, printed) =
                shell::run_limited(&mut command, Duration::from_secs(60 * options.limit_min))?;
            let name = format!("{} {} {test}", program.package, program.target);
            println!("\n     Running {name} once more, alone");
            match ended {
                ProgramEnd::Passed => unsteady.push(name.clone()),
                _ => passed = false,
            }
            let told = printed.lines().any(|line| line.starts_with("test result: "));
            print!("{}", if told { printed } else { lost_report(&name, &ended, &printed) });
        }
    }
    for name in unsteady {
        println!("suite: note: {name} failed beside other programs, and passed alone");
    }
    Ok(passed)
}

/// The names of the tests that libtest reports as failed.
fn failed_tests(printed: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    let mut names: Vec<String> = printed.lines().filter_map(name).collect();
    // A test that runs other tests prints their lines, too.
    names.sort_unstable();
    names.dedup();
    names
}

/// The output of a program whose failed tests run again: their verdict is not final, and `./test` counts the others.
fn open_report(printed: &str) -> String {
    let mut text = String::new();
    let mut passed = None;
    for line in printed.lines() {
        let is_verdict =
            line.starts_with("test result: FAILED") || line.starts_with("test ") && line.ends_with(" FAILED");
        if line.starts_with("test result: FAILED") {
            passed = line.split(' ').nth(3).and_then(|number| number.parse::<u64>().ok());
        }
        text += &format!("{}{line}\n", if is_verdict { "  | " } else { "" });
    }
    if let Some(passed) = passed {
        text += &format!("test result: ok. {passed} passed; 0 failed; 0 ignored\n");
    }
    text
}

/// The output of a program that reported no result, which counts as one failed test.
fn lost_report(name: &str, ended: &ProgramEnd, printed: &str) -> String {
    let why = if *ended == ProgramEnd::TimedOut {
        "was stopped at its time limit"
    } else {
        "ended without a result"
    };
    let end = if printed.is_empty() || printed.ends_with('\n') { "" } else { "\n" };
    format!(
        "{printed}{end}test {name} {why} ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> (tempfile::TempDir, TestProgram) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let package = "p".to_owned();
        let target = "t".to_owned();
        let program = TestProgram { package, target, file, dir: dir.path().to_owned() };
        (dir, program)
    }

    fn options() -> SuiteOptions {
        SuiteOptions { part: None, unit: false, jobs: None, limit_min: 1, arguments: Vec::new() }
    }

    #[test]
    fn programs_run_at_the_same_time() {
        // Each of two waits for the file that the other one makes.
        let meeting = tempfile::tempdir().unwrap();
        let meet = |own: &str, other: &str| {
            let own = meeting.path().join(own);
            let other = meeting.path().join(other);
            format!(
                "touch {}; for i in $(seq 600); do [ -e {} ] && exit 0; sleep 0.05; done; exit 1",
                own.display(),
                other.display()
            )
        };
        let (_first, one) = program(&meet("a", "b"));
        let (_second, two) = program(&meet("b", "a"));
        let programs = [one, two];
        assert!(run_all(&programs, 2, &options()).unwrap().iter().all(|ended| !ended.is_lost));
    }

    /// Tests that mostly wait are left out beside other programs, and run alone in their part.
    #[test]
    fn tests_that_wait_are_run_once() {
        let told = tempfile::tempdir().unwrap();
        let arguments = told.path().join("arguments");
        let (_dir, mut one) = program(&format!("echo \"$@\" >> {}", arguments.display()));
        (one.package, one.target) = ("integration".to_owned(), "main".to_owned());
        let programs = [one];
        run_all(&programs, 1, &options()).unwrap();
        run_program(&programs[0], &[programs[0].waiting_tests().unwrap()], &options()).unwrap();
        let lines = std::fs::read_to_string(arguments).unwrap();
        assert_eq!(lines, "--skip hosts::cuts::\nhosts::cuts::\n");
    }

    /// A libtest program in the shell: its one test passes from the second run on, or never.
    fn unsteady(recovers: bool) -> (tempfile::TempDir, TestProgram) {
        let verdict = "if [ -e ran ] && RECOVERS; then echo 'test a ... ok'; echo 'test result: ok. 1 passed; 0 failed'; exit 0; fi
            touch ran; echo 'test a ... FAILED'; echo 'test result: FAILED. 4 passed; 1 failed'; exit 101";
        program(&verdict.replace("RECOVERS", if recovers { "true" } else { "false" }))
    }

    #[test]
    fn a_failed_test_is_judged_alone() {
        for recovers in [true, false] {
            let (_dir, program) = unsteady(recovers);
            let programs = [program];
            let ended = run_all(&programs, 1, &options()).unwrap();
            assert_eq!((ended[0].is_lost, &ended[0].failed), (false, &vec!["a".to_owned()]));
            assert_eq!(run_again(&ended, &options()).unwrap(), recovers);
        }
    }

    #[test]
    fn a_failed_program_does_not_stop_the_others() {
        let done = tempfile::tempdir().unwrap();
        let (_first, bad) = program("exit 1");
        let (_second, good) = program(&format!("touch {}", done.path().join("ran").display()));
        let programs = [bad, good];
        let ended = run_all(&programs, 1, &options()).unwrap();
        assert!(done.path().join("ran").exists());
        assert!(!run_again(&ended, &options()).unwrap());
    }

    #[test]
    fn an_open_verdict_is_not_counted() {
        let printed =
            "test a ... FAILED\ntest b ... ok\ntest result: FAILED. 41 passed; 1 failed; 2 ignored\n";
        let text = open_report(printed);
        assert_eq!(text.lines().filter(|line| line.starts_with("test result: ")).count(), 1, "{text}");
        assert!(text.ends_with("test result: ok. 41 passed; 0 failed; 0 ignored\n"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("test a")), "{text}");
        let passed = "test b ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(open_report(passed), passed);
    }

    #[test]
    fn a_program_without_a_result_counts_as_a_failed_test() {
        let text = lost_report("p t", &ProgramEnd::Failed, "running 3 tests");
        assert!(text.contains("\ntest p t ended without a result ... FAILED\n"), "{text}");
        assert!(text.ends_with("test result: FAILED. 0 passed; 1 failed; 0 ignored\n"), "{text}");
        let text = lost_report("p t", &ProgramEnd::TimedOut, "");
        assert!(text.starts_with("test p t was stopped at its time limit"), "{text}");
    }

    #[test]
    fn long_programs_begin_first() {
        let named = |package: &str, target: &str| TestProgram {
            package: package.to_owned(),
            target: target.to_owned(),
            file: PathBuf::new(),
            dir: PathBuf::new(),
        };
        let mut programs = [named("topo", "lib"), named("trunkline", "api"), named("integration", "main")];
        programs.sort_by_key(TestProgram::order_rank);
        assert_eq!(programs.map(|program| program.target), ["main", "api", "lib"]);
    }
}
