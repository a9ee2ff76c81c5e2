//! Locks of the program: a queue of PEs, each of which waits for a word of its own. In the 8 bytes of a lock at its home PE, the first 4
//! name the last PE of the queue, 1 more, or 0. In those of each PE the last 4 say whether it waits, and who comes after it. A PE has one
//! place in the queue: its threads, which OpenSHMEM does not speak of here, wait for each other before it.

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
/// What takes it away, wrapping.
const NO_MORE: u64 = WAITS;

/// The words of a lock.
#[derive(Clone, Copy, Debug)]
struct LockWords {
    home: usize,
    last: SymmetricPlace,
    node: SymmetricPlace,
}

impl LockWords {
    /// Those of the lock at an address of the program.
    fn find_words(memory: &SymmetricMemory, addr: usize) -> Result<Self> {
        let last = memory.find_place(addr, 8)?;
        // Different locks have different homes.
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

    /// Has the next PE of the queue have the lock, if there is one.
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

/// Changes a word of a lock at a PE; what it was.
fn change_word(memory: &SymmetricMemory, pe: usize, at: SymmetricPlace, action: AtomicAction) -> Result<u64> {
    memory.fetch_atomic(0, pe, at, AtomicType::U32, action)
}

/// The PE that a word of a lock names, which is another than this one.
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
    /// It does hold it.
    has: bool,
}

impl HeldLock {
    /// Whether the lock is among bytes of the heap from an offset on.
    fn is_in(&self, offset: u64, len: u64) -> bool {
        self.at.segment == HEAP && (offset..offset + len).contains(&self.at.offset)
    }
}

/// Locks of the program that threads of this PE hold or queue for.
///
/// `abi` calls it to set, test and clear a lock; the calls of the heap have it forget those in freed memory. It never changes the words of a
/// lock whose entry another thread has.
///
/// - `held` has at most one entry per lock: that of the one thread which stands in the queue of PEs for this PE.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    held: Mutex<Vec<HeldLock>>,
}

impl LockTable {
    fn held_locks(&self) -> MutexGuard<'_, Vec<HeldLock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this thread the one that uses a lock, unless another thread does, which is returned.
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

    /// The thread that uses a lock has it.
    fn mark_held(&self, at: SymmetricPlace) {
        self.held_locks().iter_mut().filter(|held| held.at == at).for_each(|held| held.has = true);
    }

    /// No thread uses it any more.
    fn release_for_thread(&self, at: SymmetricPlace) {
        self.held_locks().retain(|held| held.at != at);
    }

    /// Forgets the locks among bytes of the heap that are freed: another lock may come to be there.
    pub(crate) fn forget_range(&self, offset: u64, len: u64) {
        self.held_locks().retain(|held| !held.is_in(offset, len));
    }

    /// Waits until this PE has a lock.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if this thread has it: it would wait for itself.
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

    /// Takes a lock if it is free; whether it was.
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
            // Who has the lock may need this PE to give it up.
            far.progress()?;
        }
        memory.count_failed_test().map(|()| false)
    }

    /// Gives a lock to who waits for it, when all that this PE has begun is complete.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if this PE does not have it.
    pub(crate) fn clear_lock(&self, memory: &SymmetricMemory, addr: usize) -> Result<()> {
        memory.quiet_all()?;
        let lock = LockWords::find_words(memory, addr)?;
        let holds = self.held_locks().iter().any(|held| held.at == lock.last && held.has);
        if !holds {
            return Err(ShmemError::Argument("this PE does not hold the lock"));
        }
        lock.pass_on(memory)?;
        // Another thread of this PE may queue now.
        self.release_for_thread(lock.last);
        Ok(())
    }
}
