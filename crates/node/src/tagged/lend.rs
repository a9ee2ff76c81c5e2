//! Memory that is lent to a peer for longer than a message, by an endpoint: what [`crate::ipc`] does, by the names that peers have here. What is said
//! of it, and to whom, is its owner's.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{CopyError, IpcMemory};
use trunkline_proto::wire::ipc::ExportReference;

use super::endpoint::TaggedEndpoint;
use super::peer::TaggedPeerId;
use super::send::SendRefused;
use crate::ipc::{ArrivalId, BorrowStatus, LoanRange, MessageBuffer, OperationId, ReferenceStart, SendError};

/// What this process lends, or is lent.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MemoryLoan(LoanSide);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum LoanSide {
    Given(OperationId),
    Taken(ArrivalId),
}

/// What becomes of what is to be lent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum LendOutcome {
    /// Tell the peer that.
    Lent(MemoryLoan, ExportReference),
    /// Nothing was done: ask again, after [`TaggedEndpoint::progress`].
    Busy,
    /// It cannot be lent; this was counted.
    Not,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Lends a buffer to a peer, who may map it until [`TaggedEndpoint::end_loan`].
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

    /// A peer says that it lends that. `None`: it is gone, or broken.
    pub fn borrow(&mut self, from: TaggedPeerId, reference: &ExportReference) -> Option<MemoryLoan> {
        self.admit_reference(from, reference).map(|arrival| MemoryLoan(LoanSide::Taken(arrival)))
    }

    /// Maps what a peer lends, if it is not mapped.
    pub fn map_loan(&mut self, loan: MemoryLoan) -> BorrowStatus {
        let LoanSide::Taken(arrival) = loan.0 else { return BorrowStatus::Not };
        let found = self.node.borrow(arrival);
        if found == BorrowStatus::Wait {
            self.node.receive_messages_from(arrival.neighbour(), self.now);
        }
        found
    }

    /// What was lent is lent no more; `mapped`: whether the other end could map it. At the end that maps: what is lent is used no more, and unmapped
    /// when its owner has taken it back.
    pub fn end_loan(&mut self, loan: MemoryLoan, mapped: bool) {
        match loan.0 {
            LoanSide::Given(operation) => self.node.end_loan(operation, mapped, self.now),
            // It is gone if its owner is.
            LoanSide::Taken(arrival) => _ = self.node.refuse_arrival(arrival),
        }
    }

    /// Begins to copy bytes of a buffer, from its byte number `done` on, to that spot of a peer's loan, which is mapped; they are the bytes number
    /// `done` and on of the spot, too. One copy of a loan is under way at a time: [`TaggedEndpoint::has_copied`] polls for its end.
    ///
    /// # Errors
    /// [`CopyError`]: nothing is under way. [`CopyError::Busy`]: try again, after [`TaggedEndpoint::progress`].
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

    /// The same the other way round.
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

    /// Whether the copy of a loan that was begun last has ended: its bytes are there. Never waits.
    ///
    /// # Errors
    /// [`CopyError`]: the copy has failed; the target bytes have no meaning. After [`CopyError::Busy`] it is to be begun again.
    #[inline]
    pub fn has_copied(&mut self, loan: MemoryLoan) -> Result<bool, CopyError> {
        match loan.0 {
            LoanSide::Taken(arrival) => self.node.has_copied(arrival),
            LoanSide::Given(_) => Err(CopyError::Closed),
        }
    }
}
