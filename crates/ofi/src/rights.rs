//! Access rights of registered memory, derived from its purpose: no access beyond the purpose is granted. Pure.

use std::fmt;

use trunkline_fabric::AccessRights;
use trunkline_sys::ofi::caps;

/// The operations of this end that access memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LocalUse {
    /// Messages are sent from it.
    pub send: bool,
    /// Messages are received into it.
    pub recv: bool,
    /// Reads from a peer are stored into it.
    pub read: bool,
    /// It is the source of writes to a peer.
    pub write: bool,
}

impl LocalUse {
    /// No operation.
    pub const NONE: Self = Self { send: false, recv: false, read: false, write: false };
    /// All operations.
    pub const ALL: Self = Self { send: true, recv: true, read: true, write: true };
}

/// Access rights of this end and of peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryRights {
    /// Of this end.
    pub local: LocalUse,
    /// Of peers.
    pub remote: AccessRights,
}

impl MemoryRights {
    /// Returns libfabric's access flags (fi_mr(3)). An atomic both reads and writes.
    #[must_use]
    pub(crate) fn access_bits(self) -> u64 {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        let local = self.local;
        let remote = self.remote;
        bit(local.send, caps::SEND)
            | bit(local.recv, caps::RECV)
            | bit(local.read, caps::READ)
            | bit(local.write, caps::WRITE)
            | bit(remote.read || remote.atomic, caps::REMOTE_READ)
            | bit(remote.write || remote.atomic, caps::REMOTE_WRITE)
    }
}

/// The duty of registered memory: the purpose for which it is registered. It determines the access rights.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryDuty {
    /// Data of the fabric's caller: this end has all rights, and peers have the given ones.
    User(AccessRights),
    /// A heap of a one-sided job: this end writes to peers from it, and reads from peers into it. Peers have the given
    /// rights.
    Heap(AccessRights),
    /// Peers write control records into it, such as clear-to-send records. Only the CPU reads them.
    Mailbox,
    /// Control records are written to a peer's mailbox from it.
    Records,
    /// Messages are sent from it and received into it.
    Messages,
    /// Messages are received into it, and the CPU reads them.
    Bounce,
    /// The fabric's copies of short data, such as message headers, are sent and written from it. The fabric keeps each
    /// copy until its operation completes. It makes copies only where the provider makes none itself.
    Heads,
    /// Reads are stored into it: from a peer, or from this end's own memory for a flush.
    Landing,
}

impl MemoryDuty {
    /// Returns the access rights that the purpose requires.
    #[must_use]
    pub fn required_rights(self) -> MemoryRights {
        let none = LocalUse::NONE;
        let only = |local| MemoryRights { local, remote: AccessRights::LOCAL };
        match self {
            Self::User(remote) => MemoryRights { local: LocalUse::ALL, remote },
            Self::Heap(remote) => {
                MemoryRights { local: LocalUse { read: true, write: true, ..none }, remote }
            }
            Self::Mailbox => MemoryRights { local: none, remote: AccessRights::WRITE },
            Self::Records => only(LocalUse { write: true, ..none }),
            Self::Messages => only(LocalUse { send: true, recv: true, ..none }),
            Self::Bounce => only(LocalUse { recv: true, ..none }),
            Self::Heads => only(LocalUse { send: true, write: true, ..none }),
            Self::Landing => only(LocalUse { read: true, ..none }),
        }
    }
}

impl fmt::Display for MemoryDuty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User(_) => "memory of the caller",
            Self::Heap(_) => "a heap of a job",
            Self::Mailbox => "a mailbox",
            Self::Records => "a buffer for control records",
            Self::Messages => "buffers of messages",
            Self::Bounce => "bounce buffers",
            Self::Heads => "a buffer for message headers",
            Self::Landing => "a buffer for reads",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duties_grant_only_the_needed_rights() {
        let bits = |duty: MemoryDuty| duty.required_rights().access_bits();
        let local = caps::SEND | caps::RECV | caps::READ | caps::WRITE;
        assert_eq!(bits(MemoryDuty::User(AccessRights::LOCAL)), local);
        assert_eq!(bits(MemoryDuty::User(AccessRights::WRITE)), local | caps::REMOTE_WRITE);
        assert_eq!(bits(MemoryDuty::User(AccessRights::ALL)), local | caps::REMOTE_WRITE | caps::REMOTE_READ);
        assert_eq!(bits(MemoryDuty::Heap(AccessRights::LOCAL)), caps::READ | caps::WRITE);
        assert_eq!(bits(MemoryDuty::Mailbox), caps::REMOTE_WRITE);
        assert_eq!(bits(MemoryDuty::Records), caps::WRITE);
        assert_eq!(bits(MemoryDuty::Messages), caps::SEND | caps::RECV);
        assert_eq!(bits(MemoryDuty::Bounce), caps::RECV);
        assert_eq!(bits(MemoryDuty::Heads), caps::SEND | caps::WRITE);
        assert_eq!(bits(MemoryDuty::Landing), caps::READ);
    }
}
