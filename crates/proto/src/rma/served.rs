//! Atomics that a peer requested for one of its streams, at the owner of the words. Each use of a slot is executed once; a repeated request gets the
//! same reply. The peer uses a slot again only when it has the reply, so each use may overwrite the record of the one before.

use alloc::boxed::Box;

use crate::limits::RMA_CALLS_MAX;
use crate::rma::ProtocolFault;
use crate::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest};

/// The record of the last use of a slot.
#[derive(Clone, Copy, Debug)]
struct SlotUse {
    generation: u16,
    outcome: AtomicOutcome,
}

/// The result of serving a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServedReply {
    /// It was executed now, with this reply.
    Now(AtomicReply),
    /// It was executed before, with this reply.
    Again(AtomicReply),
    /// It was executed before, and the peer has the reply.
    Past,
}

/// The last uses of the slots of one stream.
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
    /// Creates the state of a stream without requests. Allocates.
    #[must_use]
    pub fn new() -> Self {
        // Generation 0 follows the last generation and never begins a slot: a peer that begins with it gets a refusal, and nothing is executed.
        let none = SlotUse { generation: 0, outcome: AtomicOutcome::Refused };
        Self { last: Box::new([none; RMA_CALLS_MAX]) }
    }

    /// Serves a request. Calls `execute` if the request is new, which returns the old value, or that the word does not exist.
    ///
    /// # Errors
    /// [`ProtocolFault::Slot`] if the generation is ahead of the next use.
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
