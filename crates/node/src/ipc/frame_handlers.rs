//! Handles messages of neighbours. Every message is untrusted until it is parsed and accepted by the protocol rules;
//! a neighbour that violates them is marked as broken.

use std::os::fd::OwnedFd;

use trunkline_fabric::{OobError, OobFrame, OobStream};
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::importer::ArriveError;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{CopyOutcome, ExportAnnouncement, ExportReference, IpcHello, IpcMessage};
use trunkline_proto::wire::tagged::InboxSizes;

use super::arrival::ArrivalRecord;
use super::neighbour::NeighbourEntry;
use super::{
    ArrivalId, FRAMES_PER_CALL, IpcNode, LeaveReason, NOTICES_MAX, NeighbourId, NodeEvent, OPERATIONS_MAX,
    OperationId, ProtocolViolation, SendOutcome,
};

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Reads messages of all neighbours, while the owner takes events; returns whether there were any.
    pub(super) fn receive_messages(&mut self, now: Instant) -> bool {
        let mut heard = false;
        for place in 0..self.peers.slot_count() {
            if let Some(neighbour) = self.peers.neighbour_at(place) {
                heard |= self.receive_messages_from(neighbour, now);
            }
        }
        heard
    }

    /// Reads messages of one neighbour; returns whether there were any.
    pub fn receive_messages_from(&mut self, neighbour: NeighbourId, now: Instant) -> bool {
        let mut heard = false;
        for _ in 0..FRAMES_PER_CALL {
            // Only the end of the stream may follow a BYE.
            let speaks = |peer: &&mut NeighbourEntry<S>| peer.is_there() && !peer.heard_bye;
            let Some(peer) = self.peers.get_mut(neighbour).filter(speaks) else { break };
            let Some(stream) = peer.stream.as_mut().filter(|_| self.notices.len() < NOTICES_MAX) else {
                break;
            };
            match stream.recv() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    heard = true;
                    if let Err(broken) = self.handle_frame(neighbour, frame, now) {
                        self.break_with(neighbour, broken);
                    }
                }
                Err(OobError::Closed) => {
                    heard = true;
                    self.lose_neighbour(neighbour, LeaveReason::Died, now);
                }
                Err(error) => self.break_with(neighbour, ProtocolViolation::Stream(error)),
            }
        }
        heard
    }

    fn handle_frame(
        &mut self,
        from: NeighbourId,
        frame: OobFrame,
        now: Instant,
    ) -> Result<(), ProtocolViolation> {
        let message = IpcMessage::from_bytes(&frame.bytes)?;
        let Some(peer) = self.peers.get(from) else { return Ok(()) };
        let announced = match message {
            IpcMessage::Announce(announce) => announce.descriptor,
            IpcMessage::Inbox(_) => true,
            _ => false,
        };
        // If this process has no free descriptors, the kernel delivers the message without its descriptor (unix(7),
        // MSG_CTRUNC). Such an announcement is then not mapped, and its messages use another method.
        let lost = matches!(message, IpcMessage::Announce(_));
        if frame.fd.is_some() != announced && !(announced && lost) {
            return Err(ProtocolViolation::Descriptor);
        }
        let is_first = peer.takes == 0;
        let is_hello = matches!(message, IpcMessage::Hello(_));
        if is_first != is_hello {
            return Err(ProtocolViolation::Turn);
        }
        // After this process has sent BYE, it handles replies and the neighbour's BYE, and ignores all else.
        match message {
            IpcMessage::Hello(hello) => self.on_hello(from, &hello),
            IpcMessage::Done { operation, outcome } => return self.on_done(from, operation, outcome, now),
            IpcMessage::Retired(names) => {
                let exporting = peer.exporting;
                let count = names.get().len();
                self.exporter.on_retired(exporting, &names)?;
                if let Some(peer) = self.peers.get_mut(from) {
                    peer.asked = peer.asked.saturating_sub(count);
                }
            }
            IpcMessage::Bye => self.on_bye(from, now),
            _ if peer.said_bye => {}
            IpcMessage::Announce(announce) => {
                return self.on_announce(from, &announce, frame.fd.map(|passed| passed.fd));
            }
            IpcMessage::Refer { operation, reference } => return self.on_refer(from, operation, &reference),
            IpcMessage::Retire(names) => self.importer.on_retire(from.0, &names)?,
            IpcMessage::Inbox(inbox) => return self.on_inbox(from, inbox, frame.fd.map(|passed| passed.fd)),
        }
        Ok(())
    }

    fn on_hello(&mut self, from: NeighbourId, hello: &IpcHello) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.takes = (hello.operations as usize).min(OPERATIONS_MAX);
        self.notices.push_back(NodeEvent::Met { neighbour: from, process: hello.process });
    }

    fn on_announce(
        &mut self,
        from: NeighbourId,
        announce: &ExportAnnouncement,
        fd: Option<OwnedFd>,
    ) -> Result<(), ProtocolViolation> {
        if self.until.is_some() {
            // All imports of this source have ended already; a reference to it is refused.
            return Ok(());
        }
        self.importer.on_announce(from.0, announce)?;
        if let Some(peer) = self.peers.get_mut(from) {
            peer.imports.add_import(announce, fd);
        }
        Ok(())
    }

    fn on_refer(
        &mut self,
        from: NeighbourId,
        operation: u64,
        reference: &ExportReference,
    ) -> Result<(), ProtocolViolation> {
        match self.record_arrival(from, Some(operation), reference)? {
            Some(arrival) => {
                self.notices.push_back(NodeEvent::Arrived { arrival, len: reference.part.len() });
            }
            None => {
                if let Some(peer) = self.peers.get_mut(from) {
                    peer.send_message(&IpcMessage::Done { operation, outcome: CopyOutcome::Ended }, None);
                }
            }
        }
        Ok(())
    }

    /// Records a neighbour's reference to its memory, whatever carried the message. `None`: the neighbour, or this
    /// node, shares nothing any more.
    pub(super) fn record_arrival(
        &mut self,
        from: NeighbourId,
        operation: Option<u64>,
        reference: &ExportReference,
    ) -> Result<Option<ArrivalId>, ProtocolViolation> {
        let Some(peer) = self.peers.get_mut(from) else { return Ok(None) };
        let used = match self.importer.pin_reference(from.0, reference) {
            Ok(used) => used,
            Err(ArriveError::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match peer.arrivals.insert(ArrivalRecord::new(operation, used)) {
            Ok(id) => Ok(Some(ArrivalId { from, id })),
            Err(arrival) => {
                self.importer.release_pin(arrival.used);
                Err(ProtocolViolation::TooMany)
            }
        }
    }

    fn on_inbox(
        &mut self,
        from: NeighbourId,
        inbox: InboxSizes,
        fd: Option<OwnedFd>,
    ) -> Result<(), ProtocolViolation> {
        let (Some(peer), Some(file)) = (self.peers.get_mut(from), fd) else { return Ok(()) };
        if std::mem::replace(&mut peer.gave_inbox, true) {
            return Err(ProtocolViolation::Turn);
        }
        self.notices.push_back(NodeEvent::Inbox { neighbour: from, inbox, file });
        Ok(())
    }

    fn on_done(
        &mut self,
        from: NeighbourId,
        operation: u64,
        outcome: CopyOutcome,
        now: Instant,
    ) -> Result<(), ProtocolViolation> {
        let Some(peer) = self.peers.get_mut(from) else { return Ok(()) };
        let id = SlotId::from_bits(operation);
        let _ = peer.sent.get(id).ok_or(ProtocolViolation::NoOperation)?;
        self.finish_operation(OperationId { to: from, id }, outcome, now);
        let delivery = match outcome {
            CopyOutcome::Copied => SendOutcome::Copied,
            CopyOutcome::NotMapped => SendOutcome::NotMapped,
            CopyOutcome::Ended => SendOutcome::Refused,
        };
        self.notices.push_back(NodeEvent::Sent { operation: OperationId { to: from, id }, delivery });
        Ok(())
    }
}
