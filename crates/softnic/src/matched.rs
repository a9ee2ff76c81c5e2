//! The matched operations of one link: sends that wait for a grant, grants that wait for a send, and receives that were, or
//! will be, granted. Pairs in the order of posting for each key. Its size is bounded by the posted operations.

use std::collections::VecDeque;

use trunkline_fabric::RegionExtent;
use trunkline_proto::table_capacity::try_hold_queue;

use crate::error::NakReason;
use crate::job::TransmitJob;

/// A posted matched receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchedReceive {
    /// The caller's number of the operation.
    pub(crate) wr_id: u64,
    /// The destination of the bytes.
    pub(crate) into: RegionExtent,
    /// Pairs it.
    pub(crate) key: u64,
    /// Bytes placed.
    pub(crate) got: u64,
}

/// A matched send without its receive.
pub(crate) struct UnmatchedSend {
    /// The caller's number of the operation.
    pub(crate) wr_id: u64,
    /// Whether it completes if it succeeds.
    pub(crate) signalled: bool,
    /// Pairs it.
    pub(crate) key: u64,
    /// The job to run once it has a grant.
    pub(crate) job: TransmitJob,
}

/// A receive that the peer has offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveGrant {
    /// Pairs it.
    pub(crate) key: u64,
    /// Bytes of room.
    pub(crate) len: u64,
    /// The peer's number of it.
    pub(crate) id: u64,
}

/// Matched sends and receives of one link.
pub(crate) struct LinkMatcher {
    /// Sends that wait, oldest first.
    pub(crate) sends: VecDeque<UnmatchedSend>,
    /// Grants that wait, oldest first.
    grants: VecDeque<ReceiveGrant>,
    grants_max: usize,
    /// Receives by slot; an id is the generation of the slot above its number.
    receives: Vec<(u32, Option<MatchedReceive>)>,
    receives_max: usize,
    free: Vec<u32>,
    /// Ids of receives whose grants have not been sent, oldest first.
    pub(crate) ungranted: VecDeque<u64>,
    /// Keys and ids of receives that were cancelled and whose grants the peer still has, oldest first. A slot becomes
    /// free when its revocation is sent.
    revoked: VecDeque<(u64, u64)>,
    /// Whether a receive was ever cancelled.
    takes_back: bool,
}

impl LinkMatcher {
    /// Creates a matcher for `receives` of this side. It allocates when more are posted than ever before.
    pub(crate) fn new(receives: u32) -> Self {
        Self {
            sends: VecDeque::new(),
            grants: VecDeque::new(),
            grants_max: 0,
            receives: Vec::new(),
            receives_max: receives as usize,
            free: Vec::new(),
            ungranted: VecDeque::new(),
            revoked: VecDeque::new(),
            takes_back: false,
        }
    }

    /// Sets how many receives the peer may have.
    pub(crate) fn set_grants(&mut self, max: u32) {
        self.grants_max = max as usize;
    }

    /// Posts a receive; false if there is no room, or no memory for it.
    pub(crate) fn post_receive(&mut self, receive: MatchedReceive) -> bool {
        if self.ungranted.try_reserve(1).is_err() {
            return false;
        }
        let Some(slot) = self.free.pop().or_else(|| self.new_slot()) else { return false };
        let Some(entry) = self.receives.get_mut(slot as usize) else { return false };
        entry.1 = Some(receive);
        let id = u64::from(entry.0) << 32 | u64::from(slot);
        self.ungranted.push_back(id);
        true
    }

    fn new_slot(&mut self) -> Option<u32> {
        let slot = u32::try_from(self.receives.len()).ok()?;
        if self.receives.len() >= self.receives_max {
            return None;
        }
        // Reserve room also in the lists that it enters when it ends, so that ending never allocates.
        let more = self.receives.len() + 1;
        self.free.try_reserve(more - self.free.len().min(more)).ok()?;
        self.revoked.try_reserve(more - self.revoked.len().min(more)).ok()?;
        self.receives.try_reserve(1).ok()?;
        self.receives.push((0, None));
        Some(slot)
    }

    /// Returns the receive with an id.
    pub(crate) fn find_receive(&mut self, id: u64) -> Option<&mut MatchedReceive> {
        // The low half is the slot.
        let entry = self.receives.get_mut((id & 0xffff_ffff) as usize)?;
        if u64::from(entry.0) != id >> 32 {
            return None;
        }
        entry.1.as_mut()
    }

    /// Ends the receive with an id.
    pub(crate) fn finish_receive(&mut self, id: u64) -> Option<MatchedReceive> {
        self.find_receive(id)?;
        let slot = (id & 0xffff_ffff) as u32;
        let entry = self.receives.get_mut(slot as usize)?;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(slot);
        entry.1.take()
    }

    /// Cancels the receive with that `wr_id`; false if there is none.
    pub(crate) fn take_receive_back(&mut self, wr_id: u64) -> bool {
        let mut receives = self.receives.iter_mut().enumerate();
        let found = receives.find_map(|(slot, (generation, receive))| {
            let taken = receive.take_if(|receive| receive.wr_id == wr_id)?;
            let id = u64::from(*generation) << 32 | slot as u64;
            *generation = generation.wrapping_add(1);
            Some((taken.key, id))
        });
        let Some((key, id)) = found else { return false };
        self.takes_back = true;
        match self.ungranted.iter().position(|&waiting| waiting == id) {
            // Slots are counted in 32 bits, here and below.
            Some(at) => {
                self.ungranted.remove(at);
                self.free.push(id as u32);
            }
            None => self.revoked.push_back((key, id)),
        }
        true
    }

    /// Cancels the send with that `wr_id`, if it still waits.
    pub(crate) fn take_send_back(&mut self, wr_id: u64) -> Option<UnmatchedSend> {
        let at = self.sends.iter().position(|send| send.wr_id == wr_id)?;
        self.sends.remove(at)
    }

    /// Returns the key and id of the oldest grant to be revoked.
    pub(crate) fn oldest_revocation(&self) -> Option<(u64, u64)> {
        self.revoked.front().copied()
    }

    /// Records that the oldest revocation was sent.
    pub(crate) fn was_revoked(&mut self) {
        if let Some((_, id)) = self.revoked.pop_front() {
            // Slots are counted in 32 bits.
            self.free.push(id as u32);
        }
    }

    /// Whether a grant or a revocation is to be sent.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.ungranted.is_empty() || !self.revoked.is_empty()
    }

    /// Whether this was the id of a receive that may have been cancelled, so that bytes for it are dropped.
    pub(crate) fn was_taken_back(&self, id: u64) -> bool {
        let slot = (id & 0xffff_ffff) as usize;
        let earlier = |&(now, _): &(u32, _)| (now.wrapping_sub((id >> 32) as u32) as i32) > 0;
        self.takes_back && self.receives.get(slot).is_some_and(earlier)
    }

    /// Removes a grant that the peer revokes; does nothing if a send has it.
    pub(crate) fn revoke_grant(&mut self, id: u64) {
        self.grants.retain(|grant| grant.id != id);
    }

    /// Removes any receive; for flushing.
    pub(crate) fn flush_receive(&mut self) -> Option<MatchedReceive> {
        let slot = self.receives.iter().position(|(_, receive)| receive.is_some())?;
        let id = u64::from(self.receives.get(slot)?.0) << 32 | slot as u64;
        self.finish_receive(id)
    }

    /// Returns the oldest send with the key of a received grant, to be sent now; keeps the grant if there is none.
    ///
    /// # Errors
    /// [`NakReason::Protocol`] if the peer has granted more receives than it has; [`NakReason::Memory`] if there is no memory to keep the grant.
    pub(crate) fn accept_grant(&mut self, grant: ReceiveGrant) -> Result<Option<UnmatchedSend>, NakReason> {
        if let Some(found) = self.sends.iter().position(|send| send.key == grant.key) {
            return Ok(self.sends.remove(found));
        }
        let held = self.grants.len();
        if held >= self.grants_max {
            return Err(NakReason::Protocol);
        }
        if let Err(refused) = try_hold_queue(&mut self.grants, held + 1) {
            return Err(refused.into());
        }
        self.grants.push_back(grant);
        Ok(None)
    }

    /// Returns the oldest grant with the key of a posted send, if one waits.
    pub(crate) fn take_grant(&mut self, key: u64) -> Option<ReceiveGrant> {
        let found = self.grants.iter().position(|grant| grant.key == key)?;
        self.grants.remove(found)
    }
}
