//! Writes of the consumer for producers: completions, the frontier, and the first failure. The order of these stores is part of the
//! protocol.

use core::sync::atomic::Ordering::{Relaxed, Release};

use trunkline_proto::wire::device_queue::{EntryCompletion, FrontierWord, at};

use super::QueueConsumer;
use crate::error::QueueFault;
use crate::memory::WordMemory;

impl<M: WordMemory> QueueConsumer<M> {
    /// Publishes the frontier, if it has changed.
    #[inline]
    pub(super) fn publish_frontier(&mut self) {
        if self.told == self.completed {
            return;
        }
        self.told = self.completed;
        let frontier = FrontierWord::new(self.completed, self.fault.is_some());
        self.memory.store(at::FRONTIER, frontier.0, Release);
    }

    pub(super) fn publish_fault(&mut self, fault: QueueFault) {
        self.fault = Some(fault);
        let bits = u64::from(fault.status.to_bits());
        self.memory.store(at::FIRST_BAD, fault.first_bad, Relaxed);
        self.memory.store(at::REASON, u64::from(fault.reason) | u64::from(self.shape.epoch()) << 32, Relaxed);
        // The release of the flag orders the two words before it. Producers read the page only after the frontier has the failure bit.
        self.memory.store(at::ERROR, 1 | bits << 32, Release);
    }

    #[inline]
    pub(super) fn publish_completion(&self, index: u64, completion: EntryCompletion) {
        let place = self.shape.completion_offset(index);
        let head = completion.head_word(&self.shape, index);
        self.memory.put_completion(place, [EntryCompletion::writing_of(head), completion.value, head]);
    }
}
