//! The atomics of a context, executed by a member's process or by its NIC. NICs execute them where every member has exactly one
//! NIC that can, so all atomics on an 8-byte word pass through the same NIC. Their steps are in `trunkline_proto::rma::steps`.
//! Such a member has one path and is lost with it, so no NIC executes an atomic twice. Nothing here waits.

use trunkline_fabric::{AccessRights, BounceRole, Op, PostError, Rail, RegisterError, RegisteredRegion};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::rma::atomic_requests::RequestRefusal;
use trunkline_proto::rma::steps::{AtomicStep, next, next_expected};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::RmaMessage;
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest, ReplySlot};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use crate::rma::context::{FetchHandle, RmaContext};
use crate::rma::error::RmaError;
use crate::rma::job::MemberRank;
use crate::rma::operations::{OPS, OpRecord};
use crate::rma::peer::{FetchResult, MemberAtomics, OutboundLink};

/// Bytes of an old value.
const ANSWER: u64 = 8;

/// The buffer into which NICs return old values: one slot per operation of a context.
#[derive(Debug)]
pub(super) struct NicAtomics {
    answers: RegisteredRegion<BounceRole>,
}

impl NicAtomics {
    /// Creates the buffer for a context on this rail.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(super) fn new(rail: &impl Rail) -> Result<Self, RegisterError> {
        let memory = MemoryRange::try_heap(OPS as usize * ANSWER as usize)?;
        Ok(Self { answers: RegisteredRegion::register(&rail.registrar(), memory, AccessRights::LOCAL)? })
    }

    /// Returns the value that an operation has fetched.
    fn fetched_word(&self, id: SlotId) -> u64 {
        // The buffer has a slot for each operation id.
        self.answers.memory().load(u64::from(id.slot) * ANSWER).unwrap_or(0)
    }
}

impl<R: Rail> RmaContext<R> {
    /// Posts an atomic. `None` if there is no room now.
    pub(super) fn post_atomic(
        &mut self,
        member: MemberRank,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<Option<FetchHandle>, RmaError> {
        let Some(at) = self.prepare_member(member) else { return Ok(None) };
        // Narrower words are executed by the process, because NICs support 8 bytes only.
        if self.native.is_some() && word.width() == WordWidth::Eight {
            return self.ask_nic(at, word, atomic);
        }
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        // One of the receives is reserved for the acknowledgement request, and a quarter of the reply receives for
        // acknowledgements.
        let out = u64::from(peer.asked.calls.len()) + peer.outgoing.unacknowledged_signals();
        let answers = rails.answer_depth();
        let most = u64::from(answers - answers / 4);
        let takes = |link: &OutboundLink| {
            out + 1 < u64::from(link.credit) && u64::from(peer.asked.calls.len()) < most
        };
        let has_room = |link: &OutboundLink| takes(link) && rails.post_credits(link) > 0;
        let Some((path, _)) = peer.select_path(has_room).filter(|_| self.operations.has_room()) else {
            self.peers[at as usize].request_room(&mut self.rails);
            return Ok(None);
        };
        let peer = &mut self.peers[at as usize];
        let request = match peer.asked.calls.begin_request(word, atomic) {
            Ok(request) => request,
            Err(RequestRefusal::Busy) => return Ok(None),
            Err(RequestRefusal::Width) => {
                return Err(RmaError::Argument("the word and the type have different widths"));
            }
        };
        let slot = request.slot;
        let id = self.operations.begin_operation(at, path, OpRecord::Call(slot)).ok();
        peer.asked.record_call(slot, id);
        self.rails.send_message(&peer.links[path.index()], &RmaMessage::Request(request));
        Ok(Some(FetchHandle { peer: at, slot, on_nic: false }))
    }

    /// Returns the value that an atomic has fetched, or that the word does not exist, because either frees its slot.
    /// `None` if it is still pending.
    pub(super) fn collect_fetch(&mut self, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        let (member, lost) = self
            .peers
            .get(fetch.peer as usize)
            .map(|peer| (peer.member, peer.lost))
            .ok_or_else(RmaError::unknown_request)?;
        let asked = self.calls_of(fetch).ok_or_else(RmaError::unknown_request)?;
        let (generation, _, found) = asked.found[fetch.slot.index()];
        match found {
            // The slot was reused: the handle is of an earlier atomic.
            _ if generation != fetch.slot.generation() => Err(RmaError::Unknown),
            FetchResult::Value(value) => {
                asked.calls.release_value(fetch.slot);
                Ok(Some(value))
            }
            FetchResult::Nowhere => {
                asked.calls.release_value(fetch.slot);
                Err(RmaError::NoWord(member))
            }
            FetchResult::Pending => match lost {
                Some(lost) => Err(RmaError::Lost { member, lost }),
                None => Ok(None),
            },
        }
    }

    /// Gives up a value: the caller will not collect it.
    pub(super) fn give_up(&mut self, fetch: FetchHandle) {
        if let Some(asked) = self.calls_of(fetch) {
            asked.calls.release_value(fetch.slot);
        }
    }

    /// The table of atomics that contains this one: the NIC's or the process's.
    fn calls_of(&mut self, fetch: FetchHandle) -> Option<&mut MemberAtomics> {
        let peer = self.peers.get_mut(fetch.peer as usize)?;
        if fetch.on_nic { peer.on_nic.as_mut() } else { Some(&mut peer.asked) }
    }

    /// Handles a reply. Returns whether it belongs to a pending atomic.
    pub(super) fn on_reply(&mut self, at: u32, reply: &AtomicReply) -> bool {
        let asked = &mut self.peers[at as usize].asked;
        let answered = asked.record_reply(reply);
        if self.operations.has_outcome_log() {
            // The log reports the value, so no caller collects it.
            asked.calls.release_value(reply.slot);
        }
        answered.is_ok_and(|id| id.is_none_or(|id| self.operations.complete_atomic(id, reply.outcome)))
    }

    /// Posts an atomic on 8 bytes for the NIC of a peer. `None` if there is no room now.
    fn ask_nic(
        &mut self,
        at: u32,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<Option<FetchHandle>, RmaError> {
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let path = peer.select_path(|link| rails.post_credits(link) > 0);
        let Some((path, link)) = path.filter(|_| self.operations.has_room()) else { return Ok(None) };
        // Checked now, because a NIC would put the link into error for an invalid address.
        let is_there = link.heap_extent(word.heap(), word.offset(), ANSWER).is_ok();
        let Some(asked) = self.peers[at as usize].on_nic.as_mut() else { return Ok(None) };
        let slot = match asked.calls.begin_request(word, atomic) {
            Ok(request) => request.slot,
            Err(RequestRefusal::Busy) => return Ok(None),
            Err(RequestRefusal::Width) => {
                return Err(RmaError::Argument("the word and the type have different widths"));
            }
        };
        let id = self.operations.begin_operation(at, path, OpRecord::Native(slot, None)).ok();
        asked.record_call(slot, id);
        match id {
            Some(id) if is_there => self.post_step(at, id),
            // Completed locally as refused: no NIC has to be involved.
            _ => self.complete_native(at, slot, AtomicOutcome::Refused),
        }
        Ok(Some(FetchHandle { peer: at, slot, on_nic: true }))
    }

    /// Posts the next step of an atomic, or defers it until there is room.
    fn post_step(&mut self, at: u32, id: SlotId) {
        let Some(&mut OpRecord::Native(slot, before)) = self.operations.note_mut(id) else { return };
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let has_room = peer.select_path(|link| rails.post_credits(link) > 0);
        // Deferred steps are repeated by progress calls.
        let Some((path, link)) = has_room else { return self.defer_step(at, id) };
        let request = peer.on_nic.as_ref().and_then(|asked| asked.calls.get(slot));
        let (Some(native), Some(request)) = (&self.native, request) else { return };
        let Ok(there) = link.heap_extent(request.word().heap(), request.word().offset(), ANSWER) else {
            return;
        };
        let old = native.answers.extent_at(u64::from(id.slot) * ANSWER, ANSWER);
        let op = match next(request.atomic(), before) {
            AtomicStep::Add(add) => Op::FetchAdd { old, at: there, add },
            AtomicStep::CompareSwap { expect, swap } => Op::CompareSwap { old, at: there, expect, swap },
        };
        let rail = link.rail;
        match self.rails.post_op(link, id.to_bits(), op) {
            Ok(()) => self.rails.flush_rail(rail),
            Err(PostError::Busy) => self.defer_step(at, id),
            Err(PostError::Refused(status)) => self.fail_path(at, path, status),
        }
    }

    fn defer_step(&mut self, at: u32, id: SlotId) {
        self.peers[at as usize].steps.push_back(id);
        self.mark_busy(at);
    }

    /// Posts deferred steps of atomics. Returns whether any was posted.
    pub(super) fn progress_steps(&mut self, at: u32) -> bool {
        let waits = self.peers[at as usize].steps.len();
        // Only those that waited at the start, because a step that is deferred again must not loop.
        for _ in 0..waits {
            let Some(id) = self.peers[at as usize].steps.pop_front() else { break };
            self.post_step(at, id);
        }
        self.peers.get(at as usize).is_some_and(|peer| peer.steps.len() < waits)
    }

    /// Handles the completion of a step by a NIC.
    pub(super) fn on_native(&mut self, at: u32, id: SlotId, slot: ReplySlot, before: Option<u64>) {
        let Some(found) = self.native.as_ref().map(|native| native.fetched_word(id)) else { return };
        let asked = self.peers[at as usize].on_nic.as_ref();
        let request = asked.and_then(|asked| asked.calls.get(slot));
        let Some(atomic) = request.map(AtomicRequest::atomic) else { return };
        if let Some(following) = next_expected(atomic, before, found) {
            // The next step compares with the value that this one has found.
            if let Some(OpRecord::Native(_, before)) = self.operations.note_mut(id) {
                *before = Some(following);
            }
            return self.post_step(at, id);
        }
        self.complete_native(at, slot, AtomicOutcome::Done(if atomic.is_fetching() { found } else { 0 }));
    }

    fn complete_native(&mut self, at: u32, slot: ReplySlot, outcome: AtomicOutcome) {
        let reply = AtomicReply { stream: self.stream, slot, outcome };
        let Some(asked) = self.peers[at as usize].on_nic.as_mut() else { return };
        // The atomic is pending: only its own NIC completes it.
        let answered = asked.record_reply(&reply);
        if self.operations.has_outcome_log() {
            asked.calls.release_value(slot);
        }
        if let Ok(Some(id)) = answered {
            self.operations.complete_atomic(id, outcome);
        }
    }
}
