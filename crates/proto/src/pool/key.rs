//! Which comms may share: those that go the same way, between the same NICs, to the same process. Made by the engine
//! from what a comm is to be; compared by the pool.

use crate::id::ProcessId;
use crate::mutant::Mutant;
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

impl GroupKey {
    /// By what groups are listed: all of it, unless a planted bug has one part forgotten.
    pub(super) fn listing_key(&self, mutant: Mutant) -> Self {
        let Self { mut peer, mut end, mut local, mut remote } = *self;
        if mutant.is_planted("pool-key-forgets-peer") {
            peer = ProcessId([0; 16]);
        }
        if mutant.is_planted("pool-key-forgets-direction") {
            end = CommEnd::Sending;
        }
        if mutant.is_planted("pool-key-forgets-local-nics") {
            local = NicList::NONE;
        }
        if mutant.is_planted("pool-key-forgets-remote-nics") {
            remote = NicList::NONE;
        }
        Self { peer, end, local, remote }
    }
}
