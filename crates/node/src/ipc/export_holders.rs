//! Lists the holders of exports, for status pages. Decides nothing.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::exporter::ImportingPeerId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::ipc::ExportName;

use super::{IpcNode, NeighbourId};

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Returns the id of a neighbour in [`IpcNode::exporter`]; `None` once nothing is exported to it any more.
    #[must_use]
    pub fn exporter_peer(&self, to: NeighbourId) -> Option<ImportingPeerId> {
        self.peers.get(to).filter(|peer| peer.stream.is_some() && !peer.heard_bye).map(|peer| peer.exporting)
    }

    /// Lists the neighbours that know an export and have not retired it, each with the number of messages to it that
    /// use the export.
    pub fn export_holders(&self, name: ExportName) -> impl Iterator<Item = (NeighbourId, u32)> {
        self.exporter.export_holders(name).filter_map(|(holder, pins)| {
            let mut all = (0..self.peers.slot_count()).filter_map(|place| self.peers.neighbour_at(place));
            Some((all.find(|neighbour| self.exporter_peer(*neighbour) == Some(holder))?, pins))
        })
    }

    /// Sets how long an export without messages is kept from now on; `None`: without limit.
    pub fn set_idle_limit(&mut self, limit: Option<Duration>) {
        self.exporter.set_idle_limit(limit);
    }
}
