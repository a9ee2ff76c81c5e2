//! Memory that is lent to a peer for longer than a message, by an endpoint: what [`crate::ipc`] does, by the names that peers have here. What is said
//! of it, and to whom, is its owner's.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{CopyError, IpcMemory};
use trunkline_proto::wire::ipc::Reference;

use super::endpoint::Endpoint;
use super::peer::PeerId;
use super::send::SendRefused;
use crate::ipc::{ArrivalId, Borrowed, Buffer, OperationId, Referring, SendError, Spot};

/// What this process lends, or is lent.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Loan(Side);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Side {
    Given(OperationId),
    Taken(ArrivalId),
}

/// What becomes of what is to be lent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Lending {
    /// Tell the peer that.
    Lent(Loan, Reference),
    /// Nothing was done: ask again, after [`Endpoint::progress`].
    Busy,
    /// It cannot be lent; this was counted.
    Not,
}

impl<M: IpcMemory, S: OobStream> Endpoint<M, S> {
    /// Lends a buffer to a peer, who may map it until [`Endpoint::end_loan`].
    ///
    /// # Errors
    /// [`SendRefused`].
    pub fn lend(&mut self, to: PeerId, buffer: &Buffer) -> Result<Lending, SendRefused> {
        let peer = self.peers.get(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let neighbour = peer.neighbour;
        let Some(addr) = self.address_of(buffer).filter(|_| buffer.rows().is_whole() && !buffer.is_empty())
        else {
            return Ok(Lending::Not);
        };
        if !buffer.is_there(self.node.memory()) {
            return Err(SendRefused::Outside);
        }
        match self.node.lend(neighbour, addr, buffer.len() as usize, self.now) {
            Ok(Referring::Refer(operation, reference)) => {
                Ok(Lending::Lent(Loan(Side::Given(operation)), reference))
            }
            Ok(Referring::Busy) => Ok(Lending::Busy),
            Ok(Referring::Elsewhere(_)) => Ok(Lending::Not),
            Err(SendError::Gone) => Err(SendRefused::Gone),
            Err(_) => Err(SendRefused::Outside),
        }
    }

    /// A peer says that it lends that. `None`: it is gone, or broken.
    pub fn borrow(&mut self, from: PeerId, reference: &Reference) -> Option<Loan> {
        self.admit(from, reference).map(|arrival| Loan(Side::Taken(arrival)))
    }

    /// Maps what a peer lends, if it is not mapped.
    pub fn map_loan(&mut self, loan: Loan) -> Borrowed {
        let Side::Taken(arrival) = loan.0 else { return Borrowed::Not };
        let found = self.node.borrow(arrival);
        if found == Borrowed::Wait {
            self.node.hear_from(arrival.neighbour(), self.now);
        }
        found
    }

    /// What was lent is lent no more; `mapped`: whether the other end could map it. At the end that maps: what is lent is used no more, and unmapped
    /// when its owner has taken it back.
    pub fn end_loan(&mut self, loan: Loan, mapped: bool) {
        match loan.0 {
            Side::Given(operation) => self.node.take_back(operation, mapped, self.now),
            // It is gone if its owner is.
            Side::Taken(arrival) => _ = self.node.refuse(arrival),
        }
    }

    /// Begins to copy bytes of a buffer, from its byte number `done` on, to that spot of a peer's loan, which is mapped; they are the bytes number
    /// `done` and on of the spot, too. One copy of a loan is under way at a time: [`Endpoint::has_copied`] polls for its end.
    ///
    /// # Errors
    /// [`CopyError`]: nothing is under way. [`CopyError::Busy`]: try again, after [`Endpoint::progress`].
    #[inline]
    pub fn put(
        &mut self,
        loan: Loan,
        to: Spot,
        from: &Buffer,
        (done, len): (u64, u64),
    ) -> Result<(), CopyError> {
        match loan.0 {
            Side::Taken(arrival) => self.node.put(arrival, to, from, (done, len)),
            Side::Given(_) => Err(CopyError::Closed),
        }
    }

    /// The same the other way round.
    ///
    /// # Errors
    /// [`CopyError`].
    #[inline]
    pub fn get(
        &mut self,
        loan: Loan,
        from: Spot,
        into: &Buffer,
        (done, len): (u64, u64),
    ) -> Result<(), CopyError> {
        match loan.0 {
            Side::Taken(arrival) => self.node.get(arrival, from, into, (done, len)),
            Side::Given(_) => Err(CopyError::Closed),
        }
    }

    /// Whether the copy of a loan that was begun last has ended: its bytes are there. Never waits.
    ///
    /// # Errors
    /// [`CopyError`]: the copy has failed; the target bytes have no meaning. After [`CopyError::Busy`] it is to be begun again.
    #[inline]
    pub fn has_copied(&mut self, loan: Loan) -> Result<bool, CopyError> {
        match loan.0 {
            Side::Taken(arrival) => self.node.has_copied(arrival),
            Side::Given(_) => Err(CopyError::Closed),
        }
    }
}
