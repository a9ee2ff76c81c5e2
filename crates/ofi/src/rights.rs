//! What memory may be used for, by what it is there for: nobody gets more than that.

use std::fmt;

use trunkline_fabric::Access;
use trunkline_sys::ofi::caps;

use crate::mutant::Planted;

/// What this end does with memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LocalUse {
    /// Messages are sent from it.
    pub send: bool,
    /// Messages are received into it.
    pub recv: bool,
    /// What is read of a peer goes into it.
    pub read: bool,
    /// What is written to a peer comes from it.
    pub write: bool,
}

impl LocalUse {
    /// Nothing.
    pub const NONE: Self = Self { send: false, recv: false, read: false, write: false };
    /// Everything.
    pub const ALL: Self = Self { send: true, recv: true, read: true, write: true };
}

/// What may be done with memory: by this end, and by peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rights {
    /// By this end.
    pub local: LocalUse,
    /// By peers.
    pub remote: Access,
}

impl Rights {
    /// The same as libfabric takes it. An atomic both reads and writes.
    #[must_use]
    pub(crate) fn bits(self) -> u64 {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        let local = self.local;
        let remote = self.remote;
        let all = Planted::named("ofi-grants-all-rights").is_on();
        bit(local.send || all, caps::SEND)
            | bit(local.recv || all, caps::RECV)
            | bit(local.read || all, caps::READ)
            | bit(local.write || all, caps::WRITE)
            | bit(remote.read || remote.atomic || all, caps::REMOTE_READ)
            | bit(remote.write || remote.atomic || all, caps::REMOTE_WRITE)
    }
}

/// What memory is there for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Duty {
    /// The user's: this end does anything with it, peers what is said.
    User(Access),
    /// What this end writes to peers comes from it, and what it reads of them goes into it; peers do what is said.
    Heap(Access),
    /// Peers write records into it, and only the processor reads them.
    Mailbox,
    /// Records are written to a peer from it.
    Records,
    /// Messages are sent from it and received into it.
    Messages,
    /// Messages are received into it, and the processor reads them.
    Bounce,
    /// Bytes that the provider does not copy are sent and written from it, among them the first of messages.
    Heads,
    /// What is read of a peer, or of this end to push writes out, goes into it.
    Landing,
    /// It is read for no other reason than to push out what was written before.
    Flushed,
}

impl Duty {
    /// What that takes, and no more.
    #[must_use]
    pub fn rights(self) -> Rights {
        let none = LocalUse::NONE;
        let only = |local| Rights { local, remote: Access::LOCAL };
        let read = Access { read: true, ..Access::LOCAL };
        match self {
            Self::User(remote) => Rights { local: LocalUse::ALL, remote },
            Self::Heap(remote) => Rights { local: LocalUse { read: true, write: true, ..none }, remote },
            Self::Mailbox => Rights { local: none, remote: Access::WRITE },
            Self::Records => only(LocalUse { write: true, ..none }),
            Self::Messages => only(LocalUse { send: true, recv: true, ..none }),
            Self::Bounce => only(LocalUse { recv: true, ..none }),
            Self::Heads => only(LocalUse { send: true, write: true, ..none }),
            Self::Landing => only(LocalUse { read: true, ..none }),
            Self::Flushed => Rights { local: none, remote: read },
        }
    }
}

impl fmt::Display for Duty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User(_) => "memory of the user",
            Self::Heap(_) => "a heap of a job",
            Self::Mailbox => "a mailbox",
            Self::Records => "a place for records",
            Self::Messages => "buffers of messages",
            Self::Bounce => "bounce buffers",
            Self::Heads => "heads of messages",
            Self::Landing => "a place to read into",
            Self::Flushed => "memory that is flushed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_it_needs() {
        let bits = |duty: Duty| duty.rights().bits();
        let local = caps::SEND | caps::RECV | caps::READ | caps::WRITE;
        assert_eq!(bits(Duty::User(Access::LOCAL)), local);
        assert_eq!(bits(Duty::User(Access::WRITE)), local | caps::REMOTE_WRITE);
        assert_eq!(bits(Duty::User(Access::ALL)), local | caps::REMOTE_WRITE | caps::REMOTE_READ);
        assert_eq!(bits(Duty::Heap(Access::LOCAL)), caps::READ | caps::WRITE);
        assert_eq!(bits(Duty::Mailbox), caps::REMOTE_WRITE);
        assert_eq!(bits(Duty::Records), caps::WRITE);
        assert_eq!(bits(Duty::Messages), caps::SEND | caps::RECV);
        assert_eq!(bits(Duty::Bounce), caps::RECV);
        assert_eq!(bits(Duty::Heads), caps::SEND | caps::WRITE);
        assert_eq!(bits(Duty::Landing), caps::READ);
        assert_eq!(bits(Duty::Flushed), caps::REMOTE_READ);
    }
}
