//! The work that an entry asks for: done at once where both ends are in this process, else returned to be begun. Called by [`port`](super) for each entry that it
//! executes; begins nothing itself.

use trunkline_engine::rma::HeapAddress;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryStatus, EntryWork, LocalAddress, PeerAddress, QueueEntry,
};

use super::{EntryOps, UNSUPPORTED};
use crate::network::MemberNetwork;
use crate::region::EntryLocation;
use crate::remaining_work::{EntryPlan, RemainingWork, plan_copy, plan_get, plan_put, plan_write_back};

impl<N: MemberNetwork> EntryOps<N> {
    /// Looks at an entry: done at once where both ends are in this process, else what is to be begun.
    pub(super) fn plan_entry(&self, entry: &QueueEntry) -> Result<EntryPlan, EntryStatus> {
        match entry.work {
            EntryWork::Nop | EntryWork::Barrier | EntryWork::Wait { .. } | EntryWork::Show => {
                Ok(EntryPlan::Done(0))
            }
            EntryWork::Write { imm: Some(_), .. } | EntryWork::Notify { .. } => Err(UNSUPPORTED),
            EntryWork::Write { from, to, len, imm: None } => self.plan_write(from, to, len),
            EntryWork::WriteCounted { from, to, len, counter, key, poisoned, .. } => {
                // A counter that cannot be raised is found before anything is written.
                let (counted, counter) =
                    self.regions.find_local(key, counter, if poisoned { 16 } else { 8 })?;
                let is_word = (counted.memory.addr() as u64).wrapping_add(counter).is_multiple_of(8);
                if !is_word {
                    return Err(EntryStatus::Access);
                }
                // Memory of a device, of which the host has no words: nothing here can add to it.
                let has_words = counted.words.is_some() || counted.memory.atomic_word(counter).is_ok();
                if !has_words {
                    return Err(EntryStatus::Access);
                }
                self.plan_write(from, to, len.into())
            }
            EntryWork::WriteInline { bytes, to } => {
                let len = bytes.as_bytes().len() as u64;
                match self.regions.locate_bytes(self.me, to.peer, to.key, to.addr, len)? {
                    _ if len == 0 => Ok(EntryPlan::Done(0)),
                    EntryLocation::Here { memory, at, copies, words: Some(words), .. } => {
                        words.write(at, bytes.as_bytes()).map_err(|_| EntryStatus::Access)?;
                        Ok(EntryPlan::Later(plan_write_back(copies, words, memory, at, len)?, None))
                    }
                    EntryLocation::Here { memory, at, .. } => {
                        memory.write(at, bytes.as_bytes()).map_err(|_| EntryStatus::Access)?;
                        Ok(EntryPlan::Done(0))
                    }
                    // The bytes are no longer there once the entry is executed, so no copy of the device can take them.
                    EntryLocation::Reached { heap, at, .. } | EntryLocation::There { heap, at } => {
                        let to = HeapAddress { member: to.peer, heap, offset: at };
                        Ok(EntryPlan::Later(RemainingWork::Inline { to, bytes }, None))
                    }
                }
            }
            EntryWork::Read { into, from, len } => {
                let (target, into) = self.regions.find_local(into.key, into.addr, len)?;
                let to = MemoryLocation { memory: &target.memory, offset: into };
                match self.regions.locate_bytes(self.me, from.peer, from.key, from.addr, len)? {
                    _ if len == 0 => Ok(EntryPlan::Done(0)),
                    EntryLocation::Here { memory, at, copies, .. } => {
                        let from = MemoryLocation { memory, offset: at };
                        plan_copy(target.copies.as_ref().or(copies), from, to, len)
                    }
                    EntryLocation::Reached { memory, at, copies, .. } => {
                        plan_copy(Some(copies), MemoryLocation { memory, offset: at }, to, len)
                    }
                    EntryLocation::There { heap, at } => {
                        let from = HeapAddress { member: from.peer, heap, offset: at };
                        Ok(plan_get(target, into, from, len))
                    }
                }
            }
            EntryWork::Atomic { at, change, poisoned } => self.plan_atomic(at, change, poisoned),
        }
    }

    #[inline]
    fn plan_write(&self, from: LocalAddress, to: PeerAddress, len: u64) -> Result<EntryPlan, EntryStatus> {
        let (source, from) = self.regions.find_local(from.key, from.addr, len)?;
        let found = self.regions.locate_bytes(self.me, to.peer, to.key, to.addr, len)?;
        let from_bytes = MemoryLocation { memory: &source.memory, offset: from };
        match found {
            _ if len == 0 => Ok(EntryPlan::Done(0)),
            EntryLocation::Here { memory, at, copies, .. } => {
                let to_bytes = MemoryLocation { memory, offset: at };
                plan_copy(source.copies.as_ref().or(copies), from_bytes, to_bytes, len)
            }
            EntryLocation::Reached { memory, at, copies, .. } => {
                plan_copy(Some(copies), from_bytes, MemoryLocation { memory, offset: at }, len)
            }
            EntryLocation::There { heap, at } => {
                let to = HeapAddress { member: to.peer, heap, offset: at };
                Ok(plan_put(source, from, to, len))
            }
        }
    }

    pub(super) fn plan_atomic(
        &self,
        word: PeerAddress,
        change: AtomicChange,
        poisoned: bool,
    ) -> Result<EntryPlan, EntryStatus> {
        let len = if poisoned { 16 } else { 8 };
        let (heap, offset) = match self.regions.locate_bytes(self.me, word.peer, word.key, word.addr, len)? {
            // Of a device's memory the host changes its own bytes, and brings them there.
            EntryLocation::Here { memory, at, copies, words: Some(words), .. } => {
                let old = words
                    .fetch_update(at, |old| Some(change.apply_to(old)))
                    .map_err(|_| EntryStatus::Access)?;
                let value = if change.is_fetching() { old } else { 0 };
                return Ok(EntryPlan::Changed(plan_write_back(copies, words, memory, at, 8)?, value));
            }
            // Where NICs execute atomics, all of a word's are theirs.
            EntryLocation::Here { heap: Some(heap), at, .. } if !self.network.can_execute_locally() => {
                (heap, at)
            }
            EntryLocation::Here { memory, at, .. } => {
                let changed = match change {
                    AtomicChange::Add(value) => memory.fetch_add(at, value),
                    _ => memory.fetch_update(at, |old| Some(change.apply_to(old))),
                };
                let old = changed.map_err(|_| EntryStatus::Access)?;
                return Ok(EntryPlan::Done(if change.is_fetching() { old } else { 0 }));
            }
            EntryLocation::Reached { heap, at, .. } | EntryLocation::There { heap, at } => (heap, at),
        };
        let place = HeapAddress { member: word.peer, heap, offset };
        let atomic = |action, fetches| RemainingWork::Atomic { at: place, action, fetches };
        Ok(match change {
            AtomicChange::Add(value) => EntryPlan::Later(atomic(AtomicAction::Add(value), true), None),
            AtomicChange::Set(value) => EntryPlan::Later(atomic(AtomicAction::Set(value), false), None),
            AtomicChange::SwapIf { expect, swap } => {
                EntryPlan::Later(atomic(AtomicAction::CompareSwap { expect, swap }, true), None)
            }
            // No network has these: they read the word and exchange it until nobody came in between.
            AtomicChange::Max(_) | AtomicChange::AddMasked { .. } => {
                EntryPlan::Later(atomic(AtomicAction::Fetch, true), Some((place, change, None)))
            }
        })
    }
}
