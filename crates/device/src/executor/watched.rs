//! Signals that members raise in memory of this process, which are poisoned when a member is gone. The executor looks now and then.

use trunkline_device_queue::Slots;
use trunkline_mem::{Memory, OutOfMemory};
use trunkline_proto::reserve::try_grow;
use trunkline_proto::wire::device_queue::{Poison, Status};

use super::Executor;
use crate::network::Network;
use trunkline_engine::rma::Member;

/// Signals that a member raises here.
#[derive(Debug)]
pub(super) struct Watched {
    member: Member,
    memory: Memory,
    slots: Slots,
    count: u32,
}

impl<N: Network> Executor<N> {
    /// A member raises these signals in this memory, or those of a region whose [`Region::words`] it is: when it is gone they are poisoned.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn watch(&mut self, member: Member, memory: Memory, slots: Slots) -> Result<(), OutOfMemory> {
        try_grow(&mut self.watched, 1)?;
        let (Slots::Bare { count, .. } | Slots::Poisoned { count, .. }) = slots;
        self.watched.push(Watched { member, memory, slots, count });
        Ok(())
    }

    /// Nobody waits any more for signals in this memory.
    pub fn unwatch(&mut self, memory: &Memory) {
        self.watched.retain(|watched| watched.memory.addr() != memory.addr());
    }

    pub(super) fn poison_signals_of_dead_members(&mut self) {
        let Self { watched, jobs, mutant, .. } = self;
        watched.retain(|watched| {
            if !jobs.network().is_gone(watched.member) || mutant.is("dev-waits-for-the-dead") {
                return true;
            }
            // No queue of this process has failed, so none is named.
            let word = Poison { status: Status::PeerDead, queue: u32::MAX }.to_word();
            for slot in (0..watched.count).filter_map(|number| watched.slots.slot(number)) {
                if jobs.poison_words(&watched.memory, slot.error, word) {
                    continue;
                }
                let _ = watched.memory.update(slot.error, |old| (old == 0).then_some(word));
            }
            false
        });
    }
}
