//! A link: endpoints of its own or those of its rail, the peer's, and what waits because the provider had no room.

use std::collections::VecDeque;

use trunkline_fabric::{LinkId, LocalKey, RegionExtent, RegionPurpose, RemoteLocation};

use crate::address::OfiLinkAddress;
use crate::contexts::OpSlot;
use crate::endpoint::{EndpointOption, EndpointPeer, OfiEndpoint, OfiOpenError};
use crate::info::OfiInfo;
use crate::ops::{LinkOpEntry, LinkOps, NO_REGION};
use crate::queue::OfiQueue;
use crate::role::{ControlTraffic, PayloadTraffic};

/// One endpoint for payload and one for records.
pub(crate) struct EndpointPair {
    pub(crate) data: OfiEndpoint<PayloadTraffic>,
    pub(crate) records: OfiEndpoint<ControlTraffic>,
}

impl EndpointPair {
    /// Opens both, or one that is both.
    pub(crate) fn open(
        info: &OfiInfo,
        queue: &OfiQueue,
        one: bool,
        options: &[EndpointOption],
    ) -> Result<Self, OfiOpenError> {
        let data = OfiEndpoint::open(info, queue, options)?;
        let records = if one { data.also_records() } else { None };
        let records = records.map_or_else(|| OfiEndpoint::open(info, queue, options), Ok)?;
        Ok(Self { data, records })
    }

    /// Endpoints that it is.
    pub(crate) fn endpoint_count(&self) -> u32 {
        if self.records.is_also(&self.data) { 1 } else { 2 }
    }
}

/// How far a link is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OfiLinkStage {
    /// Made.
    New,
    /// Connected.
    Up,
    /// Of no more use.
    Error,
}

/// Whether the peer has been heard of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HelloProgress {
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
pub(crate) enum StagedSource {
    /// So many bytes that the provider copies when it takes the operation.
    Copied(usize),
    /// So many that are in the operation's place, from where it is sent.
    Kept(usize),
    /// Registered memory.
    Region(RegionExtent),
    /// Both, one behind the other, the first in the operation's place.
    Both(usize, RegionExtent),
}

/// An operation as it is given to the provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProviderOp {
    /// A message for the peer's receives, or for the one of that tag.
    Send { from: StagedSource, tag: u64, imm: Option<u32> },
    /// A write, which may be complete only when it has arrived.
    Write { from: StagedSource, to: RemoteLocation, imm: Option<u32>, placed: bool },
    /// A read.
    Read { into: RegionExtent, from: RemoteLocation },
    /// A receive.
    Receive { into: RegionExtent, tag: u64 },
    /// A part of a proof, over the endpoint for payload or the other.
    Proof { records: bool },
}

impl ProviderOp {
    /// Bytes that the provider copies out of the caller's hands.
    #[inline]
    pub(crate) fn copied_len(self) -> usize {
        match self {
            Self::Send { from: StagedSource::Copied(len), .. }
            | Self::Write { from: StagedSource::Copied(len), .. } => len,
            _ => 0,
        }
    }

    /// Whether its bytes, or the first of them, are in its place as long as it lasts.
    #[inline]
    pub(crate) fn is_kept(self) -> bool {
        matches!(
            self,
            Self::Send { from: StagedSource::Kept(_) | StagedSource::Both(..), .. }
                | Self::Write { from: StagedSource::Kept(_) | StagedSource::Both(..), .. }
        )
    }

    /// The region that it uses, if it is not its own place.
    #[inline]
    pub(crate) fn region_key(self) -> LocalKey {
        match self {
            Self::Send { from: StagedSource::Region(extent) | StagedSource::Both(_, extent), .. }
            | Self::Write { from: StagedSource::Region(extent) | StagedSource::Both(_, extent), .. }
            | Self::Read { into: extent, .. }
            | Self::Receive { into: extent, .. } => extent.key,
            Self::Send { .. } | Self::Write { .. } | Self::Proof { .. } => NO_REGION,
        }
    }

    /// Whether it is a record that is written.
    #[inline]
    pub(crate) fn is_record(self) -> bool {
        matches!(self, Self::Write { to, .. } if to.purpose == RegionPurpose::Records)
    }
}

/// A link.
pub(crate) struct OfiLink {
    pub(crate) id: LinkId,
    pub(crate) state: OfiLinkStage,
    pub(crate) hello: HelloProgress,
    /// Its own endpoints, where each has some.
    pub(crate) pair: Option<Box<EndpointPair>>,
    pub(crate) peers: Option<(EndpointPeer<PayloadTraffic>, EndpointPeer<ControlTraffic>)>,
    pub(crate) theirs: Option<OfiLinkAddress>,
    /// The first of its slots.
    pub(crate) base: u32,
    pub(crate) mark: u32,
    pub(crate) cookie: u64,
    pub(crate) ops: LinkOps,
    /// What the provider had no room for, oldest first, by place.
    pub(crate) waiting: VecDeque<(u32, ProviderOp)>,
    /// Proofs that need nothing but the end of all that was posted before, oldest first.
    pub(crate) nops: VecDeque<u32>,
    /// Of a link in error, operations of which its endpoints, which others use too, have not told the end.
    pub(crate) out: u32,
    /// Flushes that have not been told of.
    pub(crate) flushes: u32,
}

impl OfiLink {
    /// Puts it into error. Its endpoints go on: what the provider has ends when that says so, receives as soon as they are taken
    /// back, and comes back in the place of a new one each; the rest waits for them.
    pub(crate) fn end_after_all(&mut self, open: &mut EndpointPair) -> Vec<(u32, LocalKey)> {
        self.state = OfiLinkStage::Error;
        let given = |place: u32| {
            !self.nops.contains(&place) && !self.waiting.iter().any(|&(waiting, _)| waiting == place)
        };
        let out: Vec<_> = self.ops.live_ops().filter(|&(place, _)| given(place)).collect();
        self.out = out.len() as u32;
        for &(place, op) in &out {
            if op.kind.is_receive() {
                // One that has met its message completes all the same.
                let _ = open.data.cancel(OpSlot(self.base + place));
            }
        }
        out.into_iter().map(|(place, op)| (self.base + place, op.region)).collect()
    }

    /// Puts it into error and ends all that is out, in the order in which it was posted.
    pub(crate) fn end_all(&mut self) -> Vec<LinkOpEntry> {
        self.state = OfiLinkStage::Error;
        self.nops.clear();
        self.out = 0;
        self.ops.end_all()
    }

    /// Operations that have not left, receives apart.
    pub(crate) fn unsent_count(&self) -> u32 {
        self.waiting.iter().filter(|(_, work)| !matches!(work, ProviderOp::Receive { .. })).count() as u32
    }
}
