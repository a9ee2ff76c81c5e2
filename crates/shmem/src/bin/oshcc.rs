//! `oshcc`: compiles C programs of OpenSHMEM.
#![forbid(unsafe_code)]

#[path = "../osh/mod.rs"]
#[allow(dead_code, reason = "the other programs use the other functions")]
mod osh;

fn main() -> std::process::ExitCode {
    osh::compile("oshcc", "OSHCC", "cc")
}
