//! The project's chores and house rules: `cargo xtask <command>`.
//!
//! Called by people, by `./test` and by CI. It never changes a source file, except where a command says
//! `--update`, and is no part of what users install.
#![forbid(unsafe_code)]

#[cfg(test)]
mod fixture;
mod floors;
mod limits;
mod report;
mod source;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::report::Findings;
use crate::workspace::Workspace;

/// Trunkline's house rules and chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks who depends on whom, and that the pure crates are pure.
    Floors,
    /// Checks the lengths of files and functions, and that no state hides at file scope.
    Limits,
}

fn main() -> ExitCode {
    match dispatch(Args::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; `false` when it found something broken.
fn dispatch(command: Command) -> Result<bool> {
    let workspace = Workspace::current()?;
    match command {
        Command::Floors => Ok(shown("floors", &floors::run(&workspace)?)),
        Command::Limits => Ok(shown("limits", &limits::run(&workspace)?)),
    }
}

fn shown(check: &str, findings: &Findings) -> bool {
    findings.print(check);
    findings.is_clean()
}
