//! Locks of the program: a queue of PEs, each of which waits for a word of its own. In the 8 bytes of a lock at its home PE, the first 4
//! name the last PE of the queue, 1 more, or 0. In those of each PE the last 4 say whether it waits, and who comes after it. A PE has one
//! place in the queue: its threads, which OpenSHMEM does not speak of here, wait for each other before it.

use std::sync::{MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use trunkline_proto::reserve::try_grow;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};
use trunkline_proto::wire::rma::word::WordWidth;

use crate::error::{Result, ShmemError};
use crate::pe::Pe;
use crate::symmetric_segments::{HEAP, SymmetricPlace};
use crate::wait::ExpectedPe;

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

/// A lock that a thread of this PE holds or queues for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldLock {
    at: SymmetricPlace,
    by: ThreadId,
    /// It does hold it.
    has: bool,
}

impl HeldLock {
    /// Whether the lock is among bytes of the heap from an offset on.
    pub(crate) fn is_in(&self, offset: u64, len: u64) -> bool {
        self.at.segment == HEAP && (offset..offset + len).contains(&self.at.offset)
    }
}

impl Pe {
    fn lock_at(&self, addr: usize) -> Result<LockWords> {
        let last = self.find_place(addr, 8)?;
        // Different locks have different homes.
        let home = (last.offset / 8) as usize % self.size;
        Ok(LockWords { home, last, node: last.offset_by(4) })
    }

    fn word_of(&self, pe: usize, at: SymmetricPlace, action: AtomicAction) -> Result<u64> {
        self.fetch_atomic(0, pe, at, AtomicType::U32, action)
    }

    fn held_locks(&self) -> MutexGuard<'_, Vec<HeldLock>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this thread the one that uses a lock, unless another thread does, which is returned.
    ///
    /// # Errors
    /// [`ShmemError::Allocate`].
    fn acquire_for_thread(&self, at: SymmetricPlace) -> Result<Option<ThreadId>> {
        let mut held = self.held_locks();
        let other = held.iter().find(|held| held.at == at).map(|held| held.by);
        if other.is_none() {
            if !crate::is_planted("shmem-locks-abort-without-memory") {
                try_grow(&mut held, 1)?;
            }
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

    /// Waits until this PE has a lock.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if this thread has it: it would wait for itself.
    pub(crate) fn set_lock(&self, addr: usize) -> Result<()> {
        let lock = self.lock_at(addr)?;
        self.wait_until(ExpectedPe::Anyone, || match self.acquire_for_thread(lock.last)? {
            None => Ok(Some(())),
            Some(by) if by == thread::current().id() && !crate::is_planted("shmem-waits-for-itself") => {
                Err(ShmemError::Argument(
                    "this PE holds the lock already, by this thread, which would wait for itself",
                ))
            }
            Some(_) if crate::is_planted("shmem-threads-queue-as-one") => Ok(Some(())),
            Some(_) => Ok(None),
        })?;
        self.enter_queue(&lock)?;
        self.mark_held(lock.last);
        Ok(())
    }

    /// The PE that a word of a lock names, which is another than this one.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if no PE wrote it.
    fn queued_pe(&self, word: u64, own: u64) -> Result<usize> {
        let named = (1..=self.size as u64).contains(&word) && word != own;
        if !named && !crate::is_planted("shmem-believes-locks") {
            return Err(ShmemError::invalid_argument("the lock was not 0 before it was first set"));
        }
        Ok(word as usize - 1)
    }

    fn enter_queue(&self, lock: &LockWords) -> Result<()> {
        let name = self.me as u64 + 1;
        self.word_of(self.me, lock.node, AtomicAction::Set(WAITS))?;
        let before = self.word_of(lock.home, lock.last, AtomicAction::Set(name))?;
        if before == 0 || crate::is_planted("shmem-locks-are-open") {
            return self.word_of(self.me, lock.node, AtomicAction::Add(NO_MORE)).map(drop);
        }
        let before = self.queued_pe(before, name)?;
        self.word_of(before, lock.node, AtomicAction::Add(name))?;
        let waits = || Ok((self.look_at(lock.node, WordWidth::Four)? & WAITS == 0).then_some(()));
        self.wait_until(ExpectedPe::Anyone, waits)
    }

    /// Takes a lock if it is free; whether it was.
    pub(crate) fn test_lock(&self, addr: usize) -> Result<bool> {
        let lock = self.lock_at(addr)?;
        if self.acquire_for_thread(lock.last)?.is_none() {
            let swap = self.me as u64 + 1;
            let before = self.word_of(lock.home, lock.last, AtomicAction::CompareSwap { expect: 0, swap })?;
            if before == 0 {
                self.mark_held(lock.last);
                return Ok(true);
            }
            self.release_for_thread(lock.last);
            self.queued_pe(before, swap)?;
        }
        if let Some(far) = &self.far
            && !crate::is_planted("shmem-tests-serve-nobody")
        {
            // Who has the lock may need this PE to give it up.
            far.progress()?;
        }
        self.count_failed_test().map(|()| false)
    }

    /// Gives a lock to who waits for it, when all that this PE has begun is complete.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if this PE does not have it.
    pub(crate) fn clear_lock(&self, addr: usize) -> Result<()> {
        self.quiet_all()?;
        let lock = self.lock_at(addr)?;
        let holds = self.held_locks().iter().any(|held| held.at == lock.last && held.has);
        if !holds && !crate::is_planted("shmem-clears-what-is-not-held") {
            return Err(ShmemError::Argument("this PE does not hold the lock"));
        }
        self.pass_on(&lock)?;
        // Another thread of this PE may queue now.
        self.release_for_thread(lock.last);
        Ok(())
    }

    /// Has the next PE of the queue have the lock, if there is one.
    fn pass_on(&self, lock: &LockWords) -> Result<()> {
        let expect = self.me as u64 + 1;
        if self.look_at(lock.node, WordWidth::Four)? == 0 {
            let last = self.word_of(lock.home, lock.last, AtomicAction::CompareSwap { expect, swap: 0 })?;
            if last == expect {
                return Ok(());
            }
        }
        let next = self.wait_until(ExpectedPe::Anyone, || {
            let node = self.look_at(lock.node, WordWidth::Four)?;
            Ok((node != 0).then_some(node))
        })?;
        let next = self.queued_pe(next, expect)?;
        self.word_of(self.me, lock.node, AtomicAction::Set(0))?;
        self.word_of(next, lock.node, AtomicAction::Add(NO_MORE)).map(drop)
    }
}
