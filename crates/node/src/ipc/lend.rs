//! Lends memory for longer than a message, for windows. An export made for a loan is freed with its last user, so no
//! budget counts it. It is pinned at both ends during the loan, so it is not requested back; it is retired when the
//! loan ends.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{CopyBatch, CopyError, IpcMemory};
use trunkline_proto::ipc::exporter::ExportState;
use trunkline_proto::ipc::importer::ResolveOutcome;
use trunkline_proto::tagged::StridedRows;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{CopyOutcome, ExportName};

use super::buffer::MappedRows;
use super::{
    ArrivalId, IpcNode, MessageBuffer, NeighbourId, OperationId, ReferenceStart, SendError, SendRequest,
};

/// Whether borrowed memory is mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum BorrowStatus {
    /// It is mapped, and stays mapped until [`IpcNode::refuse_arrival`], or until its neighbour is gone.
    Mapped,
    /// Not yet: call again, after [`IpcNode::progress`].
    Wait,
    /// It cannot be mapped, or its neighbour is gone.
    Not,
}

/// A part of a loan: its first byte, and the layout of its bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoanRange {
    /// Offset of the first byte in the loan.
    pub at: u64,
    /// The layout of the bytes.
    pub rows: StridedRows,
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Lends bytes to a neighbour. The caller sends it the reference; the neighbour calls
    /// [`IpcNode::accept_reference`] and [`IpcNode::borrow`]. The loan counts as one of the operations that the
    /// neighbour accepts at once, until [`IpcNode::end_loan`].
    ///
    /// # Errors
    /// [`SendError`].
    pub fn lend_memory(
        &mut self,
        to: NeighbourId,
        addr: usize,
        len: usize,
        now: Instant,
    ) -> Result<ReferenceStart, SendError> {
        self.make_reference(to, &SendRequest { addr, len, passing: true }, now)
    }

    /// Ends a loan. `mapped`: whether the neighbour could map it. The export is retired once it has no users;
    /// [`IpcNode::is_going`] returns `true` until the driver has taken it back.
    pub fn end_loan(&mut self, lent: OperationId, mapped: bool, now: Instant) {
        let pin = self.peers.get(lent.to).and_then(|peer| peer.sent.get(lent.id));
        pin.into_iter().for_each(|pin| self.exporter.let_go(pin));
        self.finish_operation(lent, if mapped { CopyOutcome::Copied } else { CopyOutcome::NotMapped }, now);
    }

    /// Whether an export that has no users, and that no message can find any more, is not given back yet.
    #[must_use]
    pub fn is_going(&self, name: ExportName) -> bool {
        let over =
            |state| matches!(state, ExportState::Retiring | ExportState::Leaving | ExportState::Ending);
        self.exporter
            .list_exports()
            .any(|export| export.name == name && export.pins == 0 && over(export.state))
    }

    /// Maps a neighbour's loan, if it is not mapped.
    pub fn borrow(&mut self, lent: ArrivalId) -> BorrowStatus {
        // The first round maps; the second finds the mapping.
        for _ in 0..2 {
            let Some(one) = self.peers.get(lent.from).and_then(|peer| peer.arrivals.get(lent.id)) else {
                return BorrowStatus::Not;
            };
            match self.importer.resolve_address(&one.used, self.config.place) {
                Ok(ResolveOutcome::At(_)) => return BorrowStatus::Mapped,
                Ok(ResolveOutcome::Map(mapping)) => self.open_mapping(mapping),
                Ok(ResolveOutcome::Wait) => return BorrowStatus::Wait,
                Ok(ResolveOutcome::Failed) | Err(_) => return BorrowStatus::Not,
            }
        }
        BorrowStatus::Not
    }

    /// Begins to copy the bytes `done..done + len` of a buffer to the same positions in `to`, a range of a neighbour's
    /// loan, which must be mapped. Either may consist of rows: pieces of equal length at equal distances. A position
    /// counts only bytes of rows, not the gaps between them. One copy per loan can be in progress;
    /// [`IpcNode::has_copied`] polls for its end.
    ///
    /// # Errors
    /// [`CopyError`]: the copy could not be started, so none is in progress. [`CopyError::Busy`]: try again, after
    /// [`IpcNode::progress`].
    #[inline]
    pub fn begin_put(
        &mut self,
        lent: ArrivalId,
        to: LoanRange,
        from: &MessageBuffer,
        done: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        let there = self.locate_in_loan(lent, to, done + len)?;
        let mut batch = None;
        let begun = from.begin_put(&self.memory, &mut batch, done, there, len);
        self.begin_loan_copy(lent, batch, begun)
    }

    /// Begins to copy the bytes `done..done + len` of `from`, a range of a neighbour's loan, to the same positions in a
    /// buffer; otherwise as [`IpcNode::begin_put`].
    ///
    /// # Errors
    /// [`CopyError`].
    #[inline]
    pub fn get(
        &mut self,
        lent: ArrivalId,
        from: LoanRange,
        into: &MessageBuffer,
        done: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        let there = self.locate_in_loan(lent, from, done + len)?;
        let mut batch = None;
        let begun = into.begin_get(&self.memory, &mut batch, done, there, len);
        self.begin_loan_copy(lent, batch, begun)
    }

    /// Records a copy of a loan. Copies in progress keep the neighbour's memory mapped, even after the neighbour is
    /// gone.
    fn begin_loan_copy(
        &mut self,
        lent: ArrivalId,
        batch: Option<CopyBatch>,
        begun: Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let Some(batch) = batch else { return begun };
        if let Some(one) = self.peers.get_mut(lent.from).and_then(|peer| peer.arrivals.get_mut(lent.id)) {
            (one.batch, one.failed) = (Some(batch), begun.err());
        }
        Ok(())
    }

    /// Whether the last copy of a loan has completed. Never waits.
    ///
    /// # Errors
    /// [`CopyError`]: the copy has failed, and the target bytes are undefined. After [`CopyError::Busy`] the caller
    /// must begin it again.
    pub fn has_copied(&mut self, lent: ArrivalId) -> Result<bool, CopyError> {
        let Some(peer) = self.peers.get_mut(lent.from) else { return Ok(true) };
        let ends = peer.heard_bye || self.until.is_some();
        let Some(one) = peer.arrivals.get_mut(lent.id) else { return Ok(true) };
        let Some(batch) = &one.batch else { return Ok(true) };
        let ended = self.memory.has_ended(batch);
        if ended == Ok(false) {
            return ended;
        }
        one.batch = None;
        let failed = one.failed.take();
        if ends {
            self.answer_arrival(lent, CopyOutcome::Ended);
        }
        failed.map_or(ended, Err)
    }

    /// Locates `len` bytes of a range in the mapping of a loan.
    #[inline]
    fn locate_in_loan(
        &self,
        lent: ArrivalId,
        spot: LoanRange,
        len: u64,
    ) -> Result<MappedRows<'_>, CopyError> {
        let peer = self.peers.get(lent.from).ok_or(CopyError::Gone)?;
        let one = peer.arrivals.get(lent.id).ok_or(CopyError::Gone)?;
        let (part, LoanRange { at, rows }) = (one.used.part(), spot);
        let end = rows.spanned_bytes(len).and_then(|span| at.checked_add(span));
        if end.is_none_or(|end| end > part.len()) {
            return Err(CopyError::Outside { at, len: len as usize });
        }
        let mapped =
            peer.imports.find_mapping(one.used.export_name(), self.config.place).ok_or(CopyError::Closed)?;
        Ok(MappedRows { mapped, at: part.start() + at, rows })
    }
}
