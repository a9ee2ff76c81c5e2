//! A member as one context sees it: the links to it, and what the stream to it has carried. Made when the context first wants
//! something of that member.

use trunkline_fabric::LinkId;
use trunkline_proto::limits::RMA_CALLS_MAX;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::rma::calls::Calls;
use trunkline_proto::rma::outgoing::{Order, Outgoing};
use trunkline_proto::rma::shape::Shape;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::Heap;
use trunkline_proto::wire::rma::Stream;

use crate::rma::error::Lost;
use crate::rma::receives::Receives;

/// How far a path is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// The other end is asked for.
    Asked,
    /// Both ends are made; what is posted waits until they are up.
    Made,
    /// It carries.
    Up,
    /// It has failed.
    Gone,
}

/// A link to a member.
pub(super) struct Link {
    pub(super) rail: usize,
    pub(super) link: LinkId,
    pub(super) stage: Stage,
    /// What the member calls it.
    pub(super) served: u64,
    pub(super) receives: Receives,
    /// The member's heaps, as they are reached over it.
    pub(super) heaps: Vec<Heap>,
    /// Something was posted whose arrival only a proof tells.
    pub(super) unproven: bool,
    /// Of that, writes that were not counted.
    pub(super) uncounted: u32,
    /// Messages that the member takes over it before it answers.
    pub(super) credit: u32,
    /// Bytes under way.
    pub(super) bytes: u64,
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
    pub(super) links: Vec<Link>,
    pub(super) outgoing: Outgoing,
    pub(super) calls: Calls,
    /// By slot of a call: which use of it, how it stands in the ledger, and what it found.
    pub(super) found: Box<[(u16, Option<SlotId>, Found); RMA_CALLS_MAX]>,
    pub(super) lost: Option<Lost>,
    /// What is posted next waits until all before it is complete.
    pub(super) fenced: bool,
}

impl Peer {
    /// A member that nothing was sent to.
    pub(super) fn new(member: u32, control: SlotId, stream: Stream, order: Order, mutant: Mutant) -> Self {
        Self {
            member,
            control,
            links: Vec::new(),
            outgoing: Outgoing::new(stream, order, Shape::WIRE, mutant),
            calls: Calls::new(stream, mutant),
            found: Box::new([(0, None, Found::Pending); RMA_CALLS_MAX]),
            lost: None,
            fenced: false,
        }
    }

    /// Of the paths that carry and have room, the one with the fewest bytes under way.
    pub(super) fn path(&self, has_room: impl Fn(&Link) -> bool) -> Option<usize> {
        let fits = |(_, link): &(usize, &Link)| link.stage == Stage::Up && has_room(link);
        let all = self.links.iter().enumerate().filter(fits);
        all.min_by_key(|(_, link)| link.bytes).map(|(at, _)| at)
    }

    /// Whether several paths carry.
    pub(super) fn has_several(&self) -> bool {
        self.links.iter().filter(|link| link.stage == Stage::Up).count() > 1
    }

    /// Whether it is to be waited for: some link is being made, and none carries.
    pub(super) fn is_coming(&self) -> bool {
        let has = |wanted| self.links.iter().any(|link| link.stage == wanted);
        !has(Stage::Up) && (has(Stage::Asked) || has(Stage::Made))
    }
}
