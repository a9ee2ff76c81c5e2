//! Memory files that are never executable, for status pages, memory shared inside a host and the rings of the software NIC; a system whose
//! `vm.memfd_noexec` is 2 allows no others.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

/// Creates an empty memory file that can be sealed and that no process can execute.
///
/// `name` is its name in `/proc`. The file is closed in programs that this process executes.
///
/// # Errors
/// The error of `memfd_create(2)`.
pub fn create_memory_file(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before Linux 6.3 do not know `MFD_NOEXEC_SEAL`.
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(name, flags)?),
        other => Ok(other?),
    }
}
