//! The pins of an inbox, for device copies to it and out of it. To make one, a driver may wait for a running kernel,
//! so the kind's thread makes it and the endpoint polls for it. Copies between a device and the inbox are busy until
//! then; messages of host memory continue.

use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{IpcMemory, MappingTicket, StagePin};

use crate::ipc::MessageBuffer;

/// The pin of an inbox.
#[derive(Debug)]
pub(super) enum InboxPin {
    /// The request is not posted yet.
    Waits(MemoryRange),
    /// The request was posted to the kind's thread.
    Posted(MappingTicket),
    /// The request has ended. `None`: the kind makes no pin, it failed, or the pin has ended.
    Settled(Option<StagePin>),
}

impl InboxPin {
    /// Requests a pin of memory; it is made at once if the kind's driver does not wait for that.
    pub(super) fn request_pin<M: IpcMemory>(of: &M, memory: MemoryRange) -> Self {
        let mut pin = Self::Waits(memory);
        pin.poll_pin(of);
        pin
    }

    /// Reads the result of the kind's thread, or posts the request if it waits; returns whether the pin was settled
    /// by this call. Never waits.
    #[inline]
    pub(super) fn poll_pin<M: IpcMemory>(&mut self, of: &M) -> bool {
        // Settled is the common case, on the path of each message.
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
            // A child of fork does not have the thread.
            (Self::Posted(_), None) => Self::Settled(None),
        };
        matches!(self, Self::Settled(_))
    }

    /// Whether bytes of that buffer may be copied to or from the inbox. The processor needs no pin.
    pub(super) fn is_ready_for(&self, buffer: &MessageBuffer) -> bool {
        matches!(self, Self::Settled(_)) || buffer.own_address().is_none()
    }

    /// Ends the pin, and returns it if there is one. A request in progress is abandoned; its result is released when
    /// it arrives.
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
