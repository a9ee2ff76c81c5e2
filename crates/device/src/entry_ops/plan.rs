//! Plans the work of an entry: it is done at once if both ends are in this process, and otherwise returned. Called by [`entry_ops`](super) for
//! each entry that it executes; it begins nothing itself.

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
    /// Plans an entry: completes it if both ends are in this process, and otherwise returns the work to begin.
    pub(super) fn plan_entry(&self, entry: &QueueEntry) -> Result<EntryPlan, EntryStatus> {
        match entry.work {
            EntryWork::Nop | EntryWork::Barrier | EntryWork::Wait { .. } | EntryWork::Show => {
                Ok(EntryPlan::Done(0))
            }
            EntryWork::Write { imm: Some(_), .. } | EntryWork::Notify { .. } => Err(UNSUPPORTED),
            EntryWork::Write { from, to, len, imm: None } => self.plan_write(from, to, len),
            EntryWork::WriteCounted { from, to, len, counter, key, poisoned, .. } => {
                // A counter that cannot be raised must fail the entry before any byte is written.
                let (counted, counter) =
                    self.regions.find_local(key, counter, if poisoned { 16 } else { 8 })?;
                let is_word = (counted.memory.addr() as u64).wrapping_add(counter).is_multiple_of(8);
                if !is_word {
                    return Err(EntryStatus::Access);
                }
                // The counter is in memory of a device without host memory for its words, so the host cannot add to it.
                let has_words = counted.words.is_some() || counted.memory.atomic_word(counter).is_ok();
                if !has_words {
                    return Err(EntryStatus::Access);
                }
                self.plan_write(from, to, len.into())
            }
            EntryWork::WriteInline { bytes, to } => {
                let len = bytes.as_bytes().len() as u64;
                match self.regions.locate_bytes(self.me, to.peer, to.key, to.addr, len)? {
                    // An empty transfer is checked like any other, but needs no operation.
                    _ if len == 0 => Ok(EntryPlan::Done(0)),
                    EntryLocation::Here { memory, at, copies, words: Some(words), .. } => {
                        words.write(at, bytes.as_bytes()).map_err(|_| EntryStatus::Access)?;
                        Ok(EntryPlan::Later(plan_write_back(copies, words, memory, at, len)?, None))
                    }
                    EntryLocation::Here { memory, at, .. } => {
                        memory.write(at, bytes.as_bytes()).map_err(|_| EntryStatus::Access)?;
                        Ok(EntryPlan::Done(0))
                    }
                    // Inline bytes exist only in the entry, whose place may be reused, so an asynchronous copy by the device could not read
                    // them. The network sends them.
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
            // A word of a device's memory is changed in its host memory, and copied to the device from there.
            EntryLocation::Here { memory, at, copies, words: Some(words), .. } => {
                let old = words
                    .fetch_update(at, |old| Some(change.apply_to(old)))
                    .map_err(|_| EntryStatus::Access)?;
                let value = if change.is_fetching() { old } else { 0 };
                return Ok(EntryPlan::Changed(plan_write_back(copies, words, memory, at, 8)?, value));
            }
            // If NICs execute atomics, all atomics on a word must be theirs.
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
            // No network has these operations: they read the word, then compare and swap until no other change intervenes.
            AtomicChange::Max(_) | AtomicChange::AddMasked { .. } => {
                EntryPlan::Later(atomic(AtomicAction::Fetch, true), Some((place, change, None)))
            }
        })
    }
}
