//! Which comms may share: those that go the same way, between the same NICs, to the same process. Made by the engine
//! from what a comm is to be; compared by the pool.

use crate::id::ProcessId;
use crate::mutant::Mutant;
use crate::nics::Nics;

/// Which end of a comm this is. Queue pairs of sending and of receiving ends are never shared with each other: their
/// depths differ.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum End {
    /// It sends, and it asks.
    Sending,
    /// It receives, and it answers.
    Receiving,
}

/// Comms of equal keys may share.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// The process at the other end, by its random id and never by an address: two processes of one host are two.
    pub peer: ProcessId,
    /// Which end this is.
    pub end: End,
    /// NICs of this end, at least one.
    pub local: Nics,
    /// NICs of the other end, as far as they are known: a sending end must know them, for two listeners of one process
    /// may use different ones; a receiving end is told the epoch, which says as much.
    pub remote: Nics,
}

impl Key {
    /// By what groups are listed: all of it, unless a planted bug has one part forgotten.
    pub(super) fn listed(&self, mutant: Mutant) -> Self {
        let Self { mut peer, mut end, mut local, mut remote } = *self;
        if mutant.is("pool-key-forgets-peer") {
            peer = ProcessId([0; 16]);
        }
        if mutant.is("pool-key-forgets-direction") {
            end = End::Sending;
        }
        if mutant.is("pool-key-forgets-local-nics") {
            local = Nics::NONE;
        }
        if mutant.is("pool-key-forgets-remote-nics") {
            remote = Nics::NONE;
        }
        Self { peer, end, local, remote }
    }
}
