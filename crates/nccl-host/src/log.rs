//! The logger and the profiler callback that the host passes to a plugin.
//!
//! Called by plugins. A line is written to standard error if `NCCL_DEBUG` (`VERSION`, `WARN`, `INFO`, `TRACE`; `WARN`
//! if unset) permits its level. Never fails and never calls back into the plugin.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::io::Write as _;
use std::sync::OnceLock;

use trunkline_sys::nccl_net::{Logger, ProfilerCallback, ResultCode, log_level};

/// Length of the longest line in bytes; longer ones are cut.
const LINE_BYTES_MAX: usize = 1024;

/// The logger to pass to `init`.
pub(crate) fn plugin_logger() -> Logger {
    let entry: unsafe extern "C" fn() = log_entry;
    // SAFETY: `log_entry` follows the C calling convention of a variadic function with these fixed arguments.
    unsafe { std::mem::transmute::<unsafe extern "C" fn(), Logger>(entry) }
}

/// The profiler callback to pass to `init`: the host records nothing.
pub(crate) fn plugin_profiler() -> ProfilerCallback {
    profile
}

unsafe extern "C" fn profile(
    _event: *mut *mut c_void,
    _kind: c_int,
    _phandle: *mut c_void,
    _plugin_id: i64,
    _data: *mut c_void,
) -> ResultCode {
    ResultCode::SUCCESS
}

/// The most verbose level that is printed.
fn log_threshold() -> c_int {
    static LEVEL: OnceLock<c_int> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("NCCL_DEBUG").unwrap_or_default().to_uppercase().as_str() {
        "NONE" => log_level::NONE,
        "VERSION" => log_level::VERSION,
        "INFO" => log_level::INFO,
        "ABORT" => log_level::ABORT,
        "TRACE" => log_level::TRACE,
        _ => log_level::WARN,
    })
}

/// Writes one line; a failed write is ignored, because standard error may be closed.
fn print_line(level: c_int, text: &str) {
    let name = match level {
        log_level::VERSION => "VERSION",
        log_level::WARN => "WARN",
        log_level::INFO => "INFO",
        log_level::ABORT => "ABORT",
        _ => "TRACE",
    };
    let mut line = format!("[{}] plugin {name} {text}", std::process::id());
    while line.ends_with('\n') {
        line.pop();
    }
    line.push('\n');
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(target_arch = "x86_64")]
mod entry {
    //! Stable Rust cannot define a C-variadic function, so this is its prologue in assembly: it lays out a `va_list`
    //! by the System V ABI (register save area, then the caller's stack) and continues in Rust.

    use super::{CStr, LINE_BYTES_MAX, c_char, c_int, c_ulong, c_void, log_threshold, print_line};

    unsafe extern "C" {
        fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, args: *mut c_void) -> c_int;
    }

    /// The variadic entry: five fixed integer arguments, then any others.
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn log_entry() {
        core::arch::naked_asm!(
            "sub rsp, 216",
            "mov [rsp + 32], rdi",
            "mov [rsp + 40], rsi",
            "mov [rsp + 48], rdx",
            "mov [rsp + 56], rcx",
            "mov [rsp + 64], r8",
            "mov [rsp + 72], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 80], xmm0",
            "movaps [rsp + 96], xmm1",
            "movaps [rsp + 112], xmm2",
            "movaps [rsp + 128], xmm3",
            "movaps [rsp + 144], xmm4",
            "movaps [rsp + 160], xmm5",
            "movaps [rsp + 176], xmm6",
            "movaps [rsp + 192], xmm7",
            "2:",
            "mov dword ptr [rsp], 40",
            "mov dword ptr [rsp + 4], 48",
            "lea rax, [rsp + 224]",
            "mov [rsp + 8], rax",
            "lea rax, [rsp + 32]",
            "mov [rsp + 16], rax",
            "mov r9, rsp",
            "call {inner}",
            "add rsp, 216",
            "ret",
            inner = sym log_line,
        )
    }

    unsafe extern "C" fn log_line(
        level: c_int,
        _flags: c_ulong,
        _file: *const c_char,
        _line: c_int,
        format: *const c_char,
        args: *mut c_void,
    ) {
        if level > log_threshold() || format.is_null() {
            return;
        }
        let mut line = [0u8; LINE_BYTES_MAX];
        // SAFETY: the buffer has the stated length, `format` and its arguments were passed by the plugin to a
        // printf-like function, and `args` is the list that `log_entry` built of them.
        let written = unsafe { vsnprintf(line.as_mut_ptr().cast(), line.len(), format, args) };
        if written < 0 {
            return;
        }
        if let Ok(text) = CStr::from_bytes_until_nul(&line) {
            print_line(level, &text.to_string_lossy());
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod entry {
    //! The layout of this processor's `va_list` is not implemented, so only the format `"%s"` with one string is
    //! expanded; any other format is printed literally.

    use super::{CStr, c_char, c_int, c_ulong, c_void, log_threshold, print_line};

    /// The entry, with the type that `logger` expects.
    pub(super) unsafe extern "C" fn log_entry_fixed(
        level: c_int,
        _flags: c_ulong,
        _file: *const c_char,
        _line: c_int,
        format: *const c_char,
        first: *const c_void,
    ) {
        if level > log_threshold() || format.is_null() {
            return;
        }
        // SAFETY: the format of a printf-like function is a NUL-terminated string.
        let format = unsafe { CStr::from_ptr(format) };
        if format.to_bytes() == b"%s" && !first.is_null() {
            // SAFETY: by the format, the argument is a NUL-terminated string.
            let text = unsafe { CStr::from_ptr(first.cast()) };
            print_line(level, &text.to_string_lossy());
        } else {
            print_line(level, &format.to_string_lossy());
        }
    }
}

#[cfg(target_arch = "x86_64")]
use entry::log_entry;

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(naked)]
unsafe extern "C" fn log_entry() {
    core::arch::naked_asm!("b {inner}", inner = sym entry::log_entry_fixed)
}
