//! A libfabric provider that enforces rules which other providers only document, so that incorrect programs fail on
//! any machine. It is a test fixture for processes of one host, correct and readable rather than fast, and is never
//! installed.
//!
//! libfabric loads it as `libstrict-fi.so` from the folder in `FI_PROVIDER_PATH`; the provider's name is `strict`. It
//! offers reliable endpoints (`FI_EP_RDM`) with messages, tagged messages, reads, writes and remote CQ data. The
//! environment variables `FI_STRICT_*` set its requirements; [`VARIABLES`] lists them. The defaults are the
//! requirements of Slingshot's provider.
//!
//! For a violation the provider writes one line `strict: violation: ...` to standard error and to the file in
//! `FI_STRICT_REPORT`, and returns the documented error. With `FI_STRICT_ABORT=1` it also aborts the process. When a
//! domain is closed, or the process exits with the domain open, an account of it (one line of JSON) is appended to
//! that file.
//!
//! *Files.* `abi/` contains the functions that C calls; it converts pointers to values and calls safe Rust.
//! `state.rs` contains the state of a domain, under one lock. The rules are in `registry.rs` (memory), `post.rs`
//! (operations), `gate.rs` (threads) and `abi/` (objects and the order of their calls). `endpoint.rs`, `outgoing.rs`
//! and `incoming.rs` execute operations; `wire.rs` defines the frames.
//!
//! *Limits.* The provider starts no thread: progress is made inside calls, with `FI_STRICT_PROGRESS=auto` inside
//! every call of the domain. It does not connect hosts. It supports no atomics, counters or events. It offers
//! `FI_HMEM`, but registers host memory only; with `FI_STRICT_HMEM=1` also memory of the tests' simulated device
//! (`device.rs`).

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

/// Links the provider that was built with the running test into a folder, for `FI_PROVIDER_PATH`. Cargo builds it for
/// each crate whose tests depend on this one.
///
/// # Errors
/// If the provider's library does not exist, or the link cannot be created.
pub fn place_in(folder: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let built = program.with_file_name("libstrict_fi.so");
    if !built.exists() {
        let what = format!("no provider at {}", built.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    std::os::unix::fs::symlink(built, folder.join("libstrict-fi.so"))
}
