//! A model of a NIC that pairs sends with receives by their keys: in the order of posting for each key. Part of the list of actions on
//! queue pairs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::queue_pair::FuzzReceive;

/// A send of the peer without its receive.
#[derive(Debug)]
struct ComingSend {
    key: u64,
    wr_id: u64,
    bytes: Vec<u8>,
}

/// The matched receives of one end, and the peer's sends for them.
#[derive(Debug, Default)]
pub(super) struct MatchedModel {
    /// Receives without their send, with their keys, the oldest first.
    pub(super) receives: VecDeque<(u64, FuzzReceive)>,
    pub(super) coming: ComingSends,
    /// Per receive, the bytes that must fill it.
    filled: BTreeMap<u64, (FuzzReceive, Vec<u8>)>,
    /// Receives of this end that are too short for their sends.
    too_short: BTreeSet<u64>,
    /// Sends of this end that are too long for their receives.
    pub(super) too_long: BTreeSet<u64>,
}

/// Sends without their receive, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ComingSends(VecDeque<ComingSend>);

impl ComingSends {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl MatchedModel {
    /// Adds a send that the peer has posted. Returns it if it is too long for its receive.
    pub(super) fn add_send(&mut self, key: u64, wr_id: u64, bytes: Vec<u8>) -> Option<u64> {
        let send = ComingSend { key, wr_id, bytes };
        match self.receives.iter().position(|(of, _)| *of == key) {
            Some(at) => self.receives.remove(at).and_then(|(_, posted)| self.match_send(send, posted)),
            None => {
                self.coming.0.push_back(send);
                None
            }
        }
    }

    /// Adds a receive that this end has posted. Returns the peer's send if that is too long for it.
    pub(super) fn add_receive(&mut self, key: u64, posted: FuzzReceive) -> Option<u64> {
        match self.coming.0.iter().position(|send| send.key == key) {
            Some(at) => self.coming.0.remove(at).and_then(|send| self.match_send(send, posted)),
            None => {
                self.receives.push_back((key, posted));
                None
            }
        }
    }

    fn match_send(&mut self, send: ComingSend, posted: FuzzReceive) -> Option<u64> {
        if send.bytes.len() as u64 > posted.len {
            self.too_short.insert(posted.wr_id);
            return Some(send.wr_id);
        }
        self.filled.insert(posted.wr_id, (posted, send.bytes));
        None
    }

    /// Returns a receive that has completed: its place, and the bytes that must have arrived.
    pub(super) fn take_filled(&mut self, wr_id: u64) -> Option<(FuzzReceive, Vec<u8>)> {
        self.filled.remove(&wr_id)
    }

    /// Whether an operation of this end must fail alone. Forgets it.
    pub(super) fn has_too_long(&mut self, wr_id: u64) -> bool {
        self.too_long.remove(&wr_id) || self.too_short.remove(&wr_id)
    }

    /// Cancels a receive; returns whether it was unpaired.
    pub(super) fn forget_receive(&mut self, wr_id: u64) -> bool {
        let before = self.receives.len();
        self.receives.retain(|(_, posted)| posted.wr_id != wr_id);
        self.receives.len() < before
    }

    /// Cancels a receive that is already paired, because no byte of its send has arrived. Returns whether there is such a receive.
    pub(super) fn forget_met_receive(&mut self, wr_id: u64) -> bool {
        self.filled.remove(&wr_id).is_some() || self.too_short.remove(&wr_id)
    }

    /// Cancels a send of the peer; returns whether it was unpaired.
    pub(super) fn forget_send(&mut self, wr_id: u64) -> bool {
        let before = self.coming.0.len();
        self.coming.0.retain(|send| send.wr_id != wr_id);
        self.coming.0.len() < before
    }
}
