//! A message about memory of this process: what it names is exported if it is not yet, and its neighbour told if it is not.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::intervals::Span;
use trunkline_proto::ipc::exporter::{Allocation, AllocationId, Ask, Export, Sent, ShareError, Shared, Why};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{Message, Name, Reference};

use super::{Neighbour, Node, SendError};

/// A message that has begun and not ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OperationId {
    pub(super) to: Neighbour,
    pub(super) id: SlotId,
}

impl OperationId {
    /// Whom it goes to.
    #[must_use]
    pub const fn neighbour(self) -> Neighbour {
        self.to
    }

    /// As the node's stream says it.
    const fn to_bits(self) -> u64 {
        self.id.to_bits()
    }
}

/// What is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Send {
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
pub enum Sending {
    /// It is on its way. Its memory stays as it is until [`Notice::Sent`](super::Notice::Sent).
    Begun(OperationId),
    /// Nothing was done: the neighbour has as many unanswered messages as it takes, or has not said who it is. Ask again.
    Busy,
    /// It goes another way; this was counted.
    Elsewhere(Why),
}

/// The same for a message that goes another way than the node's stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Referring {
    /// That is to be said to the neighbour. The memory stays as it is until [`Node::finish`](super::Node::finish).
    Refer(OperationId, Reference),
    /// As above.
    Busy,
    /// As above.
    Elsewhere(Why),
}

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// Sends bytes of this process's memory by their name: the neighbour copies them itself.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, to: Neighbour, message: &Send, now: Instant) -> Result<Sending, SendError> {
        Ok(match self.refer(to, message, now)? {
            Referring::Refer(id, reference) => {
                if let Some(peer) = self.peers.get_mut(to) {
                    peer.say(&Message::Refer { operation: id.to_bits(), reference }, None);
                }
                Sending::Begun(id)
            }
            Referring::Busy => Sending::Busy,
            Referring::Elsewhere(why) => Sending::Elsewhere(why),
        })
    }

    /// The same for a message that goes another way than the node's stream: its receiver is told of the memory if need be, but not of the
    /// message. Who reads the reference there says [`Node::arrive`], and who hears how it ended [`Node::finish`].
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn refer(&mut self, to: Neighbour, message: &Send, now: Instant) -> Result<Referring, SendError> {
        let peer = self.peers.get(to).filter(|peer| peer.is_there()).ok_or(SendError::Gone)?;
        if peer.heard_bye || peer.said_bye {
            return Err(SendError::Gone);
        }
        if peer.sent.len() >= peer.takes {
            return Ok(Referring::Busy);
        }
        let &Send { addr, len, passing } = message;
        let outside = SendError::Outside { addr, len };
        let part = Span::new(addr as u64, len as u64).ok_or(outside.clone())?;
        let ask = Ask { peer: peer.exporting, part, memory: self.find(addr)?, passing };
        let mut shared = self.share(&ask, &outside, now)?;
        if let Shared::Export(export) = shared {
            shared = self.export(export, now);
        }
        Ok(match shared {
            Shared::Sent(sent) => self.go(to, sent),
            Shared::Fallback(why) => Referring::Elsewhere(why),
            // One owner makes one export at a time, and a driver that was asked is believed.
            Shared::Export(_) | Shared::Coming => Referring::Busy,
        })
    }

    fn share(&mut self, ask: &Ask, outside: &SendError, now: Instant) -> Result<Shared, SendError> {
        let addr = ask.part.start() as usize;
        let len = ask.part.len() as usize;
        match self.exporter.share(ask, now) {
            Ok(shared) => Ok(shared),
            Err(ShareError::Gone) => Err(SendError::Gone),
            Err(ShareError::Outside) if self.memory.holds(addr, len) => Ok(self.exporter.pass_over()),
            Err(ShareError::Outside) => Err(outside.clone()),
        }
    }

    /// What the driver says is there.
    pub(super) fn find(&self, addr: usize) -> Result<Allocation, SendError> {
        let found = self.memory.allocation_of(addr)?;
        let span = Span::new(found.base as u64, found.len as u64);
        let span = span.ok_or(SendError::Outside { addr: found.base, len: found.len })?;
        Ok(Allocation { span, id: AllocationId(found.id.0), device: found.device })
    }

    /// Has the driver export an allocation for a message.
    fn export(&mut self, export: Export, now: Instant) -> Shared {
        let name = export.name();
        let allocation = export.allocation();
        let of = trunkline_mem::ipc::Allocation {
            base: allocation.span.start() as usize,
            len: allocation.span.len() as usize,
            id: trunkline_mem::ipc::AllocationId(allocation.id.0),
            device: allocation.device,
        };
        let made = match self.memory.export(&of, self.config.passing) {
            Ok(made) => self.exports.add(name, allocation, made).map_err(|made| {
                // No peer knows of it, so the driver's answer changes nothing. No kind whose driver may wait has handles that are too long for a message.
                let _ = self.memory.unexport(*made);
            }),
            Err(_) => Err(()),
        };
        let told = if made.is_ok() {
            self.counts.exports += 1;
            self.exporter.exported(export, now)
        } else {
            self.counts.export_failures += 1;
            self.exporter.export_failed(export).map(Shared::Fallback)
        };
        // The token is of this exporter.
        told.unwrap_or(Shared::Fallback(Why::NotExported))
    }

    /// A message may go, behind what its neighbour must know before.
    fn go(&mut self, to: Neighbour, sent: Sent) -> Referring {
        let Sent { pin, reference, announce } = sent;
        if announce {
            // What it takes the place of is asked back first.
            self.ask_back(to);
            self.announce(to, pin.name());
        }
        self.counts.sent += 1;
        let Some(peer) = self.peers.get_mut(to) else { return Referring::Busy };
        match peer.sent.insert(pin) {
            Ok(id) => Referring::Refer(OperationId { to, id }, reference),
            // There is room, as was asked above.
            Err(_) => Referring::Busy,
        }
    }

    fn announce(&mut self, to: Neighbour, name: Name) {
        if let Some((announce, fd)) = self.exports.announce(name)
            && let Some(peer) = self.peers.get_mut(to)
        {
            peer.say(&Message::Announce(announce), fd);
        }
    }
}
