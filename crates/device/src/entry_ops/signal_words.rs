//! Words of signals and counters: additions in this process, and the error words of those that will not be raised. Called by
//! [`entry_ops`](super) and by the executor.

use std::time::Instant;

use trunkline_engine::rma::HeapAddress;
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{AtomicChange, EntryStatus, PeerAddress, PoisonWord};

use super::{EntryOps, OpOwner};
use crate::network::MemberNetwork;
use crate::region::EntryLocation;
use crate::remaining_work::{EntryPlan, RemainingWork, plan_write_back};

impl<N: MemberNetwork> EntryOps<N> {
    /// Sets an error word of a region that the CPU does not access, through its host memory. Returns whether there is such a region.
    pub fn set_region_error_word(&mut self, words: &MemoryRange, at: u64, poison: u64) -> bool {
        let heap = self.regions.of_words(words).map(|region| region.heap);
        heap.into_iter().for_each(|heap| self.set_own_error_word(heap, at, poison));
        heap.is_some()
    }

    /// Sets an error word of a region of this process, by its heap, for a failure that no entry names. If the CPU does not access the
    /// region, the word is copied to it like any other: kernels of this process poll it there.
    pub(super) fn set_own_error_word(&mut self, heap: u8, at: u64, word: u64) {
        let Some(region) = self.regions.of_heap(heap) else { return };
        let beside = region.words.as_ref();
        // Only the first failure is recorded.
        let _ = beside.unwrap_or(&region.memory).fetch_update(at, |old| (old == 0).then_some(word));
        let Some(words) = beside else { return };
        let Ok(rest) = plan_write_back(region.copies.as_ref(), words, &region.memory, at, 8) else {
            return;
        };
        if let Some(flight) = self.allocate_op(OpOwner::Nobody, rest) {
            self.advance_op(flight);
        }
    }

    /// Adds to a word in memory of this process, if that needs no other operation, and returns the old value.
    #[inline]
    pub(super) fn add_here(&self, at: PeerAddress, value: u64, poisoned: bool) -> Option<u64> {
        let len = if poisoned { 16 } else { 8 };
        match self.regions.locate_bytes(self.me, at.peer, at.key, at.addr, len).ok()? {
            // If NICs execute atomics, all atomics on a word must be theirs, as a NIC's atomics and the CPU's are not atomic to each other.
            // A word of a device's memory changes in its host memory, and needs a copy.
            EntryLocation::Here { memory, at, words: None, heap, .. }
                if heap.is_none() || self.network.can_execute_locally() =>
            {
                memory.fetch_add(at, value).ok()
            }
            _ => None,
        }
    }

    /// Raises a counter of this process. No caller awaits the outcome; if it fails, the counter is poisoned.
    pub(super) fn raise_word(&mut self, queue: u32, at: PeerAddress, value: u32, poisoned: bool) {
        let failed = |status| PoisonWord { status, queue };
        match self.plan_atomic(at, AtomicChange::Add(value.into()), poisoned) {
            Ok(EntryPlan::Done(_)) => {}
            Ok(EntryPlan::Changed(rest, _) | EntryPlan::Later(rest, _)) => {
                let Some(flight) = self.allocate_op(OpOwner::Nobody, rest) else { return };
                let error = self.regions.error_word(self.me, at.peer, at.key, at.addr, poisoned);
                if let (Some(flight), Some(error)) = (self.flights.get_mut(flight as usize), error) {
                    let word = failed(EntryStatus::Network).to_word();
                    let (heap, offset) = self.regions.resolve_place(self.me, at.peer, at.key, error);
                    flight.poison = Some((HeapAddress { member: at.peer, heap, offset }, word));
                }
                self.advance_op(flight);
            }
            // The region has been removed meanwhile.
            Err(status) => self.set_error_word(at, poisoned, failed(status)),
        }
    }

    /// Sets the error word of a word that will not be changed.
    pub(super) fn set_error_word(&mut self, at: PeerAddress, poisoned: bool, poison: PoisonWord) {
        let word = poison.to_word();
        let Some(error) = self.regions.error_word(self.me, at.peer, at.key, at.addr, poisoned) else {
            return;
        };
        match self.regions.locate_bytes(self.me, at.peer, at.key, error, 8) {
            Ok(EntryLocation::Here { memory, at, copies, words: Some(words), .. }) => {
                let _ = words.fetch_update(at, |old| (old == 0).then_some(word));
                let Ok(rest) = plan_write_back(copies, words, memory, at, 8) else { return };
                let Some(at) = self.allocate_op(OpOwner::Nobody, rest) else { return };
                self.advance_op(at);
            }
            Ok(EntryLocation::Here { memory, at, .. }) => {
                let _ = memory.fetch_update(at, |old| (old == 0).then_some(word));
            }
            Ok(
                EntryLocation::Reached { heap, at: offset, .. } | EntryLocation::There { heap, at: offset },
            ) => {
                let place = HeapAddress { member: at.peer, heap, offset };
                let action = AtomicAction::CompareSwap { expect: 0, swap: word };
                let rest = RemainingWork::Atomic { at: place, action, fetches: true };
                let Some(at) = self.allocate_op(OpOwner::Nobody, rest) else { return };
                if let Some(flight) = self.flights.get_mut(at as usize) {
                    flight.poison = Some((place, word));
                    // The link may have stalled. If so, `resend_late_error_words` uses the control stream.
                    self.poisons.push((at, flight.generation, Instant::now()));
                }
                self.advance_op(at);
            }
            // No such word exists, so no thread can wait for it.
            Err(_) => {}
        }
    }
}
