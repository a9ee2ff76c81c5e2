//! The results of a check: findings with a place and a reason, and the counted result line.
//!
//! Every check returns a [`CheckFindings`]; `main` and `ci` print it. This module runs no check.

use std::fmt;
use std::io::Write as _;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckFinding {
    /// The place: a crate name or `path:line`.
    pub(crate) place: String,
    /// The violation, and the remedy.
    pub(crate) text: String,
}

impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// Everything one check found, plus remarks that break no rule.
#[derive(Debug, Default)]
pub(crate) struct CheckFindings {
    /// Broken rules; a check with one of them has failed.
    pub(crate) broken: Vec<CheckFinding>,
    /// Remarks for the reader.
    pub(crate) notes: Vec<String>,
    /// Why the check could not run at all, if so.
    pub(crate) skipped: Option<String>,
}

impl CheckFindings {
    /// A check that could not run, for this reason.
    pub(crate) fn with_skip(reason: impl Into<String>) -> Self {
        Self { skipped: Some(reason.into()), ..Self::default() }
    }

    /// Adds a broken rule.
    pub(crate) fn add_finding(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.broken.push(CheckFinding { place: place.into(), text: text.into() });
    }

    /// Adds a remark.
    pub(crate) fn add_note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// True when no rule is broken.
    pub(crate) fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }

    /// Prints notes and findings, each on its line, under the check's name.
    pub(crate) fn print_report(&self, check: &str) {
        for note in &self.notes {
            println!("{check}: note: {note}");
        }
        for finding in &self.broken {
            println!("{check}: {finding}");
        }
        match (&self.skipped, self.broken.len()) {
            (Some(reason), 0) => {
                println!("SKIPPED {check}: {reason}");
                log_skip(check, reason);
            }
            (_, 0) => println!("{check}: ok"),
            (_, n) => println!("{check}: {n} broken"),
        }
    }

    /// True when some finding's text or place contains `needle`; for tests.
    #[cfg(test)]
    pub(crate) fn mentions(&self, needle: &str) -> bool {
        self.broken.iter().any(|f| f.to_string().contains(needle))
    }
}

/// Appends a skip to the file named by `TRUNKLINE_SKIP_LOG`, which `./test` counts.
pub(crate) fn log_skip(name: &str, reason: &str) {
    let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") else { return };
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let written = opened.and_then(|mut file| writeln!(file, "{name}: {reason}"));
    if let Err(error) = written {
        eprintln!("cannot append to TRUNKLINE_SKIP_LOG: {error}");
    }
}

/// Prints the line `./test` sums up; the same shape libtest prints.
pub(crate) fn print_result_line(passed: usize, failed: usize) {
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
}
