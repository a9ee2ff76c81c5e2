//! Logs through NCCL's logger, a C function with the arguments of printf. Used by all modules; never fails.

use core::ffi::CStr;
use std::ffi::CString;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::LogLevel;
use trunkline_sys::nccl_net::{Logger, log_level, log_subsys};

/// The logger that `init` received.
pub(crate) struct NcclLog {
    logger: Option<Logger>,
    silent: AtomicBool,
}

const FILE: &CStr = c"trunkline";
const FORMAT: &CStr = c"NET/Trunkline : %s";

impl NcclLog {
    pub(crate) fn new(logger: Option<Logger>) -> Self {
        Self { logger, silent: AtomicBool::new(false) }
    }

    /// Stops all output: NCCL's logger may be unmapped.
    pub(crate) fn silence_log(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn log_line(&self, level: LogLevel, text: &str) {
        let Some(logger) = self.logger else { return before_start(text) };
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        let level = match level {
            LogLevel::Warn => log_level::WARN,
            LogLevel::Info => log_level::INFO,
        };
        // C strings cannot contain a NUL; the text is cut there.
        let text = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let file = FILE.as_ptr();
        let format = FORMAT.as_ptr();
        // SAFETY: NCCL's logger expects a format and arguments that match it; `%s` matches `text`, and all strings
        // are NUL-terminated and live until the call has returned.
        unsafe { logger(level, log_subsys::NET, file, 0, format, text.as_ptr()) };
    }

    /// Writes an important line to standard error, unless NCCL shows it: NCCL drops warnings if `NCCL_DEBUG` does not
    /// request them.
    pub(crate) fn show_hidden(&self, text: &str) {
        // Without a logger, `log_line` has already written the line there.
        if self.logger.is_some() && !shows_warnings(std::env::var("NCCL_DEBUG").ok().as_deref()) {
            before_start(text);
        }
    }
}

/// Whether NCCL shows warnings at this value of `NCCL_DEBUG`. NCCL ignores other values than these.
fn shows_warnings(debug: Option<&str>) -> bool {
    let shown = ["WARN", "INFO", "ABORT", "TRACE"];
    debug.is_some_and(|debug| shown.iter().any(|level| level.eq_ignore_ascii_case(debug)))
}

/// Writes a line to standard error, if there is no logger.
pub(crate) fn before_start(text: &str) {
    // One write for the whole line, because several ranks may write to the same terminal. A failed write is ignored.
    let _ = std::io::stderr().write_all(format!("trunkline: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::shows_warnings;

    #[test]
    fn warnings_are_hidden_where_nccl_is_silent() {
        for (value, shown) in [
            (None, false),
            (Some("VERSION"), false),
            (Some(""), false),
            (Some("warn"), true),
            (Some("INFO"), true),
            (Some("TRACE"), true),
        ] {
            assert_eq!(shows_warnings(value), shown, "{value:?}");
        }
    }
}
