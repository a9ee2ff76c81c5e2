//! A descriptor that one process hands another over a local control stream, with the process that the kernel says is at the stream's other
//! end. Made by [`Host`](crate::Host)s and fabrics; a fabric reads it when it connects a link. Nothing here is taken from a peer's bytes.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The process at the other end of a local control stream, by the kernel's word.
#[derive(Debug)]
pub struct PeerProcess {
    pid: NonZeroU32,
    pidfd: Option<OwnedFd>,
}

impl PeerProcess {
    /// The process with number `pid` in this process's PID namespace. `pidfd` is a descriptor of it, where the kernel gives one: without one the
    /// number may have passed to another process since.
    ///
    /// `None` if the process has no number here (0).
    #[must_use]
    pub fn new(pid: u32, pidfd: Option<OwnedFd>) -> Option<Self> {
        NonZeroU32::new(pid).map(|pid| Self { pid, pidfd })
    }

    /// Its number in this process's PID namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.get()
    }

    /// Whether it is this process.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.pid() == std::process::id()
    }

    /// Its number, and its descriptor where there is one.
    #[must_use]
    pub fn into_parts(self) -> (u32, Option<OwnedFd>) {
        (self.pid.get(), self.pidfd)
    }
}

/// A descriptor that was handed over, and by which process.
#[derive(Debug)]
pub struct PassedFd {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Who handed it over. `None` if the kernel does not name the process, as across PID namespaces: nothing that only one process may say is
    /// to be believed then.
    pub sender: Option<PeerProcess>,
}

impl PassedFd {
    /// A descriptor that this process hands over. A receiver from a control stream puts the stream's process in place of this one.
    #[must_use]
    pub fn from_own_process(fd: OwnedFd) -> Self {
        Self { fd, sender: PeerProcess::new(std::process::id(), None) }
    }

    /// Whether this process handed it over itself.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.sender.as_ref().is_some_and(PeerProcess::is_own)
    }
}

impl From<OwnedFd> for PassedFd {
    /// A descriptor from a process that is not known.
    fn from(fd: OwnedFd) -> Self {
        Self { fd, sender: None }
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
