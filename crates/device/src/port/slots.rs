//! Words of signals and counters: what is added to them here, and the error words of those that will not be raised. Called by [`port`](super) and by the executor.

use std::time::Instant;

use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Atomic, Poison, Remote, Status};

use super::{Jobs, Whose};
use crate::network::{Network, Place};
use crate::region::Found;
use crate::rest::{Ready, Rest, bring};

impl<N: Network> Jobs<N> {
    /// Sets an error word of a region of this process that the CPU does not touch, by its bytes of the host. Whether there is such a region.
    pub fn poison_words(&mut self, words: &Memory, at: u64, poison: u64) -> bool {
        let heap = self.regions.of_words(words).map(|region| region.heap);
        heap.into_iter().for_each(|heap| self.poison_own(heap, at, poison));
        heap.is_some()
    }

    /// Sets an error word of a region of this process, by its heap, where no entry says it. Where the CPU does not touch the region, the word is brought
    /// to it as any other: kernels of this process wait there.
    pub(super) fn poison_own(&mut self, heap: u8, at: u64, word: u64) {
        let Some(region) = self.regions.of_heap(heap) else { return };
        let beside = region.words.as_ref();
        let _ = beside.unwrap_or(&region.memory).update(at, |old| (old == 0).then_some(word));
        let is_brought = !self.mutant.is("dev-poisons-only-the-shadow");
        let Some(words) = beside.filter(|_| is_brought) else { return };
        let Ok(rest) = bring(region.copies.as_ref(), words, &region.memory, (at, 8)) else { return };
        if let Some(flight) = self.launch(Whose::Nobody, rest) {
            self.advance(flight);
        }
    }

    /// Adds to a word in memory of this process, if that takes nothing else: what it was.
    #[inline]
    pub(super) fn add_here(&self, at: Remote, value: u64, poisoned: bool) -> Option<u64> {
        let len = if poisoned { 16 } else { 8 };
        match self.regions.find(self.me, at.peer, at.key, at.addr, len).ok()? {
            // Where NICs execute atomics, all of a word's are theirs; and of a device's memory the host changes its own bytes.
            Found::Here { memory, at, words: None, heap, .. }
                if heap.is_none() || self.network.executes() =>
            {
                memory.add(at, value).ok()
            }
            _ => None,
        }
    }

    /// Raises a counter of this process. Nothing waits for its end, but if it fails the counter is poisoned.
    pub(super) fn raise(&mut self, queue: u32, at: Remote, value: u32, poisoned: bool) {
        let failed = |status| Poison { status, queue };
        match self.look_at_atomic(at, Atomic::Add(value.into()), poisoned) {
            Ok(Ready::Done(_)) => {}
            Ok(Ready::Changed(rest, _) | Ready::Later(rest, _)) => {
                let Some(flight) = self.launch(Whose::Nobody, rest) else { return };
                let error = self.regions.error_word(self.me, at.peer, at.key, at.addr, poisoned);
                if let (Some(flight), Some(error)) = (self.flights.get_mut(flight as usize), error) {
                    let word = failed(Status::Network).to_word();
                    let (heap, offset) = self.regions.place(self.me, at.peer, at.key, error);
                    flight.poison = Some((Place { member: at.peer, heap, offset }, word));
                }
                self.advance(flight);
            }
            // The region has ended meanwhile.
            Err(status) => self.poison(at, poisoned, failed(status)),
        }
    }

    /// Sets the error word of what will not be changed.
    pub(super) fn poison(&mut self, at: Remote, poisoned: bool, poison: Poison) {
        let word = poison.to_word();
        let Some(error) = self.regions.error_word(self.me, at.peer, at.key, at.addr, poisoned) else {
            return;
        };
        match self.regions.find(self.me, at.peer, at.key, error, 8) {
            Ok(Found::Here { memory, at, copies, words: Some(words), .. }) => {
                let _ = words.update(at, |old| (old == 0).then_some(word));
                let Ok(rest) = bring(copies, words, memory, (at, 8)) else { return };
                let Some(at) = self.launch(Whose::Nobody, rest) else { return };
                self.advance(at);
            }
            Ok(Found::Here { memory, at, .. }) => {
                let _ = memory.update(at, |old| (old == 0).then_some(word));
            }
            Ok(Found::Reached { heap, at: offset, .. } | Found::There { heap, at: offset }) => {
                let place = Place { member: at.peer, heap, offset };
                let action = Action::CompareSwap { expect: 0, swap: word };
                let rest = Rest::Atomic { at: place, action, fetches: true };
                let Some(at) = self.launch(Whose::Nobody, rest) else { return };
                if let Some(flight) = self.flights.get_mut(at as usize) {
                    flight.poison = Some((place, word));
                    self.poisons.push((at, flight.generation, Instant::now()));
                }
                self.advance(at);
            }
            // No such word: nobody can wait for it.
            Err(_) => {}
        }
    }
}
