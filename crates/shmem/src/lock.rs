//! Locks of the program: a queue of PEs, each of which waits for a word of its own. In the 8 bytes of a lock at its home PE, the first 4
//! name the last PE of the queue, 1 more, or 0. In those of each PE the last 4 say whether it waits, and who comes after it.

use std::sync::{MutexGuard, PoisonError};

use trunkline_proto::rma::atomic::{Action, Type};
use trunkline_proto::wire::rma::word::Width;

use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::place::Place;
use crate::wait::Whom;

const WAITS: u64 = 1 << 31;
/// What takes it away, wrapping.
const NO_MORE: u64 = WAITS;

/// The words of a lock.
#[derive(Clone, Copy, Debug)]
struct Lock {
    home: usize,
    last: Place,
    node: Place,
}

impl Pe {
    fn lock_at(&self, addr: usize) -> Result<Lock> {
        let last = self.place(addr, 8)?;
        // Different locks have different homes.
        let home = (last.offset / 8) as usize % self.size;
        Ok(Lock { home, last, node: last.plus(4) })
    }

    fn word_of(&self, pe: usize, at: Place, action: Action) -> Result<u64> {
        self.fetch(0, pe, at, Type::U32, action)
    }

    fn held(&self) -> MutexGuard<'_, Vec<Place>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this PE has a lock.
    ///
    /// # Errors
    /// [`Error::Argument`] if it has it: it would wait for itself.
    pub(crate) fn set_lock(&self, addr: usize) -> Result<()> {
        let lock = self.lock_at(addr)?;
        if self.held().contains(&lock.last) && !crate::planted("shmem-waits-for-itself") {
            return Err(Error::Argument("this PE holds the lock already and would wait for itself"));
        }
        self.queue(&lock)?;
        self.held().push(lock.last);
        Ok(())
    }

    fn queue(&self, lock: &Lock) -> Result<()> {
        let name = self.me as u64 + 1;
        self.word_of(self.me, lock.node, Action::Set(WAITS))?;
        let before = self.word_of(lock.home, lock.last, Action::Set(name))?;
        if before == 0 || crate::planted("shmem-locks-are-open") {
            return self.word_of(self.me, lock.node, Action::Add(NO_MORE)).map(drop);
        }
        self.word_of(before as usize - 1, lock.node, Action::Add(name))?;
        let waits = || Ok((self.look_at(lock.node, Width::Four)? & WAITS == 0).then_some(()));
        self.until(Whom::Anyone, waits)
    }

    /// Takes a lock if it is free; whether it was.
    pub(crate) fn test_lock(&self, addr: usize) -> Result<bool> {
        let lock = self.lock_at(addr)?;
        let swap = self.me as u64 + 1;
        let taken = self.word_of(lock.home, lock.last, Action::CompareSwap { expect: 0, swap })? == 0;
        if taken {
            self.held().push(lock.last);
        }
        Ok(taken)
    }

    /// Gives a lock to who waits for it, when all that this PE has begun is complete.
    ///
    /// # Errors
    /// [`Error::Argument`] if this PE does not have it.
    pub(crate) fn clear_lock(&self, addr: usize) -> Result<()> {
        self.complete()?;
        let lock = self.lock_at(addr)?;
        let mut held = self.held();
        match held.iter().position(|&at| at == lock.last) {
            Some(at) => drop(held.swap_remove(at)),
            None if crate::planted("shmem-clears-what-is-not-held") => {}
            None => return Err(Error::Argument("this PE does not hold the lock")),
        }
        drop(held);
        let expect = self.me as u64 + 1;
        if self.look_at(lock.node, Width::Four)? == 0 {
            let last = self.word_of(lock.home, lock.last, Action::CompareSwap { expect, swap: 0 })?;
            if last == expect {
                return Ok(());
            }
        }
        let next = self.until(Whom::Anyone, || {
            let node = self.look_at(lock.node, Width::Four)?;
            Ok((node != 0).then_some(node))
        })?;
        self.word_of(self.me, lock.node, Action::Set(0))?;
        self.word_of(next as usize - 1, lock.node, Action::Add(NO_MORE)).map(drop)
    }
}
