//! Lends memory to a peer for longer than a message. It wraps the functions of [`crate::ipc`] and translates this
//! endpoint's peer ids. This module sends nothing. The caller sends the reference (a record that names the exported
//! memory) to the borrower, and the callers at both ends agree on the end of the loan.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{CopyError, IpcMemory};
use trunkline_proto::wire::ipc::ExportReference;

use super::endpoint::TaggedEndpoint;
use super::peer::TaggedPeerId;
use super::send::SendRefused;
use crate::ipc::{ArrivalId, BorrowStatus, LoanRange, MessageBuffer, OperationId, ReferenceStart, SendError};

/// A loan, at the lender or at the borrower.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MemoryLoan(LoanSide);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum LoanSide {
    /// At the lender: the operation that lends the memory.
    Given(OperationId),
    /// At the borrower: the reference that arrived from the lender. The loan ends when it is given back
    /// (`refuse_arrival`).
    Taken(ArrivalId),
}

/// The result of lending a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum LendOutcome {
    /// The buffer is lent; the caller must send the reference to the peer.
    Lent(MemoryLoan, ExportReference),
    /// The buffer cannot be lent now: call again, after [`TaggedEndpoint::progress`].
    Busy,
    /// The buffer cannot be lent, so the caller must send messages instead. It is empty, has several rows (pieces of
    /// equal length at equal distances) or no address that the peer could map, or its memory is not exported. Only the
    /// last cause increments the counter of fallbacks, the messages that could not share memory.
    Not,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Lends a buffer to a peer, which may map it until [`TaggedEndpoint::end_loan`].
    ///
    /// # Errors
    /// [`SendRefused`].
    pub fn lend_buffer(
        &mut self,
        to: TaggedPeerId,
        buffer: &MessageBuffer,
    ) -> Result<LendOutcome, SendRefused> {
        let peer = self.peers.get(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let neighbour = peer.neighbour;
        let Some(addr) = self.address_of(buffer).filter(|_| buffer.rows().is_whole() && !buffer.is_empty())
        else {
            return Ok(LendOutcome::Not);
        };
        if !buffer.is_there(self.node.memory()) {
            return Err(SendRefused::Outside);
        }
        match self.node.lend_memory(neighbour, addr, buffer.len() as usize, self.now) {
            Ok(ReferenceStart::Refer(operation, reference)) => {
                Ok(LendOutcome::Lent(MemoryLoan(LoanSide::Given(operation)), reference))
            }
            Ok(ReferenceStart::Busy) => Ok(LendOutcome::Busy),
            Ok(ReferenceStart::Elsewhere(_)) => Ok(LendOutcome::Not),
            Err(SendError::Gone) => Err(SendRefused::Gone),
            Err(_) => Err(SendRefused::Outside),
        }
    }

    /// Accepts a reference that the caller has received from a peer; returns the loan. `None`: the peer is gone, or has
    /// violated the protocol.
    pub fn borrow(&mut self, from: TaggedPeerId, reference: &ExportReference) -> Option<MemoryLoan> {
        self.admit_reference(from, reference).map(|arrival| MemoryLoan(LoanSide::Taken(arrival)))
    }

    /// Maps a peer's loan, if it is not mapped.
    pub fn map_loan(&mut self, loan: MemoryLoan) -> BorrowStatus {
        let LoanSide::Taken(arrival) = loan.0 else { return BorrowStatus::Not };
        let found = self.node.borrow(arrival);
        if found == BorrowStatus::Wait {
            self.node.receive_messages_from(arrival.neighbour(), self.now);
        }
        found
    }

    /// Ends a loan at this end. At the lender, `mapped` is whether the borrower could map the memory. At the borrower,
    /// `mapped` has no effect, and the caller must not use the memory after this call. It stays mapped until its owner
    /// requests its release.
    pub fn end_loan(&mut self, loan: MemoryLoan, mapped: bool) {
        match loan.0 {
            LoanSide::Given(operation) => self.node.end_loan(operation, mapped, self.now),
            // If the owner is gone, the arrival has already ended.
            LoanSide::Taken(arrival) => _ = self.node.refuse_arrival(arrival),
        }
    }

    /// Begins to copy the bytes `done..done + len` of a buffer to the same positions in `to`, a range of a peer's loan,
    /// which must be mapped. Either may consist of rows: pieces of equal length at equal distances. A position counts
    /// only bytes of rows, not the gaps between them. One copy per loan can be in progress;
    /// [`TaggedEndpoint::has_copied`] polls for its end.
    ///
    /// # Errors
    /// [`CopyError`]: the copy could not be started, so none is in progress. [`CopyError::Busy`]: try again, after
    /// [`TaggedEndpoint::progress`].
    #[inline]
    pub fn begin_put(
        &mut self,
        loan: MemoryLoan,
        to: LoanRange,
        from: &MessageBuffer,
        done: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        match loan.0 {
            LoanSide::Taken(arrival) => self.node.begin_put(arrival, to, from, done, len),
            LoanSide::Given(_) => Err(CopyError::Closed),
        }
    }

    /// Begins to copy the bytes `done..done + len` of `from`, a range of a peer's loan, to the same positions in a
    /// buffer; otherwise as [`TaggedEndpoint::begin_put`].
    ///
    /// # Errors
    /// [`CopyError`].
    #[inline]
    pub fn get(
        &mut self,
        loan: MemoryLoan,
        from: LoanRange,
        into: &MessageBuffer,
        done: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        match loan.0 {
            LoanSide::Taken(arrival) => self.node.get(arrival, from, into, done, len),
            LoanSide::Given(_) => Err(CopyError::Closed),
        }
    }

    /// Whether the last copy of a loan has completed. Never waits.
    ///
    /// # Errors
    /// [`CopyError`]: the copy has failed, and the target bytes are undefined. After [`CopyError::Busy`] the caller
    /// must begin it again.
    #[inline]
    pub fn has_copied(&mut self, loan: MemoryLoan) -> Result<bool, CopyError> {
        match loan.0 {
            LoanSide::Taken(arrival) => self.node.has_copied(arrival),
            LoanSide::Given(_) => Err(CopyError::Closed),
        }
    }
}
