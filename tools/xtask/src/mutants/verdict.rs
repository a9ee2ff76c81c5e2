//! Verdicts: whether the tests of a row detect its bug.
//!
//! `mod` calls this with programs that are built. Rows run at the same time, and once more alone if other rows may have
//! changed the result.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::mutant_row::MutantRow;
use super::test_programs::TestPrograms;
use crate::shell::{self, ProgramEnd};
use crate::suite::TestProgram;

/// The variable that selects the planted bug at run time.
const CHOICE: &str = "PLANTED_BUG";

/// The result of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MutantVerdict {
    /// The test failed with the bug and passes without.
    Killed,
    /// As `Killed`, because the test exceeds its time limit.
    KilledByLimit,
    /// Not at the same time as another row, but as `Killed` or `KilledByLimit` alone on the machine.
    KilledAlone,
    /// The test passes with the bug too.
    Survived,
    /// The test fails without the bug.
    BrokenTest,
    /// The filter matches no test.
    NoTest,
}

impl MutantVerdict {
    /// Whether the test detected the bug.
    pub(crate) const fn is_good(self) -> bool {
        matches!(self, Self::Killed | Self::KilledByLimit | Self::KilledAlone)
    }

    /// Whether a row that ran with others may get another verdict alone.
    const fn is_open(self) -> bool {
        matches!(self, Self::Survived | Self::BrokenTest)
    }

    /// The verdict in the table of results.
    pub(crate) const fn verdict_text(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::KilledByLimit => "killed (time limit)",
            Self::KilledAlone => "killed (alone)",
            Self::Survived => "SURVIVED",
            Self::BrokenTest => "TEST FAILS WITHOUT IT",
            Self::NoTest => "NO SUCH TEST",
        }
    }
}

/// The key of a healthy run, so that rows that share a test share it.
type RunKey = (PathBuf, String, bool, BTreeMap<String, String>);

/// The result of each such run without a bug. The first row runs it; other rows wait for the result.
#[derive(Debug, Default)]
pub(crate) struct HealthyRuns(Mutex<BTreeMap<RunKey, Arc<OnceLock<Option<MutantVerdict>>>>>);

/// Judges the rows, several at a time: most of them mostly wait.
///
/// # Errors
/// A test cannot be started.
pub(crate) fn judge_all(rows: &[MutantRow<'_>], programs: &TestPrograms) -> Result<Vec<MutantVerdict>> {
    let healthy = HealthyRuns::default();
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, MutantVerdict)>> {
        let mut judged = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(row) = rows.get(at) else { return Ok(judged) };
            let began = Instant::now();
            let verdict = judge_row(row, programs.find_program(row)?, &healthy)?;
            // An open row is reported after it has been judged alone.
            let found = if verdict.is_open() { "once more, alone" } else { verdict.verdict_text() };
            println!("mutant {} ({:.1} s) ... {found}", row.name, began.elapsed().as_secs_f64());
            judged.push((at, verdict));
        }
    };
    // One more than the cores, because many rows wait; rows that fail because of others are judged again alone.
    let workers = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    let mut judged = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(judged) => judged,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Result<Vec<_>>>()
    })?
    .concat();
    judged.sort_unstable_by_key(|&(at, _)| at);
    Ok(judged.into_iter().map(|(_, verdict)| verdict).collect())
}

/// Judges rows with a bad verdict again, alone: many bugs need a moment of two processes to show, and many tests need
/// time.
///
/// # Errors
/// A test cannot be started.
pub(crate) fn judge_alone(
    rows: &[MutantRow<'_>],
    programs: &TestPrograms,
    verdicts: Vec<MutantVerdict>,
) -> Result<Vec<MutantVerdict>> {
    let healthy = HealthyRuns::default();
    let again = |(row, verdict): (&MutantRow<'_>, MutantVerdict)| {
        if !verdict.is_open() {
            return Ok(verdict);
        }
        let alone = judge_row(row, programs.find_program(row)?, &healthy)?;
        let verdict = if alone.is_good() { MutantVerdict::KilledAlone } else { alone };
        println!("mutant {} ... {}", row.name, verdict.verdict_text());
        Ok(verdict)
    };
    rows.iter().zip(verdicts).map(again).collect()
}

/// Judges one row.
///
/// # Errors
/// Its test cannot be started.
pub(crate) fn judge_row(
    row: &MutantRow<'_>,
    program: &TestProgram,
    healthy: &HealthyRuns,
) -> Result<MutantVerdict> {
    let key = (program.file.clone(), row.suite.test.clone(), row.suite.exact, row.suite.env.clone());
    let known = {
        let mut runs = healthy.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(runs.entry(key).or_default())
    };
    let mut failed = None;
    let without = *known.get_or_init(|| {
        judge_without(row, program).unwrap_or_else(|error| {
            failed = Some(error);
            Some(MutantVerdict::BrokenTest)
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(verdict) = without {
        return Ok(verdict);
    }
    Ok(match run_test(row, program, Some(row.name))?.0 {
        ProgramEnd::Passed => MutantVerdict::Survived,
        ProgramEnd::Failed => MutantVerdict::Killed,
        ProgramEnd::TimedOut => MutantVerdict::KilledByLimit,
    })
}

/// The verdict on a row's test without a bug; `None` if it passes.
fn judge_without(row: &MutantRow<'_>, program: &TestProgram) -> Result<Option<MutantVerdict>> {
    let (ended, log) = run_test(row, program, None)?;
    Ok(match (ended, tests_run(&log)) {
        (ProgramEnd::Passed, 0) => Some(MutantVerdict::NoTest),
        (ProgramEnd::Passed, _) => None,
        _ => {
            // Indented, so that its result line is not counted as ours.
            log.lines().for_each(|line| println!("  | {line}"));
            Some(MutantVerdict::BrokenTest)
        }
    })
}

fn run_test(
    row: &MutantRow<'_>,
    program: &TestProgram,
    mutant: Option<&str>,
) -> Result<(ProgramEnd, String)> {
    let mut command = Command::new(&program.file);
    command.arg(&row.suite.test).args(row.suite.exact.then_some("--exact"));
    command
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .env_remove(CHOICE)
        .envs(&row.suite.env);
    // A skip is counted in the plain run of the test, not in each replay.
    command.env_remove("TRUNKLINE_SKIP_LOG");
    if let Some(name) = mutant {
        command.env(CHOICE, name);
    }
    shell::run_limited(&mut command, Duration::from_secs(row.suite.limit_s))
}

/// The number of tests that a libtest log reports.
pub(crate) fn tests_run(log: &str) -> usize {
    let count = |line: &str| line.strip_prefix("running ")?.split(' ').next()?.parse::<usize>().ok();
    log.lines().filter_map(count).sum()
}
