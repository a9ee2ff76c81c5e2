//! Atomics that a peer asked for, for one of its streams, at the owner of the words: each use of a slot is executed once, and
//! asked again it is answered as before. The peer uses a slot again only when it has the reply, so what is kept of one use may be
//! forgotten with the next.

use alloc::boxed::Box;

use crate::limits::RMA_CALLS_MAX;
use crate::mutant::Mutant;
use crate::rma::Fault;
use crate::wire::rma::atomic::{Outcome, Reply, Request};

/// What was kept of the last use of a slot.
#[derive(Clone, Copy, Debug)]
struct Last {
    generation: u16,
    outcome: Outcome,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// It was executed now; this is the reply.
    Now(Reply),
    /// It was executed before; this was the reply.
    Again(Reply),
    /// It was executed before, and the peer has had the reply.
    Past,
}

/// The last uses of a stream's slots.
#[derive(Debug)]
pub struct Served {
    last: Box<[Last; RMA_CALLS_MAX]>,
    mutant: Mutant,
}

impl Served {
    /// None so far. Allocates.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        // Use 0 comes first only after the last one: who begins with it is answered, and nothing is executed.
        let none = Last { generation: 0, outcome: Outcome::Refused };
        Self { last: Box::new([none; RMA_CALLS_MAX]), mutant }
    }

    /// A request has come. `execute` is called if it is new, and says what became of it: the value before, or that there is
    /// no such word.
    ///
    /// # Errors
    /// [`Fault::Slot`] if it cannot come yet.
    pub fn serve(
        &mut self,
        request: &Request,
        execute: impl FnOnce(&Request) -> Outcome,
    ) -> Result<Service, Fault> {
        let last = &mut self.last[request.slot.index()];
        let (slot, generation) = (request.slot.number(), request.slot.generation());
        let reply = |outcome| Reply { stream: request.stream, slot: request.slot, outcome };
        match generation.wrapping_sub(last.generation) {
            0 if !self.mutant.is("rma-requests-run-again") => Ok(Service::Again(reply(last.outcome))),
            0 | 1 => {
                let outcome = match execute(request) {
                    Outcome::Done(_) if !request.atomic().fetches() => Outcome::Done(0),
                    outcome => outcome,
                };
                *last = Last { generation, outcome };
                Ok(Service::Now(reply(outcome)))
            }
            ahead if ahead >= 1 << 15 => Ok(Service::Past),
            _ => Err(Fault::Slot { slot, generation }),
        }
    }
}
