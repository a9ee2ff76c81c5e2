//! Creates windows: each rank sends all others a card of its part, maps their parts, and agrees with them which parts
//! are mapped. Called by `window`; no data is copied here.

use std::collections::VecDeque;

use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::BorrowStatus;
use trunkline_node::tagged::{LendOutcome, MemoryLoan};
use trunkline_proto::reserve::{try_deque, try_filled, try_vec};
use trunkline_proto::wire::ipc::ExportName;
use trunkline_proto::wire::window::{CARD_BYTES, PartCard, WindowPart as Given};

use super::{
    HostWindow, LiveWindow, MAPPED_MAX, PENDING_MAX, PartReach, PeerPart, PendingAccess, WINDOWS_MAX,
};
use crate::messages::{Buffer, MessageError, Messages};

/// The card of a rank that cannot create the window.
const REFUSED: PartCard = PartCard { len: 0, part: Given::Refused };

/// A window that is being created. All memory of a rank for it is allocated before the ranks agree, so that a rank
/// without memory refuses, and no rank waits for it.
pub(super) struct WindowSetup {
    lent: Vec<(usize, MemoryLoan)>,
    name: Option<ExportName>,
    /// The loans that other ranks granted.
    taken: Box<[Option<MemoryLoan>]>,
    cards: Box<[Option<PartCard>]>,
    /// The cards of this rank for each other rank.
    told: Box<[PartCard]>,
    /// Whether this rank has mapped the part of each rank.
    have: Box<[bool]>,
    /// Whether each rank has mapped this rank's part.
    mapped: Box<[bool]>,
    parts: Box<[PeerPart]>,
    pending: VecDeque<PendingAccess>,
    ends: Buffer,
}

impl WindowSetup {
    pub(super) fn new(size: usize) -> Result<Self, MessageError> {
        Ok(Self {
            lent: try_vec(size)?,
            name: None,
            taken: try_filled(None, size)?,
            cards: try_filled(None, size)?,
            told: try_filled(REFUSED, size)?,
            have: try_filled(false, size)?,
            mapped: try_filled(false, size)?,
            parts: try_filled(PeerPart { len: 0, reach: PartReach::Far }, size)?,
            pending: try_deque(PENDING_MAX)?,
            ends: Buffer::private(PENDING_MAX)?,
        })
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Sends all near ranks that this rank cannot create the window for lack of memory, and receives their cards.
    pub(super) fn refuse_window(&mut self, call: u64) -> Result<(), MessageError> {
        let near = self.near_ranks();
        self.send_to_all(call, &near, |_| REFUSED.to_bytes())?;
        near.iter().try_for_each(|rank| self.receive_from(call, *rank, &mut [0; CARD_BYTES]))
    }

    pub(super) fn make_window(
        &mut self,
        call: u64,
        buffer: &Buffer,
        making: &mut WindowSetup,
    ) -> Result<HostWindow, MessageError> {
        let near = self.near_ranks();
        let is_there = buffer.is_empty() || buffer.ipc_buffer().is_there(self.memory());
        let is_full = self.windows.live.len() >= WINDOWS_MAX;
        let refused = !buffer.ipc_buffer().rows().is_whole() || !is_there || is_full;
        if !refused {
            making.told.fill(PartCard { len: buffer.len() as u64, part: Given::Asked });
        }
        if !refused && !buffer.is_empty() {
            self.lend_to_all(&near, buffer, making)?;
        }
        let mut bytes = [0; CARD_BYTES];
        self.send_to_all(call, &near, |rank| making.told[rank].to_bytes())?;
        for rank in near.iter() {
            self.receive_from(call, *rank, &mut bytes)?;
            let card = PartCard::from_bytes(&bytes);
            making.cards[*rank] = Some(card.map_err(|error| MessageError::Window { rank: *rank, error })?);
        }
        let refuses =
            |rank: &usize| matches!(making.cards[*rank], Some(PartCard { part: Given::Refused, .. }));
        if let Some(rank) = refused.then_some(self.rank).or_else(|| near.iter().copied().find(refuses)) {
            return Err(MessageError::NoWindow { rank });
        }
        for rank in near.iter() {
            if let Some(PartCard { part: Given::Mapped(reference), .. }) = making.cards[*rank] {
                let peer = self.peer_id(*rank)?;
                making.taken[*rank] = self.endpoint.borrow(peer, &reference);
            }
        }
        self.decide_parts(call, &near, buffer, making)?;
        let parts = std::mem::take(&mut making.parts);
        let pending = std::mem::take(&mut making.pending);
        self.count_made(&parts);
        let lent = std::mem::take(&mut making.lent);
        let name = making.name;
        let ends = making.ends.clone();
        let served = name.is_none() && !buffer.is_empty() && !near.is_empty();
        let own = buffer.clone();
        self.windows.live.push(LiveWindow { call, own, lent, name, served, pending, ends });
        self.update_access_receive();
        Ok(HostWindow { call, parts })
    }

    /// Lends a buffer to each near rank, or to none of them.
    fn lend_to_all(
        &mut self,
        near: &[usize],
        buffer: &Buffer,
        making: &mut WindowSetup,
    ) -> Result<(), MessageError> {
        let mapped = self.windows.live.iter().filter(|live| live.name.is_some()).count();
        for rank in near {
            let peer = self.peer_id(*rank)?;
            let lent = self.wait_until(|one| {
                Ok(match one.endpoint.lend_buffer(peer, buffer.ipc_buffer()) {
                    _ if mapped >= MAPPED_MAX => Some(None),
                    Ok(LendOutcome::Lent(loan, reference)) => Some(Some((loan, reference))),
                    Ok(LendOutcome::Busy) => None,
                    Ok(LendOutcome::Not) => Some(None),
                    Err(error) => return Err(MessageError::from(error).with_rank(*rank)),
                })
            })?;
            let Some((loan, reference)) = lent else {
                // Loans to earlier ranks are ended as if those ranks could not map them: a part is mapped by all
                // ranks or by none.
                making.told.iter_mut().for_each(|card| card.part = Given::Asked);
                self.end_loans(making, |_| true);
                making.lent.clear();
                making.name = None;
                return Ok(());
            };
            making.lent.push((*rank, loan));
            making.name = Some(reference.name);
            making.told[*rank].part = Given::Mapped(reference);
        }
        Ok(())
    }

    /// Decides which parts are mapped, with the same result at all ranks: a part is mapped if its owner lends it and
    /// all other ranks have mapped it.
    fn decide_parts(
        &mut self,
        call: u64,
        near: &[usize],
        buffer: &Buffer,
        making: &mut WindowSetup,
    ) -> Result<(), MessageError> {
        for rank in near {
            let Some(loan) = making.taken[*rank] else { continue };
            let found = self.wait_until(|one| {
                let found = one.endpoint.map_loan(loan);
                Ok((found != BorrowStatus::Wait).then_some(found))
            })?;
            making.have[*rank] = found == BorrowStatus::Mapped;
        }
        self.send_to_all(call, near, |rank| [u8::from(making.have[rank])])?;
        let mut word = [0];
        for rank in near {
            self.receive_from(call, *rank, &mut word)?;
            making.mapped[*rank] = word == [1];
        }
        let mine = !making.lent.is_empty() && near.iter().all(|rank| making.mapped[*rank]);
        self.send_to_all(call, near, |_| [u8::from(mine)])?;
        for rank in near {
            self.receive_from(call, *rank, &mut word)?;
            let agreed = word == [1];
            let loan = making.taken[*rank].filter(|_| agreed);
            let reach = loan.map_or(PartReach::Asked, PartReach::Mapped);
            making.parts[*rank] = PeerPart { len: making.cards[*rank].map_or(0, |card| card.len), reach };
        }
        making.parts[self.rank] = PeerPart { len: buffer.len() as u64, reach: PartReach::Own };
        // A loan that a rank could not map is ended as unmapped, so that this rank does not export to it again for a
        // while.
        if !mine {
            self.end_lent_loans(making, |rank| making.mapped[rank]);
            making.lent.clear();
            making.name = None;
        }
        for (loan, part) in making.taken.iter_mut().zip(&making.parts) {
            if let Some(loan) = loan.take_if(|_| matches!(part.reach, PartReach::Asked)) {
                self.endpoint.end_loan(loan, false);
            }
        }
        Ok(())
    }

    fn count_made(&mut self, parts: &[PeerPart]) {
        let counts = &mut self.windows.counts;
        counts.made += 1;
        counts.mapped +=
            parts.iter().filter(|part| matches!(part.reach, PartReach::Mapped(_))).count() as u64;
        let asked = |part: &&PeerPart| matches!(part.reach, PartReach::Asked) && part.len > 0;
        counts.asked += parts.iter().filter(asked).count() as u64;
    }

    /// Ends the loans that this rank granted, and those that it received.
    pub(super) fn end_loans(&mut self, making: &WindowSetup, mapped: impl Fn(usize) -> bool) {
        self.end_lent_loans(making, mapped);
        for loan in making.taken.iter().flatten() {
            self.endpoint.end_loan(*loan, false);
        }
    }

    fn end_lent_loans(&mut self, making: &WindowSetup, mapped: impl Fn(usize) -> bool) {
        for (rank, loan) in &making.lent {
            self.endpoint.end_loan(*loan, mapped(*rank));
        }
    }
}
