//! Sends messages that refer to memory of this process. The node exports the memory if it is not exported yet, and
//! announces it if the neighbour does not know it. Called by the owner; never copies bytes.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::{
    DriverAllocation, DriverAllocationId, ExportRequest, ExportRequestError, FallbackReason, PendingExport,
    ShareDecision, SharedReference,
};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{ExportName, ExportReference, IpcMessage};

use super::{IpcNode, NeighbourId, SendError};

/// A message that was sent and has not completed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OperationId {
    pub(super) to: NeighbourId,
    pub(super) id: SlotId,
}

impl OperationId {
    /// Returns the receiver.
    #[must_use]
    pub const fn neighbour(self) -> NeighbourId {
        self.to
    }

    /// Its number in the messages of the node's stream.
    const fn to_bits(self) -> u64 {
        self.id.to_bits()
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendRequest {
    /// Address of the first byte, in an allocation of the node's kind of memory.
    pub addr: usize,
    /// Bytes; at least one.
    pub len: usize,
    /// Whether a new export for it ends with its last message, whatever the budget.
    pub passing: bool,
}

/// How a send has started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum IpcSendStart {
    /// The message was sent. Its memory must not change until [`NodeEvent::Sent`](super::NodeEvent::Sent).
    Begun(OperationId),
    /// Nothing was sent: the neighbour's limit of unanswered messages is reached, or its HELLO has not arrived.
    /// Call again.
    Busy,
    /// The memory cannot be shared; use another method. The fallback was counted.
    Elsewhere(FallbackReason),
}

/// Returned by [`IpcNode::make_reference`]: how a message that the caller carries has started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum ReferenceStart {
    /// Send this reference to the neighbour. The memory must not change until
    /// [`IpcNode::finish_operation`](super::IpcNode::finish_operation).
    Refer(OperationId, ExportReference),
    /// See [`IpcSendStart::Busy`].
    Busy,
    /// See [`IpcSendStart::Elsewhere`].
    Elsewhere(FallbackReason),
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Sends bytes of this process's memory by reference: the neighbour copies them itself.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(
        &mut self,
        to: NeighbourId,
        message: &SendRequest,
        now: Instant,
    ) -> Result<IpcSendStart, SendError> {
        Ok(match self.make_reference(to, message, now)? {
            ReferenceStart::Refer(id, reference) => {
                if let Some(peer) = self.peers.get_mut(to) {
                    peer.send_message(&IpcMessage::Refer { operation: id.to_bits(), reference }, None);
                }
                IpcSendStart::Begun(id)
            }
            ReferenceStart::Busy => IpcSendStart::Busy,
            ReferenceStart::Elsewhere(why) => IpcSendStart::Elsewhere(why),
        })
    }

    /// Makes the reference for a message that does not use the node's stream. The node announces the memory to the
    /// receiver if needed, but does not send the message. The process that reads the reference calls
    /// [`IpcNode::accept_reference`]; the sender calls [`IpcNode::finish_operation`] when it learns how the message
    /// ended.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn make_reference(
        &mut self,
        to: NeighbourId,
        message: &SendRequest,
        now: Instant,
    ) -> Result<ReferenceStart, SendError> {
        let peer = self.peers.get(to).filter(|peer| peer.is_there()).ok_or(SendError::Gone)?;
        if peer.heard_bye || peer.said_bye {
            return Err(SendError::Gone);
        }
        if peer.sent.len() >= peer.takes {
            return Ok(ReferenceStart::Busy);
        }
        let &SendRequest { addr, len, passing } = message;
        let outside = SendError::Outside { addr, len };
        let part = ByteSpan::new(addr as u64, len as u64).ok_or(outside.clone())?;
        let ask = ExportRequest { peer: peer.exporting, part, memory: self.find_allocation(addr)?, passing };
        let mut shared = self.share_memory(&ask, &outside, now)?;
        if let ShareDecision::Export(export) = shared {
            shared = self.export_allocation(export, now);
        }
        Ok(match shared {
            ShareDecision::Sent(sent) => self.start_send(to, sent),
            ShareDecision::Fallback(why) => ReferenceStart::Elsewhere(why),
            // One owner makes one export at a time, and the driver's reply about the allocation is accepted as it is.
            ShareDecision::Export(_) | ShareDecision::Coming => ReferenceStart::Busy,
        })
    }

    fn share_memory(
        &mut self,
        ask: &ExportRequest,
        outside: &SendError,
        now: Instant,
    ) -> Result<ShareDecision, SendError> {
        let addr = ask.part.start() as usize;
        let len = ask.part.len() as usize;
        match self.exporter.share_memory(ask, now) {
            Ok(shared) => Ok(shared),
            Err(ExportRequestError::Gone) => Err(SendError::Gone),
            Err(ExportRequestError::Outside) if self.memory.holds_range(addr, len) => {
                Ok(self.exporter.pass_over())
            }
            Err(ExportRequestError::Outside) => Err(outside.clone()),
        }
    }

    /// Returns the allocation that the driver reports at an address.
    pub(super) fn find_allocation(&self, addr: usize) -> Result<DriverAllocation, SendError> {
        let found = self.memory.allocation_of(addr)?;
        let span = ByteSpan::new(found.base as u64, found.len as u64);
        let span = span.ok_or(SendError::Outside { addr: found.base, len: found.len })?;
        Ok(DriverAllocation { span, id: DriverAllocationId(found.id.0), device: found.device })
    }

    /// Makes the driver export an allocation for a message.
    fn export_allocation(&mut self, export: PendingExport, now: Instant) -> ShareDecision {
        let name = export.export_name();
        let allocation = export.allocation();
        let of = trunkline_mem::ipc::IpcAllocation {
            base: allocation.span.start() as usize,
            len: allocation.span.len() as usize,
            id: trunkline_mem::ipc::IpcAllocationId(allocation.id.0),
            device: allocation.device,
        };
        let made = match self.memory.export(&of, self.config.passing) {
            Ok(made) => self.exports.add_export(name, allocation, made).map_err(|made| {
                // No peer knows the export, so a failure of the driver has no effect. Kinds whose driver may wait
                // have no handles that are too long for a message.
                let _ = self.memory.unexport(*made);
            }),
            Err(_) => Err(()),
        };
        let told = if made.is_ok() {
            self.counts.exports += 1;
            self.exporter.on_exported(export, now)
        } else {
            self.counts.export_failures += 1;
            self.exporter.on_export_failed(export).map(ShareDecision::Fallback)
        };
        // This exporter made the token, so it cannot refuse it.
        told.unwrap_or(ShareDecision::Fallback(FallbackReason::NotExported))
    }

    /// Starts a message, behind the announcement that its neighbour needs.
    fn start_send(&mut self, to: NeighbourId, sent: SharedReference) -> ReferenceStart {
        let SharedReference { pin, reference, announce } = sent;
        if announce {
            // Exports that the new one replaces are requested back first.
            self.send_retire_requests(to);
            self.announce_export(to, pin.export_name());
        }
        self.counts.sent += 1;
        let Some(peer) = self.peers.get_mut(to) else { return ReferenceStart::Busy };
        match peer.sent.insert(pin) {
            Ok(id) => ReferenceStart::Refer(OperationId { to, id }, reference),
            // The caller has checked `takes`, so there is room.
            Err(_) => ReferenceStart::Busy,
        }
    }

    fn announce_export(&mut self, to: NeighbourId, name: ExportName) {
        if let Some((announce, fd)) = self.exports.make_announcement(name)
            && let Some(peer) = self.peers.get_mut(to)
        {
            peer.send_message(&IpcMessage::Announce(announce), fd);
        }
    }
}
