//! The last step before a rank's program, in the rank's process: it binds the process to its agent's life, and moves
//! the PMI stream to a new descriptor. Called by `cmd` for the hidden subcommand `run-child`.

use std::fs::File;
use std::os::fd::{AsFd as _, IntoRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal};

/// Exit status of a program that cannot be started, as in shells.
const NOT_STARTED: u8 = 127;

/// Replaces this process by the program; returns only if that fails. Standard input is the PMI stream on entry and
/// empty afterwards.
pub(crate) fn run_program(agent: i32, program: &[String]) -> ExitCode {
    match become_program(agent, program) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("trunkline: cannot start {}: {error}", program.first().map_or("", String::as_str));
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn become_program(agent: i32, program: &[String]) -> std::io::Result<std::convert::Infallible> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The agent may have died before the death signal was set.
    if rustix::process::getppid() != Pid::from_raw(agent) {
        return Err(std::io::Error::other("the launcher's agent has ended"));
    }
    let input = std::io::stdin();
    // A copy that the program inherits; the standard library's copies are closed on exec.
    let pmi = rustix::io::fcntl_dupfd_cloexec(input.as_fd(), 3)?;
    rustix::io::fcntl_setfd(&pmi, rustix::io::FdFlags::empty())?;
    let pmi = pmi.into_raw_fd();
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let Some((name, arguments)) = program.split_first() else {
        return Err(std::io::Error::other("no program was named"));
    };
    Err(Command::new(name).args(arguments).env("PMI_FD", pmi.to_string()).exec())
}
