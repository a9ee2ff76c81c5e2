//! A member as one context sees it: the links to it, and the state of the stream to it. Made when the context first begins an
//! operation towards that member.

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
    /// It has not been destroyed.
    pub(super) exists: bool,
    /// The member's id of the link.
    pub(super) served: u64,
    pub(super) receives: LinkReceives,
    /// The member's heaps, as accessed over this link.
    pub(super) heaps: Vec<RemoteHeap>,
    /// Writes whose arrival only a proof shows, oldest first.
    pub(super) unproven: VecDeque<SlotId>,
    /// The number of those writes that each posted proof covers.
    pub(super) proofs: VecDeque<u32>,
    /// The sum of those numbers.
    pub(super) proving: u32,
    /// Receives of the member's end: messages that may be in flight before it replies.
    pub(super) credit: u32,
    /// Bytes in flight.
    pub(super) bytes: u64,
}

impl OutboundLink {
    /// Describes a link that was just created: the member has not accepted it yet, and no operation is posted on it.
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

    /// Returns the location of bytes of a heap of the member, over this link.
    ///
    /// # Errors
    /// [`RmaError::Argument`] if the member has no such heap, or the bytes are outside of it.
    pub(super) fn heap_extent(&self, heap: u8, offset: u64, len: u64) -> Result<RemoteLocation, RmaError> {
        let heap = self.heaps.get(usize::from(heap)).filter(|heap| **heap != RegisteredHeap::NONE);
        let heap = heap.ok_or_else(|| RmaError::invalid_argument("the member has no heap of this number"))?;
        // `checked_add`, because offset and length are the caller's.
        let inside = offset.checked_add(len).is_some_and(|end| end <= heap.len);
        if !inside {
            return Err(RmaError::Argument("the bytes exceed the member's heap"));
        }
        let key = RemoteKey(heap.region.key);
        let addr = heap.region.addr.wrapping_add(offset);
        Ok(RemoteLocation { key, addr, purpose: RegionPurpose::Heap })
    }

    /// Stores the description of a heap of the member under its number: that of the rail at the other end of the path.
    ///
    /// # Errors
    /// [`OutOfMemory`]; then the link is unchanged.
    pub(super) fn set_heap(
        &mut self,
        path: PathId,
        number: u8,
        told: &[RemoteHeap],
    ) -> Result<(), OutOfMemory> {
        // A member with fewer rails than paths uses each rail for several paths.
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

    /// Drops the accounting of a destroyed link.
    pub(super) fn clear_pending(&mut self) {
        self.proving = 0;
        self.bytes = 0;
        self.unproven.clear();
        self.proofs.clear();
    }
}

/// The remainder of a put with signal.
#[derive(Debug)]
pub(super) struct PendingPutSignal {
    pub(super) batch: SignalBatch,
    /// The target of its next byte.
    pub(super) heap: u8,
    pub(super) offset: u64,
    pub(super) rest: HeapRange,
    pub(super) update: SignalUpdate,
}

/// Atomics of one stream towards a member, and their results.
pub(super) struct MemberAtomics {
    pub(super) calls: AtomicRequests,
    /// By slot: its generation, the operation in the ledger, and the result.
    pub(super) found: Box<[(u16, Option<SlotId>, FetchResult); RMA_CALLS_MAX]>,
}

impl MemberAtomics {
    /// Creates an empty table.
    pub(super) fn new(stream: RmaStream) -> Self {
        Self {
            calls: AtomicRequests::new(stream),
            found: Box::new([(0, None, FetchResult::Pending); RMA_CALLS_MAX]),
        }
    }

    /// Records that an atomic has begun, as this operation of the ledger.
    pub(super) fn record_call(&mut self, slot: ReplySlot, id: Option<SlotId>) {
        self.found[slot.index()] = (slot.generation(), id, FetchResult::Pending);
    }

    /// Records a reply. Returns the operation in the ledger that it ends.
    ///
    /// # Errors
    /// [`ProtocolFault`] if no pending atomic matches it.
    pub(super) fn record_reply(&mut self, reply: &AtomicReply) -> Result<Option<SlotId>, ProtocolFault> {
        // A repeated reply ends nothing.
        let ReplyEffect::First(_, outcome) = self.calls.on_reply(reply)? else { return Ok(None) };
        let found = &mut self.found[reply.slot.index()];
        found.2 = match outcome {
            AtomicOutcome::Done(value) => FetchResult::Value(value),
            AtomicOutcome::Refused => FetchResult::Nowhere,
        };
        // Taken out: the operation ends once.
        Ok(found.1.take())
    }
}

/// The result of an atomic.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchResult {
    /// It has not arrived.
    Pending,
    /// The fetched value.
    Value(u64),
    /// The word does not exist.
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
    /// Acknowledgements must be requested over another path, because a path was lost, and perhaps some of them with it.
    pub(super) asks: bool,
    pub(super) outgoing: OutgoingStream,
    /// Atomics that its process executes.
    pub(super) asked: MemberAtomics,
    /// Atomics that its NIC executes, if it does.
    pub(super) on_nic: Option<MemberAtomics>,
    /// Atomics whose next step is deferred for lack of room.
    pub(super) steps: VecDeque<SlotId>,
    pub(super) lost: Option<LossCause>,
    /// Later operations wait until all earlier ones are complete.
    pub(super) fenced: bool,
}

impl RemoteMember {
    /// Creates a member with `paths` paths, none of them up.
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

    /// Of the paths that are up and have room, returns the one with the fewest bytes in flight.
    pub(super) fn select_path(
        &self,
        has_room: impl Fn(&OutboundLink) -> bool,
    ) -> Option<(PathId, &OutboundLink)> {
        let named =
            self.links.iter().enumerate().filter_map(|(at, link)| Some((PathId::new(at as u8)?, link)));
        let fits = named.filter(|(path, link)| self.paths.is_up(*path) && has_room(link));
        // The path with the fewest bytes in flight completes first.
        fits.min_by_key(|(_, link)| link.bytes)
    }

    /// Returns a path for a signal: the member has a receive for it, and the link has room.
    pub(super) fn select_signal_path<R: Rail>(&self, rails: &ContextRails<R>) -> Option<PathId> {
        // Requests and signals occupy the member's receives until their replies arrive.
        let out = u64::from(self.asked.calls.len()) + self.outgoing.unacknowledged_signals();
        self.select_path(|link| out + 1 < u64::from(link.credit) && rails.post_credits(link) > 0)
            .map(|(path, _)| path)
    }

    /// Posts proofs on the paths with writes that may complete before they arrive.
    pub(super) fn post_proofs<R: Rail>(&mut self, rails: &mut ContextRails<R>) {
        if rails.completes_on_arrival() {
            return;
        }
        for (path, link) in self.links.iter_mut().enumerate() {
            // Writes that an earlier proof covers need no second one.
            let more = link.unproven.len() as u32 - link.proving;
            let carries = PathId::new(path as u8).is_some_and(|path| self.paths.is_up(path));
            if more == 0 || !carries || rails.post_credits(link) == 0 {
                continue;
            }
            if rails.post_op(link, PROOF, Op::Nop).is_ok() {
                link.proofs.push_back(more);
                link.proving += more;
                // At once, because a caller usually waits for the proof.
                rails.flush_rail(link.rail);
            }
        }
    }

    /// Requests the acknowledgement of all signals, unless a request is pending. False if there is no room now.
    pub(super) fn request_ack<R: Rail>(&mut self, rails: &mut ContextRails<R>) -> bool {
        let Some((path, _)) = self.select_path(|link| rails.post_credits(link) > 0) else { return false };
        if let QuietStep::Ask(ask) = self.outgoing.quiet() {
            rails.send_message(&self.links[path.index()], &RmaMessage::Ask(ask));
        }
        true
    }

    /// Requests the acknowledgement of signals that occupy the member's receives, unless the member acknowledges them
    /// unrequested.
    pub(super) fn request_room<R: Rail>(&mut self, rails: &mut ContextRails<R>) {
        if !self.outgoing.is_told_unasked() {
            self.request_ack(rails);
        }
    }

    /// Returns whether anything is pending that its process has to execute.
    pub(super) fn is_served(&self) -> bool {
        let on_nic = self.on_nic.as_ref().is_some_and(|asked| !asked.calls.is_empty());
        on_nic
            || !self.asked.calls.is_empty()
            || self.outgoing.unacknowledged_signals() > 0
            || self.sending.is_some()
    }

    /// Returns whether several paths are up.
    pub(super) fn has_several(&self) -> bool {
        self.links.len() > 1 && self.paths.count_in_stage(PathStage::Up) > 1
    }

    /// Returns whether it has deferred work: of a lost path, or of a put with signal.
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
