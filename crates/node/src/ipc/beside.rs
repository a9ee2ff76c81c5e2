//! Messages that go another way than the node's own stream, and only name memory of the node: their references, and how they ended, are
//! carried by whoever calls this.

use std::os::fd::OwnedFd;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{Message, Name, Outcome, Reference};
use trunkline_proto::wire::tagged::Inbox;

use super::{ArrivalId, Broken, Neighbour, Node, OperationId};

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// Tells a neighbour where it may write tagged messages. Said once.
    pub fn give_inbox(&mut self, to: Neighbour, inbox: Inbox, file: OwnedFd) {
        if let Some(peer) = self.peers.get_mut(to) {
            peer.say(&Message::Inbox(inbox), Some(file));
        }
    }

    /// Frames that were said to a neighbour.
    #[inline]
    #[must_use]
    pub fn said(&self, to: Neighbour) -> u64 {
        self.peers.get(to).map_or(0, |peer| peer.said)
    }

    /// Whether a neighbour has announced that name, as far as it was heard.
    #[inline]
    #[must_use]
    pub fn knows(&self, from: Neighbour, name: Name) -> bool {
        self.importer.knows(from.0, name)
    }

    /// A message of a neighbour refers to its memory: say what is to be done with it. `None`: nothing is shared any more.
    ///
    /// # Errors
    /// [`Broken`]: the neighbour refers to what cannot be, and is taken for dead from now on.
    pub fn arrive(&mut self, from: Neighbour, reference: &Reference) -> Result<Option<ArrivalId>, Broken> {
        self.admit(from, None, reference)
    }

    /// A message that referred to memory of this process has ended. `false` if there is none.
    #[inline]
    pub fn finish(&mut self, operation: OperationId, outcome: Outcome, now: Instant) -> bool {
        let pin = self.peers.get_mut(operation.to).and_then(|peer| peer.sent.remove(operation.id));
        let was_there = pin.is_some();
        pin.into_iter().for_each(|pin| self.exporter.finish(pin, outcome, now));
        was_there
    }

    /// Whether anything is being copied.
    #[inline]
    #[must_use]
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// A neighbour has said what cannot be, by whatever carries its messages.
    pub fn break_off(&mut self, neighbour: Neighbour, why: Broken) {
        self.break_with(neighbour, why);
    }
}
