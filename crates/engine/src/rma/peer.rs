//! A member as one context sees it: the links to it, and what the stream to it has carried. Made when the context first wants
//! something of that member.

use std::collections::VecDeque;

use trunkline_fabric::LinkId;
use trunkline_proto::limits::RMA_CALLS_MAX;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::rma::atomic_requests::{AtomicRequests, ReplyEffect};
use trunkline_proto::rma::outgoing::{OutgoingStream, SignalBatch, SignalOrdering};
use trunkline_proto::rma::paths::{PathStage, PeerPaths};
use trunkline_proto::rma::redo::RedoQueue;
use trunkline_proto::rma::shape::EpochShape;
use trunkline_proto::rma::{PathId, ProtocolFault};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::RemoteHeap;
use trunkline_proto::wire::rma::RmaStream;
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, AtomicReply, ReplySlot};
use trunkline_proto::wire::rma::signal::SignalUpdate;

use crate::rma::context::HeapRange;
use crate::rma::error::LossCause;
use crate::rma::receives::LinkReceives;

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
    pub(super) fn new(stream: RmaStream, mutant: Mutant) -> Self {
        Self {
            calls: AtomicRequests::new(stream, mutant),
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
        mutant: Mutant,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            member,
            control,
            links: Vec::with_capacity(paths),
            paths: PeerPaths::new(paths, mutant),
            redo: RedoQueue::new(mutant),
            sending: None,
            asks: false,
            outgoing: OutgoingStream::new(stream, order, EpochShape::WIRE, mutant)?,
            asked: MemberAtomics::new(stream, mutant),
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
