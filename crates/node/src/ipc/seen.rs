//! What a node lets others know of what it shares: who holds what. For those who show it; nothing is decided by it.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::exporter::PeerId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::ipc::Name;

use super::{Neighbour, Node};

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// What a neighbour is called in [`Node::exporter`]; `None` once nothing is exported to it any more.
    #[must_use]
    pub fn exporting(&self, to: Neighbour) -> Option<PeerId> {
        self.peers.get(to).filter(|peer| peer.stream.is_some() && !peer.heard_bye).map(|peer| peer.exporting)
    }

    /// The neighbours that were told of an export and have not let it go, each with the number of messages to it that use it.
    pub fn holders(&self, name: Name) -> impl Iterator<Item = (Neighbour, u32)> {
        let blind = self.mutant.is("seen-finds-nobody");
        self.exporter.holders(name).filter(move |_| !blind).filter_map(|(holder, pins)| {
            let mut all = (0..self.peers.places()).filter_map(|place| self.peers.at(place));
            Some((all.find(|neighbour| self.exporting(*neighbour) == Some(holder))?, pins))
        })
    }

    /// For how long an export is kept from now on that no message uses; `None`: for ever.
    pub fn idle(&mut self, limit: Option<Duration>) {
        if !self.mutant.is("seen-idle-limit-unheard") {
            self.exporter.idle(limit);
        }
    }
}
