//! A member as one context sees it: the links to it, and what the stream to it has carried. Made when the context first wants
//! something of that member.

use std::collections::VecDeque;

use trunkline_fabric::{LinkId, Op, Rail, RegionPurpose, RemoteKey, RemoteLocation};
use trunkline_proto::limits::RMA_CALLS_MAX;
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::atomic_requests::{AtomicRequests, ReplyEffect};
use trunkline_proto::rma::outgoing::{OutgoingStream, QuietStep, SignalBatch, SignalOrdering};
use trunkline_proto::rma::paths::{PathStage, PeerPaths};
use trunkline_proto::rma::redo::RedoQueue;
use trunkline_proto::rma::shape::EpochShape;
use trunkline_proto::rma::{PathId, ProtocolFault};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::RemoteHeap;
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, AtomicReply, ReplySlot};
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::{RmaMessage, RmaStream};

use crate::rma::context::HeapRange;
use crate::rma::context_rails::ContextRails;
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heap::RegisteredHeap;
use crate::rma::receives::LinkReceives;

/// `wr_id` of proofs.
pub(super) const PROOF: u64 = u64::MAX - 1;

/// A link to a member.
pub(super) struct OutboundLink {
    pub(super) rail: usize,
    pub(super) link: LinkId,
    /// It was not destroyed.
    pub(super) exists: bool,
    /// What the member calls it.
    pub(super) served: u64,
    pub(super) receives: LinkReceives,
    /// The member's heaps, as they are reached over it.
    pub(super) heaps: Vec<RemoteHeap>,
    /// Writes whose arrival only a proof tells, the first one first.
    pub(super) unproven: VecDeque<SlotId>,
    /// How many of those each proof covers that is under way.
    pub(super) proofs: VecDeque<u32>,
    /// And all of them together.
    pub(super) proving: u32,
    /// Messages that the member takes over it before it answers.
    pub(super) credit: u32,
    /// Bytes under way.
    pub(super) bytes: u64,
}

impl OutboundLink {
    /// A link that was just created: the member has not taken it yet, and nothing is under way on it.
    pub(super) fn new(rail: usize, link: LinkId, receives: LinkReceives) -> Self {
        Self {
            rail,
            link,
            exists: true,
            served: 0,
            receives,
            heaps: Vec::new(),
            unproven: VecDeque::new(),
            proofs: VecDeque::new(),
            proving: 0,
            bytes: 0,
            credit: 0,
        }
    }

    /// Where bytes of a heap of the member are, over this link.
    ///
    /// # Errors
    /// [`RmaError::Argument`] if the member has no such heap, or the bytes are outside of it.
    pub(super) fn heap_extent(&self, heap: u8, offset: u64, len: u64) -> Result<RemoteLocation, RmaError> {
        let heap = self.heaps.get(usize::from(heap)).filter(|heap| **heap != RegisteredHeap::NONE);
        let heap = heap.ok_or_else(|| RmaError::invalid_argument("the member has no such heap"))?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= heap.len);
        if !inside {
            return Err(RmaError::Argument("outside of the member's heap"));
        }
        let key = RemoteKey(heap.region.key);
        let addr = heap.region.addr.wrapping_add(offset);
        Ok(RemoteLocation { key, addr, purpose: RegionPurpose::Heap })
    }

    /// Keeps the description of a heap of the member under its number: that of the rail at the other end of the path.
    ///
    /// # Errors
    /// [`OutOfMemory`]; then the link is unchanged.
    pub(super) fn set_heap(
        &mut self,
        path: PathId,
        number: u8,
        told: &[RemoteHeap],
    ) -> Result<(), OutOfMemory> {
        let Some(&told) = told.get(path.index() % told.len().max(1)) else { return Ok(()) };
        let at = usize::from(number);
        if self.heaps.len() <= at {
            let more = at + 1 - self.heaps.len();
            try_grow(&mut self.heaps, more)?;
            self.heaps.resize(at + 1, RegisteredHeap::NONE);
        }
        self.heaps[at] = told;
        Ok(())
    }

    /// Forgets everything that is under way on a link that is destroyed.
    pub(super) fn clear_pending(&mut self) {
        self.proving = 0;
        self.bytes = 0;
        self.unproven.clear();
        self.proofs.clear();
    }
}

/// A put with signal that has begun: what is left of it.
#[derive(Debug)]
pub(super) struct PendingPutSignal {
    pub(super) batch: SignalBatch,
    /// Where its next byte goes.
    pub(super) heap: u8,
    pub(super) offset: u64,
    pub(super) rest: HeapRange,
    pub(super) update: SignalUpdate,
}

/// Atomics of one stream towards a member, and what they found.
pub(super) struct MemberAtomics {
    pub(super) calls: AtomicRequests,
    /// By slot of a call: which use of it, how it stands in the ledger, and what it found.
    pub(super) found: Box<[(u16, Option<SlotId>, FetchResult); RMA_CALLS_MAX]>,
}

impl MemberAtomics {
    /// None so far.
    pub(super) fn new(stream: RmaStream) -> Self {
        Self {
            calls: AtomicRequests::new(stream),
            found: Box::new([(0, None, FetchResult::Pending); RMA_CALLS_MAX]),
        }
    }

    /// One has begun, which is that in the ledger.
    pub(super) fn record_call(&mut self, slot: ReplySlot, id: Option<SlotId>) {
        self.found[slot.index()] = (slot.generation(), id, FetchResult::Pending);
    }

    /// An answer has come. That in the ledger which it ends.
    ///
    /// # Errors
    /// [`ProtocolFault`] if nobody asked for it.
    pub(super) fn record_reply(&mut self, reply: &AtomicReply) -> Result<Option<SlotId>, ProtocolFault> {
        let ReplyEffect::First(_, outcome) = self.calls.on_reply(reply)? else { return Ok(None) };
        let found = &mut self.found[reply.slot.index()];
        found.2 = match outcome {
            AtomicOutcome::Done(value) => FetchResult::Value(value),
            AtomicOutcome::Refused => FetchResult::Nowhere,
        };
        Ok(found.1.take())
    }
}

/// The value that an atomic has found.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchResult {
    /// Not known yet.
    Pending,
    /// This.
    Value(u64),
    /// There is no such word.
    Nowhere,
}

/// A member.
pub(super) struct RemoteMember {
    pub(super) member: u32,
    pub(super) control: SlotId,
    /// By path.
    pub(super) links: Vec<OutboundLink>,
    pub(super) paths: PeerPaths,
    pub(super) redo: RedoQueue,
    pub(super) sending: Option<PendingPutSignal>,
    /// A path was lost, and acknowledgements perhaps with it: it is to be asked, over another.
    pub(super) asks: bool,
    pub(super) outgoing: OutgoingStream,
    /// Atomics that its process executes.
    pub(super) asked: MemberAtomics,
    /// And its NIC, if that does.
    pub(super) on_nic: Option<MemberAtomics>,
    /// Atomics whose next step found no room.
    pub(super) steps: VecDeque<SlotId>,
    pub(super) lost: Option<LossCause>,
    /// What is posted next waits until all before it is complete.
    pub(super) fenced: bool,
}

impl RemoteMember {
    /// A member that nothing was sent to, and to which so many paths are asked for.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new(
        member: u32,
        control: SlotId,
        paths: usize,
        stream: RmaStream,
        order: SignalOrdering,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            member,
            control,
            links: Vec::with_capacity(paths),
            paths: PeerPaths::new(paths),
            redo: RedoQueue::new(),
            sending: None,
            asks: false,
            outgoing: OutgoingStream::new(stream, order, EpochShape::WIRE)?,
            asked: MemberAtomics::new(stream),
            on_nic: None,
            steps: VecDeque::new(),
            lost: None,
            fenced: false,
        })
    }

    /// Of the paths that carry and have room, the one with the fewest bytes under way.
    pub(super) fn select_path(
        &self,
        has_room: impl Fn(&OutboundLink) -> bool,
    ) -> Option<(PathId, &OutboundLink)> {
        let named =
            self.links.iter().enumerate().filter_map(|(at, link)| Some((PathId::new(at as u8)?, link)));
        let fits = named.filter(|(path, link)| self.paths.is_up(*path) && has_room(link));
        fits.min_by_key(|(_, link)| link.bytes)
    }

    /// A path that a signal can be sent over: the member has a receive for it, and the link has room.
    pub(super) fn select_signal_path<R: Rail>(&self, rails: &ContextRails<R>) -> Option<PathId> {
        let out = u64::from(self.asked.calls.len()) + self.outgoing.unacknowledged_signals();
        self.select_path(|link| out + 1 < u64::from(link.credit) && rails.post_credits(link) > 0)
            .map(|(path, _)| path)
    }

    /// Posts proofs on the paths on which something was written that need not have arrived when it completes.
    pub(super) fn post_proofs<R: Rail>(&mut self, rails: &mut ContextRails<R>) {
        if rails.completes_on_arrival() {
            return;
        }
        for (path, link) in self.links.iter_mut().enumerate() {
            let more = link.unproven.len() as u32 - link.proving;
            let carries = PathId::new(path as u8).is_some_and(|path| self.paths.is_up(path));
            if more == 0 || !carries || rails.post_credits(link) == 0 {
                continue;
            }
            if rails.post_op(link, PROOF, Op::Nop).is_ok() {
                link.proofs.push_back(more);
                link.proving += more;
                rails.flush_rail(link.rail);
            }
        }
    }

    /// Asks for the acknowledgement of all signals, unless that is asked for. False if there is no room now.
    pub(super) fn request_ack<R: Rail>(&mut self, rails: &mut ContextRails<R>) -> bool {
        let Some((path, _)) = self.select_path(|link| rails.post_credits(link) > 0) else { return false };
        if let QuietStep::Ask(ask) = self.outgoing.quiet() {
            rails.send_message(&self.links[path.index()], &RmaMessage::Ask(ask));
        }
        true
    }

    /// Asks for the acknowledgement of what takes the receives of the member, unless the member acknowledges by itself.
    pub(super) fn request_room<R: Rail>(&mut self, rails: &mut ContextRails<R>) {
        if !self.outgoing.is_told_unasked() {
            self.request_ack(rails);
        }
    }

    /// Whether something is under way that its process has to execute.
    pub(super) fn is_served(&self) -> bool {
        let on_nic = self.on_nic.as_ref().is_some_and(|asked| !asked.calls.is_empty());
        on_nic
            || !self.asked.calls.is_empty()
            || self.outgoing.unacknowledged_signals() > 0
            || self.sending.is_some()
    }

    /// Whether several paths carry.
    pub(super) fn has_several(&self) -> bool {
        self.links.len() > 1 && self.paths.count_in_stage(PathStage::Up) > 1
    }

    /// Whether a lost path leaves something to be done, or a put with signal does.
    pub(super) fn has_work(&self) -> bool {
        let lives = self.lost.is_none();
        lives
            && (self.asks
                || self.sending.is_some()
                || !self.steps.is_empty()
                || !self.redo.is_empty()
                || self.paths.count_in_stage(PathStage::Leaving) > 0)
    }
}
