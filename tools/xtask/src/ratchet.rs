//! Figures of each crate that may only fall: the counts of `names` and `words`, against the values in a file.
//!
//! Called by those two checks. It compares and writes; it counts nothing itself, and never raises a recorded value.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::report::CheckFindings;

/// Figure to value, of one crate.
pub(crate) type CrateFigures = BTreeMap<String, u64>;

/// Crate to its figures.
pub(crate) type WorkspaceFigures = BTreeMap<String, CrateFigures>;

/// Percentage by which a figure may be below its recorded value before that value must be lowered.
const SLACK_PERCENT: u64 = 5;

/// A file of recorded figures, and how they are judged.
pub(crate) struct FigureRatchet {
    /// The file, relative to the root of the workspace.
    pub(crate) file: &'static str,
    /// The command that counts.
    pub(crate) command: &'static str,
    /// The figure to which all others are relative, and which is not judged itself: a count may rise with it.
    pub(crate) per: Option<&'static str>,
    /// Head of the file.
    pub(crate) head: &'static str,
}

impl FigureRatchet {
    /// Reads the recorded figures; none if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or is not TOML of that shape.
    pub(crate) fn read_figures(&self, root: &Path) -> Result<WorkspaceFigures> {
        let path = root.join(self.file);
        if !path.exists() {
            return Ok(WorkspaceFigures::new());
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", self.file))?;
        toml::from_str(&text).with_context(|| format!("parsing {}", self.file))
    }

    /// Compares counted figures with the recorded ones.
    pub(crate) fn judge_figures(
        &self,
        recorded: &WorkspaceFigures,
        counted: &WorkspaceFigures,
    ) -> CheckFindings {
        let mut findings = CheckFindings::default();
        let command = self.command;
        for (package, figures) in counted {
            let Some(known) = recorded.get(package) else {
                findings.add_finding(
                    package,
                    format!("has no figures in {}; run `{command} --update`", self.file),
                );
                continue;
            };
            for (figure, &now) in figures.iter().filter(|(figure, _)| self.per != Some(figure.as_str())) {
                let limit = known.get(figure).copied().unwrap_or(0);
                if self.has_risen(figure, known, figures) {
                    let text = format!(
                        "{figure} rose from {limit} to {now}; `{command} --list {package}` shows each place"
                    );
                    findings.add_finding(package, text);
                } else if now * 100 < limit * (100 - SLACK_PERCENT) {
                    findings.add_finding(
                        package,
                        format!("{figure} fell from {limit} to {now}; run `{command} --update`"),
                    );
                }
            }
        }
        for package in recorded.keys().filter(|package| !counted.contains_key(*package)) {
            findings.add_finding(
                self.file,
                format!("{package} does not exist any more; run `{command} --update`"),
            );
        }
        findings
    }

    /// Whether a figure is above its recorded value; with [`Self::per`], whether its rate is, too.
    fn has_risen(&self, figure: &str, known: &CrateFigures, now: &CrateFigures) -> bool {
        let value = |figures: &CrateFigures, name: &str| figures.get(name).copied().unwrap_or(0);
        let before = value(known, figure);
        let after = value(now, figure);
        let Some(per) = self.per else { return after > before };
        after > before
            && u128::from(after) * u128::from(value(known, per))
                > u128::from(before) * u128::from(value(now, per))
    }

    /// The figures to record: the counted ones, if none has risen.
    ///
    /// # Errors
    /// A figure has risen: recorded values are never raised.
    pub(crate) fn lower_figures(
        &self,
        recorded: &WorkspaceFigures,
        counted: &WorkspaceFigures,
    ) -> Result<WorkspaceFigures> {
        for (package, figures) in counted {
            let Some(known) = recorded.get(package) else { continue };
            for figure in figures.keys().filter(|figure| self.per != Some(figure.as_str())) {
                anyhow::ensure!(
                    !self.has_risen(figure, known, figures),
                    "{package}: {figure} rose; `{} --list {package}` shows each place",
                    self.command
                );
            }
        }
        Ok(counted.clone())
    }

    /// Writes the figures.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_figures(&self, root: &Path, figures: &WorkspaceFigures) -> Result<()> {
        let mut text = self.head.to_owned();
        for (package, figures) in figures {
            _ = write!(text, "\n[{package}]\n");
            for (figure, value) in figures {
                _ = writeln!(text, "{figure} = {value}");
            }
        }
        std::fs::write(root.join(self.file), text).with_context(|| format!("writing {}", self.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: FigureRatchet =
        FigureRatchet { file: "counts.toml", command: "count", per: None, head: "# Counts.\n" };
    const RATES: FigureRatchet = FigureRatchet { per: Some("words"), ..COUNTS };

    fn figures(values: &[(&str, u64)]) -> WorkspaceFigures {
        let figures = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        WorkspaceFigures::from([("engine".to_owned(), figures)])
    }

    #[test]
    fn a_figure_that_rises_is_a_finding() {
        let recorded = figures(&[("one_word_types", 7)]);
        assert!(COUNTS.judge_figures(&recorded, &recorded).is_clean());
        let risen = figures(&[("one_word_types", 8)]);
        assert!(!COUNTS.judge_figures(&recorded, &risen).is_clean());
        assert!(COUNTS.lower_figures(&recorded, &risen).is_err());
        assert!(
            !COUNTS.judge_figures(&recorded, &figures(&[("one_word_types", 7), ("shared", 1)])).is_clean()
        );
    }

    #[test]
    fn a_figure_that_falls_far_has_to_be_recorded() {
        let recorded = figures(&[("one_word_types", 100)]);
        assert!(COUNTS.judge_figures(&recorded, &figures(&[("one_word_types", 96)])).is_clean());
        let fallen = figures(&[("one_word_types", 94)]);
        assert!(!COUNTS.judge_figures(&recorded, &fallen).is_clean());
        assert_eq!(COUNTS.lower_figures(&recorded, &fallen).unwrap(), fallen);
    }

    #[test]
    fn a_rate_rises_only_with_its_count() {
        let recorded = figures(&[("words", 1000), ("told", 10)]);
        let fewer_words = figures(&[("words", 500), ("told", 10)]);
        assert!(RATES.judge_figures(&recorded, &fewer_words).is_clean());
        let longer = figures(&[("words", 1200), ("told", 12)]);
        assert!(RATES.judge_figures(&recorded, &longer).is_clean());
        let worse = figures(&[("words", 1050), ("told", 12)]);
        assert!(!RATES.judge_figures(&recorded, &worse).is_clean());
    }

    #[test]
    fn a_crate_without_figures_is_a_finding() {
        let recorded = figures(&[("one_word_types", 7)]);
        assert!(!COUNTS.judge_figures(&WorkspaceFigures::new(), &recorded).is_clean());
        assert!(!COUNTS.judge_figures(&recorded, &WorkspaceFigures::new()).is_clean());
    }

    #[test]
    fn written_figures_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let recorded = figures(&[("one_word_types", 7), ("shared", 0)]);
        COUNTS.write_figures(dir.path(), &recorded).unwrap();
        assert_eq!(COUNTS.read_figures(dir.path()).unwrap(), recorded);
    }
}
