//! The interface for messages that do not use the node's own stream and only refer to memory of the node. The caller
//! carries their references and their outcomes.

use std::os::fd::OwnedFd;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{CopyOutcome, ExportName, ExportReference, IpcMessage};
use trunkline_proto::wire::tagged::InboxSizes;

use super::{ArrivalId, IpcNode, NeighbourId, OperationId, ProtocolViolation};

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Sends a neighbour the inbox into which it may write tagged messages. To be called once per neighbour.
    pub fn give_inbox(&mut self, to: NeighbourId, inbox: InboxSizes, file: OwnedFd) {
        if let Some(peer) = self.peers.get_mut(to) {
            peer.send_message(&IpcMessage::Inbox(inbox), Some(file));
        }
    }

    /// Returns the number of frames that were sent to a neighbour.
    #[inline]
    #[must_use]
    pub fn sent_frames(&self, to: NeighbourId) -> u64 {
        self.peers.get(to).map_or(0, |peer| peer.said)
    }

    /// Whether an announcement of that name by a neighbour was read.
    #[inline]
    #[must_use]
    pub fn knows_name(&self, from: NeighbourId, name: ExportName) -> bool {
        self.importer.is_announced(from.0, name)
    }

    /// Accepts a reference of a neighbour's message to its memory; the owner then receives or refuses the arrival.
    /// `None`: the neighbour, or this node, shares nothing any more.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the reference is invalid, and the caller must report it with
    /// [`IpcNode::report_violation`].
    pub fn accept_reference(
        &mut self,
        from: NeighbourId,
        reference: &ExportReference,
    ) -> Result<Option<ArrivalId>, ProtocolViolation> {
        self.record_arrival(from, None, reference)
    }

    /// Ends a message that referred to memory of this process. Returns `false` if the operation is unknown.
    #[inline]
    pub fn finish_operation(&mut self, operation: OperationId, outcome: CopyOutcome, now: Instant) -> bool {
        let pin = self.peers.get_mut(operation.to).and_then(|peer| peer.sent.remove(operation.id));
        let was_there = pin.is_some();
        pin.into_iter().for_each(|pin| self.exporter.finish_message(pin, outcome, now));
        was_there
    }

    /// Whether an arrival is being copied.
    #[inline]
    #[must_use]
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Reports that a neighbour violated the protocol in a message that the caller carries.
    pub fn report_violation(&mut self, neighbour: NeighbourId, why: ProtocolViolation) {
        self.break_with(neighbour, why);
    }
}
