//! The last step before a rank's program, in the rank's own process: bound to its agent's life, with the PMI stream on a
//! number of its own. Called by `cmd` for the hidden subcommand `run-child`.

use std::fs::File;
use std::os::fd::{AsFd as _, IntoRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal};

/// Exit status of a program that cannot be started, as shells have it.
const NOT_STARTED: u8 = 127;

/// Becomes the program; comes back only when that fails. Standard input is the PMI stream on entry and empty afterwards.
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
    // It may have died before that.
    if rustix::process::getppid() != Pid::from_raw(agent) {
        return Err(std::io::Error::other("the agent is gone"));
    }
    let input = std::io::stdin();
    // A copy that the program inherits, unlike those of the standard library.
    let pmi = rustix::io::fcntl_dupfd_cloexec(input.as_fd(), 3)?;
    rustix::io::fcntl_setfd(&pmi, rustix::io::FdFlags::empty())?;
    let pmi = pmi.into_raw_fd();
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let Some((name, arguments)) = program.split_first() else {
        return Err(std::io::Error::other("no program was named"));
    };
    Err(Command::new(name).args(arguments).env("PMI_FD", pmi.to_string()).exec())
}
