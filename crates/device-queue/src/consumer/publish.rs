//! What the consumer tells producers: completions, how far it is, and the first failure. In the order in which they rely on it.

use core::sync::atomic::Ordering::{Relaxed, Release};

use trunkline_proto::wire::device_queue::{EntryCompletion, FrontierWord, at};

use super::QueueConsumer;
use crate::error::QueueFault;
use crate::memory::WordMemory;

impl<M: WordMemory> QueueConsumer<M> {
    /// Tells of all that has completed, once.
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
        self.memory.store(at::ERROR, 1 | bits << 32, Release);
    }

    #[inline]
    pub(super) fn publish_completion(&self, index: u64, completion: EntryCompletion) {
        let place = self.shape.completion_offset(index);
        let head = completion.head_word(&self.shape, index);
        self.memory.put_completion(place, [EntryCompletion::writing_of(head), completion.value, head]);
    }
}
