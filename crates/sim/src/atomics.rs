//! Atomics executed by NICs. Called by the wire. If they are coherent with the CPU's, a word changes at once.
//! Otherwise a NIC caches it for a while, and CPU writes to it meanwhile are lost.

use trunkline_fabric::{OpStatus, RemoteLocation};

use crate::region_bytes::RequiredRight;
use crate::wire::NetworkEvent;
use crate::world::SimCore;

/// Longest time that a NIC caches a word.
const KEPT_TIME: u64 = 300_000;

/// A word that a NIC has read and not written back yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedWord {
    value: u64,
    until: u64,
}

impl SimCore {
    /// Executes atomic `seq` of link `from` at its target, `link`.
    pub(crate) fn execute_atomic(
        &mut self,
        link: usize,
        from: usize,
        seq: u64,
        at: RemoteLocation,
        change: impl Fn(u64) -> u64,
    ) {
        let range = self.remote_range(link, at, 8, RequiredRight::Atomic);
        if let Some((region, _)) = range {
            self.reveal_region(link, region);
        }
        let done = range.and_then(|(region, offset)| match self.weather.caps.coherent_atomics {
            true => self.change_at_once(region, offset, change),
            false => self.change_kept(region, offset, change),
        });
        match done {
            Some((old, until)) => {
                let bytes = old.to_le_bytes().to_vec();
                let at = self.answer_time(from).max(until);
                self.links[from].last_ack = self.links[from].last_ack.max(at);
                self.schedule_at(at, NetworkEvent::Reply { link: from, seq, bytes });
            }
            None => self.refuse_op(link, from, seq, OpStatus::RemoteAccess),
        }
    }

    fn change_at_once(
        &mut self,
        region: u64,
        offset: u64,
        change: impl Fn(u64) -> u64,
    ) -> Option<(u64, u64)> {
        let memory = &self.regions.get(&region)?.memory;
        let old = memory.load(offset).ok()?;
        memory.store(offset, change(old)).ok()?;
        Some((old, self.now))
    }

    fn change_kept(&mut self, region: u64, offset: u64, change: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
        if let Some(kept) = self.words.get_mut(&(region, offset)) {
            let old = kept.value;
            kept.value = change(old);
            return Some((old, kept.until));
        }
        let old = self.regions.get(&region)?.memory.load(offset).ok()?;
        let until = self.now + 1 + self.dice.below(KEPT_TIME);
        self.words.insert((region, offset), CachedWord { value: change(old), until });
        self.schedule_at(until, NetworkEvent::WriteBack { region, offset });
        Some((old, until))
    }

    /// Writes a cached word back.
    pub(crate) fn write_back(&mut self, region: u64, offset: u64) {
        let kept = self.words.remove(&(region, offset));
        if let Some((kept, region)) = kept.zip(self.regions.get(&region)) {
            // The word was read there, so the offset is valid.
            let _ = region.memory.store(offset, kept.value);
        }
    }
}
