//! Restarts the program with variables set: a plugin reads its variables when it is loaded, and a process must not
//! change its own environment.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Restarts this program in this process, with the same arguments and these variables. Returns only if that fails, with
/// the error.
pub(super) fn restart_process(variables: &[(&str, &OsStr)]) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    Command::new(program).args(arguments).envs(variables.iter().copied()).exec()
}
