//! Messages of neighbours that refer to their memory. The node reports each arrival; the owner supplies the buffer;
//! the node copies the bytes in bounded parts.

use trunkline_fabric::OobStream;
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{CopyBatch, CopyError, IpcMemory};
use trunkline_proto::ipc::importer::{ImportPin, MappingPlace, ResolveError, ResolveOutcome};
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::StridedRows;
use trunkline_proto::wire::ipc::{CopyOutcome, IpcMessage};

use super::buffer::MappedRows;
use super::{
    COPY_PER_CALL, IpcNode, MessageBuffer, NeighbourId, NodeEvent, ProtocolViolation, ReceiveError,
    ReceiveOutcome,
};

/// A message that has arrived and is not received yet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ArrivalId {
    pub(super) from: NeighbourId,
    pub(super) id: SlotId,
}

impl ArrivalId {
    /// Returns the sender.
    #[must_use]
    pub const fn neighbour(self) -> NeighbourId {
        self.from
    }
}

/// The state of one arrival.
#[derive(Debug)]
pub(super) struct ArrivalRecord {
    /// The sender's number for it; `None` if the caller, and not this node, reports how it ended.
    pub(super) operation: Option<u64>,
    pub(super) used: ImportPin,
    pub(super) job: Option<CopyJob>,
    /// Bytes that are copied, or being copied.
    pub(super) done: u64,
    /// The copies in progress, of a kind whose copies are asynchronous. The arrival cannot end before they have.
    pub(super) batch: Option<CopyBatch>,
    /// The error of copies that could not be begun, while others of the batch are under way.
    pub(super) failed: Option<CopyError>,
}

/// A copy of an arrival's bytes.
#[derive(Debug)]
pub(super) struct CopyJob {
    buffer: MessageBuffer,
    /// Bytes to copy.
    len: u64,
    /// The layout of the bytes in the sender's memory.
    rows: StridedRows,
    /// Whether the sender's memory is the target, and not the source.
    outward: bool,
    /// Where the sender's memory must be mapped for the copy.
    place: MappingPlace,
}

impl ArrivalRecord {
    pub(super) const fn new(operation: Option<u64>, used: ImportPin) -> Self {
        Self { operation, used, job: None, done: 0, batch: None, failed: None }
    }
}

/// The result of one step of a copy.
enum CopyProgress {
    Moved,
    Waits,
    Over,
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Receives an arrival into that memory, from its first byte on.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&mut self, arrival: ArrivalId, into: MemoryRange) -> Result<(), ReceiveError> {
        let len = self.arrival_mut(arrival).map(|one| one.used.part().len());
        self.receive_part(arrival, into.into(), len.unwrap_or(0), StridedRows::WHOLE)
    }

    /// Receives an arrival at that address. The address must be in an allocation of this process, of the node's kind,
    /// with enough bytes from there on.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_own(&mut self, arrival: ArrivalId, addr: usize) -> Result<(), ReceiveError> {
        let len = self.arrival_mut(arrival).map(|one| one.used.part().len()).unwrap_or(0);
        let holds = usize::try_from(len).is_ok_and(|len| self.memory.holds_range(addr, len));
        let room = self.memory.allocation_of(addr).ok();
        let room = room.and_then(|of| Some(of.len - of.offset_of(addr)?)).unwrap_or(0);
        let room = if holds { len } else { room as u64 };
        self.receive_part(arrival, MessageBuffer::from_own(addr, room), len, StridedRows::WHOLE)
    }

    /// Receives the first `len` bytes of an arrival; `rows` is their layout in the memory that it refers to.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_part(
        &mut self,
        arrival: ArrivalId,
        into: MessageBuffer,
        len: u64,
        rows: StridedRows,
    ) -> Result<(), ReceiveError> {
        let place = self.place_of(&into);
        self.begin_receive(arrival, CopyJob { buffer: into, len, rows, outward: false, place })
    }

    /// Writes that buffer to all the memory that an arrival refers to, in the layout `rows`. The arrival was an
    /// offer.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn write_offered(
        &mut self,
        arrival: ArrivalId,
        from: MessageBuffer,
        rows: StridedRows,
    ) -> Result<(), ReceiveError> {
        let span = self.arrival_mut(arrival).map(|one| one.used.part().len());
        let len = span.and_then(|span| rows.packed_bytes(span)).unwrap_or(0);
        let place = self.place_of(&from);
        self.begin_receive(arrival, CopyJob { buffer: from, len, rows, outward: true, place })
    }

    fn begin_receive(&mut self, arrival: ArrivalId, job: CopyJob) -> Result<(), ReceiveError> {
        let found = self.arrival_mut(arrival).filter(|one| one.job.is_none());
        let one = found.ok_or(ReceiveError::Unknown)?;
        let there = job.rows.whole_in(one.used.part().len());
        let room = job.buffer.len();
        if job.len > room || job.len > there {
            return Err(ReceiveError::Short { len: job.len, room: room.min(there) });
        }
        one.job = Some(job);
        self.copying.push_back(arrival);
        Ok(())
    }

    /// Refuses an arrival, and notifies its sender.
    ///
    /// # Errors
    /// [`ReceiveError::Unknown`].
    pub fn refuse_arrival(&mut self, arrival: ArrivalId) -> Result<(), ReceiveError> {
        let found = self.arrival_mut(arrival).filter(|one| one.job.is_none() && one.batch.is_none());
        found.ok_or(ReceiveError::Unknown)?;
        self.answer_arrival(arrival, CopyOutcome::Ended);
        Ok(())
    }

    fn arrival_mut(&mut self, arrival: ArrivalId) -> Option<&mut ArrivalRecord> {
        self.peers.get_mut(arrival.from)?.arrivals.get_mut(arrival.id)
    }

    /// Ends an arrival: releases its memory, and notifies its sender.
    pub(super) fn answer_arrival(&mut self, arrival: ArrivalId, outcome: CopyOutcome) {
        let Some(peer) = self.peers.get_mut(arrival.from) else { return };
        let Some(ArrivalRecord { operation, used, .. }) = peer.arrivals.remove(arrival.id) else { return };
        self.importer.release_pin(used);
        if let Some(operation) = operation {
            peer.send_message(&IpcMessage::Done { operation, outcome }, None);
        }
    }

    fn end_arrival(&mut self, arrival: ArrivalId, outcome: CopyOutcome, receipt: ReceiveOutcome) {
        self.answer_arrival(arrival, outcome);
        match receipt {
            ReceiveOutcome::Copied => self.counts.received += 1,
            _ => self.counts.not_received += 1,
        }
        self.notices.push_back(NodeEvent::Received { arrival, receipt });
    }

    /// Copies parts of the arrivals that are being received; returns whether there was progress.
    pub fn copy_arrivals(&mut self) -> bool {
        let mut moved = self.end_openings();
        for _ in 0..self.copying.len() {
            let Some(arrival) = self.copying.pop_front() else { break };
            match self.copy_part(arrival) {
                CopyProgress::Over => moved = true,
                CopyProgress::Moved => {
                    moved = true;
                    self.copying.push_back(arrival);
                }
                CopyProgress::Waits => self.copying.push_back(arrival),
            }
        }
        moved
    }

    /// Polls the copies in progress of an arrival. `None`: no copy is in progress, and there is more to copy.
    fn end_batch(&mut self, arrival: ArrivalId) -> Option<CopyProgress> {
        let peer = self.peers.get_mut(arrival.from)?;
        let is_lost = peer.lost.is_some();
        let one = peer.arrivals.get_mut(arrival.id)?;
        if let Some(batch) = &one.batch {
            let ended = match self.memory.has_ended(batch) {
                Ok(false) => return Some(CopyProgress::Waits),
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            one.batch = None;
            if let Some(error) = ended.err().or(one.failed.take()).filter(|_| !is_lost) {
                self.end_arrival(arrival, CopyOutcome::NotMapped, ReceiveOutcome::NotCopied(error));
                return Some(CopyProgress::Over);
            }
            if !is_lost && one.job.as_ref().is_some_and(|job| one.done == job.len) {
                self.end_arrival(arrival, CopyOutcome::Copied, ReceiveOutcome::Copied);
                return Some(CopyProgress::Over);
            }
        }
        // The neighbour is gone: no further copy begins, and the arrival ends with the others.
        is_lost.then_some(CopyProgress::Over)
    }

    fn copy_part(&mut self, arrival: ArrivalId) -> CopyProgress {
        if let Some(step) = self.end_batch(arrival) {
            return step;
        }
        let Some(one) = self.peers.get(arrival.from).and_then(|peer| peer.arrivals.get(arrival.id)) else {
            return CopyProgress::Over;
        };
        let place = one.job.as_ref().map_or(self.config.place, |job| job.place);
        match self.importer.resolve_address(&one.used, place) {
            Ok(ResolveOutcome::At(_)) => return self.copy_mapped(arrival),
            Ok(ResolveOutcome::Map(mapping)) => {
                self.open_mapping(mapping);
                return CopyProgress::Moved;
            }
            Ok(ResolveOutcome::Wait) => return CopyProgress::Waits,
            Ok(ResolveOutcome::Failed) => {
                self.end_arrival(arrival, CopyOutcome::NotMapped, ReceiveOutcome::NotMapped)
            }
            Err(ResolveError::Gone) => self.end_arrival(arrival, CopyOutcome::Ended, ReceiveOutcome::Lost),
            Err(ResolveError::Outside) => {
                self.end_arrival(arrival, CopyOutcome::Ended, ReceiveOutcome::Lost);
                self.break_with(arrival.from, ProtocolViolation::Outside);
            }
        }
        CopyProgress::Over
    }

    fn copy_mapped(&mut self, arrival: ArrivalId) -> CopyProgress {
        let Some(peer) = self.peers.get_mut(arrival.from) else { return CopyProgress::Over };
        let Some(one) = peer.arrivals.get_mut(arrival.id) else { return CopyProgress::Over };
        let (part, Some(job)) = (one.used.part(), &one.job) else { return CopyProgress::Over };
        let in_one_row = job.rows.is_whole() && job.buffer.rows().is_whole();
        let most = self.memory.batch_bytes().filter(|_| in_one_row).unwrap_or(COPY_PER_CALL);
        let len = (job.len - one.done).min(most);
        let mut batch = None;
        let copied = match peer.imports.find_mapping(one.used.export_name(), job.place) {
            Some(mapped) => {
                let there = MappedRows { mapped, at: part.start(), rows: job.rows };
                match job.outward {
                    false => job.buffer.begin_get(&self.memory, &mut batch, one.done, there, len),
                    true => job.buffer.begin_put(&self.memory, &mut batch, one.done, there, len),
                }
            }
            None => Err(CopyError::Closed),
        };
        if copied == Err(CopyError::Busy) {
            // The copies in progress must end first; then all of the part is copied again.
            one.batch = batch;
            return CopyProgress::Waits;
        }
        let more = one.done + len < job.len;
        one.done += len;
        if batch.is_some() {
            (one.batch, one.failed) = (batch, copied.err());
            return CopyProgress::Moved;
        }
        if let Err(error) = copied {
            self.end_arrival(arrival, CopyOutcome::NotMapped, ReceiveOutcome::NotCopied(error));
            return CopyProgress::Over;
        }
        if more {
            return CopyProgress::Moved;
        }
        self.end_arrival(arrival, CopyOutcome::Copied, ReceiveOutcome::Copied);
        CopyProgress::Over
    }
}
