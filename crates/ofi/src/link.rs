//! A link: endpoints of its own or those of its rail, the peer's, and what waits because the provider had no room.

use std::collections::VecDeque;

use trunkline_fabric::{Extent, LinkId, LocalKey, Purpose, Remote};

use crate::address::Address;
use crate::contexts::Slot;
use crate::endpoint::{Endpoint, OpenError, Opt, Peer};
use crate::info::Info;
use crate::ops::{NO_REGION, Op, Ops};
use crate::queue::Queue;
use crate::role::{Ctrl, Data};

/// One endpoint for payload and one for records.
pub(crate) struct Pair {
    pub(crate) data: Endpoint<Data>,
    pub(crate) records: Endpoint<Ctrl>,
}

impl Pair {
    /// Opens both, or one that is both.
    pub(crate) fn open(info: &Info, queue: &Queue, one: bool, options: &[Opt]) -> Result<Self, OpenError> {
        let data = Endpoint::open(info, queue, options)?;
        let records = if one { data.also_records() } else { None };
        let records = records.map_or_else(|| Endpoint::open(info, queue, options), Ok)?;
        Ok(Self { data, records })
    }

    /// Endpoints that it is.
    pub(crate) fn count(&self) -> u32 {
        if self.records.is_also(&self.data) { 1 } else { 2 }
    }
}

/// How far a link is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// Made.
    New,
    /// Connected.
    Up,
    /// Of no more use.
    Error,
}

/// Whether the peer has been heard of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hello {
    /// It was not asked.
    Unsaid,
    /// It was.
    Said,
    /// It has answered over the endpoints for payload, and was asked over those for records.
    Half,
    /// It has answered, or need not.
    Heard,
}

/// Where bytes come from, once the caller's own are copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum From {
    /// So many bytes that the provider copies when it takes the operation.
    Copied(usize),
    /// So many that are in the operation's place, from where it is sent.
    Kept(usize),
    /// Registered memory.
    Region(Extent),
    /// Both, one behind the other, the first in the operation's place.
    Both(usize, Extent),
}

/// An operation as it is given to the provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Work {
    /// A message for the peer's receives, or for the one of that tag.
    Send { from: From, tag: u64, imm: Option<u32> },
    /// A write, which may be complete only when it has arrived.
    Write { from: From, to: Remote, imm: Option<u32>, placed: bool },
    /// A read.
    Read { into: Extent, from: Remote },
    /// A receive.
    Receive { into: Extent, tag: u64 },
    /// A part of a proof, over the endpoint for payload or the other.
    Proof { records: bool },
}

impl Work {
    /// Bytes that the provider copies out of the caller's hands.
    #[inline]
    pub(crate) fn copied(self) -> usize {
        match self {
            Self::Send { from: From::Copied(len), .. } | Self::Write { from: From::Copied(len), .. } => len,
            _ => 0,
        }
    }

    /// Whether its bytes, or the first of them, are in its place as long as it lasts.
    #[inline]
    pub(crate) fn is_kept(self) -> bool {
        matches!(
            self,
            Self::Send { from: From::Kept(_) | From::Both(..), .. }
                | Self::Write { from: From::Kept(_) | From::Both(..), .. }
        )
    }

    /// The region that it uses, if it is not its own place.
    #[inline]
    pub(crate) fn region(self) -> LocalKey {
        match self {
            Self::Send { from: From::Region(extent) | From::Both(_, extent), .. }
            | Self::Write { from: From::Region(extent) | From::Both(_, extent), .. }
            | Self::Read { into: extent, .. }
            | Self::Receive { into: extent, .. } => extent.key,
            Self::Send { .. } | Self::Write { .. } | Self::Proof { .. } => NO_REGION,
        }
    }

    /// Whether it is a record that is written.
    #[inline]
    pub(crate) fn is_record(self) -> bool {
        matches!(self, Self::Write { to, .. } if to.purpose == Purpose::Records)
    }
}

/// A link.
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) state: State,
    pub(crate) hello: Hello,
    /// Its own endpoints, where each has some.
    pub(crate) pair: Option<Box<Pair>>,
    pub(crate) peers: Option<(Peer<Data>, Peer<Ctrl>)>,
    pub(crate) theirs: Option<Address>,
    /// The first of its slots.
    pub(crate) base: u32,
    pub(crate) mark: u32,
    pub(crate) cookie: u64,
    pub(crate) ops: Ops,
    /// What the provider had no room for, oldest first, by place.
    pub(crate) waiting: VecDeque<(u32, Work)>,
    /// Proofs that need nothing but the end of all that was posted before, oldest first.
    pub(crate) nops: VecDeque<u32>,
    /// Of a link in error, operations of which its endpoints, which others use too, have not told the end.
    pub(crate) out: u32,
    /// Flushes that have not been told of.
    pub(crate) flushes: u32,
}

impl Link {
    /// Puts it into error. Its endpoints go on: what the provider has ends when that says so, receives as soon as they are taken
    /// back, and comes back in the place of a new one each; the rest waits for them.
    pub(crate) fn end_after_all(&mut self, open: &mut Pair) -> Vec<(u32, LocalKey)> {
        self.state = State::Error;
        let given = |place: u32| {
            !self.nops.contains(&place) && !self.waiting.iter().any(|&(waiting, _)| waiting == place)
        };
        let out: Vec<_> = self.ops.all().filter(|&(place, _)| given(place)).collect();
        self.out = out.len() as u32;
        for &(place, op) in &out {
            if op.kind.receives() {
                // One that has met its message completes all the same.
                let _ = open.data.cancel(Slot(self.base + place));
            }
        }
        out.into_iter().map(|(place, op)| (self.base + place, op.region)).collect()
    }

    /// Puts it into error and ends all that is out, in the order in which it was posted.
    pub(crate) fn end_all(&mut self) -> Vec<Op> {
        self.state = State::Error;
        self.nops.clear();
        self.out = 0;
        self.ops.end_all()
    }

    /// Operations that have not left, receives apart.
    pub(crate) fn unsent(&self) -> u32 {
        self.waiting.iter().filter(|(_, work)| !matches!(work, Work::Receive { .. })).count() as u32
    }
}
