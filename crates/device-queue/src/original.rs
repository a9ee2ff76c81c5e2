//! The operations of the original API, as entries, for programs written for that API.
//!
//! Signals and counters are words of 8 bytes side by side, with failures in the error table of their window. The signal of a put is an
//! entry of its own behind a fence, and a counter waits for the signal. Unlike the original, every wait returns how it ended.

use trunkline_proto::wire::device_queue::{EntryFence, EntryWork, InlineBytes, PeerAddress, QueueEntry};

use crate::budget::WaitBudget;
use crate::error::WaitError;
use crate::lane::{CompanionDirectory, OpError, PutBytes, QueueLane, WordAddition, WriteExtras};
use crate::memory::WordMemory;
use crate::queue::EntryTicket;
use crate::slot::{SignalSlot, SlotCondition};

/// Signals or counters side by side, by the address of the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WordArray {
    /// The first one.
    pub at: PeerAddress,
}

impl WordArray {
    /// Returns an addition to the word number `id`.
    #[must_use]
    pub const fn add_to_word(&self, id: u32, value: u64) -> WordAddition {
        WordAddition { at: self.word_address(id), value, poisoned: false }
    }

    const fn word_address(&self, id: u32) -> PeerAddress {
        PeerAddress { addr: self.at.addr + id as u64 * 8, ..self.at }
    }
}

/// A peer, as the original API names it.
#[derive(Clone, Debug)]
pub struct OriginalPeer<M, D>(pub QueueLane<M, D>);

impl<M: WordMemory, D: CompanionDirectory<M>> OriginalPeer<M, D> {
    /// Writes bytes. The ticket does not report when the peer sees them.
    ///
    /// # Errors
    /// [`OpError`]. If the bytes need more entries than the queue is deep, the first ones may have been posted.
    pub fn put(&self, bytes: &PutBytes, budget: &mut impl WaitBudget) -> Result<EntryTicket, OpError> {
        self.0.write_bytes(bytes, None, budget).map(|[_, last]| last)
    }

    /// Writes bytes, one share per thread of a group.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn put_group(
        &self,
        bytes: &PutBytes,
        threads: u32,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        let [_, last] = self.0.publish_shares(bytes, threads, &WriteExtras::default(), budget)?;
        self.0.main.submit(last.index.wrapping_add(1));
        Ok(last)
    }

    /// Writes bytes, then raises a signal behind a fence. Returns the signal's ticket. Rings two doorbells.
    ///
    /// # Errors
    /// [`OpError`]; the bytes may have been posted.
    pub fn put_signal(
        &self,
        bytes: &PutBytes,
        signal: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        self.put(bytes, budget)?;
        self.signal_remote_with_fence(signal, budget)
    }

    /// Raises a signal. It is not ordered behind earlier reads and atomics.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn signal_remote(
        &self,
        signal: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        self.0.post_addition(signal, EntryFence::None, budget)
    }

    /// Raises a signal behind earlier reads and atomics.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn signal_remote_with_fence(
        &self,
        signal: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        self.0.post_addition(signal, EntryFence::ReadsAndAtomics, budget)
    }

    /// Writes bytes, raises a signal, and raises a local counter once the signal's entry has completed.
    ///
    /// # Errors
    /// [`OpError`]. If the companion's queue refuses ([`OpError::Refused`]), bytes and signal have been posted.
    pub fn put_signal_counter_remote(
        &self,
        bytes: &PutBytes,
        signal: &WordAddition,
        counter: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<(), OpError> {
        let companion = self.0.companion_queue(budget)?;
        let beside = WriteExtras { behind: Some(signal.to_entry()), counter: None };
        let [_, last] = self.0.publish_write(bytes, &beside, budget, &mut None)?;
        self.0.submit_and_count(last, companion, last, counter, budget)
    }

    /// Raises a signal, and raises a local counter once the signal's entry has completed.
    ///
    /// # Errors
    /// As [`put_signal_counter_remote`](Self::put_signal_counter_remote).
    pub fn signal_counter_remote(
        &self,
        signal: &WordAddition,
        counter: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<(), OpError> {
        let companion = self.0.companion_queue(budget)?;
        let last = self.signal_remote(signal, budget)?;
        self.0.count_completion(companion, last, counter, budget).map(|_| ())
    }

    /// Waits until an entry has completed: its source can be reused.
    ///
    /// # Errors
    /// As [`DeviceQueue::wait`](crate::DeviceQueue::wait).
    pub fn wait_local(&self, ticket: EntryTicket, budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        self.0.main.wait(ticket, budget)
    }

    /// Waits until all earlier entries have completed locally.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn fence(&self, budget: &mut impl WaitBudget) -> Result<(), FenceError> {
        // Entries complete in order, so a NOP completes behind all of them.
        let nop = self.0.post_entry(&QueueEntry::new(EntryWork::Nop), budget)?;
        Ok(self.wait_local(nop, budget)?)
    }

    /// Sets a signal **of the peer** to 0 behind all earlier entries, and waits until that has completed locally.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn reset_signal(
        &self,
        signals: &WordArray,
        id: u32,
        budget: &mut impl WaitBudget,
    ) -> Result<(), FenceError> {
        self.fence(budget)?;
        let bytes = InlineBytes::new(&[0; 8]).ok_or(OpError::Empty)?;
        let zero = QueueEntry::new(EntryWork::WriteInline { bytes, to: signals.word_address(id) });
        let ticket = self.0.post_entry(&zero, budget)?;
        Ok(self.wait_local(ticket, budget)?)
    }
}

/// An operation that posts and waits failed in one of the two steps.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FenceError {
    /// The post failed.
    #[error(transparent)]
    Post(#[from] OpError),
    /// The wait failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Waits until a signal of this process is at least `value`, and returns it. Bytes written before it can be read then.
///
/// # Errors
/// As [`SignalSlot::wait`].
pub fn wait_signal<M: WordMemory>(
    memory: &M,
    slot: &SignalSlot,
    value: u64,
    budget: &mut impl WaitBudget,
) -> Result<u64, WaitError> {
    slot.wait(memory, SlotCondition::AtLeast(value), budget)
}

/// Returns the value of a signal of this process.
pub fn read_signal<M: WordMemory>(memory: &M, slot: &SignalSlot) -> u64 {
    slot.read_value(memory)
}
