//! Locks of the program: MCS queues of PEs, in which each PE waits for a word of its own.
//!
//! A lock has 8 bytes per PE. At its home PE, the first 4 bytes are the number of the last PE in the queue plus 1, or
//! 0. At each PE, the last 4 bytes contain whether the PE waits, and the number of its successor. A PE has one place
//! in the queue. OpenSHMEM does not define locks between threads: threads of a PE wait for each other before they
//! enter the queue.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use trunkline_proto::reserve::try_grow;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};
use trunkline_proto::wire::rma::word::WordWidth;

use crate::error::{Result, ShmemError};
use crate::memory::SymmetricMemory;
use crate::memory::wait::ExpectedPe;
use crate::symmetric_segments::{HEAP, SymmetricPlace};

const WAITS: u64 = 1 << 31;
/// The addend that removes [`WAITS`], by wrapping.
const NO_MORE: u64 = WAITS;

/// The places of a lock's words.
#[derive(Clone, Copy, Debug)]
struct LockWords {
    home: usize,
    last: SymmetricPlace,
    node: SymmetricPlace,
}

impl LockWords {
    /// Returns the words of the lock at an address of the program.
    fn find_words(memory: &SymmetricMemory, addr: usize) -> Result<Self> {
        let last = memory.find_place(addr, 8)?;
        // Locks are distributed over all PEs.
        let home = (last.offset / 8) as usize % memory.pe_count();
        Ok(Self { home, last, node: last.offset_by(4) })
    }

    /// Appends this PE to the queue, and waits until the PE before it passes the lock on.
    fn enter_queue(&self, memory: &SymmetricMemory) -> Result<()> {
        let name = memory.own_pe() as u64 + 1;
        change_word(memory, memory.own_pe(), self.node, AtomicAction::Set(WAITS))?;
        let before = change_word(memory, self.home, self.last, AtomicAction::Set(name))?;
        if before == 0 {
            return change_word(memory, memory.own_pe(), self.node, AtomicAction::Add(NO_MORE)).map(drop);
        }
        let before = queued_pe(memory, before, name)?;
        change_word(memory, before, self.node, AtomicAction::Add(name))?;
        let waits = || Ok((memory.look_at(self.node, WordWidth::Four)? & WAITS == 0).then_some(()));
        memory.wait_until(ExpectedPe::Anyone, waits)
    }

    /// Passes the lock to the next PE of the queue, if there is one.
    fn pass_on(&self, memory: &SymmetricMemory) -> Result<()> {
        let expect = memory.own_pe() as u64 + 1;
        if memory.look_at(self.node, WordWidth::Four)? == 0 {
            let swap = AtomicAction::CompareSwap { expect, swap: 0 };
            let last = change_word(memory, self.home, self.last, swap)?;
            if last == expect {
                return Ok(());
            }
        }
        let next = memory.wait_until(ExpectedPe::Anyone, || {
            let node = memory.look_at(self.node, WordWidth::Four)?;
            Ok((node != 0).then_some(node))
        })?;
        let next = queued_pe(memory, next, expect)?;
        change_word(memory, memory.own_pe(), self.node, AtomicAction::Set(0))?;
        change_word(memory, next, self.node, AtomicAction::Add(NO_MORE)).map(drop)
    }
}

/// Changes a word of a lock at a PE, and returns its former value.
fn change_word(memory: &SymmetricMemory, pe: usize, at: SymmetricPlace, action: AtomicAction) -> Result<u64> {
    memory.fetch_atomic(0, pe, at, AtomicType::U32, action)
}

/// Returns the PE that a word of a lock names, which must not be this one.
///
/// # Errors
/// [`ShmemError::Argument`] if no PE wrote it.
fn queued_pe(memory: &SymmetricMemory, word: u64, own: u64) -> Result<usize> {
    let named = (1..=memory.pe_count() as u64).contains(&word) && word != own;
    if !named {
        return Err(ShmemError::invalid_argument("the lock was not 0 before it was first set"));
    }
    Ok(word as usize - 1)
}

/// A lock that a thread of this PE holds or queues for.
#[derive(Clone, Copy, Debug)]
struct HeldLock {
    at: SymmetricPlace,
    by: ThreadId,
    /// Whether it holds the lock, else it queues for it.
    has: bool,
}

impl HeldLock {
    /// Returns whether the lock is inside a range of the heap.
    fn is_in(&self, offset: u64, len: u64) -> bool {
        self.at.segment == HEAP && (offset..offset + len).contains(&self.at.offset)
    }
}

/// Locks of the program that threads of this PE hold or queue for.
///
/// `abi` calls it to set, test and clear a lock; the calls of the heap have it forget locks in freed memory. It never
/// changes the words of a lock whose entry belongs to another thread.
///
/// - `held` has at most one entry per lock: that of the thread which is in the queue of PEs for this PE.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    held: Mutex<Vec<HeldLock>>,
}

impl LockTable {
    fn held_locks(&self) -> MutexGuard<'_, Vec<HeldLock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers this thread as the user of a lock. If another thread is, returns that one.
    ///
    /// # Errors
    /// [`ShmemError::Allocate`].
    fn acquire_for_thread(&self, at: SymmetricPlace) -> Result<Option<ThreadId>> {
        let mut held = self.held_locks();
        let other = held.iter().find(|held| held.at == at).map(|held| held.by);
        if other.is_none() {
            try_grow(&mut held, 1)?;
            held.push(HeldLock { at, by: thread::current().id(), has: false });
        }
        Ok(other)
    }

    /// Marks a lock as held by its thread.
    fn mark_held(&self, at: SymmetricPlace) {
        self.held_locks().iter_mut().filter(|held| held.at == at).for_each(|held| held.has = true);
    }

    /// Removes the entry of a lock.
    fn release_for_thread(&self, at: SymmetricPlace) {
        self.held_locks().retain(|held| held.at != at);
    }

    /// Forgets locks inside freed memory, because a new lock may be allocated there.
    pub(crate) fn forget_range(&self, offset: u64, len: u64) {
        self.held_locks().retain(|held| !held.is_in(offset, len));
    }

    /// Waits until this PE holds a lock.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if this thread holds it already: it would wait for itself.
    pub(crate) fn set_lock(&self, memory: &SymmetricMemory, addr: usize) -> Result<()> {
        let lock = LockWords::find_words(memory, addr)?;
        memory.wait_until(ExpectedPe::Anyone, || match self.acquire_for_thread(lock.last)? {
            None => Ok(Some(())),
            Some(by) if by == thread::current().id() => Err(ShmemError::Argument(
                "this PE holds the lock already, by this thread, which would wait for itself",
            )),
            Some(_) => Ok(None),
        })?;
        lock.enter_queue(memory)?;
        self.mark_held(lock.last);
        Ok(())
    }

    /// Acquires a lock if it is free. Returns whether it did.
    pub(crate) fn test_lock(&self, memory: &SymmetricMemory, addr: usize) -> Result<bool> {
        let lock = LockWords::find_words(memory, addr)?;
        if self.acquire_for_thread(lock.last)?.is_none() {
            let swap = memory.own_pe() as u64 + 1;
            let take = AtomicAction::CompareSwap { expect: 0, swap };
            let before = change_word(memory, lock.home, lock.last, take)?;
            if before == 0 {
                self.mark_held(lock.last);
                return Ok(true);
            }
            self.release_for_thread(lock.last);
            queued_pe(memory, before, swap)?;
        }
        if let Some(far) = memory.find_fabric() {
            // The holder may need progress of this PE to release the lock.
            far.progress()?;
        }
        memory.count_failed_test().map(|()| false)
    }

    /// Completes all operations of this PE, and passes a lock to the next waiter.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if this PE does not hold it.
    pub(crate) fn clear_lock(&self, memory: &SymmetricMemory, addr: usize) -> Result<()> {
        memory.quiet_all()?;
        let lock = LockWords::find_words(memory, addr)?;
        let holds = self.held_locks().iter().any(|held| held.at == lock.last && held.has);
        if !holds {
            return Err(ShmemError::Argument("this PE does not hold the lock"));
        }
        lock.pass_on(memory)?;
        // Another thread of this PE may enter the queue from now on.
        self.release_for_thread(lock.last);
        Ok(())
    }
}
