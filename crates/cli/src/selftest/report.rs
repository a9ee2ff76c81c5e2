//! The report: Markdown to paste into an issue, and the same as JSON. Pure; called by `selftest` after all checks.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::facts::HostFact;
use super::figures::KeyFigure;
use super::redact::ReportRedactor;

/// The version of the JSON's keys.
const SCHEMA: u32 = 1;
/// Names that a row of skipped checks shows before it counts the others.
const NAMES_SHOWN: usize = 3;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckStatus {
    Passed,
    Failed,
    /// The host lacks hardware or a library that the check needs.
    Skipped,
    /// The time limit of all checks passed first, or a signal ended the selftest.
    NotReached,
}

impl CheckStatus {
    const fn status_word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "**FAILED**",
            Self::Skipped => "SKIPPED",
            Self::NotReached => "not reached",
        }
    }
}

/// A check after it ran, or did not.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckResult {
    pub(crate) name: String,
    pub(crate) about: &'static str,
    /// As a shell would take it.
    pub(crate) command: String,
    pub(crate) status: CheckStatus,
    pub(crate) seconds: f64,
    /// The reason why it failed or did not run.
    pub(crate) reason: Option<String>,
    pub(crate) figures: Vec<KeyFigure>,
    pub(crate) notes: Vec<String>,
    /// The lines that it printed.
    pub(crate) rows: Vec<Value>,
    /// The last lines of its errors.
    pub(crate) error_lines: Vec<String>,
}

/// The content of a report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SelftestReport {
    schema: u32,
    version: &'static str,
    commit: &'static str,
    quick: bool,
    limit_s: u64,
    pub(crate) seconds: f64,
    /// Whether names of hosts and users are in the report.
    names: bool,
    facts: Vec<HostFact>,
    pub(crate) checks: Vec<CheckResult>,
}

/// The options that a report shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOptions {
    pub(crate) quick: bool,
    pub(crate) limit_s: u64,
    pub(crate) names: bool,
}

impl SelftestReport {
    pub(crate) fn new(options: ReportOptions, facts: Vec<HostFact>, checks: Vec<CheckResult>) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            commit: trunkline_runtime::COMMIT,
            quick: options.quick,
            limit_s: options.limit_s,
            seconds: checks.iter().map(|check| check.seconds).sum(),
            names: options.names,
            facts,
            checks,
        }
    }

    /// Applies the redactor to every text of the report.
    pub(crate) fn redact(&mut self, redactor: &ReportRedactor) {
        let clean = |text: &mut String| *text = redactor.redact_text(text);
        for fact in &mut self.facts {
            clean(&mut fact.name);
            clean(&mut fact.value);
        }
        for check in &mut self.checks {
            clean(&mut check.command);
            check.reason.iter_mut().for_each(clean);
            check.notes.iter_mut().for_each(clean);
            check.error_lines.iter_mut().for_each(clean);
            check.rows.iter_mut().for_each(|row| redactor.redact_json(row));
        }
    }

    pub(crate) fn count_checks(&self, status: CheckStatus) -> usize {
        self.checks.iter().filter(|check| check.status == status).count()
    }

    /// `5 passed, 1 failed, 14 skipped, 0 not reached`.
    pub(crate) fn summary_line(&self) -> String {
        let of = |status| self.count_checks(status);
        format!(
            "{} passed, {} failed, {} skipped, {} not reached",
            of(CheckStatus::Passed),
            of(CheckStatus::Failed),
            of(CheckStatus::Skipped),
            of(CheckStatus::NotReached),
        )
    }

    pub(crate) fn to_markdown(&self) -> String {
        let mut text = format!("### Trunkline selftest: {}\n\n", self.summary_line());
        let rows = self.facts.iter().map(|fact| [escape_cell(&fact.name), escape_cell(&fact.value)]);
        push_table(&mut text, ["host", ""], "| --- | --- |", rows);
        text.push('\n');
        push_table(
            &mut text,
            ["check", "result", "seconds", "figures"],
            "| --- | --- | ---: | --- |",
            self.check_rows().into_iter(),
        );
        for check in &self.checks {
            push_errors(&mut text, check);
        }
        let sizes = if self.quick { "small sizes (--quick)" } else { "the usual sizes" };
        let names = if self.names {
            "Names of hosts and users are in this report (--names)."
        } else {
            "Names of hosts and users, IP addresses and paths in the home folder are left out; --names keeps them."
        };
        let _ = writeln!(text, "\n{sizes}, {:.0} s of at most {} s. {names}", self.seconds, self.limit_s);
        text
    }

    /// A row for each check, and one for skipped ones that follow each other and have the same reason.
    fn check_rows(&self) -> Vec<[String; 4]> {
        let is_same = |a: &CheckResult, b: &CheckResult| {
            a.status != CheckStatus::Passed
                && a.status != CheckStatus::Failed
                && a.status == b.status
                && a.reason == b.reason
        };
        self.checks
            .chunk_by(is_same)
            .map(|alike| {
                let first = &alike[0];
                let shown =
                    alike.iter().take(NAMES_SHOWN).map(|check| format!("`{}`", escape_cell(&check.name)));
                let mut names = shown.collect::<Vec<_>>().join(", ");
                if alike.len() > NAMES_SHOWN {
                    let _ = write!(names, " and {} more", alike.len() - NAMES_SHOWN);
                }
                let has_run = matches!(first.status, CheckStatus::Passed | CheckStatus::Failed);
                let seconds = if has_run { format!("{:.1}", first.seconds) } else { String::new() };
                [names, first.status.status_word().to_owned(), seconds, escape_cell(&check_details(first))]
            })
            .collect()
    }
}

/// The reason, the figures and other findings.
fn check_details(check: &CheckResult) -> String {
    let figures = check.figures.iter().map(KeyFigure::to_text);
    check
        .reason
        .iter()
        .cloned()
        .chain(figures)
        .chain(check.notes.iter().cloned())
        .collect::<Vec<_>>()
        .join("; ")
}

fn push_table<const N: usize>(
    text: &mut String,
    head: [&str; N],
    rule: &str,
    rows: impl Iterator<Item = [String; N]>,
) {
    let _ = writeln!(text, "| {} |\n{rule}", head.join(" | "));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

/// A text in one cell of a table: on one line, without characters that Markdown or HTML would interpret.
fn escape_cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('>', "&gt;").replace('`', "'")
}

/// The last lines of a failed check's errors, folded.
fn push_errors(text: &mut String, check: &CheckResult) {
    if check.status != CheckStatus::Failed {
        return;
    }
    let reason = check.reason.as_deref().unwrap_or_default();
    let _ = write!(
        text,
        "\n<details><summary>{}: {}</summary>\n\n~~~~~text\n$ {}\n",
        escape_cell(&check.name),
        escape_cell(reason),
        check.command
    );
    for line in &check.error_lines {
        // A line of the fence's own letters would end it.
        let _ = writeln!(text, "{}", line.replace("~~~~~", "~~~~ "));
    }
    text.push_str("~~~~~\n\n</details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, status: CheckStatus, reason: Option<&str>) -> CheckResult {
        CheckResult {
            name: name.to_owned(),
            about: "about",
            command: "trunkline bench".to_owned(),
            status,
            seconds: 1.5,
            reason: reason.map(str::to_owned),
            figures: Vec::new(),
            notes: Vec::new(),
            rows: Vec::new(),
            error_lines: vec!["a | b".to_owned(), "~~~~~".to_owned()],
        }
    }

    #[test]
    fn skipped_checks_of_one_reason_share_a_row() {
        let none = Some("no RDMA device");
        let checks = vec![
            check("a", CheckStatus::Failed, Some("status 2 | <b>")),
            check("b", CheckStatus::Failed, Some("status 2 | <b>")),
            check("c", CheckStatus::Skipped, none),
            check("d", CheckStatus::Skipped, none),
            check("e", CheckStatus::Skipped, none),
            check("f", CheckStatus::Skipped, none),
            check("g", CheckStatus::Skipped, Some("no GPU")),
            check("h", CheckStatus::Passed, None),
        ];
        let options = ReportOptions { quick: true, limit_s: 600, names: false };
        let report = SelftestReport::new(options, vec![HostFact::new("CPU", "a|b")], checks);
        let text = report.to_markdown();
        let rows = [
            "| CPU | a\\|b |",
            "| `a` | **FAILED** | 1.5 | status 2 \\| &lt;b&gt; |",
            "| `c`, `d`, `e` and 1 more | SKIPPED |  | no RDMA device |",
            "| `g` | SKIPPED |  | no GPU |",
            "| `h` | passed | 1.5 |  |",
        ];
        for row in rows {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        assert!(text.starts_with("### Trunkline selftest: 1 passed, 2 failed, 5 skipped, 0 not reached\n"));
        assert_eq!(text.matches("<details>").count(), 2);
        assert_eq!(text.lines().filter(|line| *line == "~~~~~").count(), 2, "{text}");
    }
}
