//! The pins of an inbox, for copies of a device to it and out of it. A driver may wait for a kernel that runs to make one. So it is requested of the kind's thread and
//! polled for, and copies between a device and the inbox are busy until it is settled; messages of the host go on.

use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{IpcMemory, MappingTicket, StagePin};

use crate::ipc::MessageBuffer;

/// The pin of an inbox.
#[derive(Debug)]
pub(super) enum InboxPin {
    /// There is no room for a request.
    Waits(MemoryRange),
    /// The kind's thread is asked.
    Posted(MappingTicket),
    /// It is made. `None`: it is not to be had, or over.
    Settled(Option<StagePin>),
}

impl InboxPin {
    /// Has memory pinned: at once where the kind does not wait for that.
    pub(super) fn request_pin<M: IpcMemory>(of: &M, memory: MemoryRange) -> Self {
        let mut pin = Self::Waits(memory);
        pin.poll_pin(of);
        pin
    }

    /// Takes the answer of the kind's thread, or requests the pin if there was no room; returns whether it was settled now. Never waits.
    #[inline]
    pub(super) fn poll_pin<M: IpcMemory>(&mut self, of: &M) -> bool {
        // This is the common case, on the path of each message.
        !matches!(self, Self::Settled(_)) && self.settle_pin(of)
    }

    #[cold]
    fn settle_pin<M: IpcMemory>(&mut self, of: &M) -> bool {
        *self = match (&*self, of.pin_queue()) {
            (Self::Settled(_), _) => return false,
            (Self::Waits(memory), Some(queue)) => match queue.post_pin(memory) {
                Some(ticket) => Self::Posted(ticket),
                None => return false,
            },
            (Self::Posted(ticket), Some(queue)) => match queue.take_pinned(ticket) {
                Some(pin) => Self::Settled(pin),
                None => return false,
            },
            (Self::Waits(memory), None) => Self::Settled(of.pin_stage(memory)),
            // This is a child of a fork, in which the thread is not.
            (Self::Posted(_), None) => Self::Settled(None),
        };
        matches!(self, Self::Settled(_))
    }

    /// Whether bytes of that buffer may be copied to or from the inbox. The processor needs no pin.
    pub(super) fn is_ready_for(&self, buffer: &MessageBuffer) -> bool {
        matches!(self, Self::Settled(_)) || buffer.own_address().is_none()
    }

    /// Ends it; returns the pin if there is one. A request that was not answered is left without a caller, and its result ends at once.
    pub(super) fn end_pin<M: IpcMemory>(&mut self, of: &M) -> Option<StagePin> {
        match (std::mem::replace(self, Self::Settled(None)), of.pin_queue()) {
            (Self::Settled(pin), _) => pin,
            (Self::Posted(ticket), Some(queue)) => {
                queue.abandon_request(ticket);
                None
            }
            (Self::Waits(_) | Self::Posted(_), _) => None,
        }
    }
}
