//! One-sided communication: which writes are counted, when signals are applied, what a quiet waits for, and how the owner
//! of a word executes atomics for others. Plain state, called by the engine for each operation; it posts nothing.
//!
//! A *stream* is a context of a process, as seen by one target. Signals and puts of one stream are ordered; streams are
//! independent of each other. An *epoch* is what lies between two signals of a stream. Where writes bring immediates, each
//! counted write brings the number of its epoch, the signal that ends it brings how many there were, and the target applies it
//! when so many have come and the epoch before has been applied. No rail needs any order for that.
//!
//! - [`outgoing`]: a stream at its initiator: what a put carries, when a signal may go, what a quiet has to ask.
//! - [`incoming`], [`inbox`]: the streams of one peer at their target: arrivals, order, acknowledgements.
//! - [`ledger`], [`flights`]: operations under way, by context and peer; a quiet is one load when there are none.
//! - [`paths`], [`redo`]: a path that is lost, and what is done again.
//! - [`atomic`], [`calls`], [`served`]: atomics that the owner of a word executes, each once however often it is asked.
//! - [`steps`]: the same by what NICs execute.
//!
//! None of it knows addresses, rights or memory: whoever calls checks the words that a peer names, and applies what it is
//! given before it asks for acknowledgements.

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

/// A link to a peer, by its place among those in use, at each end by its own count: below [`LINKS_MAX`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PathId(u8);

impl PathId {
    /// The path of that place.
    #[must_use]
    pub const fn new(place: u8) -> Option<Self> {
        if (place as usize) < LINKS_MAX { Some(Self(place)) } else { None }
    }

    /// Its place.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize & (LINKS_MAX - 1)
    }
}

/// The peer broke the protocol; its streams cannot be used any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProtocolFault {
    /// The immediate is none of a counted write.
    #[error("immediate {0:#x} is none of a counted write")]
    Immediate(u32),
    /// Something names an epoch that is not live.
    #[error("epoch {0:#x} is not live")]
    Epoch(u64),
    /// More writes of an epoch came than its signal says there are.
    #[error("{arrived} writes of an epoch that has {count}")]
    Count {
        /// Writes that came.
        arrived: u32,
        /// Writes that the signal tells.
        count: u32,
    },
    /// Two different signals end the same epoch.
    #[error("two signals end epoch {0:#x}")]
    Contradiction(u16),
    /// More is acknowledged than was sent.
    #[error("epochs before {0:#x} are acknowledged, which were not sent")]
    Acknowledged(u64),
    /// What it says of a lost rail cannot be.
    #[error("{seen} writes of an epoch came over a rail that took {posted}")]
    Standing {
        /// Writes that the target counted.
        seen: u32,
        /// Writes that the initiator posted.
        posted: u32,
    },
    /// A use of a slot that nobody asked for, or that cannot come yet.
    #[error("use {generation} of slot {slot} is out of place")]
    Slot {
        /// Which slot.
        slot: u8,
        /// Which use of it.
        generation: u16,
    },
    /// A value that has more bits than what was asked for.
    #[error("reply {0:#x} is too wide")]
    Reply(u64),
}

/// A number whose lowest 48 bits are `bits`: the one nearest to `near`.
fn extend_number(bits: u64, near: u64) -> u64 {
    const UNUSED: u32 = 64 - crate::wire::rma::signal::NUMBER_BITS;
    let ahead = (bits.wrapping_sub(near) << UNUSED) as i64 >> UNUSED;
    near.wrapping_add(ahead as u64)
}

/// What a message carries of a number.
const fn truncate_number(number: u64) -> u64 {
    number & ((1 << crate::wire::rma::signal::NUMBER_BITS) - 1)
}

const _: () = assert!(LINKS_MAX.is_power_of_two());
