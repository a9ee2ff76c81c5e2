//! Which comms may share: those that go the same way, between the same NICs, to the same process. Made by the engine
//! from what a comm is to be; compared by the pool.

use crate::id::ProcessId;
use crate::nics::NicList;

/// Which end of a comm this is. Queue pairs of sending and of receiving ends are never shared with each other: their
/// depths differ.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CommEnd {
    /// It sends, and it asks.
    Sending,
    /// It receives, and it answers.
    Receiving,
}

/// Comms of equal keys may share.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct GroupKey {
    /// The process at the other end, by its random id and never by an address: two processes of one host are two.
    pub peer: ProcessId,
    /// Which end this is.
    pub end: CommEnd,
    /// NICs of this end, at least one.
    pub local: NicList,
    /// NICs of the other end, as far as they are known: a sending end must know them, for two listeners of one process
    /// may use different ones; a receiving end is told the epoch, which says as much.
    pub remote: NicList,
}
