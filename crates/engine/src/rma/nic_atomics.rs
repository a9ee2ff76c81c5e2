//! Atomics that a member's NIC executes, without its process: where every member has one NIC that can, and so all that is done to a
//! word of 8 bytes goes through the same. Which steps they take is `trunkline_proto::rma::steps`'. With its only path a member is lost,
//! so nothing here is ever done twice.

use trunkline_fabric::{AccessRights, BounceRole, Op, PostError, Rail, RegisterError, RegisteredRegion};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::rma::atomic_requests::RequestRefusal;
use trunkline_proto::rma::steps::{AtomicStep, next, next_expected};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest, ReplySlot};
use trunkline_proto::wire::rma::word::SymmetricWord;

use crate::rma::context::{FetchHandle, OPS, OpRecord, RmaContext};
use crate::rma::error::RmaError;
use crate::rma::post::remote_extent;

/// Bytes of an answer.
const ANSWER: u64 = 8;

/// Where NICs put what words were: one place for each operation of a context.
#[derive(Debug)]
pub(super) struct NicAtomics {
    answers: RegisteredRegion<BounceRole>,
}

impl NicAtomics {
    /// For a context on this rail.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(super) fn new(rail: &impl Rail) -> Result<Self, RegisterError> {
        let memory = MemoryRange::try_heap(OPS as usize * ANSWER as usize)?;
        Ok(Self { answers: RegisteredRegion::register(&rail.registrar(), memory, AccessRights::LOCAL)? })
    }

    /// What the word was that an operation has found.
    fn fetched_value(&self, id: SlotId) -> u64 {
        // There is a place for each.
        self.answers.memory().load(u64::from(id.slot) * ANSWER).unwrap_or(0)
    }
}

impl<R: Rail> RmaContext<R> {
    /// Asks the NIC of a peer for an atomic on 8 bytes. `None` if there is no room now.
    pub(super) fn ask_nic(
        &mut self,
        at: u32,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<Option<FetchHandle>, RmaError> {
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let path = peer.select_path(|link| rails[link.rail].post_credits(link.link) > 0);
        let Some((path, link)) = path.filter(|_| self.ledger.has_room()) else { return Ok(None) };
        let is_there = remote_extent(link, word.heap(), word.offset(), ANSWER).is_ok();
        let Some(asked) = self.peers[at as usize].on_nic.as_mut() else { return Ok(None) };
        let slot = match asked.calls.begin_request(word, atomic) {
            Ok(request) => request.slot,
            Err(RequestRefusal::Busy) => return Ok(None),
            Err(RequestRefusal::Width) => {
                return Err(RmaError::Argument("the word is not as wide as the type"));
            }
        };
        let id = self.ledger.begin_operation(at, path, OpRecord::Native(slot, None)).ok();
        asked.record_call(slot, id);
        if let Some(id) = id {
            self.note_begun(id);
        }
        match id {
            Some(id) if is_there => self.post_step(at, id),
            _ => self.complete_native(at, slot, AtomicOutcome::Refused),
        }
        Ok(Some(FetchHandle { peer: at, slot, on_nic: true }))
    }

    /// Posts the next step of an atomic, now or when there is room.
    fn post_step(&mut self, at: u32, id: SlotId) {
        let Some(&mut OpRecord::Native(slot, before)) = self.ledger.note_mut(id) else { return };
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let has_room = peer.select_path(|link| rails[link.rail].post_credits(link.link) > 0);
        let Some((path, link)) = has_room else { return self.defer_step(at, id) };
        let request = peer.on_nic.as_ref().and_then(|asked| asked.calls.get(slot));
        let (Some(native), Some(request)) = (&self.native, request) else { return };
        let Ok(there) = remote_extent(link, request.word().heap(), request.word().offset(), ANSWER) else {
            return;
        };
        let old = native.answers.extent_at(u64::from(id.slot) * ANSWER, ANSWER);
        let op = match next(request.atomic(), before) {
            AtomicStep::Add(add) => Op::FetchAdd { old, at: there, add },
            AtomicStep::CompareSwap { expect, swap } => Op::CompareSwap { old, at: there, expect, swap },
        };
        let link = (link.rail, link.link);
        match self.rails[link.0].post(link.1, id.to_bits(), op, true) {
            Ok(()) => self.rails[link.0].flush(),
            Err(PostError::Busy) => self.defer_step(at, id),
            Err(PostError::Refused(status)) => self.fail_path(at, path, status),
        }
    }

    fn defer_step(&mut self, at: u32, id: SlotId) {
        if !self.mutant.is_planted("job-forgets-steps") {
            self.peers[at as usize].steps.push_back(id);
        }
        self.mark_busy(at);
    }

    /// Goes on with atomics whose next step found no room. Whether any has gone.
    pub(super) fn progress_steps(&mut self, at: u32) -> bool {
        let waits = self.peers[at as usize].steps.len();
        for _ in 0..waits {
            let Some(id) = self.peers[at as usize].steps.pop_front() else { break };
            self.post_step(at, id);
        }
        self.peers.get(at as usize).is_some_and(|peer| peer.steps.len() < waits)
    }

    /// A NIC has answered.
    pub(super) fn on_native(&mut self, at: u32, id: SlotId, slot: ReplySlot, before: Option<u64>) {
        let Some(found) = self.native.as_ref().map(|native| native.fetched_value(id)) else { return };
        let asked = self.peers[at as usize].on_nic.as_ref();
        let request = asked.and_then(|asked| asked.calls.get(slot));
        let Some(atomic) = request.map(AtomicRequest::atomic) else { return };
        if let Some(following) = next_expected(atomic, before, found, self.mutant) {
            if let Some(OpRecord::Native(_, before)) = self.ledger.note_mut(id) {
                *before = Some(following);
            }
            return self.post_step(at, id);
        }
        self.complete_native(at, slot, AtomicOutcome::Done(if atomic.is_fetching() { found } else { 0 }));
    }

    fn complete_native(&mut self, at: u32, slot: ReplySlot, outcome: AtomicOutcome) {
        let reply = AtomicReply { stream: self.stream, slot, outcome };
        let Some(asked) = self.peers[at as usize].on_nic.as_mut() else { return };
        // It was asked for: nobody else answers.
        let answered = asked.record_reply(&reply);
        if self.telling.is_some() {
            asked.calls.release_value(slot);
        }
        if let Ok(Some(id)) = answered {
            self.complete_call(id, outcome);
        }
    }
}
