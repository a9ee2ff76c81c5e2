//! Log lines through NCCL's logger, which is a C function with printf's arguments.

use core::ffi::CStr;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::Level;
use trunkline_sys::nccl_net::{Logger, log_level, log_subsys};

/// The logger that init was given.
pub(crate) struct Log {
    logger: Option<Logger>,
    silent: AtomicBool,
}

const FILE: &CStr = c"trunkline";
const FORMAT: &CStr = c"NET/Trunkline : %s";

impl Log {
    pub(crate) fn new(logger: Option<Logger>) -> Self {
        Self { logger, silent: AtomicBool::new(false) }
    }

    /// Says nothing any more: NCCL's logger may be gone.
    pub(crate) fn silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn line(&self, level: Level, text: &str) {
        let Some(logger) = self.logger else { return before_start(text) };
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        let level = match level {
            Level::Warn => log_level::WARN,
            Level::Info => log_level::INFO,
        };
        // Text with a NUL inside cannot be told to C; it is cut there.
        let text = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let (file, format) = (FILE.as_ptr(), FORMAT.as_ptr());
        // SAFETY: NCCL's logger takes a format and arguments that fit it, all NUL-terminated and alive here.
        unsafe { logger(level, log_subsys::NET, file, 0, format, text.as_ptr()) };
    }
}

/// A line before there is a logger, or when NCCL gave none.
pub(crate) fn before_start(text: &str) {
    eprintln!("trunkline: {text}");
}
