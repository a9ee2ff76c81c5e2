//! One descriptor that reports which sockets of a rail have bytes to read. The rail's owner waits for it when
//! polling finds nothing. It never reads a socket, and only [`Rail::arm_wait`](trunkline_fabric::Rail::arm_wait) uses it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// An epoll descriptor that reports the sockets of a rail.
pub(crate) struct SocketEvents {
    descriptor: Arc<OwnedFd>,
}

impl SocketEvents {
    /// Creates the descriptor, which reports nothing yet.
    ///
    /// # Errors
    /// The system's error, such as no descriptor being left.
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self { descriptor })
    }

    /// The descriptor; readable while a watched socket has bytes to read or has ended.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }

    /// Reports a socket from now on. The kernel stops by itself once the socket is closed.
    pub(super) fn watch_socket(&self, socket: &impl AsFd) -> io::Result<()> {
        match epoll::add(&self.descriptor, socket, EventData::new_u64(0), EventFlags::IN | EventFlags::RDHUP)
        {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Stops reporting a socket: that of a failed link stays readable although no thread reads it.
    pub(super) fn unwatch_socket(&self, socket: &impl AsFd) {
        // Ignored: it fails only for a socket that is not watched, which is the wanted state.
        let _ = epoll::delete(&self.descriptor, socket);
    }
}
