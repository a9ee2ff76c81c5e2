//! What a process begins itself: puts, gets, atomics and signals of one context, towards any member. A lane with rails of its
//! own, used by one thread at a time; the rules are in `trunkline_proto::rma`. This file has the state of a context, how it takes completions
//! and messages, and its quiets and fences. The context posts in `post` and `atomics`, and makes and loses its paths in `paths`.

use std::collections::HashMap;

use trunkline_fabric::{AccessRights, Completion, CompletionKind, OpStatus, Rail};
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::ledger::{QuietFailure, QuietProgress};
use trunkline_proto::rma::outgoing::SignalOrdering;
use trunkline_proto::rma::paths::PathStage;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::dial::{DialMessage, RemoteHeap as ToldHeap};
use trunkline_proto::wire::rma::atomic::ReplySlot;
use trunkline_proto::wire::rma::{RmaMessage, RmaStream};

use crate::params::EngineParams;
use crate::rma::atomics::NicAtomics;
use crate::rma::context_rails::{ContextRails, MESSAGE};
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heap::{HeapMemory, RailRegistrars, RegisteredHeap};
use crate::rma::heaps::HeapTable;
use crate::rma::job::{MemberRank, caps_of};
use crate::rma::operations::{OPS, OpRecord, PendingOperations, WriteNotice};
use crate::rma::peer::{PROOF, RemoteMember};

/// Answers that may be under way to one link of a context: replies and acknowledgements.
pub(super) const ANSWERS_MAX: u32 = 64 + 8;
/// Puts without a signal after which they are not counted any more.
const REVERT_AFTER: u32 = 256;
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

/// Where bytes of a member begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeapAddress {
    /// The member that has them.
    pub member: MemberRank,
    /// The number of the heap that contains them.
    pub heap: u8,
    /// Their offset in that heap, in bytes.
    pub offset: u64,
}

impl HeapAddress {
    /// The address that is `bytes` further on. One beyond the end of all heaps stays there.
    #[inline]
    #[must_use]
    pub const fn offset_by(self, bytes: u64) -> Self {
        Self { offset: self.offset.saturating_add(bytes), ..self }
    }
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

/// A context: its members, and what it has begun towards them. One thread at a time owns it ([`ContextSlot`](crate::rma::context_slot::ContextSlot)).
pub(super) struct RmaContext<R: Rail> {
    pub(super) stream: RmaStream,
    /// Which use of its place it is.
    pub(super) generation: u16,
    pub(super) rails: ContextRails<R>,
    pub(super) heaps: Vec<Option<RegisteredHeap>>,
    /// What members have told of heaps beside what links brought, by rail.
    pub(super) learned: HashMap<(MemberRank, u8), Vec<ToldHeap>>,
    /// What is under way, and how each operation ends.
    pub(super) operations: PendingOperations,
    pub(super) peers: Vec<RemoteMember>,
    /// By member.
    pub(super) known: HashMap<MemberRank, u32>,
    /// Peers for which there is something to do by and by: a path is lost, or a put with signal has begun.
    pub(super) busy: Vec<u32>,
    /// Words for control streams, which others have right now.
    pub(super) words: Vec<(SlotId, DialMessage)>,
    /// A copy of each operation's bytes that were given by value, by its slot; nothing before some peer has several paths.
    pub(super) copies: Vec<u8>,
    pub(super) order: SignalOrdering,
    pub(super) inline_max: u64,
    pub(super) message_max: u64,
    batch: Box<[Completion]>,
    /// Polls of the rails so far, and the time of the last check of the links.
    pub(super) turns: u32,
    pub(super) looked: Instant,
    /// Looks in a row that did not find what they were for, and looks since others were served.
    waits: u32,
    unserved: u32,
    /// What NICs that execute atomics answer, if they do.
    pub(super) native: Option<NicAtomics>,
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
        &EngineParams { progress_batch: batch, .. }: &EngineParams,
    ) -> Result<Self, RmaError> {
        let registrars = RailRegistrars::from_rails(&rails);
        let register = |heap: &Option<HeapMemory>| {
            heap.as_ref().map(|heap| RegisteredHeap::new(&registrars, heap, AccessRights::LOCAL)).transpose()
        };
        let heaps = heaps.own.iter().map(register).collect::<Result<_, _>>()?;
        let (arrives, write_data, inline_max, message_max) = caps_of(&rails);
        let order = if write_data {
            SignalOrdering::Counted { revert_after: REVERT_AFTER }
        } else {
            SignalOrdering::Completed
        };
        Ok(Self {
            stream,
            generation,
            rails: ContextRails::new(rails, answers, arrives),
            heaps,
            learned: HashMap::new(),
            operations: PendingOperations::new()?,
            peers: Vec::new(),
            known: HashMap::new(),
            busy: Vec::new(),
            words: Vec::new(),
            copies: Vec::new(),
            order,
            inline_max: inline_max.min(COPIED_MAX),
            message_max,
            batch: try_filled(Completion::BLANK, batch as usize)?,
            turns: 0,
            waits: 0,
            unserved: 0,
            looked: now,
            native: None,
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
        if self.copies.is_empty() {
            self.copies = try_filled(0, OPS as usize * self.inline_max as usize)?.into_vec();
        }
        Ok(())
    }

    /// Takes what has finished. Whether there was anything. Also with nothing under way: some networks make connections only while
    /// they are asked (libfabric's `ofi_rxm`).
    pub(super) fn progress(&mut self) -> bool {
        // No caller promises that a batch ends.
        self.rails.ring_all();
        let mut moved = self.check_links_up();
        if self.rails.has_due_receives() {
            self.rails.post_due_receives(&mut self.peers);
        }
        for rail in 0..self.rails.rail_count() {
            let count = self.rails.poll(rail, &mut self.batch);
            moved |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                if let Some(owner) = self.rails.owner_of(rail, completion.link) {
                    self.on_completion(owner.peer, owner.path, &completion);
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
        let serves = self.waits > SOON || self.unserved >= SERVE_EVERY;
        if serves {
            self.unserved = 0;
        }
        serves
    }

    /// Looks whether links that are made are up.
    fn check_links_up(&mut self) -> bool {
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
                match self.rails.poll_link_up(link) {
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
        if !self.rails.completes_on_arrival() && self.operations.note_mut(id).is_none_or(is_put) {
            return;
        }
        if self.native.is_some()
            && let Some(&mut OpRecord::Native(slot, before)) = self.operations.note_mut(id)
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
        let Ok(op) = self.operations.complete_operation(id) else { return };
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
        self.rails.post_receives(link);
        let kept = match message {
            Ok(RmaMessage::Reply(reply)) if reply.stream == self.stream => self.on_reply(at, &reply),
            Ok(RmaMessage::Ack(ack)) if ack.stream == self.stream => match peer.outgoing.on_ack(ack) {
                Ok(signals) => self.operations.complete_signals(at, signals as u32).is_ok(),
                Err(_) => false,
            },
            _ => false,
        };
        if !kept {
            self.lose_member(at, path, LossCause::Protocol);
        }
    }

    /// How a quiet towards one peer stands; asks for what has to be asked for.
    pub(super) fn poll_quiet(&mut self, at: u32) -> Result<QuietProgress, QuietFailure> {
        let peer = &mut self.peers[at as usize];
        peer.post_proofs(&mut self.rails);
        peer.request_ack(&mut self.rails);
        self.operations.quiet_peer(at)
    }

    /// Whether nothing is under way towards a peer; asks for what has to be asked for, and takes no failure's news.
    pub(super) fn poll_peer_idle(&mut self, at: u32) -> bool {
        let peer = &mut self.peers[at as usize];
        peer.post_proofs(&mut self.rails);
        peer.request_ack(&mut self.rails);
        self.operations.pending_towards(at) == 0
    }

    /// Whether everything towards a member is complete there.
    pub(super) fn quiet_member(&mut self, member: MemberRank) -> Result<bool, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(true) };
        self.rails.ring_all();
        self.poll_quiet(at)
            .map(|quiet| quiet == QuietProgress::Done)
            .map_err(|failed| self.operation_error(failed.peer, failed.path))
    }

    /// Whether everything is complete where it was to go.
    pub(super) fn quiet(&mut self) -> Result<bool, RmaError> {
        self.rails.ring_all();
        match self.operations.quiet_peers() {
            Err(failed) => return Err(self.operation_error(failed.peer, failed.path)),
            Ok(QuietProgress::Done) => return Ok(true),
            Ok(QuietProgress::Pending) => {}
        }
        for peer in self.peers.iter_mut().filter(|peer| peer.lost.is_none()) {
            peer.post_proofs(&mut self.rails);
            peer.request_ack(&mut self.rails);
        }
        Ok(false)
    }

    fn operation_error(&self, peer: u32, path: PathId) -> RmaError {
        let peer = self.peers.get(peer as usize);
        let status = match peer.and_then(|peer| peer.lost) {
            Some(LossCause::Rails { status, .. }) => status,
            Some(_) => OpStatus::PeerDead,
            None => self.operations.last_failure(),
        };
        let member = peer.map_or(MemberRank::MAX, |peer| peer.member);
        RmaError::Failed { member, rail: path.index(), status }
    }

    /// What is posted from now on towards a member comes after all that was: by itself, where a network keeps the order of writes and
    /// nothing else is under way. What its process has to execute may be there long before it is done.
    pub(super) fn fence(&mut self) {
        if self.operations.is_idle() {
            return;
        }
        let in_order = self.rails.is_in_order();
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let free = in_order && !peer.is_served();
            peer.fenced |= !free && self.operations.pending_towards(at as u32) > 0;
        }
    }

    /// Whether nothing is under way, nor anything to be said of it; asks for what has to be asked for.
    pub(super) fn poll_idle(&mut self) -> bool {
        for at in 0..self.peers.len() as u32 {
            if self.peers[at as usize].lost.is_none() {
                self.poll_peer_idle(at);
            }
        }
        self.operations.has_ended_all() && self.busy.is_empty() && self.words.is_empty()
    }

    /// Whether something is under way, or is to be.
    pub(super) fn has_begun(&self) -> bool {
        let coming = |peer: &RemoteMember| peer.lost.is_none() && peer.paths.are_coming();
        !self.operations.is_idle()
            || !self.busy.is_empty()
            || !self.words.is_empty()
            || self.peers.iter().any(coming)
    }
}
