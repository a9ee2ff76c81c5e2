//! Ends of comms that are still here although their owner has left them, or may not have: what the control plane knows of them.

use std::collections::HashMap;

use trunkline_proto::slots::SlotId;

/// A comm that shares its queue pairs.
pub(crate) struct GroupedComm {
    /// The control stream that may speak for the peer.
    pub(crate) stream: SlotId,
    /// Nothing of the peer's end will land any more.
    pub(crate) gone: bool,
}

/// Closed comms of which something is still under way, and that have their links to themselves, by the names that their peers
/// have for them: who may speak for the peer, and whether it has closed, too.
#[derive(Default)]
pub(crate) struct LingeringSet(HashMap<u64, (SlotId, bool)>);

impl LingeringSet {
    /// The comm of that name lingers; `closed`: its peer has closed before.
    pub(crate) fn add_comm(&mut self, name: u64, stream: SlotId, closed: bool) {
        self.0.insert(name, (stream, closed));
    }

    /// Somebody has closed the other end of that name.
    pub(crate) fn on_close(&mut self, name: u64, stream: SlotId) {
        if let Some((_, closed)) = self.0.get_mut(&name).filter(|(known, _)| *known == stream) {
            *closed = true;
        }
    }

    /// Whether the peer takes nothing more.
    pub(crate) fn is_closed(&self, name: u64) -> bool {
        self.0.get(&name).is_none_or(|&(_, closed)| closed)
    }

    /// The comm lingers no more.
    pub(crate) fn remove_comm(&mut self, name: u64) {
        self.0.remove(&name);
    }
}
