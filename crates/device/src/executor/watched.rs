//! Signals that members raise in memory of this process, which are poisoned when a member is gone. The executor looks now and then.

use trunkline_device_queue::SlotLayout;
use trunkline_mem::{MemoryRange, OutOfMemory};
use trunkline_proto::reserve::try_grow;
use trunkline_proto::wire::device_queue::{EntryStatus, PoisonWord};

use super::QueueExecutor;
use crate::network::MemberNetwork;
use trunkline_engine::rma::MemberRank;

/// Signals that a member raises here.
#[derive(Debug)]
pub(super) struct WatchedSignals {
    member: MemberRank,
    memory: MemoryRange,
    slots: SlotLayout,
    count: u32,
}

impl<N: MemberNetwork> QueueExecutor<N> {
    /// A member raises these signals in this memory, or those of a region whose `words` it is: when it is gone they are poisoned.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn watch_signals(
        &mut self,
        member: MemberRank,
        memory: MemoryRange,
        slots: SlotLayout,
    ) -> Result<(), OutOfMemory> {
        try_grow(&mut self.watched, 1)?;
        let (SlotLayout::Bare { count, .. } | SlotLayout::Poisoned { count, .. }) = slots;
        self.watched.push(WatchedSignals { member, memory, slots, count });
        Ok(())
    }

    /// Nobody waits any more for signals in this memory.
    pub fn unwatch_memory(&mut self, memory: &MemoryRange) {
        self.watched.retain(|watched| watched.memory.addr() != memory.addr());
    }

    pub(super) fn poison_signals_of_dead_members(&mut self) {
        let Self { watched, jobs, .. } = self;
        watched.retain(|watched| {
            if !jobs.network_mut().is_gone(watched.member) {
                return true;
            }
            // No queue of this process has failed, so none is named.
            let word = PoisonWord { status: EntryStatus::PeerDead, queue: u32::MAX }.to_word();
            for slot in (0..watched.count).filter_map(|number| watched.slots.slot_at(number)) {
                if jobs.set_region_error_word(&watched.memory, slot.error, word) {
                    continue;
                }
                let _ = watched.memory.fetch_update(slot.error, |old| (old == 0).then_some(word));
            }
            false
        });
    }
}
