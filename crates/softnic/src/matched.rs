//! The matched send of one link: sends that wait for a grant, grants that wait for a send, and receives that were, or
//! are to be, granted. Pairs in the order of posting for each key. Bounded by what may be posted.

use std::collections::VecDeque;

use trunkline_fabric::Extent;

use crate::job::Job;

/// A posted matched receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Where the bytes go.
    pub(crate) into: Extent,
    /// Pairs it.
    pub(crate) key: u64,
    /// Bytes placed.
    pub(crate) got: u64,
}

/// A matched send without its receive.
pub(crate) struct Send {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Whether it completes.
    pub(crate) signalled: bool,
    /// Pairs it.
    pub(crate) key: u64,
    /// What to do when there is a grant.
    pub(crate) job: Job,
}

/// Both halves of one link.
pub(crate) struct Matcher {
    /// Sends that wait, oldest first.
    pub(crate) sends: VecDeque<Send>,
    /// Grants that wait, oldest first: key and id.
    grants: VecDeque<(u64, u64)>,
    grants_max: usize,
    /// Receives by slot; an id is the generation of the slot above its number.
    receives: Vec<(u32, Option<Receive>)>,
    receives_max: usize,
    free: Vec<u32>,
    /// Ids of receives whose grants are still to be sent, oldest first.
    pub(crate) ungranted: VecDeque<u64>,
}

impl Matcher {
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
        }
    }

    /// The peer may have this many receives.
    pub(crate) fn set_grants(&mut self, max: u32) {
        self.grants_max = max as usize;
    }

    /// Posts a receive; false if there is no room.
    pub(crate) fn post_receive(&mut self, receive: Receive) -> bool {
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
        self.receives.push((0, None));
        Some(slot)
    }

    /// The receive with an id.
    pub(crate) fn receive(&mut self, id: u64) -> Option<&mut Receive> {
        // The low half is the slot.
        let entry = self.receives.get_mut((id & 0xffff_ffff) as usize)?;
        if u64::from(entry.0) != id >> 32 {
            return None;
        }
        entry.1.as_mut()
    }

    /// Ends the receive with an id.
    pub(crate) fn finish(&mut self, id: u64) -> Option<Receive> {
        self.receive(id)?;
        let slot = (id & 0xffff_ffff) as u32;
        let entry = self.receives.get_mut(slot as usize)?;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(slot);
        entry.1.take()
    }

    /// Ends any receive; for flushing.
    pub(crate) fn flush_receive(&mut self) -> Option<Receive> {
        let slot = self.receives.iter().position(|(_, receive)| receive.is_some())?;
        let id = u64::from(self.receives.get(slot)?.0) << 32 | slot as u64;
        self.finish(id)
    }

    /// A grant came: the oldest send with its key, now to go out; kept if there is none. `Err` if there are more than
    /// the peer can have.
    pub(crate) fn grant(&mut self, key: u64, id: u64) -> Result<Option<Send>, ()> {
        if let Some(found) = self.sends.iter().position(|send| send.key == key) {
            return Ok(self.sends.remove(found));
        }
        if self.grants.len() >= self.grants_max {
            return Err(());
        }
        self.grants.push_back((key, id));
        Ok(None)
    }

    /// A send is posted: the oldest grant with its key, if one waits.
    pub(crate) fn take_grant(&mut self, key: u64) -> Option<u64> {
        let found = self.grants.iter().position(|grant| grant.0 == key)?;
        self.grants.remove(found).map(|(_, id)| id)
    }
}
