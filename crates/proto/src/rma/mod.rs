//! The one-sided protocol as plain state: which writes are counted, when a target applies signals, which operations a quiet waits for, and how the
//! owner of a word executes atomics for other processes. The engine calls it for each operation, completion and message. It posts nothing, sends
//! nothing and reads no memory.
//!
//! A *stream* is a context of a process, as seen by one target. Signals and puts of one stream are ordered; streams are independent of each other. An
//! *epoch* is the interval between two signals of a stream. Where writes carry immediates, each counted write carries the number of its epoch, and
//! the signal that ends the epoch carries the number of its counted writes. The target applies the signal when that number of writes has arrived and
//! the signal before it has been applied. No rail needs to keep any order for that.
//!
//! - [`outgoing`]: a stream at its initiator: the tag of each put, when a signal may be sent, which acknowledgements a quiet requests.
//! - [`incoming`], [`inbox`]: the streams of one peer at their target: arrivals, order, acknowledgements.
//! - [`ledger`], [`in_flight`]: pending operations, by context and peer; a quiet is one load when there are none.
//! - [`paths`], [`redo`]: a lost path, and the operations that are posted again.
//! - [`atomic`], [`atomic_requests`], [`served`]: atomics that the owner of a word executes, each once however often it is requested.
//! - [`steps`]: atomics built from the operations that NICs execute.
//!
//! None of it knows addresses, rights or memory. The caller validates the words that a peer names, and applies each returned signal before it
//! requests acknowledgements.

pub mod atomic;
pub mod atomic_requests;
pub mod in_flight;
pub mod inbox;
pub mod incoming;
pub mod ledger;
pub mod outgoing;
pub mod paths;
pub mod redo;
pub mod served;
pub mod shape;
pub mod steps;

#[cfg(test)]
mod tests;

use crate::limits::LINKS_MAX;

/// A link to a peer, by its index among the links in use; each end counts its own. Below [`LINKS_MAX`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PathId(u8);

impl PathId {
    /// Returns the path with that index; `None` from [`LINKS_MAX`] on.
    #[must_use]
    pub const fn new(place: u8) -> Option<Self> {
        if (place as usize) < LINKS_MAX { Some(Self(place)) } else { None }
    }

    /// Returns its index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize & (LINKS_MAX - 1)
    }
}

/// The peer broke the protocol; its streams cannot be used any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProtocolFault {
    /// The immediate is not that of a counted write.
    #[error("immediate {0:#x} is not that of a counted write")]
    Immediate(u32),
    /// A message names an epoch that is not live.
    #[error("epoch {0:#x} is not live")]
    Epoch(u64),
    /// More writes of an epoch arrived than its signal counts.
    #[error("{arrived} writes arrived of an epoch with {count}")]
    Count {
        /// Writes that arrived.
        arrived: u32,
        /// Writes that the signal counts.
        count: u32,
    },
    /// Two different signals end the same epoch.
    #[error("two signals end epoch {0:#x}")]
    Contradiction(u16),
    /// An acknowledgement covers epochs that were not sent.
    #[error("the peer acknowledged the epochs before {0:#x}, which were not sent")]
    Acknowledged(u64),
    /// A delivery report of a lost path is invalid: it counts more writes than were posted there.
    #[error("the peer counted {seen} writes of an epoch over a path on which {posted} were posted")]
    Standing {
        /// Writes that the target counted.
        seen: u32,
        /// Writes that the initiator posted.
        posted: u32,
    },
    /// A use of a slot that was never requested, or that is ahead of the next use.
    #[error("generation {generation} of slot {slot} was never requested, or is not the next one")]
    Slot {
        /// The slot.
        slot: u8,
        /// The generation: which use of the slot.
        generation: u16,
    },
    /// A value with more bits than the requested word has, or a value that was not requested.
    #[error("reply {0:#x} has a value that was not requested, or more bits than its word")]
    Reply(u64),
}

/// Returns the number closest to `near` whose lowest 48 bits are `bits`.
fn extend_number(bits: u64, near: u64) -> u64 {
    const UNUSED: u32 = 64 - crate::wire::rma::signal::NUMBER_BITS;
    let ahead = (bits.wrapping_sub(near) << UNUSED) as i64 >> UNUSED;
    near.wrapping_add(ahead as u64)
}

/// Returns the lowest 48 bits of a number, as messages carry them.
const fn truncate_number(number: u64) -> u64 {
    number & ((1 << crate::wire::rma::signal::NUMBER_BITS) - 1)
}

const _: () = assert!(LINKS_MAX.is_power_of_two());
