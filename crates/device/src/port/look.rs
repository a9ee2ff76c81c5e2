//! The work that an entry asks for: done at once where both ends are in this process, else returned to be begun. Called by [`port`](super) for each entry that it
//! executes; begins nothing itself.

use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Atomic, Entry, Local, Remote, Status, Work};

use super::{Jobs, UNSUPPORTED};
use crate::network::{Network, Place};
use crate::region::Found;
use crate::rest::{Ready, Rest, bring, copy, get, put};

impl<N: Network> Jobs<N> {
    /// Looks at an entry: done at once where both ends are in this process, else what is to be begun.
    pub(super) fn look(&self, entry: &Entry) -> Result<Ready, Status> {
        match entry.work {
            Work::Nop | Work::Barrier | Work::Wait { .. } | Work::Show => Ok(Ready::Done(0)),
            Work::Write { imm: Some(_), .. } | Work::Notify { .. } => Err(UNSUPPORTED),
            Work::Write { from, to, len, imm: None } => self.look_at_write(from, to, len),
            Work::WriteCounted { from, to, len, counter, key, poisoned, .. } => {
                // A counter that cannot be raised is found before anything is written.
                let (counted, counter) = self.regions.here(key, counter, if poisoned { 16 } else { 8 })?;
                let is_word = (counted.memory.addr() as u64).wrapping_add(counter).is_multiple_of(8);
                if !is_word && !self.mutant.is("dev-counts-anywhere") {
                    return Err(Status::Access);
                }
                // Memory of a device, of which the host has no words: nothing here can add to it.
                let has_words = counted.words.is_some() || counted.memory.word(counter).is_ok();
                if is_word && !has_words && !self.mutant.is("dev-counts-in-silence") {
                    return Err(Status::Access);
                }
                self.look_at_write(from, to, len.into())
            }
            Work::WriteInline { bytes, to } => {
                let len = bytes.bytes().len() as u64;
                match self.regions.find(self.me, to.peer, to.key, to.addr, len)? {
                    _ if len == 0 => Ok(Ready::Done(0)),
                    Found::Here { memory, at, copies, words: Some(words), .. } => {
                        words.write(at, bytes.bytes()).map_err(|_| Status::Access)?;
                        Ok(Ready::Later(bring(copies, words, memory, (at, len))?, None))
                    }
                    Found::Here { memory, at, .. } => {
                        memory.write(at, bytes.bytes()).map_err(|_| Status::Access)?;
                        Ok(Ready::Done(0))
                    }
                    // The bytes are no longer there once the entry is executed, so no copy of the device can take them.
                    Found::Reached { heap, at, .. } | Found::There { heap, at } => {
                        let to = Place { member: to.peer, heap, offset: at };
                        Ok(Ready::Later(Rest::Inline { to, bytes }, None))
                    }
                }
            }
            Work::Read { into, from, len } => {
                let (target, into) = self.regions.here(into.key, into.addr, len)?;
                match self.regions.find(self.me, from.peer, from.key, from.addr, len)? {
                    _ if len == 0 => Ok(Ready::Done(0)),
                    Found::Here { memory, at, copies, .. } => {
                        copy(target.copies.as_ref().or(copies), (memory, at), (&target.memory, into), len)
                    }
                    Found::Reached { memory, at, copies, .. } => {
                        copy(Some(copies), (memory, at), (&target.memory, into), len)
                    }
                    Found::There { heap, at } => {
                        let from = Place { member: from.peer, heap, offset: at };
                        Ok(get(target, into, from, len))
                    }
                }
            }
            Work::Atomic { at, change, poisoned } => self.look_at_atomic(at, change, poisoned),
        }
    }

    #[inline]
    fn look_at_write(&self, from: Local, to: Remote, len: u64) -> Result<Ready, Status> {
        let (source, from) = self.regions.here(from.key, from.addr, len)?;
        let found = self.regions.find(self.me, to.peer, to.key, to.addr, len)?;
        let from_bytes = (&source.memory, from);
        match found {
            _ if len == 0 => Ok(Ready::Done(0)),
            Found::Here { memory, at, copies, .. } => {
                copy(source.copies.as_ref().or(copies), from_bytes, (memory, at), len)
            }
            Found::Reached { memory, at, copies, .. } => copy(Some(copies), from_bytes, (memory, at), len),
            Found::There { heap, at } => {
                let to = Place { member: to.peer, heap, offset: at };
                Ok(put(source, from, to, len))
            }
        }
    }

    pub(super) fn look_at_atomic(
        &self,
        word: Remote,
        change: Atomic,
        poisoned: bool,
    ) -> Result<Ready, Status> {
        let len = if poisoned { 16 } else { 8 };
        let (heap, offset) = match self.regions.find(self.me, word.peer, word.key, word.addr, len)? {
            // Of a device's memory the host changes its own bytes, and brings them there.
            Found::Here { memory, at, copies, words: Some(words), .. } => {
                let old = words.update(at, |old| Some(change.apply(old))).map_err(|_| Status::Access)?;
                let value = if change.fetches() { old } else { 0 };
                if self.mutant.is("dev-words-stay") {
                    return Ok(Ready::Done(value));
                }
                return Ok(Ready::Changed(bring(copies, words, memory, (at, 8))?, value));
            }
            // Where NICs execute atomics, all of a word's are theirs.
            Found::Here { heap: Some(heap), at, .. } if !self.network.executes() => (heap, at),
            Found::Here { memory, at, .. } => {
                let changed = match change {
                    Atomic::Add(value) => memory.add(at, value),
                    _ => memory.update(at, |old| Some(change.apply(old))),
                };
                let old = changed.map_err(|_| Status::Access)?;
                return Ok(Ready::Done(if change.fetches() { old } else { 0 }));
            }
            Found::Reached { heap, at, .. } | Found::There { heap, at } => (heap, at),
        };
        let place = Place { member: word.peer, heap, offset };
        let atomic = |action, fetches| Rest::Atomic { at: place, action, fetches };
        Ok(match change {
            Atomic::Add(value) => Ready::Later(atomic(Action::Add(value), true), None),
            Atomic::Set(value) => Ready::Later(atomic(Action::Set(value), false), None),
            Atomic::SwapIf { expect, swap } => {
                Ready::Later(atomic(Action::CompareSwap { expect, swap }, true), None)
            }
            // No network has these: they read the word and exchange it until nobody came in between.
            Atomic::Max(_) | Atomic::AddMasked { .. } => {
                Ready::Later(atomic(Action::Fetch, true), Some((place, change, None)))
            }
        })
    }
}
