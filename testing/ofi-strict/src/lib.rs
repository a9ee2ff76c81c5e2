//! A libfabric provider that enforces what others only document, so that what a program does wrong is noticed on any machine.
//! A test fixture: between processes of one host, correct and readable rather than fast, and never installed.
//!
//! libfabric finds it as `libstrict-fi.so` in a folder that `FI_PROVIDER_PATH` names; its name is `strict`. It offers
//! reliable endpoints (`FI_EP_RDM`) with messages, tagged messages, reads, writes and remote CQ data. What it demands is said
//! by variables `FI_STRICT_*`, all in [`VARIABLES`]; by default it demands what Slingshot's provider does.
//!
//! A violation is one line on standard error, `strict: violation: ...`, the same in the file of `FI_STRICT_REPORT`, the
//! documented error, and with `FI_STRICT_ABORT=1` the end of the process. When a domain ends, or the process with a domain
//! open, an account of it, a line of JSON, goes to that file.
//!
//! *Where to look.* `edge/` is what C calls; it turns pointers into values and goes on in safe Rust. `state.rs` holds a
//! domain, under one lock. The rules are in `registry.rs` (memory), `post.rs` (operations), `gate.rs` (threads) and the edge
//! (objects and their order). `endpoint.rs`, `outgoing.rs` and `incoming.rs` do the work; `wire.rs` has the words.
//!
//! *What it never does.* It starts no thread: with `FI_STRICT_PROGRESS=auto`, too, progress is made inside of calls, then in
//! each of the domain. It crosses no host. It knows no atomics, counters or events. `FI_HMEM` is offered, and
//! answered for memory of the host only; with `FI_STRICT_HMEM=1` also for that of a device that tests make up (`device.rs`).

mod abi;
mod address_vector;
mod config;
mod device;
mod domain;
mod endpoint;
mod gate;
mod incoming;
mod matching;
mod memory;
mod offer;
mod outgoing;
mod post;
mod queue;
mod registry;
mod report;
mod socket;
mod state;
mod strict_report;
mod wire;

use std::io;
use std::path::Path;

pub use abi::fi_prov_ini;
pub use config::VARIABLES;
pub use strict_report::StrictReport;

/// Puts the provider that was built with the running test into a folder, for `FI_PROVIDER_PATH`. A crate whose tests depend
/// on this one has it there.
///
/// # Errors
/// When there is none, or the folder cannot be written.
pub fn place_in(folder: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let built = program.with_file_name("libstrict_fi.so");
    if !built.exists() {
        let what = format!("no provider at {}", built.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    std::os::unix::fs::symlink(built, folder.join("libstrict-fi.so"))
}
