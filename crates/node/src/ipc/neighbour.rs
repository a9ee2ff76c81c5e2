//! Another process of the node, as this one sees it: its stream, what is under way in both directions, and what is mapped of it.

use std::os::fd::OwnedFd;

use trunkline_fabric::{OobError, OobFrame, OobStream, PassedFd};
use trunkline_proto::ipc::exporter::{ExportPin, ImportingPeerId};
use trunkline_proto::ipc::importer::SourceId;
use trunkline_proto::slots::SlotTable;
use trunkline_proto::wire::ipc::IpcMessage;

use super::arrival::ArrivalRecord;
use super::imports::NeighbourImports;
use super::{LeaveReason, OPERATIONS_MAX, ProtocolViolation};

/// Another process of the node, from its coming until nothing of it is left. One that comes again is another one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NeighbourId(pub(super) SourceId);

impl NeighbourId {
    /// What it is called in [`IpcNode::importer`](super::IpcNode::importer).
    #[must_use]
    pub const fn source(self) -> SourceId {
        self.0
    }
}

/// What is known of it.
#[derive(Debug)]
pub(super) struct NeighbourEntry<S> {
    source: SourceId,
    /// What it is called as one that memory is exported to.
    pub(super) exporting: ImportingPeerId,
    /// `None` once it is gone.
    pub(super) stream: Option<S>,
    /// Its number here, where the stream says whose its other end is; 0 if it has none.
    pub(super) process: Option<u32>,
    /// What broke it; it is taken for dead as soon as nothing is in hand.
    pub(super) broken: Option<ProtocolViolation>,
    /// Why it is gone, while copies of its memory are under way: the operations that wait for them end with the last of them, and nothing more is begun or heard.
    pub(super) lost: Option<LeaveReason>,
    /// How many operations it takes at once; 0 until it has said HELLO.
    pub(super) takes: usize,
    pub(super) said_bye: bool,
    pub(super) heard_bye: bool,
    /// It has said where tagged messages go.
    pub(super) gave_inbox: bool,
    /// Frames that were said to it.
    pub(super) said: u64,
    /// Names that it was told to let go and has not.
    pub(super) asked: usize,
    /// Operations that it has not answered.
    pub(super) sent: SlotTable<ExportPin>,
    /// Its operations that were not answered.
    pub(super) arrivals: SlotTable<ArrivalRecord>,
    pub(super) imports: NeighbourImports,
}

impl<S: OobStream> NeighbourEntry<S> {
    pub(super) fn new(source: SourceId, exporting: ImportingPeerId, stream: S) -> Self {
        Self {
            source,
            exporting,
            process: stream.peer_pid(),
            stream: Some(stream),
            broken: None,
            lost: None,
            takes: 0,
            said_bye: false,
            heard_bye: false,
            gave_inbox: false,
            said: 0,
            asked: 0,
            sent: SlotTable::new(OPERATIONS_MAX),
            arrivals: SlotTable::new(OPERATIONS_MAX),
            imports: NeighbourImports::default(),
        }
    }

    pub(super) const fn neighbour_id(&self) -> NeighbourId {
        NeighbourId(self.source)
    }

    /// Whether copies of its memory are under way.
    pub(super) fn is_copied(&self) -> bool {
        self.arrivals.iter().any(|(_, arrival)| arrival.batch.is_some())
    }

    /// Whether anything may still be said to it, and heard of it.
    pub(super) const fn is_there(&self) -> bool {
        self.stream.is_some() && self.broken.is_none() && self.lost.is_none()
    }

    /// Says something, unless BYE was said. One that does not read breaks: by the limits of what may be unanswered, a stream whose
    /// other end reads has room for everything.
    pub(super) fn send_message(&mut self, message: &IpcMessage, fd: Option<OwnedFd>) {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.said_bye && self.broken.is_none()) else {
            return;
        };
        self.said += 1;
        match stream.send(OobFrame { bytes: message.to_bytes(), fd: fd.map(PassedFd::from_own_process) }) {
            // What it said before is heard first, and then that it is gone.
            Ok(()) | Err(OobError::Closed) => {}
            Err(error) => self.broken = Some(ProtocolViolation::Stream(error)),
        }
    }
}

/// All of them, by the places of their names as sources.
#[derive(Debug)]
pub(super) struct NeighbourTable<S>(Vec<Option<NeighbourEntry<S>>>);

impl<S: OobStream> NeighbourTable<S> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn add_entry(&mut self, peer: NeighbourEntry<S>) {
        let place = peer.source.slot() as usize;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        if let Some(at) = self.0.get_mut(place) {
            *at = Some(peer);
        }
    }

    #[inline]
    pub(super) fn get(&self, of: NeighbourId) -> Option<&NeighbourEntry<S>> {
        self.0.get(of.0.slot() as usize)?.as_ref().filter(|peer| peer.source == of.0)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, of: NeighbourId) -> Option<&mut NeighbourEntry<S>> {
        self.0.get_mut(of.0.slot() as usize)?.as_mut().filter(|peer| peer.source == of.0)
    }

    pub(super) fn remove(&mut self, of: NeighbourId) -> Option<NeighbourEntry<S>> {
        self.0.get_mut(of.0.slot() as usize)?.take_if(|peer| peer.source == of.0)
    }

    /// Places that were ever used.
    pub(super) fn slot_count(&self) -> usize {
        self.0.len()
    }

    /// Who has that place.
    pub(super) fn neighbour_at(&self, place: usize) -> Option<NeighbourId> {
        self.0.get(place)?.as_ref().map(NeighbourEntry::neighbour_id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}
