//! Atomics of one stream that were asked of a peer and not answered yet. A request keeps its slot until its reply has come, and
//! is sent again as it was when a path is lost that it or its reply may have gone over; the peer executes each use of a slot
//! once. A slot is used again only when no copy of an earlier use is under way, so that a peer has only the last use to remember.
//! What has arrived and waits to be taken in is not under way any more: it meets no later use by the 2^15 uses in between, each of
//! which takes a turn of both ends, while a turn of the engine takes something from every queue.
//!
//! A slot whose request fetches is also kept for whoever wants the value, until that has it or gives it up: others may begin and answers
//! come at any moment in between.

use crate::limits::RMA_CALLS_MAX;
use crate::mutant::Mutant;
use crate::rma::Fault;
use crate::rma::atomic::Atomic;
use crate::wire::rma::Stream;
use crate::wire::rma::atomic::{Outcome, Reply, Request, Slot};
use crate::wire::rma::word::Word;

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// [`RMA_CALLS_MAX`] are under way, or have values that nobody has collected.
    Busy,
    /// The word is not as wide as the type.
    Width,
}

/// What a reply has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// This request, for the first time.
    First(Request, Outcome),
    /// One whose reply has come before: nothing is to be done.
    Again,
}

/// The requests of a stream towards one peer.
#[derive(Debug)]
pub struct Calls {
    stream: Stream,
    /// Free slots, by number.
    free: u64,
    /// Those whose value somebody wants, and of these the ones that are kept for nothing else any more.
    wanted: u64,
    kept: u64,
    requests: [Option<Request>; RMA_CALLS_MAX],
    /// The last use of each slot.
    generations: [u16; RMA_CALLS_MAX],
    /// Messages with its request that were sent again and are under way.
    copies: [u8; RMA_CALLS_MAX],
    mutant: Mutant,
}

impl Calls {
    /// None so far.
    #[must_use]
    pub const fn new(stream: Stream, mutant: Mutant) -> Self {
        let requests = [None; RMA_CALLS_MAX];
        let generations = [0; RMA_CALLS_MAX];
        let copies = [0; RMA_CALLS_MAX];
        Self { stream, free: u64::MAX, wanted: 0, kept: 0, requests, generations, copies, mutant }
    }

    /// A request is about to be sent.
    ///
    /// # Errors
    /// [`Refused`] says why not.
    pub fn begin(&mut self, word: Word, atomic: Atomic) -> Result<Request, Refused> {
        if self.free == 0 {
            return Err(Refused::Busy);
        }
        let at = self.free.trailing_zeros() as usize & (RMA_CALLS_MAX - 1);
        let generation = self.generations[at].wrapping_add(1);
        let request = Slot::new(at as u8, generation)
            .and_then(|slot| Request::new(self.stream, slot, word, atomic))
            .ok_or(Refused::Width)?;
        self.free &= self.free - 1;
        let wants = atomic.fetches() && !self.mutant.is("rma-values-lose-their-places");
        self.wanted |= u64::from(wants) << at;
        self.generations[at] = generation;
        self.requests[at] = Some(request);
        Ok(request)
    }

    /// A reply has come.
    ///
    /// # Errors
    /// [`Fault`] if nobody asked for it.
    pub fn on_reply(&mut self, reply: &Reply) -> Result<Answer, Fault> {
        let at = reply.slot.index();
        let generation = reply.slot.generation();
        let behind = self.generations[at].wrapping_sub(generation);
        if behind >= 1 << 15 {
            return Err(Fault::Slot { slot: reply.slot.number(), generation });
        }
        if behind > 0 && !self.mutant.is("rma-replies-meet-strangers") {
            return Ok(Answer::Again);
        }
        let Some(request) = self.requests[at] else { return Ok(Answer::Again) };
        if let Outcome::Done(value) = reply.outcome {
            let holds =
                request.atomic().fetches() && request.atomic().kind().width().holds(value) || value == 0;
            if !holds {
                return Err(Fault::Reply(value));
            }
        }
        self.requests[at] = None;
        self.release(at);
        Ok(Answer::First(request, reply.outcome))
    }

    fn release(&mut self, at: usize) {
        let is_idle = self.copies[at] == 0 || self.mutant.is("rma-slots-ignore-copies");
        if self.requests[at].is_none() && is_idle {
            let kept = self.wanted & (1 << at);
            self.kept |= kept;
            self.free |= (1 << at) ^ kept;
        }
    }

    /// Nobody wants the value of that request any more: it has been collected, or was given up.
    pub fn collected(&mut self, slot: Slot) {
        let at = slot.index();
        let bit = 1 << slot.index();
        if self.wanted & bit != 0 && self.generations[at] == slot.generation() {
            self.wanted &= !bit;
            self.free |= self.kept & bit;
            self.kept &= !bit;
        }
    }

    /// The request in that slot is about to be sent again: because its message has not completed and never will, or has, and the
    /// reply may be lost. `None` if it is answered, or was sent again too often.
    pub fn again(&mut self, slot: Slot) -> Option<Request> {
        let request = self.requests[slot.index()].filter(|request| request.slot == slot)?;
        let copies = &mut self.copies[slot.index()];
        *copies = copies.checked_add(1)?;
        Some(request)
    }

    /// A message with a request that was sent again has arrived or is lost.
    pub fn on_copy_gone(&mut self, slot: Slot) {
        let copies = &mut self.copies[slot.index()];
        *copies = copies.saturating_sub(1);
        self.release(slot.index());
    }

    /// The request in that slot, if it is not answered.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&Request> {
        self.requests[slot.index()].as_ref().filter(|request| request.slot == slot)
    }

    /// What has not been answered.
    pub fn iter(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().flatten()
    }

    /// Requests under way.
    #[must_use]
    pub const fn len(&self) -> u32 {
        (self.free | self.kept).count_zeros()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.free | self.kept == u64::MAX
    }
}

const _: () = assert!(RMA_CALLS_MAX == u64::BITS as usize);
