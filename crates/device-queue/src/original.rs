//! The operations of the original API, as entries: what a program that was written for it gets.
//!
//! Signals and counters are words of 8 bytes side by side; their failures stand in the error table of their window. A signal with a put is an entry of its own behind a
//! fence, a counter waits for the signal. What the original left to chance ends here: a wait says how it ended.

use trunkline_proto::mutant::Mutant;
use trunkline_proto::wire::device_queue::{Entry, Fence, Inline, Remote, Work};

use crate::budget::Budget;
use crate::error::WaitError;
use crate::lane::{Addition, Beside, Bytes, Directory, Lane, OpError};
use crate::memory::Memory;
use crate::queue::Ticket;
use crate::slot::{Condition, Slot};

/// Signals or counters side by side, by the address of the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Words {
    /// The first one.
    pub at: Remote,
}

impl Words {
    /// What is added to one of them.
    #[must_use]
    pub const fn add(&self, id: u32, value: u64) -> Addition {
        Addition { at: self.word(id), value, poisoned: false }
    }

    const fn word(&self, id: u32) -> Remote {
        Remote { addr: self.at.addr + id as u64 * 8, ..self.at }
    }
}

/// A peer, as the original sees it.
#[derive(Clone, Debug)]
pub struct Peer<M, D>(pub Lane<M, D>);

impl<M: Memory, D: Directory<M>> Peer<M, D> {
    /// Writes bytes. Nothing is said of when the peer sees them.
    ///
    /// # Errors
    /// [`OpError`]; of more GiB than the queue is deep the first may have been posted.
    pub fn put(&self, bytes: &Bytes, budget: &mut impl Budget) -> Result<Ticket, OpError> {
        self.0.write(bytes, None, budget).map(|[_, last]| last)
    }

    /// Writes bytes, each thread of a group its share.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn put_group(
        &self,
        bytes: &Bytes,
        threads: u32,
        budget: &mut impl Budget,
    ) -> Result<Ticket, OpError> {
        let [_, last] = self.0.publish_shares(bytes, threads, &Beside::default(), budget)?;
        self.0.main.submit(last.index.wrapping_add(1));
        Ok(last)
    }

    /// Writes bytes, and then raises a signal behind a fence; the signal's ticket. Two doorbells.
    ///
    /// # Errors
    /// [`OpError`]; the bytes may have been put all the same.
    pub fn put_signal(
        &self,
        bytes: &Bytes,
        signal: &Addition,
        budget: &mut impl Budget,
    ) -> Result<Ticket, OpError> {
        self.put(bytes, budget)?;
        self.signal_remote_with_fence(signal, budget)
    }

    /// Raises a signal. It is not ordered behind earlier reads and atomics.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn signal_remote(&self, signal: &Addition, budget: &mut impl Budget) -> Result<Ticket, OpError> {
        self.0.add(signal, Fence::None, budget)
    }

    /// Raises a signal behind earlier reads and atomics.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn signal_remote_with_fence(
        &self,
        signal: &Addition,
        budget: &mut impl Budget,
    ) -> Result<Ticket, OpError> {
        self.0.add(signal, Fence::ReadsAndAtomics, budget)
    }

    /// Writes bytes, raises a signal, and counts that here once the signal's entry has completed.
    ///
    /// # Errors
    /// [`OpError`]; before [`OpError::Refused`] of the companion, bytes and signal have been posted.
    pub fn put_signal_counter_remote(
        &self,
        bytes: &Bytes,
        signal: &Addition,
        counter: &Addition,
        budget: &mut impl Budget,
    ) -> Result<(), OpError> {
        let companion = self.0.companion(budget)?;
        let beside = Beside { behind: Some(signal.entry()), counter: None };
        let [_, last] = self.0.publish(bytes, &beside, budget, &mut None)?;
        self.0.submit_and_count(last, companion, last, counter, budget)
    }

    /// Raises a signal, and counts that here once its entry has completed.
    ///
    /// # Errors
    /// As [`put_signal_counter_remote`](Self::put_signal_counter_remote).
    pub fn signal_counter_remote(
        &self,
        signal: &Addition,
        counter: &Addition,
        budget: &mut impl Budget,
    ) -> Result<(), OpError> {
        let companion = self.0.companion(budget)?;
        let last = self.signal_remote(signal, budget)?;
        self.0.count(companion, last, counter, budget).map(|_| ())
    }

    /// Waits until an entry has completed: its source can be used again.
    ///
    /// # Errors
    /// As [`Queue::wait`](crate::Queue::wait).
    pub fn wait_local(&self, ticket: Ticket, budget: &mut impl Budget) -> Result<(), WaitError> {
        self.0.main.wait(ticket, budget)
    }

    /// Waits until all that was posted before has completed here.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn fence(&self, budget: &mut impl Budget) -> Result<(), FenceError> {
        let nop = self.0.post(&Entry::new(Work::Nop), budget)?;
        Ok(self.wait_local(nop, budget)?)
    }

    /// Sets a signal **of the peer** to 0, behind all that was posted before, and waits until that has completed here.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn reset_signal(&self, signals: &Words, id: u32, budget: &mut impl Budget) -> Result<(), FenceError> {
        self.fence(budget)?;
        let bytes = Inline::new(&[0; 8]).ok_or(OpError::Empty)?;
        let zero = Entry::new(Work::WriteInline { bytes, to: signals.word(id) });
        let ticket = self.0.post(&zero, budget)?;
        Ok(self.wait_local(ticket, budget)?)
    }
}

/// An operation that posts and waits did not do both.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FenceError {
    /// It was not posted.
    #[error(transparent)]
    Post(#[from] OpError),
    /// It has not completed.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Waits until a signal of this process is at least `value`; what it is then. What came before it can be read.
///
/// # Errors
/// As [`Slot::wait`].
pub fn wait_signal<M: Memory>(
    memory: &M,
    slot: &Slot,
    value: u64,
    budget: &mut impl Budget,
) -> Result<u64, WaitError> {
    slot.wait(memory, Condition::AtLeast(value), budget, Mutant::NONE)
}

/// What a signal of this process is.
pub fn read_signal<M: Memory>(memory: &M, slot: &Slot) -> u64 {
    slot.read(memory)
}
