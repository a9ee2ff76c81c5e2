//! What the provider has to say: violations, at once and loudly, and an account of a domain when it ends.

use std::io::Write as _;
use std::path::PathBuf;

use crate::config::StrictConfig;

/// Where it is said.
#[derive(Clone, Debug)]
pub(crate) struct ViolationReport {
    file: Option<PathBuf>,
    abort: bool,
}

impl ViolationReport {
    pub(crate) fn new(config: &StrictConfig) -> Self {
        Self { file: config.report.clone(), abort: config.abort }
    }

    /// Something that the program must not do. Ends the process if that was asked for.
    pub(crate) fn report_violation(&self, what: &str) {
        self.write_line(&format!("strict: violation: {what}"));
        if self.abort {
            std::process::abort();
        }
    }

    /// Something worth a line.
    pub(crate) fn write_line(&self, line: &str) {
        // A standard error that is closed is no reason to fail.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
        self.append_line(line);
    }

    /// A line of the file alone.
    pub(crate) fn append_line(&self, line: &str) {
        let Some(path) = &self.file else { return };
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // In one piece: others write beside us.
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            let _ =
                writeln!(std::io::stderr().lock(), "strict: FI_STRICT_REPORT {}: {error}", path.display());
        }
    }
}
