//! A link: its own endpoints or those of its rail, the peer's addresses, and operations for which the provider had no room.

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
    /// Opens both, or one that serves both roles.
    pub(crate) fn open(
        info: &OfiInfo,
        queue: &OfiQueue,
        one: bool,
        options: &[EndpointOption],
    ) -> Result<Self, OfiOpenError> {
        let data = OfiEndpoint::open(info, queue, options)?;
        // One endpoint for both roles keeps payload and records in order on one connection.
        let records = if one { data.also_records() } else { None };
        let records = records.map_or_else(|| OfiEndpoint::open(info, queue, options), Ok)?;
        Ok(Self { data, records })
    }

    /// Returns the number of endpoints.
    pub(crate) fn endpoint_count(&self) -> u32 {
        if self.records.is_also(&self.data) { 1 } else { 2 }
    }
}

/// The state of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OfiLinkStage {
    /// Created.
    New,
    /// Connected.
    Up,
    /// In error.
    Error,
}

/// Progress of the first exchange with the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HelloProgress {
    /// No hello was sent.
    Unsaid,
    /// A hello was sent.
    Said,
    /// The hello through the payload endpoint has completed, and one was sent through the records endpoint.
    Half,
    /// All hellos have completed, or none is needed.
    Heard,
}

/// The source of an operation's bytes, after the caller's own bytes were copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StagedSource {
    /// That many bytes, which the provider copies when it accepts the operation.
    Copied(usize),
    /// That many bytes in the operation's place, from which they are sent.
    Kept(usize),
    /// Registered memory.
    Region(RegionExtent),
    /// Bytes in the operation's place, followed by registered memory.
    Both(usize, RegionExtent),
}

/// An operation in the form in which it is submitted to the provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProviderOp {
    /// A message for the peer's receives with that tag.
    Send { from: StagedSource, tag: u64, imm: Option<u32> },
    /// A write; if `placed`, it completes only after it has arrived.
    Write { from: StagedSource, to: RemoteLocation, imm: Option<u32>, placed: bool },
    /// A read.
    Read { into: RegionExtent, from: RemoteLocation },
    /// A receive.
    Receive { into: RegionExtent, tag: u64 },
    /// A part of a proof, through the endpoint for payload or for records.
    Proof { records: bool },
}

impl ProviderOp {
    /// Returns the number of bytes that the provider copies from the caller.
    #[inline]
    pub(crate) fn copied_len(self) -> usize {
        match self {
            Self::Send { from: StagedSource::Copied(len), .. }
            | Self::Write { from: StagedSource::Copied(len), .. } => len,
            _ => 0,
        }
    }

    /// Returns whether its bytes, or the first of them, are in its place until it completes.
    #[inline]
    pub(crate) fn is_kept(self) -> bool {
        matches!(
            self,
            Self::Send { from: StagedSource::Kept(_) | StagedSource::Both(..), .. }
                | Self::Write { from: StagedSource::Kept(_) | StagedSource::Both(..), .. }
        )
    }

    /// Returns the region that it uses, if it is not its own place.
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

    /// Returns whether it writes a record.
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
    /// Its own endpoints, if links do not share them.
    pub(crate) pair: Option<Box<EndpointPair>>,
    pub(crate) peers: Option<(EndpointPeer<PayloadTraffic>, EndpointPeer<ControlTraffic>)>,
    pub(crate) theirs: Option<OfiLinkAddress>,
    /// Its first slot.
    pub(crate) base: u32,
    pub(crate) mark: u32,
    pub(crate) cookie: u64,
    pub(crate) ops: LinkOps,
    /// Operations for which the provider had no room, oldest first, by place.
    pub(crate) waiting: VecDeque<(u32, ProviderOp)>,
    /// Proofs that only wait for all earlier operations, oldest first.
    pub(crate) nops: VecDeque<u32>,
    /// For a link in error, the number of operations on shared endpoints that have not completed.
    pub(crate) out: u32,
    /// Number of flushes that have not been reported.
    pub(crate) flushes: u32,
}

impl OfiLink {
    /// Puts the link into error. Its endpoints are shared and stay open, so operations in flight complete as the provider reports them. Receives
    /// are canceled, and complete so at once. Operations that were not submitted are ended after them.
    pub(crate) fn end_after_all(&mut self, open: &mut EndpointPair) -> Vec<(u32, LocalKey)> {
        self.state = OfiLinkStage::Error;
        // Operations that were never submitted have no completion to wait for.
        let given = |place: u32| {
            !self.nops.contains(&place) && !self.waiting.iter().any(|&(waiting, _)| waiting == place)
        };
        let out: Vec<_> = self.ops.live_ops().filter(|&(place, _)| given(place)).collect();
        self.out = out.len() as u32;
        for &(place, op) in &out {
            if op.kind.is_receive() {
                // Failure is ignored, because a receive that has already matched a message completes normally.
                let _ = open.data.cancel(OpSlot(self.base + place));
            }
        }
        out.into_iter().map(|(place, op)| (self.base + place, op.region)).collect()
    }

    /// Puts the link into error and ends all its operations, in the order in which they were posted.
    pub(crate) fn end_all(&mut self) -> Vec<LinkOpEntry> {
        self.state = OfiLinkStage::Error;
        self.nops.clear();
        self.out = 0;
        self.ops.end_all()
    }

    /// Returns the number of operations that have not been submitted, except receives.
    pub(crate) fn unsent_count(&self) -> u32 {
        self.waiting.iter().filter(|(_, work)| !matches!(work, ProviderOp::Receive { .. })).count() as u32
    }
}
