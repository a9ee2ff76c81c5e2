//! The matched send of one link: sends that wait for a grant, grants that wait for a send, and receives that were, or
//! are to be, granted. Pairs in the order of posting for each key. Bounded by what may be posted.

use std::collections::VecDeque;

use trunkline_fabric::RegionExtent;
use trunkline_proto::table_capacity::try_hold_queue;

use crate::error::NakReason;
use crate::job::TransmitJob;

/// A posted matched receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchedReceive {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Where the bytes go.
    pub(crate) into: RegionExtent,
    /// Pairs it.
    pub(crate) key: u64,
    /// Bytes placed.
    pub(crate) got: u64,
}

/// A matched send without its receive.
pub(crate) struct UnmatchedSend {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Whether it completes.
    pub(crate) signalled: bool,
    /// Pairs it.
    pub(crate) key: u64,
    /// What to do when there is a grant.
    pub(crate) job: TransmitJob,
}

/// A receive of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveGrant {
    /// Pairs it.
    pub(crate) key: u64,
    /// Bytes of room.
    pub(crate) len: u64,
    /// What the peer calls it.
    pub(crate) id: u64,
}

/// Both halves of one link.
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
    /// Ids of receives whose grants are still to be sent, oldest first.
    pub(crate) ungranted: VecDeque<u64>,
    /// Keys and ids of receives that were taken back and whose grants the peer still has, oldest first. Their slots become
    /// free when it is told.
    revoked: VecDeque<(u64, u64)>,
    /// Some receive was taken back.
    takes_back: bool,
}

impl LinkMatcher {
    /// For `receives` of this side. Room is made when there are more than ever before.
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

    /// The peer may have this many receives.
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
        // Room for it where it goes when it ends, too.
        let more = self.receives.len() + 1;
        self.free.try_reserve(more - self.free.len().min(more)).ok()?;
        self.revoked.try_reserve(more - self.revoked.len().min(more)).ok()?;
        self.receives.try_reserve(1).ok()?;
        self.receives.push((0, None));
        Some(slot)
    }

    /// The receive with an id.
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

    /// Takes back the receive with that `wr_id`; false if there is none.
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

    /// Takes back the send with that `wr_id`, if it still waits.
    pub(crate) fn take_send_back(&mut self, wr_id: u64) -> Option<UnmatchedSend> {
        let at = self.sends.iter().position(|send| send.wr_id == wr_id)?;
        self.sends.remove(at)
    }

    /// The oldest grant that the peer is to forget: its key and id.
    pub(crate) fn oldest_revocation(&self) -> Option<(u64, u64)> {
        self.revoked.front().copied()
    }

    /// The peer was told so.
    pub(crate) fn was_revoked(&mut self) {
        if let Some((_, id)) = self.revoked.pop_front() {
            // Slots are counted in 32 bits.
            self.free.push(id as u32);
        }
    }

    /// Whether there is something to tell the peer.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.ungranted.is_empty() || !self.revoked.is_empty()
    }

    /// Whether this was the id of a receive that may have been taken back, so that bytes for it go nowhere.
    pub(crate) fn was_taken_back(&self, id: u64) -> bool {
        let slot = (id & 0xffff_ffff) as usize;
        let earlier = |&(now, _): &(u32, _)| (now.wrapping_sub((id >> 32) as u32) as i32) > 0;
        self.takes_back && self.receives.get(slot).is_some_and(earlier)
    }

    /// The peer takes a grant back; nothing, if a send has it.
    pub(crate) fn revoke_grant(&mut self, id: u64) {
        self.grants.retain(|grant| grant.id != id);
    }

    /// Ends any receive; for flushing.
    pub(crate) fn flush_receive(&mut self) -> Option<MatchedReceive> {
        let slot = self.receives.iter().position(|(_, receive)| receive.is_some())?;
        let id = u64::from(self.receives.get(slot)?.0) << 32 | slot as u64;
        self.finish_receive(id)
    }

    /// A grant came: the oldest send with its key, now to go out; kept if there is none.
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

    /// A send is posted: the oldest grant with its key, if one waits.
    pub(crate) fn take_grant(&mut self, key: u64) -> Option<ReceiveGrant> {
        let found = self.grants.iter().position(|grant| grant.key == key)?;
        self.grants.remove(found)
    }
}
