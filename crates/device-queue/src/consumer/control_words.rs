//! What the consumer takes in beside entries: doorbells, aborts, and who asks for a companion. None of it is believed.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use trunkline_proto::wire::device_queue::{AbortWord, CompanionWord, EntryStatus, at, is_before};

use super::QueueConsumer;
use crate::memory::WordMemory;

impl<M: WordMemory> QueueConsumer<M> {
    /// Takes in what a doorbell says, and an abort.
    #[inline]
    pub fn handle_doorbell(&mut self, bell: u64) {
        if is_before(self.rung, bell) {
            let depth = u64::from(self.shape.depth());
            if bell.wrapping_sub(self.completed) <= depth {
                self.rung = bell;
            } else {
                // How many entries there are is not known, so their waiters are told by the abort word. Those that can be told from what was there
                // before fail, and with them what they were to raise.
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

    /// Behind the last of the entries in a row that were written, submitted or not.
    #[cold]
    fn written_end(&self) -> u64 {
        let end = self.completed.wrapping_add(self.shape.depth().into());
        let mut index = self.rung;
        while is_before(index, end) && self.fetch_entry(index).is_ok() {
            index = index.wrapping_add(1);
        }
        index
    }

    /// A device only asks for an abort, as the word is others' as well; the first one stays.
    fn take_request(&self) {
        if !self.shape.is_for_device() {
            return;
        }
        let asked = self.memory.load(at::ABORT_ASKED, Acquire);
        if asked != 0 {
            let _ = self.memory.compare_exchange(at::ABORT, 0, asked, AcqRel);
        }
    }

    /// Whether somebody has asked for a companion, and nobody has answered.
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
