//! Atomics that a peer asked for, for one of its streams, at the owner of the words: each use of a slot is executed once, and
//! asked again it is answered as before. The peer uses a slot again only when it has the reply, so what is kept of one use may be
//! forgotten with the next.

use alloc::boxed::Box;

use crate::limits::RMA_CALLS_MAX;
use crate::rma::ProtocolFault;
use crate::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest};

/// What was kept of the last use of a slot.
#[derive(Clone, Copy, Debug)]
struct SlotUse {
    generation: u16,
    outcome: AtomicOutcome,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServedReply {
    /// It was executed now; this is the reply.
    Now(AtomicReply),
    /// It was executed before; this was the reply.
    Again(AtomicReply),
    /// It was executed before, and the peer has had the reply.
    Past,
}

/// The last uses of a stream's slots.
#[derive(Debug)]
pub struct ServedSlots {
    last: Box<[SlotUse; RMA_CALLS_MAX]>,
}

impl Default for ServedSlots {
    fn default() -> Self {
        Self::new()
    }
}

impl ServedSlots {
    /// None so far. Allocates.
    #[must_use]
    pub fn new() -> Self {
        // Use 0 comes first only after the last one: who begins with it is answered, and nothing is executed.
        let none = SlotUse { generation: 0, outcome: AtomicOutcome::Refused };
        Self { last: Box::new([none; RMA_CALLS_MAX]) }
    }

    /// A request has come. `execute` is called if it is new, and says what became of it: the value before, or that there is
    /// no such word.
    ///
    /// # Errors
    /// [`ProtocolFault::Slot`] if it cannot come yet.
    pub fn serve_request(
        &mut self,
        request: &AtomicRequest,
        execute: impl FnOnce(&AtomicRequest) -> AtomicOutcome,
    ) -> Result<ServedReply, ProtocolFault> {
        let last = &mut self.last[request.slot.index()];
        let (slot, generation) = (request.slot.number(), request.slot.generation());
        let reply = |outcome| AtomicReply { stream: request.stream, slot: request.slot, outcome };
        match generation.wrapping_sub(last.generation) {
            0 => Ok(ServedReply::Again(reply(last.outcome))),
            1 => {
                let outcome = match execute(request) {
                    AtomicOutcome::Done(_) if !request.atomic().is_fetching() => AtomicOutcome::Done(0),
                    outcome => outcome,
                };
                *last = SlotUse { generation, outcome };
                Ok(ServedReply::Now(reply(outcome)))
            }
            ahead if ahead >= 1 << 15 => Ok(ServedReply::Past),
            _ => Err(ProtocolFault::Slot { slot, generation }),
        }
    }
}
