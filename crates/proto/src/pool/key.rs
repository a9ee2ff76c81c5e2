//! The key that comms must have in common to share: direction, NICs of both ends, and peer process. The engine makes a key for each
//! comm; the pool compares keys.

use crate::id::ProcessId;
use crate::nics::NicList;

/// The end of a comm. Queue pairs of sending and of receiving ends are never shared with each other, because their
/// depths differ.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CommEnd {
    /// It sends, and requests connections.
    Sending,
    /// It receives, and replies to requests.
    Receiving,
}

/// Comms with equal keys may share.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct GroupKey {
    /// The process at the other end, by its random id and never by an address: two processes of one host differ.
    pub peer: ProcessId,
    /// Which end this is.
    pub end: CommEnd,
    /// NICs of this end, at least one.
    pub local: NicList,
    /// NICs of the other end, as far as they are known. A sending end must know them, because two listeners of one process may use
    /// different ones. A receiving end receives the epoch instead, which identifies them.
    pub remote: NicList,
}
