//! Writes violations, at once, and the account of a domain when it is closed.

use std::io::Write as _;
use std::path::PathBuf;

use crate::config::StrictConfig;

/// The destinations of reports.
#[derive(Clone, Debug)]
pub(crate) struct ViolationReport {
    file: Option<PathBuf>,
    abort: bool,
}

impl ViolationReport {
    pub(crate) fn new(config: &StrictConfig) -> Self {
        Self { file: config.report.clone(), abort: config.abort }
    }

    /// Reports a violation. Aborts the process with `FI_STRICT_ABORT`.
    pub(crate) fn report_violation(&self, what: &str) {
        self.write_line(&format!("strict: violation: {what}"));
        if self.abort {
            std::process::abort();
        }
    }

    /// Writes a line to standard error and to the file.
    pub(crate) fn write_line(&self, line: &str) {
        // A closed standard error must not cause a failure.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
        self.append_line(line);
    }

    /// Appends a line to the file only.
    pub(crate) fn append_line(&self, line: &str) {
        let Some(path) = &self.file else { return };
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // One write per line, because other processes append to the same file.
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            let _ =
                writeln!(std::io::stderr().lock(), "strict: FI_STRICT_REPORT {}: {error}", path.display());
        }
    }
}
