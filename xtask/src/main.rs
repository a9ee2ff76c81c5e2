//! The project's chores and house rules: `cargo xtask <command>`.
//!
//! Called by people, by `./test` and by CI. It never changes a source file, except where a command says
//! `--update`, and is no part of what users install.
#![forbid(unsafe_code)]

use clap::Parser;

/// Trunkline's house rules and chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {}

fn main() {
    let Args {} = Args::parse();
}
