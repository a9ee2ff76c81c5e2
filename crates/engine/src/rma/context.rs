//! What a process begins itself: puts, gets, atomics and signals of one context, towards any member. A lane with rails of its
//! own, used by one thread at a time; the rules are in `trunkline_proto::rma`. This file has what a context is, and how it takes what
//! has finished.

use std::collections::HashMap;

use trunkline_fabric::{AccessRights, Completion, CompletionKind, OpStatus, Rail};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::ledger::OperationLedger;
use trunkline_proto::rma::outgoing::SignalOrdering;
use trunkline_proto::rma::paths::PathStage;
use trunkline_proto::rma::redo::RedoKind;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::dial::{DialMessage, RemoteHeap as ToldHeap};
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, AtomicReply, ReplySlot};
use trunkline_proto::wire::rma::{RmaMessage, RmaStream};

use crate::params::EngineParams;
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heap::{HeapMemory, RailRegistrars, RegisteredHeap};
use crate::rma::heaps::HeapTable;
use crate::rma::job::{MemberRank, caps_of};
use crate::rma::nic_atomics::NicAtomics;
use crate::rma::outcome_log::OutcomeLog;
use crate::rma::peer::RemoteMember;
use crate::rma::service::count_pending_rails;

/// Operations of a context that may be under way.
pub(super) const OPS: u32 = 4096;
/// Answers that may be under way to one link of a context: replies and acknowledgements.
pub(super) const ANSWERS_MAX: u32 = 64 + 8;
/// Puts without a signal after which they are not counted any more.
const REVERT_AFTER: u32 = 256;
/// `wr_id` of messages, of which only failures are told.
pub(super) const MESSAGE: u64 = u64::MAX;
/// `wr_id` of proofs.
pub(super) const PROOF: u64 = u64::MAX - 1;
/// Most bytes that are copied at once: a copy is kept until they are there, as they may have to be written again.
const COPIED_MAX: u64 = 1024;

/// Names a context of a job.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ContextId {
    pub(super) stream: RmaStream,
    /// Which use of its place.
    pub(super) generation: u16,
}

/// Bytes of a heap of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeapRange {
    /// Which heap.
    pub heap: u8,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Where the bytes of a put come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PutSource<'a> {
    /// Copied before the call returns; at most [`RmaJob::inline_max`](crate::rma::RmaJob::inline_max).
    Bytes(&'a [u8]),
    /// A heap of this process, not to be changed before a quiet.
    Heap(HeapRange),
}

impl PutSource<'_> {
    /// How many bytes it has.
    #[must_use]
    #[inline]
    pub const fn byte_len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Heap(local) => local.len,
        }
    }
}

/// Looks at what is waited for of which one serves others, and how many of them are soon: after those, each does. All who wait spin for longer than
/// that, so who has given its core away serves at once when it has it back.
const SERVE_EVERY: u32 = 4;
const SOON: u32 = 16;

/// Names an atomic whose value was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "the value is lost"]
pub struct FetchHandle {
    pub(super) peer: u32,
    pub(super) slot: ReplySlot,
    /// The NIC executes it.
    pub(super) on_nic: bool,
}

/// Where the bytes of an operation are on this side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LocalBuffer {
    /// In a heap, from there on.
    Heap(u8, u64),
    /// They were copied: into the place of the operation among [`RmaContext::copies`], if they may have to be written again.
    Copied,
}

/// Bytes that move, so that they can be moved again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TransferExtent {
    pub(super) near: LocalBuffer,
    /// The member's heap.
    pub(super) heap: u8,
    /// And where in it.
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// How a write is told to its target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WriteNotice {
    /// Not at all; the stream is to know when it is complete.
    Plain,
    /// By the immediate of the epoch of that number.
    Counted(u64),
    /// By a word, as it was counted on a path that is lost.
    Rewritten,
}

/// What an operation in the ledger is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OpRecord {
    /// A write.
    Put(TransferExtent, WriteNotice),
    /// A read.
    Get(TransferExtent),
    /// An atomic, until its reply.
    Call(ReplySlot),
    /// One that the member's NIC executes, and what the word was found to be, where that takes several steps.
    Native(ReplySlot, Option<u64>),
}

impl OpRecord {
    const fn byte_len(self) -> u64 {
        match self {
            Self::Put(transfer, _) | Self::Get(transfer) => transfer.len as u64,
            Self::Call(_) | Self::Native(..) => 0,
        }
    }

    /// What it is when its path is lost.
    pub(super) const fn redo_kind(&self) -> RedoKind {
        match self {
            Self::Put(_, WriteNotice::Counted(number)) => RedoKind::Counted(*number),
            Self::Put(_, WriteNotice::Rewritten) => RedoKind::Rewritten,
            Self::Put(_, WriteNotice::Plain) | Self::Get(_) | Self::Call(_) | Self::Native(..) => {
                RedoKind::Other
            }
        }
    }
}

/// The lane.
pub(super) struct RmaContext<R: Rail> {
    pub(super) stream: RmaStream,
    /// Which use of its place it is.
    pub(super) generation: u16,
    pub(super) rails: Vec<R>,
    pub(super) heaps: Vec<Option<RegisteredHeap>>,
    /// What members have told of heaps beside what links brought, by rail.
    pub(super) learned: HashMap<(MemberRank, u8), Vec<ToldHeap>>,
    pub(super) ledger: OperationLedger<OpRecord>,
    pub(super) peers: Vec<RemoteMember>,
    /// By member.
    pub(super) known: HashMap<MemberRank, u32>,
    /// By rail, then by the link's number: peer and path.
    pub(super) names: Vec<Vec<Option<(u32, PathId)>>>,
    /// Peers for which there is something to do by and by: a path is lost, or a put with signal has begun.
    pub(super) busy: Vec<u32>,
    /// Words for control streams, which others have right now.
    pub(super) words: Vec<(SlotId, DialMessage)>,
    /// A copy of each operation's bytes that were given by value, by its slot; nothing before some peer has several paths.
    pub(super) copies: Vec<u8>,
    /// Completed means arrived.
    pub(super) arrives: bool,
    /// Writes can prove themselves, where not all do.
    pub(super) places: bool,
    pub(super) order: SignalOrdering,
    pub(super) inline_max: u64,
    pub(super) message_max: u64,
    pub(super) batch: Box<[Completion]>,
    /// Receives of each link, for answers.
    pub(super) answers: u32,
    /// Some link has receives that found no room.
    pub(super) starves: bool,
    /// Looks at the rails so far, and when it was last asked whether links carry.
    pub(super) turns: u32,
    /// Looks in a row that did not find what they were for, and looks since others were served.
    waits: u32,
    unserved: u32,
    pub(super) looked: Instant,
    stirred: u64,
    /// What NICs that execute atomics answer, if they do.
    pub(super) native: Option<NicAtomics>,
    /// Who hears of each operation's end, if anybody.
    pub(super) telling: Option<OutcomeLog>,
    /// More operations follow at once: a posted one waits for the last one's doorbell.
    pub(super) batches: bool,
    /// Something that was posted waits for one.
    pub(super) unrung: bool,
    /// How the last failure was called.
    pub(super) why: OpStatus,
    pub(super) mutant: Mutant,
}

/// What the id of a link that is dialled says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LinkDialId {
    pub(super) stream: RmaStream,
    pub(super) generation: u16,
    pub(super) peer: u32,
    pub(super) path: PathId,
}

impl LinkDialId {
    pub(super) fn to_bits(self) -> u64 {
        let context = u64::from(self.generation) << 48 | u64::from(self.stream.number()) << 40;
        context | u64::from(self.peer) << 8 | self.path.index() as u64
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let stream = RmaStream::new((bits >> 40) as u8)?;
        let path = PathId::new(bits as u8)?;
        Some(Self { stream, generation: (bits >> 48) as u16, peer: (bits >> 8) as u32, path })
    }
}

impl<R: Rail> RmaContext<R> {
    /// Creates a context on `rails`, with `answers` receives for each link, for these heaps.
    pub(super) fn new(
        ContextId { stream, generation }: ContextId,
        rails: Vec<R>,
        answers: u32,
        heaps: HeapTable,
        now: Instant,
        &EngineParams { mutant, progress_batch: batch, .. }: &EngineParams,
    ) -> Result<Self, RmaError> {
        let registrars = RailRegistrars::from_rails(&rails);
        let register = |heap: &Option<HeapMemory>| {
            heap.as_ref().map(|heap| RegisteredHeap::new(&registrars, heap, AccessRights::LOCAL)).transpose()
        };
        let heaps = heaps.own.iter().map(register).collect::<Result<_, _>>()?;
        let (arrives, write_data, inline_max, message_max) = caps_of(&rails);
        let places = !arrives && rails.iter().all(|rail| rail.caps().placed_writes);
        let order = if write_data {
            SignalOrdering::Counted { revert_after: REVERT_AFTER }
        } else {
            SignalOrdering::Completed
        };
        let mut ledger = OperationLedger::new(mutant);
        ledger.grow_capacity(0, OPS)?;
        let names = rails.iter().map(|_| Vec::new()).collect();
        Ok(Self {
            stream,
            generation,
            rails,
            heaps,
            learned: HashMap::new(),
            ledger,
            peers: Vec::new(),
            known: HashMap::new(),
            names,
            busy: Vec::new(),
            words: Vec::new(),
            copies: Vec::new(),
            arrives: arrives || mutant.is_planted("job-proves-nothing"),
            places,
            order,
            inline_max: inline_max.min(COPIED_MAX),
            message_max,
            batch: try_filled(Completion::BLANK, batch as usize)?,
            answers,
            starves: false,
            turns: 0,
            waits: 0,
            unserved: 0,
            looked: now,
            stirred: 0,
            native: None,
            telling: None,
            batches: false,
            unrung: false,
            why: OpStatus::Ok,
            mutant,
        })
    }

    /// Bytes of the copy of an operation's bytes; none if no copies are kept.
    pub(super) fn copy_of(&mut self, id: SlotId, len: usize) -> Option<&mut [u8]> {
        let from = id.slot as usize * self.inline_max as usize;
        self.copies.get_mut(from..from + len)
    }

    /// Copies are kept from now on.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn keep_copies(&mut self) -> Result<(), OutOfMemory> {
        if self.copies.is_empty() && !self.mutant.is_planted("job-keeps-no-copies") {
            self.copies = try_filled(0, OPS as usize * self.inline_max as usize)?.into_vec();
        }
        Ok(())
    }

    /// Takes what has finished. Whether there was anything. Also with nothing under way: some networks make connections only while
    /// they are asked (libfabric's `ofi_rxm`).
    pub(super) fn progress(&mut self) -> bool {
        // No caller promises that a batch ends.
        self.ring_all();
        let mut moved = self.check_links_up();
        if self.starves {
            self.post_receives();
        }
        for rail in 0..self.rails.len() {
            let count = self.rails[rail].poll(&mut self.batch);
            moved |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                let name = self.names[rail].get(completion.link.0 as usize).copied().flatten();
                if let Some((at, path)) = name {
                    self.on_completion(at, path, &completion);
                }
            }
        }
        moved | self.progress_busy()
    }

    /// After a look at what was waited for: whether others are to be served, too. Most answers are there soon, and serving is a system
    /// call for each link over TCP.
    #[inline]
    pub(super) fn check_service_due(&mut self, found: bool) -> bool {
        self.waits = if found { 0 } else { self.waits.saturating_add(1) };
        self.unserved += 1;
        let serves = self.waits > SOON
            || (self.unserved >= SERVE_EVERY && !self.mutant.is_planted("job-who-waits-serves-nobody"));
        if serves {
            self.unserved = 0;
        }
        serves
    }

    /// How often a rail wanted to be asked again at once, when it was asked here.
    pub(super) fn sample_progress(&mut self) -> u64 {
        self.stirred += count_pending_rails(&mut self.rails);
        self.stirred
    }

    /// Posts receives that found no room before.
    #[cold]
    pub(super) fn post_receives(&mut self) {
        self.starves = false;
        let links = self.peers.iter_mut().flat_map(|peer| &mut peer.links);
        for link in links.filter(|link| link.exists) {
            self.starves |= !link.receives.post_due(&mut self.rails[link.rail], link.link);
        }
    }

    /// Looks whether links that are made are up.
    pub(super) fn check_links_up(&mut self) -> bool {
        let mut raised = false;
        for at in 0..self.peers.len() {
            if self.peers[at].paths.count_in_stage(PathStage::Made) == 0 {
                continue;
            }
            for place in 0..self.peers[at].links.len() {
                let peer = &mut self.peers[at];
                let Some(path) = PathId::new(place as u8) else { continue };
                let link = &peer.links[place];
                if peer.paths.path_stage(path) != PathStage::Made {
                    continue;
                }
                match self.rails[link.rail].poll_link_up(link.link) {
                    Ok(false) => {}
                    Ok(true) => {
                        peer.paths.on_up(path);
                        raised = true;
                    }
                    Err(_) => self.fail_path(at as u32, path, OpStatus::PeerDead),
                }
            }
        }
        raised
    }

    fn on_completion(&mut self, at: u32, path: PathId, completion: &Completion) {
        // What is told of a peer that was given up was counted as failed.
        if self.peers.get(at as usize).is_none_or(|peer| peer.lost.is_some()) {
            return;
        }
        match completion.done {
            _ if completion.status != OpStatus::Ok => self.fail_path(at, path, completion.status),
            CompletionKind::Posted if completion.wr_id == MESSAGE => {}
            CompletionKind::Posted if completion.wr_id == PROOF => self.on_proof(at, path),
            CompletionKind::Posted => self.on_done(at, SlotId::from_bits(completion.wr_id)),
            // Nobody writes here but with records, of which there are none.
            CompletionKind::Written => {}
            CompletionKind::Received => self.on_message(at, path, completion),
        }
    }

    fn on_done(&mut self, at: u32, id: SlotId) {
        let is_put = |note: &mut OpRecord| matches!(note, OpRecord::Put(..));
        // A proof tells of it, and may have.
        if !self.arrives && self.ledger.note_mut(id).is_none_or(is_put) {
            return;
        }
        if self.native.is_some()
            && let Some(&mut OpRecord::Native(slot, before)) = self.ledger.note_mut(id)
        {
            return self.on_native(at, id, slot, before);
        }
        self.complete_op(id);
    }

    /// All that was posted on a path before the proof has arrived.
    fn on_proof(&mut self, at: u32, path: PathId) {
        let link = &mut self.peers[at as usize].links[path.index()];
        let Some(covers) = link.proofs.pop_front() else { return };
        link.proving -= covers;
        for _ in 0..covers {
            let link = &mut self.peers[at as usize].links[path.index()];
            if let Some(id) = link.unproven.pop_front() {
                self.complete_op(id);
            }
        }
    }

    /// An operation is complete.
    fn complete_op(&mut self, id: SlotId) {
        let Ok(op) = self.ledger.complete_operation(id) else { return };
        self.report_outcome(id, Ok(0));
        let Some(peer) = self.peers.get_mut(op.peer as usize) else { return };
        if let Some(link) = peer.links.get_mut(op.path.index()) {
            link.bytes -= op.note.byte_len();
        }
        match op.note {
            // Told twice it is told to the ledger twice, which counts that.
            OpRecord::Put(_, WriteNotice::Plain) => {
                let _ = peer.outgoing.on_plain_done();
            }
            OpRecord::Put(_, WriteNotice::Rewritten) => peer.redo.on_rewritten(),
            OpRecord::Put(_, WriteNotice::Counted(_))
            | OpRecord::Get(_)
            | OpRecord::Call(_)
            | OpRecord::Native(..) => {}
        }
    }

    fn on_message(&mut self, at: u32, path: PathId, completion: &Completion) {
        let Some(peer) = self.peers.get_mut(at as usize) else { return };
        let Some(link) = peer.links.get_mut(path.index()) else { return };
        let message = link.receives.take_message(completion.wr_id, completion.len);
        self.starves |= !link.receives.post_due(&mut self.rails[link.rail], link.link);
        let kept = match message {
            Ok(RmaMessage::Reply(reply)) if reply.stream == self.stream => self.on_reply(at, &reply),
            Ok(RmaMessage::Ack(ack)) if ack.stream == self.stream => match peer.outgoing.on_ack(ack) {
                Ok(signals) => self.ledger.complete_signals(at, signals as u32).is_ok(),
                Err(_) => false,
            },
            _ => false,
        };
        if !kept {
            self.lose_member(at, path, LossCause::Protocol);
        }
    }

    /// Whether somebody asked for it.
    fn on_reply(&mut self, at: u32, reply: &AtomicReply) -> bool {
        let asked = &mut self.peers[at as usize].asked;
        let answered = asked.record_reply(reply);
        if self.telling.is_some() {
            // Its value is told, so nobody comes for it.
            asked.calls.release_value(reply.slot);
        }
        answered.is_ok_and(|id| id.is_none_or(|id| self.complete_call(id, reply.outcome)))
    }

    /// An atomic has its answer. Whether it was under way.
    pub(super) fn complete_call(&mut self, id: SlotId, outcome: AtomicOutcome) -> bool {
        let (ended, how) = match outcome {
            AtomicOutcome::Done(value) => (self.ledger.complete_operation(id).is_ok(), Ok(value)),
            AtomicOutcome::Refused => {
                self.why = OpStatus::RemoteAccess;
                (self.ledger.fail_operation(id).is_ok(), Err(OpStatus::RemoteAccess))
            }
        };
        if ended {
            self.report_outcome(id, how);
        }
        ended
    }
}
