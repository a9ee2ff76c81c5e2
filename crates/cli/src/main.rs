//! The `trunkline` command.
#![forbid(unsafe_code)]

fn main() {}
