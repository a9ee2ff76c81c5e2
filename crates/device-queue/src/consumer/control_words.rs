//! The consumer's control words: doorbells, aborts, and requests for a companion. Producers write them, so each value is checked before it
//! is used.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use trunkline_proto::wire::device_queue::{AbortWord, CompanionWord, EntryStatus, at, is_before};

use super::QueueConsumer;
use crate::memory::WordMemory;

impl<M: WordMemory> QueueConsumer<M> {
    /// Processes the value of a doorbell, then the abort word.
    #[inline]
    pub fn handle_doorbell(&mut self, bell: u64) {
        if is_before(self.rung, bell) {
            let depth = u64::from(self.shape.depth());
            if bell.wrapping_sub(self.completed) <= depth {
                self.rung = bell;
            } else {
                // The number of submitted entries is unknown now, so only the abort word can end their waits. Entries that can be
                // recognised by their index fail, and the words that they were to change are poisoned.
                self.rung = self.written_end();
                let why = AbortWord { status: EntryStatus::BadDoorbell, reason: 0 };
                let _ = self.memory.compare_exchange(at::ABORT, 0, why.to_word(), AcqRel);
                self.stop_queue(why.status, why.reason);
            }
        }
        self.take_request();
        if let Some(why) = AbortWord::from_word(self.memory.load(at::ABORT, Acquire)) {
            self.stop_queue(why.status, why.reason);
        }
    }

    /// Returns the index behind the last consecutive written entry, submitted or not.
    #[cold]
    fn written_end(&self) -> u64 {
        let end = self.completed.wrapping_add(self.shape.depth().into());
        let mut index = self.rung;
        while is_before(index, end) && self.fetch_entry(index).is_ok() {
            index = index.wrapping_add(1);
        }
        index
    }

    /// Copies a device's request for an abort into the abort word. The device cannot do this itself: host producers write that word too,
    /// and the device has no atomics on host memory. The first reason is kept.
    fn take_request(&self) {
        if !self.shape.is_for_device() {
            return;
        }
        let asked = self.memory.load(at::ABORT_ASKED, Acquire);
        if asked != 0 {
            let _ = self.memory.compare_exchange(at::ABORT, 0, asked, AcqRel);
        }
    }

    /// Returns whether a companion was requested and the request is unanswered.
    #[inline]
    pub fn is_asked_for_companion(&self) -> bool {
        match CompanionWord::from_word(self.memory.load(at::COMPANION, Acquire)) {
            CompanionWord::Asked => true,
            CompanionWord::None => {
                self.shape.is_for_device() && self.memory.load(at::COMPANION_ASKED, Acquire) != 0
            }
            CompanionWord::Refused | CompanionWord::Queue(_) | CompanionWord::Invalid(_) => false,
        }
    }
}
