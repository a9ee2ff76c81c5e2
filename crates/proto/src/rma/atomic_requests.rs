//! Atomics of one stream that were requested from a peer and are still without a reply. A request keeps its slot until its reply has arrived. It is
//! sent again unchanged when a path is lost that the request or its reply may have used; the peer executes each use of a slot once.
//!
//! A slot is used again only when no copy of an earlier use is in flight, so the peer has to remember the last use only. A copy that has arrived and
//! waits in a receive queue is not in flight any more. It meets no later use with its generation, because 2^15 uses lie between: each use takes one
//! poll of both ends, and each poll takes messages from every queue.
//!
//! The slot of a fetching request is also kept until the caller that wants the value has collected or abandoned it: other requests may begin and
//! replies may arrive at any moment in between.

use crate::limits::RMA_CALLS_MAX;
use crate::rma::ProtocolFault;
use crate::rma::atomic::TypedAtomic;
use crate::wire::rma::RmaStream;
use crate::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest, ReplySlot};
use crate::wire::rma::word::SymmetricWord;

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestRefusal {
    /// [`RMA_CALLS_MAX`] are pending, or have values that no caller has collected.
    Busy,
    /// The word does not have the width of the type.
    Width,
}

/// The effect of a reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplyEffect {
    /// The reply to this request, for the first time.
    First(AtomicRequest, AtomicOutcome),
    /// The reply to a request that had its reply before: the caller does nothing.
    Again,
}

/// The pending requests of a stream towards one peer.
#[derive(Debug)]
pub struct AtomicRequests {
    stream: RmaStream,
    /// Bit i: slot i is free.
    free: u64,
    /// `wanted`: slots whose value has not been collected; `kept`: those of them that have their reply and are kept for that reason only.
    wanted: u64,
    kept: u64,
    requests: [Option<AtomicRequest>; RMA_CALLS_MAX],
    /// The generation of the last use of each slot.
    generations: [u16; RMA_CALLS_MAX],
    /// Messages in flight that repeat the request of each slot.
    copies: [u8; RMA_CALLS_MAX],
}

impl AtomicRequests {
    /// Creates the state of a stream without requests.
    #[must_use]
    pub const fn new(stream: RmaStream) -> Self {
        let requests = [None; RMA_CALLS_MAX];
        let generations = [0; RMA_CALLS_MAX];
        let copies = [0; RMA_CALLS_MAX];
        Self { stream, free: u64::MAX, wanted: 0, kept: 0, requests, generations, copies }
    }

    /// Begins a request that is about to be sent, and returns it.
    ///
    /// # Errors
    /// [`RequestRefusal`] names the reason.
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

    /// Applies a reply.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it replies to a use of the slot that has not begun, or its value is wider than the word or was not requested.
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

    /// Records that the value of a request was collected or abandoned.
    pub fn release_value(&mut self, slot: ReplySlot) {
        let at = slot.index();
        let bit = 1 << slot.index();
        if self.wanted & bit != 0 && self.generations[at] == slot.generation() {
            self.wanted &= !bit;
            self.free |= self.kept & bit;
            self.kept &= !bit;
        }
    }

    /// Returns the request of a slot, which is about to be sent again. Either its message has not completed and never will, or it has completed and
    /// the reply may be lost. `None` if the request has its reply, or too many copies are in flight.
    pub fn resend_request(&mut self, slot: ReplySlot) -> Option<AtomicRequest> {
        let request = self.requests[slot.index()].filter(|request| request.slot == slot)?;
        let copies = &mut self.copies[slot.index()];
        *copies = copies.checked_add(1)?;
        Some(request)
    }

    /// Records that a repeated message of a request has arrived or is lost.
    pub fn on_copy_gone(&mut self, slot: ReplySlot) {
        let copies = &mut self.copies[slot.index()];
        *copies = copies.saturating_sub(1);
        self.release_slot(slot.index());
    }

    /// Returns the request of a slot, if it has no reply.
    #[must_use]
    pub fn get(&self, slot: ReplySlot) -> Option<&AtomicRequest> {
        self.requests[slot.index()].as_ref().filter(|request| request.slot == slot)
    }

    /// Iterates over the requests without a reply.
    pub fn iter(&self) -> impl Iterator<Item = &AtomicRequest> {
        self.requests.iter().flatten()
    }

    /// Returns the number of slots that are pending: neither free nor only kept for a value.
    #[must_use]
    pub const fn len(&self) -> u32 {
        (self.free | self.kept).count_zeros()
    }

    /// Returns whether no slot is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.free | self.kept == u64::MAX
    }
}

const _: () = assert!(RMA_CALLS_MAX == u64::BITS as usize);
