//! A descriptor that one process passes to another over a local control stream, with the process at the stream's other end as the kernel reports
//! it. Made by [`Host`](crate::Host)s and fabrics; a fabric reads it when it connects a link. Nothing here is taken from a peer's bytes.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The process at the other end of a local control stream, as the kernel reports it.
#[derive(Debug)]
pub struct PeerProcess {
    pid: NonZeroU32,
    pidfd: Option<OwnedFd>,
}

impl PeerProcess {
    /// Returns the process with number `pid` in this process's PID namespace. `pidfd` is its descriptor, if the kernel provides one: without one,
    /// another process may have the number by now.
    ///
    /// `None` if the process has no number here (0).
    #[must_use]
    pub fn new(pid: u32, pidfd: Option<OwnedFd>) -> Option<Self> {
        NonZeroU32::new(pid).map(|pid| Self { pid, pidfd })
    }

    /// Returns its number in this process's PID namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.get()
    }

    /// Whether it is this process.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.pid() == std::process::id()
    }

    /// Returns its number, and its descriptor if there is one.
    #[must_use]
    pub fn into_parts(self) -> (u32, Option<OwnedFd>) {
        (self.pid.get(), self.pidfd)
    }
}

/// A descriptor that was passed, and the process that passed it.
#[derive(Debug)]
pub struct PassedFd {
    /// The descriptor.
    pub fd: OwnedFd,
    /// The process that passed it. `None` if the kernel does not name the process, as across PID namespaces: claims that only one particular process
    /// may make must not be trusted then.
    pub sender: Option<PeerProcess>,
}

impl PassedFd {
    /// Wraps a descriptor that this process passes. A receiver from a control stream replaces the sender with the stream's process.
    #[must_use]
    pub fn from_own_process(fd: OwnedFd) -> Self {
        Self { fd, sender: PeerProcess::new(std::process::id(), None) }
    }

    /// Whether this process passed it itself.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.sender.as_ref().is_some_and(PeerProcess::is_own)
    }
}

impl From<OwnedFd> for PassedFd {
    /// Wraps a descriptor from an unknown process.
    fn from(fd: OwnedFd) -> Self {
        Self { fd, sender: None }
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
