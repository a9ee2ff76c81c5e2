//! The reasons for refusing a record, as numbers on the wire and as statuses.

use trunkline_fabric::OpStatus;
use trunkline_proto::reserve::OutOfMemory;

/// Why a target refused a record. The numbers are defined in docs/wire.md.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NakReason {
    /// Wrong key, outside the region, or a right that was not granted.
    Access,
    /// More bytes than the receive holds.
    TooLong,
    /// The region the initiator named as its source is not registered (any more).
    Source,
    /// The record is malformed.
    Garbled,
    /// The memory for the bytes is no longer registered.
    Target,
    /// More reads at once than the target executes, or an unsolicited reply.
    Protocol,
    /// This side has no memory to keep the record.
    Memory,
}

impl From<OutOfMemory> for NakReason {
    fn from(_: OutOfMemory) -> Self {
        Self::Memory
    }
}

impl NakReason {
    /// Returns the published number.
    pub(crate) fn to_code(self) -> u64 {
        match self {
            Self::Access => 1,
            Self::TooLong => 2,
            Self::Source => 3,
            Self::Garbled => 4,
            Self::Protocol => 5,
            Self::Target => 6,
            Self::Memory => 7,
        }
    }

    /// Returns the status that the initiator reports for a published code.
    pub(crate) fn status_of_code(code: u64) -> OpStatus {
        match code {
            1 => OpStatus::RemoteAccess,
            2 => OpStatus::TooLong,
            3 => OpStatus::LocalProtection,
            4 => OpStatus::Other(GARBLED),
            5 => OpStatus::Other(PROTOCOL),
            6 => OpStatus::Other(TARGET),
            7 => OpStatus::Other(MEMORY),
            _ => OpStatus::Other(UNKNOWN),
        }
    }
}

/// [`OpStatus::Other`]: a malformed record.
pub(crate) const GARBLED: u32 = 1;
/// [`OpStatus::Other`]: a record that the link's state does not allow.
pub(crate) const PROTOCOL: u32 = 2;
/// [`OpStatus::Other`]: the peer published a position that it cannot have reached.
pub(crate) const UNKNOWN: u32 = 3;
/// [`OpStatus::Other`]: the peer deregistered the memory of a receive, or this side that of a read, too early.
pub(crate) const TARGET: u32 = 4;
/// [`OpStatus::Other`]: the process that was to execute a record had no memory for it.
pub(crate) const MEMORY: u32 = 5;
