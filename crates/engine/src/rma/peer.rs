//! A member as one context sees it: the links to it, and what the stream to it has carried. Made when the context first wants
//! something of that member.

use std::collections::VecDeque;

use trunkline_fabric::LinkId;
use trunkline_proto::limits::RMA_CALLS_MAX;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::rma::calls::{Answer, Calls};
use trunkline_proto::rma::outgoing::{Batch, Order, Outgoing};
use trunkline_proto::rma::paths::{Paths, Stage};
use trunkline_proto::rma::redo::Redo;
use trunkline_proto::rma::shape::Shape;
use trunkline_proto::rma::{Fault, Path};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::Heap;
use trunkline_proto::wire::rma::Stream;
use trunkline_proto::wire::rma::atomic::{Outcome, Reply, Slot};
use trunkline_proto::wire::rma::signal::Update;

use crate::rma::context::Local;
use crate::rma::error::Lost;
use crate::rma::receives::Receives;

/// A link to a member.
pub(super) struct Link {
    pub(super) rail: usize,
    pub(super) link: LinkId,
    /// It was not destroyed.
    pub(super) exists: bool,
    /// What the member calls it.
    pub(super) served: u64,
    pub(super) receives: Receives,
    /// The member's heaps, as they are reached over it.
    pub(super) heaps: Vec<Heap>,
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
pub(super) struct Sending {
    pub(super) batch: Batch,
    /// Where its next byte goes.
    pub(super) heap: u8,
    pub(super) offset: u64,
    pub(super) rest: Local,
    pub(super) update: Update,
}

/// Atomics of one stream towards a member, and what they found.
pub(super) struct Asked {
    pub(super) calls: Calls,
    /// By slot of a call: which use of it, how it stands in the ledger, and what it found.
    pub(super) found: Box<[(u16, Option<SlotId>, Found); RMA_CALLS_MAX]>,
}

impl Asked {
    /// None so far.
    pub(super) fn new(stream: Stream, mutant: Mutant) -> Self {
        Self {
            calls: Calls::new(stream, mutant),
            found: Box::new([(0, None, Found::Pending); RMA_CALLS_MAX]),
        }
    }

    /// One has begun, which is that in the ledger.
    pub(super) fn begun(&mut self, slot: Slot, id: Option<SlotId>) {
        self.found[slot.index()] = (slot.generation(), id, Found::Pending);
    }

    /// An answer has come. That in the ledger which it ends.
    ///
    /// # Errors
    /// [`Fault`] if nobody asked for it.
    pub(super) fn answered(&mut self, reply: &Reply) -> Result<Option<SlotId>, Fault> {
        let Answer::First(_, outcome) = self.calls.on_reply(reply)? else { return Ok(None) };
        let found = &mut self.found[reply.slot.index()];
        found.2 = match outcome {
            Outcome::Done(value) => Found::Value(value),
            Outcome::Refused => Found::Nowhere,
        };
        Ok(found.1.take())
    }
}

/// The value that an atomic has found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// Not known yet.
    Pending,
    /// This.
    Value(u64),
    /// There is no such word.
    Nowhere,
}

/// A member.
pub(super) struct Peer {
    pub(super) member: u32,
    pub(super) control: SlotId,
    /// By path.
    pub(super) links: Vec<Link>,
    pub(super) paths: Paths,
    pub(super) redo: Redo,
    pub(super) sending: Option<Sending>,
    /// A path was lost, and acknowledgements perhaps with it: it is to be asked, over another.
    pub(super) asks: bool,
    pub(super) outgoing: Outgoing,
    /// Atomics that its process executes.
    pub(super) asked: Asked,
    /// And its NIC, if that does.
    pub(super) on_nic: Option<Asked>,
    /// Atomics whose next step found no room.
    pub(super) steps: VecDeque<SlotId>,
    pub(super) lost: Option<Lost>,
    /// What is posted next waits until all before it is complete.
    pub(super) fenced: bool,
}

impl Peer {
    /// A member that nothing was sent to, and to which so many paths are asked for.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new(
        (member, control): (u32, SlotId),
        paths: usize,
        stream: Stream,
        order: Order,
        mutant: Mutant,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            member,
            control,
            links: Vec::with_capacity(paths),
            paths: Paths::new(paths, mutant),
            redo: Redo::new(mutant),
            sending: None,
            asks: false,
            outgoing: Outgoing::new(stream, order, Shape::WIRE, mutant)?,
            asked: Asked::new(stream, mutant),
            on_nic: None,
            steps: VecDeque::new(),
            lost: None,
            fenced: false,
        })
    }

    /// Of the paths that carry and have room, the one with the fewest bytes under way.
    pub(super) fn path(&self, has_room: impl Fn(&Link) -> bool) -> Option<(Path, &Link)> {
        let named = self.links.iter().enumerate().filter_map(|(at, link)| Some((Path::new(at as u8)?, link)));
        let fits = named.filter(|(path, link)| self.paths.carries(*path) && has_room(link));
        fits.min_by_key(|(_, link)| link.bytes)
    }

    /// Whether something is under way that its process has to execute.
    pub(super) fn is_served(&self) -> bool {
        let on_nic = self.on_nic.as_ref().is_some_and(|asked| !asked.calls.is_empty());
        on_nic || !self.asked.calls.is_empty() || self.outgoing.unacknowledged() > 0 || self.sending.is_some()
    }

    /// Whether several paths carry.
    pub(super) fn has_several(&self) -> bool {
        self.links.len() > 1 && self.paths.count(Stage::Up) > 1
    }

    /// Whether a lost path leaves something to be done, or a put with signal does.
    pub(super) fn has_work(&self) -> bool {
        let lives = self.lost.is_none();
        lives
            && (self.asks
                || self.sending.is_some()
                || !self.steps.is_empty()
                || !self.redo.is_empty()
                || self.paths.count(Stage::Leaving) > 0)
    }
}
