//! Messages that go another way than the node's own stream, and only name memory of the node: their references, and how they ended, are
//! carried by whoever calls this.

use std::os::fd::OwnedFd;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{CopyOutcome, ExportName, ExportReference, IpcMessage};
use trunkline_proto::wire::tagged::InboxSizes;

use super::{ArrivalId, IpcNode, NeighbourId, OperationId, ProtocolViolation};

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Tells a neighbour where it may write tagged messages. Said once.
    pub fn give_inbox(&mut self, to: NeighbourId, inbox: InboxSizes, file: OwnedFd) {
        if let Some(peer) = self.peers.get_mut(to) {
            peer.send_message(&IpcMessage::Inbox(inbox), Some(file));
        }
    }

    /// Frames that were said to a neighbour.
    #[inline]
    #[must_use]
    pub fn sent_frames(&self, to: NeighbourId) -> u64 {
        self.peers.get(to).map_or(0, |peer| peer.said)
    }

    /// Whether a neighbour has announced that name, as far as it was heard.
    #[inline]
    #[must_use]
    pub fn knows_name(&self, from: NeighbourId, name: ExportName) -> bool {
        self.importer.is_announced(from.0, name)
    }

    /// A message of a neighbour refers to its memory: say what is to be done with it. `None`: nothing is shared any more.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the neighbour refers to what cannot be, and is taken for dead from now on.
    pub fn accept_reference(
        &mut self,
        from: NeighbourId,
        reference: &ExportReference,
    ) -> Result<Option<ArrivalId>, ProtocolViolation> {
        self.record_arrival(from, None, reference)
    }

    /// A message that referred to memory of this process has ended. `false` if there is none.
    #[inline]
    pub fn finish_operation(&mut self, operation: OperationId, outcome: CopyOutcome, now: Instant) -> bool {
        let pin = self.peers.get_mut(operation.to).and_then(|peer| peer.sent.remove(operation.id));
        let was_there = pin.is_some();
        pin.into_iter().for_each(|pin| self.exporter.finish_message(pin, outcome, now));
        was_there
    }

    /// Whether anything is being copied.
    #[inline]
    #[must_use]
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// A neighbour has said what cannot be, by whatever carries its messages.
    pub fn report_violation(&mut self, neighbour: NeighbourId, why: ProtocolViolation) {
        self.break_with(neighbour, why);
    }
}
