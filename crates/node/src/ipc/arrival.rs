//! What a neighbour sends: told when it comes, received where its owner says, a part at a time.

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

/// A message that has come and is not received yet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ArrivalId {
    pub(super) from: NeighbourId,
    pub(super) id: SlotId,
}

impl ArrivalId {
    /// Who sent it.
    #[must_use]
    pub const fn neighbour(self) -> NeighbourId {
        self.from
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct ArrivalRecord {
    /// The sender's number of it; `None` if it is not this node that says how it ended.
    pub(super) operation: Option<u64>,
    pub(super) used: ImportPin,
    pub(super) job: Option<CopyJob>,
    /// Bytes that are copied, or under way.
    pub(super) done: u64,
    /// Those under way, of a kind whose copies go on after they were begun. Nothing of it ends before they have.
    pub(super) batch: Option<CopyBatch>,
    /// The error of copies that could not be begun, while others of the batch are under way.
    pub(super) failed: Option<CopyError>,
}

/// What is to be done with its bytes.
#[derive(Debug)]
pub(super) struct CopyJob {
    buffer: MessageBuffer,
    /// How many of them are wanted.
    len: u64,
    /// How they stand in the sender's memory.
    rows: StridedRows,
    /// Whether they are written, and not read.
    outward: bool,
    /// Where that memory must be mapped for it.
    place: MappingPlace,
}

impl ArrivalRecord {
    pub(super) const fn new(operation: Option<u64>, used: ImportPin) -> Self {
        Self { operation, used, job: None, done: 0, batch: None, failed: None }
    }
}

/// How far it got.
enum CopyProgress {
    Moved,
    Waits,
    Over,
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// An arrival goes into that memory, from its first byte on.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&mut self, arrival: ArrivalId, into: MemoryRange) -> Result<(), ReceiveError> {
        let len = self.arrival_mut(arrival).map(|one| one.used.part().len());
        self.receive_part(arrival, into.into(), len.unwrap_or(0), StridedRows::WHOLE)
    }

    /// An arrival goes to that address of an own allocation of the node's kind of memory, which has so many bytes from there on.
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

    /// So many bytes of an arrival, from its first on, go there; they stand in such rows in what it refers to.
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

    /// All bytes that an arrival refers to, which stand in such rows there, are written from that buffer: it was an offer.
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

    /// An arrival is not wanted; its sender is told.
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

    /// It ends: its memory is used no more, and its sender is told.
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

    /// Copies some of what is being received; whether anything moved.
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

    /// Asks for the end of an arrival's copies under way. `None`: none is, and there is more to copy.
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
        // Its neighbour is gone: nothing more is begun, and it ends with the others.
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
            // The copies under way end first, and then all of them are begun again.
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
