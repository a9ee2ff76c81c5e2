//! Signals that members raise in memory of this process. The executor polls the members' liveness periodically, and
//! poisons these signals when a member has died.

use trunkline_device_queue::SlotLayout;
use trunkline_mem::{MemoryRange, OutOfMemory};
use trunkline_proto::reserve::try_grow;
use trunkline_proto::wire::device_queue::{EntryStatus, PoisonWord};

use super::QueueExecutor;
use crate::network::MemberNetwork;
use trunkline_engine::rma::MemberRank;

/// Signals that one member raises here.
#[derive(Debug)]
pub(super) struct WatchedSignals {
    member: MemberRank,
    memory: MemoryRange,
    slots: SlotLayout,
    count: u32,
}

impl<N: MemberNetwork> QueueExecutor<N> {
    /// Registers signals that a member raises in `memory`, which may be the `words` of a region. They are poisoned when
    /// the member has died.
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

    /// Unregisters the signals in this memory: no thread waits for them any more.
    pub fn unwatch_memory(&mut self, memory: &MemoryRange) {
        self.watched.retain(|watched| watched.memory.addr() != memory.addr());
    }

    pub(super) fn poison_signals_of_dead_members(&mut self) {
        let Self { watched, jobs, .. } = self;
        watched.retain(|watched| {
            if !jobs.network_mut().is_gone(watched.member) {
                return true;
            }
            // No queue of this process has failed, so the poison names no queue.
            let word = PoisonWord { status: EntryStatus::PeerDead, queue: u32::MAX }.to_word();
            for slot in (0..watched.count).filter_map(|number| watched.slots.slot_at(number)) {
                if jobs.set_region_error_word(&watched.memory, slot.error, word) {
                    continue;
                }
                // The first failure is kept: it may explain more than the death of the member.
                let _ = watched.memory.fetch_update(slot.error, |old| (old == 0).then_some(word));
            }
            false
        });
    }
}
