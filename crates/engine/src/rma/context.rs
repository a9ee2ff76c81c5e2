//! The initiating side of a process: puts, gets, atomics and signals of one context towards any member. A context has rails of
//! its own and is used by one thread at a time; the rules are in `trunkline_proto::rma`. This file has the state of a context,
//! its handling of completions and messages, and its quiets and fences. The context posts in `post` and `atomics`, and makes and
//! loses its paths in `paths`.

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

/// Messages in flight to one link of a context: replies and acknowledgements.
pub(super) const ANSWERS_MAX: u32 = 64 + 8;
/// Puts without a signal after which a context stops counting its writes, because counting costs the target a
/// completion per write, and only signals need the count.
const REVERT_AFTER: u32 = 256;
/// Maximum number of bytes copied at once: the copy is kept until the bytes have arrived, because a lost path requires a second
/// write.
const COPIED_MAX: u64 = 1024;

/// Names a context of a job.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ContextId {
    pub(super) stream: RmaStream,
    /// Which use of its slot.
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

/// The source of the bytes of a put.
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

/// Polls of a waiter per service of other members, and how many first polls of a wait follow that rule: after those, each poll
/// serves. Waiters spin for longer than `SOON` polls, so a thread that has yielded its core serves at once when it runs again.
const SERVE_EVERY: u32 = 4;
const SOON: u32 = 16;

/// A handle of an atomic whose value was requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "the value is lost"]
pub struct FetchHandle {
    pub(super) peer: u32,
    pub(super) slot: ReplySlot,
    /// The NIC executes it.
    pub(super) on_nic: bool,
}

/// A context: its members, and its operations towards them. One thread at a time owns it
/// ([`ContextSlot`](crate::rma::context_slot::ContextSlot)).
pub(super) struct RmaContext<R: Rail> {
    pub(super) stream: RmaStream,
    /// Which use of its slot it is.
    pub(super) generation: u16,
    pub(super) rails: ContextRails<R>,
    pub(super) heaps: Vec<Option<RegisteredHeap>>,
    /// Descriptions of heaps that members sent after their links were made, by rail.
    pub(super) learned: HashMap<(MemberRank, u8), Vec<ToldHeap>>,
    /// The pending operations, and the outcome of each.
    pub(super) operations: PendingOperations,
    pub(super) peers: Vec<RemoteMember>,
    /// By member.
    pub(super) known: HashMap<MemberRank, u32>,
    /// Peers with deferred work: a path is lost, or a put with signal has begun.
    pub(super) busy: Vec<u32>,
    /// Messages for control streams that another thread holds right now.
    pub(super) words: Vec<(SlotId, DialMessage)>,
    /// A copy of the bytes of each operation that were passed by value, by its slot; empty until a peer has several
    /// paths, because without a second path no write is repeated.
    pub(super) copies: Vec<u8>,
    pub(super) order: SignalOrdering,
    pub(super) inline_max: u64,
    pub(super) message_max: u64,
    batch: Box<[Completion]>,
    /// Polls of the rails so far, and the time of the last check of the links.
    pub(super) turns: u32,
    pub(super) looked: Instant,
    /// Consecutive polls without a result, and polls since other members were served.
    waits: u32,
    unserved: u32,
    /// The buffer for the old values that atomic-capable NICs return; `None` if the members execute atomics themselves.
    pub(super) native: Option<NicAtomics>,
}

/// The fields of the id of a dialled link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LinkDialId {
    pub(super) stream: RmaStream,
    pub(super) generation: u16,
    pub(super) peer: u32,
    pub(super) path: PathId,
}

impl LinkDialId {
    pub(super) fn to_bits(self) -> u64 {
        // The generation distinguishes the id from those of earlier contexts of the slot.
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
            // Local rights only, because peers access the heaps by the server's registrations.
            heap.as_ref().map(|heap| RegisteredHeap::new(&registrars, heap, AccessRights::LOCAL)).transpose()
        };
        let heaps = heaps.own.iter().map(register).collect::<Result<_, _>>()?;
        let (arrives, write_data, inline_max, message_max) = caps_of(&rails);
        // Without immediates a target cannot count writes, so signals wait for completions instead.
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
            // Bounded, because copies for all operations are kept if there are several paths.
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

    /// Returns the buffer for a copy of an operation's bytes; `None` if no copies are kept.
    pub(super) fn copy_of(&mut self, id: SlotId, len: usize) -> Option<&mut [u8]> {
        let from = id.slot as usize * self.inline_max as usize;
        self.copies.get_mut(from..from + len)
    }

    /// Keeps copies from now on.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn keep_copies(&mut self) -> Result<(), OutOfMemory> {
        // Allocated once, and only if a peer has several paths.
        if self.copies.is_empty() {
            self.copies = try_filled(0, OPS as usize * self.inline_max as usize)?.into_vec();
        }
        Ok(())
    }

    /// Polls the rails and processes completions. Returns whether there were any. Also polls with no pending operation,
    /// because some networks make connections only while they are polled (libfabric's `ofi_rxm`).
    pub(super) fn progress(&mut self) -> bool {
        // Flushes open batches first, because no caller guarantees that a batch ends.
        self.rails.ring_all();
        let mut moved = self.check_links_up();
        // Posted before the poll, because completions below may need them.
        if self.rails.has_due_receives() {
            self.rails.post_due_receives(&mut self.peers);
        }
        for rail in 0..self.rails.rail_count() {
            let count = self.rails.poll(rail, &mut self.batch);
            moved |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                // A destroyed link has no owner, so its late completions are ignored.
                if let Some(owner) = self.rails.owner_of(rail, completion.link) {
                    self.on_completion(owner.peer, owner.path, &completion);
                }
            }
        }
        // Last, because completions above may have made room for deferred work.
        moved | self.progress_busy()
    }

    /// Returns whether a waiter shall also serve other members after this poll. Most results arrive soon, and serving is a system
    /// call per link over TCP, so the first polls of a wait serve seldom.
    #[inline]
    pub(super) fn check_service_due(&mut self, found: bool) -> bool {
        // A waiter that finds nothing for long serves always, because the peer may wait for this
        // process.
        self.waits = if found { 0 } else { self.waits.saturating_add(1) };
        self.unserved += 1;
        let serves = self.waits > SOON || self.unserved >= SERVE_EVERY;
        if serves {
            self.unserved = 0;
        }
        serves
    }

    /// Checks whether connected links are up.
    fn check_links_up(&mut self) -> bool {
        let mut raised = false;
        for at in 0..self.peers.len() {
            // The common case: all links of the peer are up or lost.
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
        // The operations of a lost peer have already been counted as failed.
        if self.peers.get(at as usize).is_none_or(|peer| peer.lost.is_some()) {
            return;
        }
        match completion.done {
            // A failed operation reports the end of its path; the path's recovery repeats it.
            _ if completion.status != OpStatus::Ok => self.fail_path(at, path, completion.status),
            CompletionKind::Posted if completion.wr_id == MESSAGE => {}
            CompletionKind::Posted if completion.wr_id == PROOF => self.on_proof(at, path),
            CompletionKind::Posted => self.on_done(at, SlotId::from_bits(completion.wr_id)),
            // No peer writes here, because writes carry records only, and contexts receive none.
            CompletionKind::Written => {}
            CompletionKind::Received => self.on_message(at, path, completion),
        }
    }

    fn on_done(&mut self, at: u32, id: SlotId) {
        let is_put = |note: &mut OpRecord| matches!(note, OpRecord::Put(..));
        // A proof of arrival completes the operation, or has completed it already.
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

    /// A proof has arrived: all operations posted before it on its path are complete.
    fn on_proof(&mut self, at: u32, path: PathId) {
        let link = &mut self.peers[at as usize].links[path.index()];
        // Proofs complete in posting order on a link, so the oldest entry is the one.
        let Some(covers) = link.proofs.pop_front() else { return };
        link.proving -= covers;
        for _ in 0..covers {
            // Borrowed again, because completing an operation borrows the peers.
            let link = &mut self.peers[at as usize].links[path.index()];
            if let Some(id) = link.unproven.pop_front() {
                self.complete_op(id);
            }
        }
    }

    /// Completes an operation.
    fn complete_op(&mut self, id: SlotId) {
        let Ok(op) = self.operations.complete_operation(id) else { return };
        let Some(peer) = self.peers.get_mut(op.peer as usize) else { return };
        // The bytes count against the path over which the operation was posted last.
        if let Some(link) = peer.links.get_mut(op.path.index()) {
            link.bytes -= op.note.byte_len();
        }
        match op.note {
            // A duplicate completion also reaches the ledger twice, which counts it.
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
        // Posted again at once, so that the member never runs out of receives.
        self.rails.post_receives(link);
        let kept = match message {
            Ok(RmaMessage::Reply(reply)) if reply.stream == self.stream => self.on_reply(at, &reply),
            // A stream of another context on this link would be a protocol violation.
            Ok(RmaMessage::Ack(ack)) if ack.stream == self.stream => match peer.outgoing.on_ack(ack) {
                Ok(signals) => self.operations.complete_signals(at, signals as u32).is_ok(),
                Err(_) => false,
            },
            _ => false,
        };
        if !kept {
            // A member that violates the protocol cannot be trusted with further memory accesses.
            self.lose_member(at, path, LossCause::Protocol);
        }
    }

    /// Returns how a quiet towards one peer stands. Posts the proofs and the acknowledgement request that it depends on.
    pub(super) fn poll_quiet(&mut self, at: u32) -> Result<QuietProgress, QuietFailure> {
        let peer = &mut self.peers[at as usize];
        peer.post_proofs(&mut self.rails);
        peer.request_ack(&mut self.rails);
        self.operations.quiet_peer(at)
    }

    /// Returns whether nothing is pending towards a peer. Posts the proofs and the acknowledgement request that this depends on,
    /// and leaves failures for the next quiet.
    pub(super) fn poll_peer_idle(&mut self, at: u32) -> bool {
        let peer = &mut self.peers[at as usize];
        peer.post_proofs(&mut self.rails);
        // Both are needed, because writes complete by proofs, signals by acknowledgements.
        peer.request_ack(&mut self.rails);
        self.operations.pending_towards(at) == 0
    }

    /// Returns whether everything towards a member is complete there.
    pub(super) fn quiet_member(&mut self, member: MemberRank) -> Result<bool, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(true) };
        // The member has no link, so nothing is pending towards it.
        self.rails.ring_all();
        self.poll_quiet(at)
            .map(|quiet| quiet == QuietProgress::Done)
            .map_err(|failed| self.operation_error(failed.peer, failed.path))
    }

    /// Returns whether all operations are complete at their targets.
    pub(super) fn quiet(&mut self) -> Result<bool, RmaError> {
        // Before the check, because operations in an open batch are not even posted to the NIC.
        self.rails.ring_all();
        match self.operations.quiet_peers() {
            Err(failed) => return Err(self.operation_error(failed.peer, failed.path)),
            Ok(QuietProgress::Done) => return Ok(true),
            Ok(QuietProgress::Pending) => {}
        }
        // Not done yet, so everything that completes the operations is requested.
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
            // Without a lost member, the operation itself was refused.
            None => self.operations.last_failure(),
        };
        let member = peer.map_or(MemberRank::MAX, |peer| peer.member);
        RmaError::Failed { member, rail: path.index(), status }
    }

    /// Orders later operations towards each member after all earlier ones. That needs no wait where the network keeps the order
    /// of writes and no other operation is pending. Requests that a member's process executes do need it: they may arrive long
    /// before they are done.
    pub(super) fn fence(&mut self) {
        // Nothing is pending, so later operations are ordered after all earlier ones anyway.
        if self.operations.is_idle() {
            return;
        }
        let in_order = self.rails.is_in_order();
        for (at, peer) in self.peers.iter_mut().enumerate() {
            // The network's order covers writes, but not the requests that a member's process executes.
            let free = in_order && !peer.is_served();
            peer.fenced |= !free && self.operations.pending_towards(at as u32) > 0;
        }
    }

    /// Returns whether nothing is pending and no failure is unreported. Posts the proofs and the acknowledgement requests that
    /// this depends on.
    pub(super) fn poll_idle(&mut self) -> bool {
        for at in 0..self.peers.len() as u32 {
            // A lost peer never becomes idle by completions; its operations have ended as failed.
            if self.peers[at as usize].lost.is_none() {
                self.poll_peer_idle(at);
            }
        }
        self.operations.has_ended_all() && self.busy.is_empty() && self.words.is_empty()
    }

    /// Returns whether operations or dials are pending.
    pub(super) fn has_begun(&self) -> bool {
        // Dials in progress need polls too.
        let coming = |peer: &RemoteMember| peer.lost.is_none() && peer.paths.are_coming();
        !self.operations.is_idle()
            || !self.busy.is_empty()
            || !self.words.is_empty()
            || self.peers.iter().any(coming)
    }
}
