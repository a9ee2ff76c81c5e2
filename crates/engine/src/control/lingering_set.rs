//! Closed comms, and members of groups, as the control plane tracks them after their owner may have left.

use std::collections::HashMap;

use trunkline_proto::slots::SlotId;

/// A comm that shares its queue pairs.
pub(crate) struct GroupedComm {
    /// The control stream that may act for the peer.
    pub(crate) stream: SlotId,
    /// Nothing of the peer's end will land any more.
    pub(crate) gone: bool,
}

/// Closed comms with links of their own and operations in flight, by their peers' names of them. Each with the control stream
/// that may act for the peer, and whether the peer has closed.
#[derive(Default)]
pub(crate) struct LingeringSet(HashMap<u64, (SlotId, bool)>);

impl LingeringSet {
    /// Adds a lingering comm; `closed`: its peer has closed before.
    pub(crate) fn add_comm(&mut self, name: u64, stream: SlotId, closed: bool) {
        self.0.insert(name, (stream, closed));
    }

    /// Records CLOSE for a name, if it arrived on the stream that may act for that peer.
    pub(crate) fn on_close(&mut self, name: u64, stream: SlotId) {
        if let Some((_, closed)) = self.0.get_mut(&name).filter(|(known, _)| *known == stream) {
            *closed = true;
        }
    }

    /// Returns whether the peer receives nothing more.
    pub(crate) fn is_closed(&self, name: u64) -> bool {
        self.0.get(&name).is_none_or(|&(_, closed)| closed)
    }

    /// Removes a comm that lingers no more.
    pub(crate) fn remove_comm(&mut self, name: u64) {
        self.0.remove(&name);
    }
}
