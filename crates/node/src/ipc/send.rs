//! A message about memory of this process: what it names is exported if it is not yet, and its neighbour told if it is not.

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

/// A message that has begun and not ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OperationId {
    pub(super) to: NeighbourId,
    pub(super) id: SlotId,
}

impl OperationId {
    /// Whom it goes to.
    #[must_use]
    pub const fn neighbour(self) -> NeighbourId {
        self.to
    }

    /// As the node's stream says it.
    const fn to_bits(self) -> u64 {
        self.id.to_bits()
    }
}

/// What is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendRequest {
    /// Address of the first byte, in an allocation of the node's kind of memory.
    pub addr: usize,
    /// Bytes; at least one.
    pub len: usize,
    /// Whether an export that is made for it goes with it, whatever the budget.
    pub passing: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum IpcSendStart {
    /// It is on its way. Its memory stays as it is until [`NodeEvent::Sent`](super::NodeEvent::Sent).
    Begun(OperationId),
    /// Nothing was done: the neighbour has as many unanswered messages as it takes, or has not said who it is. Ask again.
    Busy,
    /// It goes another way; this was counted.
    Elsewhere(FallbackReason),
}

/// The same for a message that goes another way than the node's stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum ReferenceStart {
    /// That is to be said to the neighbour. The memory stays as it is until [`IpcNode::finish_operation`](super::IpcNode::finish_operation).
    Refer(OperationId, ExportReference),
    /// As above.
    Busy,
    /// As above.
    Elsewhere(FallbackReason),
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Sends bytes of this process's memory by their name: the neighbour copies them itself.
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

    /// The same for a message that goes another way than the node's stream: its receiver is told of the memory if need be, but not of the
    /// message. Who reads the reference there says [`IpcNode::accept_reference`], and who hears how it ended [`IpcNode::finish_operation`].
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
            // One owner makes one export at a time, and a driver that was asked is believed.
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

    /// What the driver says is there.
    pub(super) fn find_allocation(&self, addr: usize) -> Result<DriverAllocation, SendError> {
        let found = self.memory.allocation_of(addr)?;
        let span = ByteSpan::new(found.base as u64, found.len as u64);
        let span = span.ok_or(SendError::Outside { addr: found.base, len: found.len })?;
        Ok(DriverAllocation { span, id: DriverAllocationId(found.id.0), device: found.device })
    }

    /// Has the driver export an allocation for a message.
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
                // No peer knows of it, so the driver's answer changes nothing. No kind whose driver may wait has handles that are too long for a message.
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
        // The token is of this exporter.
        told.unwrap_or(ShareDecision::Fallback(FallbackReason::NotExported))
    }

    /// A message may go, behind what its neighbour must know before.
    fn start_send(&mut self, to: NeighbourId, sent: SharedReference) -> ReferenceStart {
        let SharedReference { pin, reference, announce } = sent;
        if announce {
            // What it takes the place of is asked back first.
            self.send_retire_requests(to);
            self.announce_export(to, pin.export_name());
        }
        self.counts.sent += 1;
        let Some(peer) = self.peers.get_mut(to) else { return ReferenceStart::Busy };
        match peer.sent.insert(pin) {
            Ok(id) => ReferenceStart::Refer(OperationId { to, id }, reference),
            // There is room, as was asked above.
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
