//! Atomics of one stream that were asked of a peer and not answered yet. A request keeps its slot until its reply has come, and
//! is sent again as it was when a path is lost that it or its reply may have gone over; the peer executes each use of a slot
//! once. A slot is used again only when no copy of an earlier use is under way, so that a peer has only the last use to remember.
//! What has arrived and waits to be taken in is not under way any more: it meets no later use by the 2^15 uses in between, each of
//! which takes a turn of both ends, while a turn of the engine takes something from every queue.
//!
//! A slot whose request fetches is also kept for whoever wants the value, until that has it or gives it up: others may begin and answers
//! come at any moment in between.

use crate::limits::RMA_CALLS_MAX;
use crate::rma::ProtocolFault;
use crate::rma::atomic::TypedAtomic;
use crate::wire::rma::RmaStream;
use crate::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest, ReplySlot};
use crate::wire::rma::word::SymmetricWord;

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestRefusal {
    /// [`RMA_CALLS_MAX`] are under way, or have values that nobody has collected.
    Busy,
    /// The word is not as wide as the type.
    Width,
}

/// What a reply has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplyEffect {
    /// This request, for the first time.
    First(AtomicRequest, AtomicOutcome),
    /// One whose reply has come before: nothing is to be done.
    Again,
}

/// The requests of a stream towards one peer.
#[derive(Debug)]
pub struct AtomicRequests {
    stream: RmaStream,
    /// Free slots, by number.
    free: u64,
    /// Those whose value somebody wants, and of these the ones that are kept for nothing else any more.
    wanted: u64,
    kept: u64,
    requests: [Option<AtomicRequest>; RMA_CALLS_MAX],
    /// The last use of each slot.
    generations: [u16; RMA_CALLS_MAX],
    /// Messages with its request that were sent again and are under way.
    copies: [u8; RMA_CALLS_MAX],
}

impl AtomicRequests {
    /// None so far.
    #[must_use]
    pub const fn new(stream: RmaStream) -> Self {
        let requests = [None; RMA_CALLS_MAX];
        let generations = [0; RMA_CALLS_MAX];
        let copies = [0; RMA_CALLS_MAX];
        Self { stream, free: u64::MAX, wanted: 0, kept: 0, requests, generations, copies }
    }

    /// A request is about to be sent.
    ///
    /// # Errors
    /// [`RequestRefusal`] says why not.
    pub fn begin_request(
        &mut self,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<AtomicRequest, RequestRefusal> {
        if self.free == 0 {
            return Err(RequestRefusal::Busy);
        }
        let at = self.free.trailing_zeros() as usize & (RMA_CALLS_MAX - 1);
        let generation = self.generations[at].wrapping_add(1);
        let request = ReplySlot::new(at as u8, generation)
            .and_then(|slot| AtomicRequest::new(self.stream, slot, word, atomic))
            .ok_or(RequestRefusal::Width)?;
        self.free &= self.free - 1;
        self.wanted |= u64::from(atomic.is_fetching()) << at;
        self.generations[at] = generation;
        self.requests[at] = Some(request);
        Ok(request)
    }

    /// A reply has come.
    ///
    /// # Errors
    /// [`ProtocolFault`] if nobody asked for it.
    pub fn on_reply(&mut self, reply: &AtomicReply) -> Result<ReplyEffect, ProtocolFault> {
        let at = reply.slot.index();
        let generation = reply.slot.generation();
        let behind = self.generations[at].wrapping_sub(generation);
        if behind >= 1 << 15 {
            return Err(ProtocolFault::Slot { slot: reply.slot.number(), generation });
        }
        if behind > 0 {
            return Ok(ReplyEffect::Again);
        }
        let Some(request) = self.requests[at] else { return Ok(ReplyEffect::Again) };
        if let AtomicOutcome::Done(value) = reply.outcome {
            let holds = request.atomic().is_fetching()
                && request.atomic().atomic_type().word_width().can_hold(value)
                || value == 0;
            if !holds {
                return Err(ProtocolFault::Reply(value));
            }
        }
        self.requests[at] = None;
        self.release_slot(at);
        Ok(ReplyEffect::First(request, reply.outcome))
    }

    fn release_slot(&mut self, at: usize) {
        if self.requests[at].is_none() && self.copies[at] == 0 {
            let kept = self.wanted & (1 << at);
            self.kept |= kept;
            self.free |= (1 << at) ^ kept;
        }
    }

    /// Nobody wants the value of that request any more: it has been collected, or was given up.
    pub fn release_value(&mut self, slot: ReplySlot) {
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
    pub fn resend_request(&mut self, slot: ReplySlot) -> Option<AtomicRequest> {
        let request = self.requests[slot.index()].filter(|request| request.slot == slot)?;
        let copies = &mut self.copies[slot.index()];
        *copies = copies.checked_add(1)?;
        Some(request)
    }

    /// A message with a request that was sent again has arrived or is lost.
    pub fn on_copy_gone(&mut self, slot: ReplySlot) {
        let copies = &mut self.copies[slot.index()];
        *copies = copies.saturating_sub(1);
        self.release_slot(slot.index());
    }

    /// The request in that slot, if it is not answered.
    #[must_use]
    pub fn get(&self, slot: ReplySlot) -> Option<&AtomicRequest> {
        self.requests[slot.index()].as_ref().filter(|request| request.slot == slot)
    }

    /// What has not been answered.
    pub fn iter(&self) -> impl Iterator<Item = &AtomicRequest> {
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
