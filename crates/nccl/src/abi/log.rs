//! Log lines through NCCL's logger, which is a C function with printf's arguments.

use core::ffi::CStr;
use std::ffi::CString;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::LogLevel;
use trunkline_sys::nccl_net::{Logger, log_level, log_subsys};

/// The logger that init was given.
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

    /// Says nothing any more: NCCL's logger may be gone.
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
        // Text with a NUL inside cannot be told to C; it is cut there.
        let text = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let file = FILE.as_ptr();
        let format = FORMAT.as_ptr();
        // SAFETY: NCCL's logger takes a format and arguments that fit it, all NUL-terminated and alive here.
        unsafe { logger(level, log_subsys::NET, file, 0, format, text.as_ptr()) };
    }

    /// Writes a line that people have to see to standard error, unless NCCL shows it: it drops warnings where `NCCL_DEBUG` asks for none.
    pub(crate) fn show_hidden(&self, text: &str) {
        // Without a logger the line has gone there already.
        if self.logger.is_some() && !shows_warnings(std::env::var("NCCL_DEBUG").ok().as_deref()) {
            before_start(text);
        }
    }
}

/// Whether NCCL shows warnings at this value of `NCCL_DEBUG`. Others than these are none to it.
fn shows_warnings(debug: Option<&str>) -> bool {
    let shown = ["WARN", "INFO", "ABORT", "TRACE"];
    debug.is_some_and(|debug| shown.iter().any(|level| level.eq_ignore_ascii_case(debug)))
}

/// A line before there is a logger, or when NCCL gave none.
pub(crate) fn before_start(text: &str) {
    // All of it at once, as several ranks may write to the same terminal. Text that cannot be written is dropped.
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
