//! Beginning again with variables set: a plugin reads its own when it is loaded, and a process must not change its environment.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Begins this program again, in this process and with the same arguments, with those variables. Why it could not.
pub(super) fn restart_process(variables: &[(&str, &OsStr)]) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    Command::new(program).args(arguments).envs(variables.iter().copied()).exec()
}
