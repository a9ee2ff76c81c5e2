//! `trunkline selftest`: checks of this host's hardware, the most important first, and a report about them.
//!
//! Called by `cmd::selftest`. Each check is a child process of this program, because a driver may crash or hang; this
//! process opens no device. It changes nothing on the host.

pub(crate) mod catalog;
mod child;
pub(crate) mod facts;
mod figures;
pub(crate) mod hardware;
pub(crate) mod redact;
pub(crate) mod report;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::bench::progress;
use catalog::{ExpectedRows, PlannedCheck};
use child::{ChildEnding, ChildRunner, EndedChild};
use report::{CheckResult, CheckStatus};

/// Signals that end the checks; the report then has the results so far.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// Lines of a failed check's errors that a report has.
const ERROR_LINES_MAX: usize = 20;
/// Characters of an error that its row in the table shows.
const CELL_CHARS_MAX: usize = 160;
/// The least remaining time in which a check is started.
const TIME_MIN: Duration = Duration::from_millis(500);

/// Reasons of checks that are not reached, or not finished.
const WHOLE_TIME_OVER: &str = "the time limit of all checks has passed (--limit)";
const INTERRUPTED: &str = "the selftest was interrupted";

/// How long checks may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimits {
    /// All of them together.
    pub(crate) whole: Duration,
    /// Each of them.
    pub(crate) check: Duration,
}

/// The results of all checks.
#[derive(Debug)]
pub(crate) struct SelftestOutcome {
    pub(crate) checks: Vec<CheckResult>,
    /// The signal that ended them.
    pub(crate) signal: Option<i32>,
}

/// Runs all checks in order; a failed check does not stop the next one. Progress is shown on standard error.
///
/// # Errors
/// Signals cannot be caught, or this program has no path.
pub(crate) fn run_checks(checks: &[PlannedCheck], limits: TimeLimits) -> std::io::Result<SelftestOutcome> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in SIGNALS {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    let session = CheckSession {
        program: std::env::current_exe()?,
        runner: ChildRunner::new()?,
        until: Instant::now() + limits.whole,
        limit: limits.check,
        signal,
    };
    let bar = progress::bar_of("checks", checks.len());
    let mut results = Vec::with_capacity(checks.len());
    for (at, check) in checks.iter().enumerate() {
        bar.set_message(format!("{} ({})", check.name, check.about));
        let result = session.run_check(check);
        let before = results.last().map(|result: &CheckResult| (result.status, result.reason.clone()));
        let is_repeated = result.seconds == 0.0 && before == Some((result.status, result.reason.clone()));
        if !is_repeated {
            bar.suspend(|| eprintln!("{}", progress_line(at + 1, checks.len(), &result)));
        }
        bar.inc(1);
        results.push(result);
    }
    bar.finish_and_clear();
    let signal = i32::try_from(session.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0);
    Ok(SelftestOutcome { checks: results, signal })
}

fn progress_line(number: usize, of: usize, result: &CheckResult) -> String {
    let CheckResult { name, status, seconds, reason, .. } = result;
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    match status {
        CheckStatus::Passed => format!("[{number}/{of}] {name}: passed in {seconds:.1} s"),
        CheckStatus::Failed => format!("[{number}/{of}] {name}: FAILED in {seconds:.1} s{reason}"),
        CheckStatus::Skipped => format!("[{number}/{of}] {name}: skipped{reason}"),
        CheckStatus::NotReached => format!("[{number}/{of}] {name}: not reached{reason}"),
    }
}

/// The state that all checks of a run share.
struct CheckSession {
    program: std::path::PathBuf,
    runner: ChildRunner,
    until: Instant,
    limit: Duration,
    signal: Arc<AtomicUsize>,
}

impl CheckSession {
    fn run_check(&self, check: &PlannedCheck) -> CheckResult {
        if let Some(missing) = &check.missing {
            return unrun_result(check, CheckStatus::Skipped, missing);
        }
        if self.signal.load(Ordering::Relaxed) != 0 {
            return unrun_result(check, CheckStatus::NotReached, INTERRUPTED);
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left < TIME_MIN {
            return unrun_result(check, CheckStatus::NotReached, WHOLE_TIME_OVER);
        }
        let mut command = Command::new(&self.program);
        command.args(&check.arguments).envs(check.environment.iter().cloned());
        match self.runner.run_command(&mut command, self.limit.min(left), &self.signal) {
            Ok(ended) => judge_check(check, &ended, left < self.limit),
            Err(error) => unrun_result(check, CheckStatus::Failed, &format!("cannot run the check: {error}")),
        }
    }
}

/// The result of a check that has no output.
fn unrun_result(check: &PlannedCheck, status: CheckStatus, reason: &str) -> CheckResult {
    CheckResult {
        name: check.name.clone(),
        about: check.about,
        command: command_line(check),
        status,
        seconds: 0.0,
        reason: Some(reason.to_owned()),
        figures: Vec::new(),
        notes: Vec::new(),
        rows: Vec::new(),
        error_lines: Vec::new(),
    }
}

/// Returns the command line that repeats the check.
fn command_line(check: &PlannedCheck) -> String {
    let variables = check.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let words = check.arguments.iter().map(|word| match shlex::try_quote(word) {
        // The report must not contain the folder of this program.
        Ok(word) if word.ends_with("/trunkline") => "trunkline".to_owned(),
        Ok(word) => word.into_owned(),
        Err(_) => word.clone(),
    });
    variables.chain(["trunkline".to_owned()]).chain(words).collect::<Vec<_>>().join(" ")
}

/// Decides from a check's exit and output whether it passed. `is_cut`: its limit was the rest of the whole time.
fn judge_check(check: &PlannedCheck, ended: &EndedChild, is_cut: bool) -> CheckResult {
    let rows = parse_rows(&ended.output, check.expected.is_info);
    let failure = match ended.ending {
        ChildEnding::Code(0) => find_fault(&check.expected, &rows),
        ChildEnding::Code(1) => Some(describe_wrong(&rows)),
        ChildEnding::Code(code) => Some(format!("ended with status {code}{}", last_error(&ended.errors))),
        ChildEnding::Signal(signal) => {
            Some(format!("was killed by signal {signal}{}", last_error(&ended.errors)))
        }
        ChildEnding::Overdue if is_cut => Some(WHOLE_TIME_OVER.to_owned()),
        ChildEnding::Overdue => Some(format!("took longer than {:.0} s", ended.elapsed.as_secs_f64())),
        ChildEnding::Interrupted => Some(INTERRUPTED.to_owned()),
    };
    let failure = match (failure, ended.left) {
        (failure, 0) => failure,
        (failure, left) => {
            let before = failure.map_or_else(String::new, |failure| format!("{failure}; "));
            Some(format!("{before}{left} of its processes cannot be killed (stuck in a driver?)"))
        }
    };
    let status = match (&failure, ended.ending) {
        (None, _) => CheckStatus::Passed,
        (Some(_), ChildEnding::Interrupted) => CheckStatus::NotReached,
        (Some(_), ChildEnding::Overdue) if is_cut => CheckStatus::NotReached,
        (Some(_), _) => CheckStatus::Failed,
    };
    let errors: Vec<&str> = ended.errors.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = errors[errors.len().saturating_sub(ERROR_LINES_MAX)..].iter().map(|line| (*line).to_owned());
    let notes = rows.iter().filter(|_| check.expected.is_info).flat_map(figures::info_notes);
    CheckResult {
        seconds: ended.elapsed.as_secs_f64(),
        reason: failure,
        figures: if check.expected.is_info { Vec::new() } else { figures::key_figures(&rows) },
        notes: notes.collect(),
        // For `info`, the notes are enough; its other values are interfaces and addresses.
        rows: if check.expected.is_info { Vec::new() } else { rows },
        error_lines: last.collect(),
        ..unrun_result(check, status, "")
    }
}

/// The last line of a check's errors, for one cell of a table.
fn last_error(errors: &str) -> String {
    let last = errors.lines().rfind(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| {
        format!(": {}", line.chars().take(CELL_CHARS_MAX).collect::<String>())
    })
}

/// The objects that a check printed: a single one, or one per line.
fn parse_rows(output: &str, is_one: bool) -> Vec<Value> {
    if is_one {
        return serde_json::from_str(output).into_iter().collect();
    }
    output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn describe_wrong(rows: &[Value]) -> String {
    let wrong: u64 = rows.iter().filter_map(|row| row["wrong"].as_u64()).sum();
    if wrong > 0 { format!("{wrong} bytes or elements were wrong") } else { "ended with status 1".to_owned() }
}

/// Returns the reason why the rows of a check with exit status 0 are not as expected.
fn find_fault(expected: &ExpectedRows, rows: &[Value]) -> Option<String> {
    if rows.is_empty() {
        return Some("printed no results".to_owned());
    }
    if rows.iter().any(|row| row["wrong"].as_u64().is_some_and(|wrong| wrong > 0)) {
        return Some(describe_wrong(rows));
    }
    let fabrics: Vec<&str> = if expected.is_info {
        let nics = rows.iter().flat_map(|info| info["nics"].as_array().into_iter().flatten());
        nics.filter_map(|nic| nic["fabric"].as_str()).collect()
    } else {
        rows.iter().filter_map(|row| row["fabric"].as_str()).collect()
    };
    if let Some(wanted) = expected.fabric.as_deref() {
        if fabrics.is_empty() {
            return Some(format!("no NIC of fabric {wanted} was found"));
        }
        if let Some(other) = fabrics.iter().find(|fabric| **fabric != wanted) {
            return Some(format!("the data used fabric {other} instead of {wanted}"));
        }
    }
    let is_fused = |row: &Value| row["device"].as_str().is_some_and(|device| device.contains('+'));
    if expected.is_fused && !rows.iter().all(is_fused) {
        return Some("the NICs were not fused".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(expected: &ExpectedRows, rows: &[Value]) -> String {
        find_fault(expected, rows).unwrap_or_default()
    }

    #[test]
    fn rows_of_another_fabric_or_of_wrong_data_are_faults() {
        let verbs = ExpectedRows { fabric: Some("verbs".to_owned()), ..ExpectedRows::default() };
        let row = |fabric: &str, wrong: u64| json!({"fabric": fabric, "wrong": wrong, "device": "mlx5_0"});
        assert_eq!(fault(&verbs, &[row("verbs", 0)]), "");
        assert_eq!(fault(&verbs, &[]), "printed no results");
        assert!(fault(&verbs, &[row("verbs", 0), row("verbs", 2)]).starts_with("2 bytes"));
        assert!(fault(&verbs, &[row("soft", 0)]).contains("soft instead of verbs"));
        let fused = ExpectedRows { is_fused: true, ..verbs.clone() };
        assert_eq!(fault(&fused, &[row("verbs", 0)]), "the NICs were not fused");
        let info = ExpectedRows { is_info: true, ..verbs };
        assert!(fault(&info, &[json!({"nics": []})]).contains("no NIC of fabric verbs"));
        assert_eq!(fault(&info, &[json!({"nics": [{"fabric": "verbs"}]})]), "");
    }

    #[test]
    fn a_check_cut_by_the_whole_time_is_no_failure() {
        let hardware = hardware::HostHardware::read_host(std::path::Path::new("/nowhere"));
        let checks = catalog::plan_checks(&catalog::CheckOptions::default(), &hardware);
        let ended = |ending| EndedChild {
            ending,
            elapsed: Duration::from_secs(2),
            output: String::new(),
            errors: String::new(),
            left: 0,
        };
        let status = |ending, is_cut| judge_check(&checks[0], &ended(ending), is_cut).status;
        assert_eq!(status(ChildEnding::Overdue, false), CheckStatus::Failed);
        assert_eq!(status(ChildEnding::Overdue, true), CheckStatus::NotReached);
        assert_eq!(status(ChildEnding::Interrupted, false), CheckStatus::NotReached);
        assert_eq!(status(ChildEnding::Signal(11), true), CheckStatus::Failed);
    }
}
