//! Another process of the host, as this one knows it: its stream, operations in both directions, and its memory that
//! is mapped here. Owned by the node.

use std::os::fd::OwnedFd;

use trunkline_fabric::{OobError, OobFrame, OobStream, PassedFd};
use trunkline_proto::ipc::exporter::{ExportPin, ImportingPeerId};
use trunkline_proto::ipc::importer::SourceId;
use trunkline_proto::slots::SlotTable;
use trunkline_proto::wire::ipc::IpcMessage;

use super::arrival::ArrivalRecord;
use super::imports::NeighbourImports;
use super::{LeaveReason, OPERATIONS_MAX, ProtocolViolation};

/// Another process of the host, from its joining until all its state is released. A process that joins again has
/// another id.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NeighbourId(pub(super) SourceId);

impl NeighbourId {
    /// Returns its id in [`IpcNode::importer`](super::IpcNode::importer).
    #[must_use]
    pub const fn source(self) -> SourceId {
        self.0
    }
}

/// The state of one neighbour.
#[derive(Debug)]
pub(super) struct NeighbourEntry<S> {
    source: SourceId,
    /// Its id in the exporter.
    pub(super) exporting: ImportingPeerId,
    /// `None` once the neighbour is gone.
    pub(super) stream: Option<S>,
    /// Its process number in this process's namespace, if the stream knows its peer; 0 if it has none there.
    pub(super) process: Option<u32>,
    /// Its protocol violation. The node treats it as dead as soon as no copy of its memory is in progress.
    pub(super) broken: Option<ProtocolViolation>,
    /// Why it is gone, while copies of its memory are in progress. Operations that wait for those copies end with the
    /// last of them; no new operation begins, and no message is read.
    pub(super) lost: Option<LeaveReason>,
    /// How many operations it accepts at once; 0 until its HELLO has arrived.
    pub(super) takes: usize,
    pub(super) said_bye: bool,
    pub(super) heard_bye: bool,
    /// Whether its INBOX message has arrived.
    pub(super) gave_inbox: bool,
    /// Frames that were sent to it.
    pub(super) said: u64,
    /// Names in RETIRE messages to it that it has not retired.
    pub(super) asked: usize,
    /// Operations without a reply from it.
    pub(super) sent: SlotTable<ExportPin>,
    /// Its operations without a reply from here.
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

    /// Whether copies of its memory are in progress.
    pub(super) fn is_copied(&self) -> bool {
        self.arrivals.iter().any(|(_, arrival)| arrival.batch.is_some())
    }

    /// Whether messages may still be sent to it and read from it.
    pub(super) const fn is_there(&self) -> bool {
        self.stream.is_some() && self.broken.is_none() && self.lost.is_none()
    }

    /// Sends a message, unless BYE was sent. A stream without room marks the neighbour as broken: the limits on
    /// unanswered operations leave room for every message, so its process does not read.
    pub(super) fn send_message(&mut self, message: &IpcMessage, fd: Option<OwnedFd>) {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.said_bye && self.broken.is_none()) else {
            return;
        };
        self.said += 1;
        match stream.send(OobFrame { bytes: message.to_bytes(), fd: fd.map(PassedFd::from_own_process) }) {
            // Its earlier messages are read first; the end of its stream then reports that it is gone.
            Ok(()) | Err(OobError::Closed) => {}
            Err(error) => self.broken = Some(ProtocolViolation::Stream(error)),
        }
    }
}

/// All neighbours, indexed by the slots of their source ids.
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

    /// Slots that were ever used.
    pub(super) fn slot_count(&self) -> usize {
        self.0.len()
    }

    /// Returns the neighbour in that slot.
    pub(super) fn neighbour_at(&self, place: usize) -> Option<NeighbourId> {
        self.0.get(place)?.as_ref().map(NeighbourEntry::neighbour_id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}
