//! What neighbours say. All of it is hostile until it is parsed and the rules have taken it; whoever says what cannot be is broken.

use std::os::fd::OwnedFd;

use trunkline_fabric::{Frame, OobError, OobStream};
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::importer::ArriveError;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{Announce, Hello, Message, Outcome, Reference};
use trunkline_proto::wire::tagged::Inbox;

use super::arrival::Arrival;
use super::neighbour::Peer;
use super::{
    ArrivalId, Broken, Delivery, FRAMES_PER_CALL, Leave, NOTICES_MAX, Neighbour, Node, Notice,
    OPERATIONS_MAX, OperationId,
};

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// Takes in what neighbours have said, while somebody takes notices; whether there was anything.
    pub(super) fn hear(&mut self, now: Instant) -> bool {
        let mut heard = false;
        for place in 0..self.peers.places() {
            if let Some(neighbour) = self.peers.at(place) {
                heard |= self.hear_from(neighbour, now);
            }
        }
        heard
    }

    /// The same of one neighbour.
    pub fn hear_from(&mut self, neighbour: Neighbour, now: Instant) -> bool {
        let mut heard = false;
        for _ in 0..FRAMES_PER_CALL {
            // Behind a BYE comes nothing but the end of the stream.
            let speaks = |peer: &&mut Peer<S>| peer.is_there() && !peer.heard_bye;
            let Some(peer) = self.peers.get_mut(neighbour).filter(speaks) else { break };
            let Some(stream) = peer.stream.as_mut().filter(|_| self.notices.len() < NOTICES_MAX) else {
                break;
            };
            match stream.recv() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    heard = true;
                    if let Err(broken) = self.take(neighbour, frame, now) {
                        self.break_with(neighbour, broken);
                    }
                }
                Err(OobError::Closed) => {
                    heard = true;
                    self.lose(neighbour, Leave::Died, now);
                }
                Err(error) => self.break_with(neighbour, Broken::Stream(error)),
            }
        }
        heard
    }

    fn take(&mut self, from: Neighbour, frame: Frame, now: Instant) -> Result<(), Broken> {
        let message = Message::from_bytes(&frame.bytes)?;
        let Some(peer) = self.peers.get(from) else { return Ok(()) };
        let announced = match message {
            Message::Announce(announce) => announce.descriptor,
            Message::Inbox(_) => true,
            _ => false,
        };
        // A process that can have no more descriptors is given none by the kernel (unix(7), MSG_CTRUNC): what is announced with one is then not mapped,
        // and its messages go another way.
        let lost = matches!(message, Message::Announce(_)) && !self.mutant.is("ipc-node-needs-descriptors");
        if frame.fd.is_some() != announced && !(announced && lost) {
            return Err(Broken::Descriptor);
        }
        let is_first = peer.takes == 0;
        let is_hello = matches!(message, Message::Hello(_));
        let in_turn = is_first == is_hello || !is_hello && self.mutant.is("ipc-node-hears-anybody");
        if !in_turn {
            return Err(Broken::Turn);
        }
        // Whoever has said BYE hears answers and the other BYE, and nothing else.
        match message {
            Message::Hello(hello) => self.on_hello(from, &hello),
            Message::Done { operation, outcome } => return self.on_done(from, operation, outcome, now),
            Message::Retired(names) => {
                let exporting = peer.exporting;
                let count = names.get().len();
                self.exporter.retired(exporting, &names)?;
                if let Some(peer) = self.peers.get_mut(from) {
                    peer.asked = peer.asked.saturating_sub(count);
                }
            }
            Message::Bye => self.on_bye(from, now),
            _ if peer.said_bye => {}
            Message::Announce(announce) => {
                return self.on_announce(from, &announce, frame.fd.map(|passed| passed.fd));
            }
            Message::Refer { operation, reference } => return self.on_refer(from, operation, &reference),
            Message::Retire(names) => self.importer.retire(from.0, &names)?,
            Message::Inbox(inbox) => return self.on_inbox(from, inbox, frame.fd.map(|passed| passed.fd)),
        }
        Ok(())
    }

    fn on_hello(&mut self, from: Neighbour, hello: &Hello) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.takes = (hello.operations as usize).min(OPERATIONS_MAX);
        self.notices.push_back(Notice::Met { neighbour: from, process: hello.process });
    }

    fn on_announce(
        &mut self,
        from: Neighbour,
        announce: &Announce,
        fd: Option<OwnedFd>,
    ) -> Result<(), Broken> {
        if self.until.is_some() {
            // Everything of it has ended here already; a reference to it is refused.
            return Ok(());
        }
        self.importer.announce(from.0, announce)?;
        if let Some(peer) = self.peers.get_mut(from) {
            peer.imports.add(announce, fd);
        }
        Ok(())
    }

    fn on_refer(&mut self, from: Neighbour, operation: u64, reference: &Reference) -> Result<(), Broken> {
        match self.admit(from, Some(operation), reference)? {
            Some(arrival) => {
                self.notices.push_back(Notice::Arrived { arrival, len: reference.part.len() });
            }
            None => {
                if let Some(peer) = self.peers.get_mut(from) {
                    peer.say(&Message::Done { operation, outcome: Outcome::Ended }, None);
                }
            }
        }
        Ok(())
    }

    /// A neighbour refers to memory of its own, by whatever carries the message. `None`: it, or this node, shares nothing any more.
    pub(super) fn admit(
        &mut self,
        from: Neighbour,
        operation: Option<u64>,
        reference: &Reference,
    ) -> Result<Option<ArrivalId>, Broken> {
        let Some(peer) = self.peers.get_mut(from) else { return Ok(None) };
        let used = match self.importer.arrive(from.0, reference) {
            Ok(used) => used,
            Err(ArriveError::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match peer.arrivals.insert(Arrival::new(operation, used)) {
            Ok(id) => Ok(Some(ArrivalId { from, id })),
            Err(arrival) => {
                self.importer.finish(arrival.used);
                Err(Broken::TooMany)
            }
        }
    }

    fn on_inbox(&mut self, from: Neighbour, inbox: Inbox, fd: Option<OwnedFd>) -> Result<(), Broken> {
        let (Some(peer), Some(file)) = (self.peers.get_mut(from), fd) else { return Ok(()) };
        if std::mem::replace(&mut peer.gave_inbox, true) {
            return Err(Broken::Turn);
        }
        self.notices.push_back(Notice::Inbox { neighbour: from, inbox, file });
        Ok(())
    }

    fn on_done(
        &mut self,
        from: Neighbour,
        operation: u64,
        outcome: Outcome,
        now: Instant,
    ) -> Result<(), Broken> {
        let Some(peer) = self.peers.get_mut(from) else { return Ok(()) };
        let id = SlotId::from_bits(operation);
        let _ = peer.sent.get(id).ok_or(Broken::NoOperation)?;
        self.finish(OperationId { to: from, id }, outcome, now);
        let delivery = match outcome {
            Outcome::Copied => Delivery::Copied,
            Outcome::NotMapped => Delivery::NotMapped,
            Outcome::Ended => Delivery::Refused,
        };
        self.notices.push_back(Notice::Sent { operation: OperationId { to: from, id }, delivery });
        Ok(())
    }
}
