//! What a node lets others know of what it shares: who holds what. For those who show it; nothing is decided by it.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::exporter::ImportingPeerId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::ipc::ExportName;

use super::{IpcNode, NeighbourId};

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// What a neighbour is called in [`IpcNode::exporter`]; `None` once nothing is exported to it any more.
    #[must_use]
    pub fn exporter_peer(&self, to: NeighbourId) -> Option<ImportingPeerId> {
        self.peers.get(to).filter(|peer| peer.stream.is_some() && !peer.heard_bye).map(|peer| peer.exporting)
    }

    /// The neighbours that were told of an export and have not let it go, each with the number of messages to it that use it.
    pub fn export_holders(&self, name: ExportName) -> impl Iterator<Item = (NeighbourId, u32)> {
        self.exporter.export_holders(name).filter_map(|(holder, pins)| {
            let mut all = (0..self.peers.slot_count()).filter_map(|place| self.peers.neighbour_at(place));
            Some((all.find(|neighbour| self.exporter_peer(*neighbour) == Some(holder))?, pins))
        })
    }

    /// For how long an export is kept from now on that no message uses; `None`: for ever.
    pub fn set_idle_limit(&mut self, limit: Option<Duration>) {
        self.exporter.set_idle_limit(limit);
    }
}
