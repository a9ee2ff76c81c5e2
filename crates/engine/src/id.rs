//! The names that the engine returns. Plain numbers with generations, never addresses, so that stale ones are recognised.

use trunkline_proto::slots::SlotId;

use crate::comm::request::RequestTicket;

/// A comm: one directed connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CommId {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

impl CommId {
    /// Returns the name as a number that is never 0.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.index as u64 | (self.generation as u64) << 16
    }

    /// Returns the name in a number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u16, generation: (bits >> 16) as u16 }
    }
}

/// An outstanding send, receive or flush. One word, as a `RequestTicket` is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RequestId(u64);

impl RequestId {
    /// Returns the name as a number that is never 0.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the name in a number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn new(comm: CommId, ticket: RequestTicket) -> Self {
        Self(comm.to_bits() | (ticket.to_bits() as u64) << 32)
    }

    #[inline]
    pub(crate) const fn comm_id(self) -> CommId {
        CommId::from_bits(self.0)
    }

    /// Returns its ticket among the requests of its comm.
    #[inline]
    pub(crate) const fn request_ticket(self) -> RequestTicket {
        RequestTicket::from_bits((self.0 >> 32) as u32)
    }
}

/// A region registered with a comm.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MrId(pub(crate) SlotId);

impl MrId {
    /// Returns the name as a number that is never 0.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns the name in a number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(SlotId::from_bits(bits))
    }
}

/// A listener.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ListenId(pub(crate) SlotId);

impl ListenId {
    /// Returns the name as a number that is never 0.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns the name in a number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(SlotId::from_bits(bits))
    }
}
