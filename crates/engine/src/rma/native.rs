//! Atomics that a member's NIC executes, without its process: where every member has one NIC that can, and so all that is done to a
//! word of 8 bytes goes through the same. Which steps they take is `trunkline_proto::rma::steps`'. With its only path a member is lost,
//! so nothing here is ever done twice.

use trunkline_fabric::{Access, Bounce, Mr, Op, PostError, Rail, RegisterError};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::rma::calls::Refused;
use trunkline_proto::rma::steps::{Step, follows, next};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::atomic::{Outcome, Reply, Request, Slot};
use trunkline_proto::wire::rma::word::Word;

use crate::rma::context::{Context, Fetch, Note, OPS};
use crate::rma::error::RmaError;
use crate::rma::post::remote;

/// Bytes of an answer.
const ANSWER: u64 = 8;

/// Where NICs put what words were: one place for each operation of a context.
#[derive(Debug)]
pub(super) struct Native {
    answers: Mr<Bounce>,
}

impl Native {
    /// For a context on this rail.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(super) fn new(rail: &impl Rail) -> Result<Self, RegisterError> {
        let memory = Memory::try_heap(OPS as usize * ANSWER as usize)?;
        Ok(Self { answers: Mr::register(&rail.registrar(), memory, Access::LOCAL)? })
    }

    /// What the word was that an operation has found.
    fn answer(&self, id: SlotId) -> u64 {
        // There is a place for each.
        self.answers.memory().load(u64::from(id.slot) * ANSWER).unwrap_or(0)
    }
}

impl<R: Rail> Context<R> {
    /// Asks the NIC of a peer for an atomic on 8 bytes. `None` if there is no room now.
    pub(super) fn ask_nic(&mut self, at: u32, word: Word, atomic: Atomic) -> Result<Option<Fetch>, RmaError> {
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let path = peer.path(|link| rails[link.rail].credits(link.link) > 0);
        let Some((path, link)) = path.filter(|_| self.ledger.has_room()) else { return Ok(None) };
        let is_there = remote(link, word.heap(), word.offset(), ANSWER).is_ok();
        let Some(asked) = self.peers[at as usize].on_nic.as_mut() else { return Ok(None) };
        let slot = match asked.calls.begin(word, atomic) {
            Ok(request) => request.slot,
            Err(Refused::Busy) => return Ok(None),
            Err(Refused::Width) => return Err(RmaError::Argument("the word is not as wide as the type")),
        };
        let id = self.ledger.begin(at, path, Note::Native(slot, None)).ok();
        asked.begun(slot, id);
        if let Some(id) = id {
            self.note_begun(id);
        }
        match id {
            Some(id) if is_there => self.step(at, id),
            _ => self.end_native(at, slot, Outcome::Refused),
        }
        Ok(Some(Fetch { peer: at, slot, on_nic: true }))
    }

    /// Posts the next step of an atomic, now or when there is room.
    fn step(&mut self, at: u32, id: SlotId) {
        let Some(&mut Note::Native(slot, before)) = self.ledger.note_mut(id) else { return };
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let has_room = peer.path(|link| rails[link.rail].credits(link.link) > 0);
        let Some((path, link)) = has_room else { return self.step_later(at, id) };
        let request = peer.on_nic.as_ref().and_then(|asked| asked.calls.get(slot));
        let (Some(native), Some(request)) = (&self.native, request) else { return };
        let Ok(there) = remote(link, request.word().heap(), request.word().offset(), ANSWER) else { return };
        let old = native.answers.extent(u64::from(id.slot) * ANSWER, ANSWER);
        let op = match next(request.atomic(), before) {
            Step::Add(add) => Op::FetchAdd { old, at: there, add },
            Step::CompareSwap { expect, swap } => Op::CompareSwap { old, at: there, expect, swap },
        };
        let link = (link.rail, link.link);
        match self.rails[link.0].post(link.1, id.to_bits(), op, true) {
            Ok(()) => self.rails[link.0].flush(),
            Err(PostError::Busy) => self.step_later(at, id),
            Err(PostError::Refused(status)) => self.fail(at, path, status),
        }
    }

    fn step_later(&mut self, at: u32, id: SlotId) {
        if !self.mutant.is("job-forgets-steps") {
            self.peers[at as usize].steps.push_back(id);
        }
        self.attend(at);
    }

    /// Goes on with atomics whose next step found no room. Whether any has gone.
    pub(super) fn go_on_stepping(&mut self, at: u32) -> bool {
        let waits = self.peers[at as usize].steps.len();
        for _ in 0..waits {
            let Some(id) = self.peers[at as usize].steps.pop_front() else { break };
            self.step(at, id);
        }
        self.peers.get(at as usize).is_some_and(|peer| peer.steps.len() < waits)
    }

    /// A NIC has answered.
    pub(super) fn on_native(&mut self, at: u32, id: SlotId, slot: Slot, before: Option<u64>) {
        let Some(found) = self.native.as_ref().map(|native| native.answer(id)) else { return };
        let asked = self.peers[at as usize].on_nic.as_ref();
        let request = asked.and_then(|asked| asked.calls.get(slot));
        let Some(atomic) = request.map(Request::atomic) else { return };
        if let Some(following) = follows(atomic, before, found, self.mutant) {
            if let Some(Note::Native(_, before)) = self.ledger.note_mut(id) {
                *before = Some(following);
            }
            return self.step(at, id);
        }
        self.end_native(at, slot, Outcome::Done(if atomic.fetches() { found } else { 0 }));
    }

    fn end_native(&mut self, at: u32, slot: Slot, outcome: Outcome) {
        let reply = Reply { stream: self.stream, slot, outcome };
        let Some(asked) = self.peers[at as usize].on_nic.as_mut() else { return };
        // It was asked for: nobody else answers.
        let answered = asked.answered(&reply);
        if self.telling.is_some() {
            asked.calls.collected(slot);
        }
        if let Ok(Some(id)) = answered {
            self.end_call(id, outcome);
        }
    }
}
