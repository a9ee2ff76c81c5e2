//! Values that atomics have fetched, on their way to the kernels that wait for them. Each value is written to a place
//! in this PE's memory, then its flag. Called by `role_context`; it posts no operations.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use trunkline_engine::rma::{FetchHandle, RmaError};
use trunkline_mem::OutOfMemory;
use trunkline_proto::wire::rma::word::WordWidth;
use trunkline_runtime::{ContextCalls, FetchSink};

use crate::error::Result;
use crate::memory::RegisteredPlace;

/// An outstanding fetch.
#[derive(Clone, Debug)]
pub(crate) struct AwaitedFetch {
    /// The target PE.
    pub(crate) pe: u32,
    pub(crate) fetch: FetchHandle,
    /// The place of the value; the flag follows it.
    pub(crate) to: RegisteredPlace,
    pub(crate) flag: u64,
}

/// The largest number of values that one call polls.
const LOOKS: usize = 16;

/// The outstanding fetches of one role.
#[derive(Debug, Default)]
pub(crate) struct FetchQueue {
    all: Mutex<VecDeque<AwaitedFetch>>,
    /// The number of outstanding fetches, so that no thread takes the lock for an empty queue.
    count: AtomicUsize,
}

impl FetchQueue {
    /// Reserves room for one more fetch, which another thread may use up.
    ///
    /// # Errors
    /// [`CallError::Memory`].
    pub(crate) fn reserve_place(&self) -> Result<()> {
        reserve_one(&mut self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends a fetch.
    ///
    /// # Errors
    /// [`CallError::Memory`]: another thread has used up the room.
    pub(crate) fn push(&self, awaited: AwaitedFetch) -> Result<()> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        reserve_one(&mut all)?;
        all.push_back(awaited);
        self.count.store(all.len(), Ordering::Release);
        Ok(())
    }

    /// Writes values that have arrived to their places, for a bounded number of fetches, the least recently polled
    /// first. Returns whether any had arrived.
    ///
    /// # Errors
    /// The PE has no such word, or is lost. Returned once per fetch.
    pub(crate) fn deliver_values(
        &self,
        calls: &ContextCalls<'_, Self>,
    ) -> std::result::Result<bool, RmaError> {
        if self.is_empty() {
            return Ok(false);
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut moved = false;
        for _ in 0..all.len().min(LOOKS) {
            let Some(awaited) = all.pop_front() else { break };
            let found = calls.poll_ready_fetch(awaited.fetch).transpose();
            let Some(found) = found else {
                all.push_back(awaited);
                continue;
            };
            self.count.store(all.len(), Ordering::Release);
            moved = true;
            awaited.write_value(found?)?;
        }
        Ok(moved)
    }

    /// Writes all values of a PE that have arrived to their places. Returns whether no fetch of that PE is
    /// outstanding.
    ///
    /// # Errors
    /// As [`FetchQueue::deliver_values`].
    pub(crate) fn deliver_all_of(
        &self,
        calls: &ContextCalls<'_, Self>,
        pe: u32,
    ) -> std::result::Result<bool, RmaError> {
        if self.is_empty() {
            return Ok(true);
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        let mut none = true;
        while let Some(awaited) = all.get(at) {
            let found =
                if awaited.pe == pe { calls.poll_ready_fetch(awaited.fetch).transpose() } else { None };
            let Some(found) = found else {
                none &= awaited.pe != pe;
                at += 1;
                continue;
            };
            let awaited = all.remove(at);
            self.count.store(all.len(), Ordering::Release);
            let value = found?;
            awaited.map_or(Ok(()), |awaited| awaited.write_value(value))?;
        }
        Ok(none)
    }

    /// Returns whether no fetch is outstanding.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

impl FetchSink for FetchQueue {
    fn deliver_fetches(&self, calls: &ContextCalls<'_, Self>) -> std::result::Result<(), RmaError> {
        self.deliver_values(calls).map(drop)
    }
}

fn reserve_one(all: &mut VecDeque<AwaitedFetch>) -> Result<()> {
    let bytes = (all.len() + 1) * size_of::<AwaitedFetch>();
    all.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
    Ok(())
}

impl AwaitedFetch {
    /// Writes the value and its flag to their places.
    fn write_value(&self, value: u64) -> std::result::Result<(), RmaError> {
        let placed = write_value_and_flag(&self.to, value, self.flag);
        placed.ok_or(RmaError::Argument("cannot write a fetched value to its place"))
    }
}

/// Writes a value and then its flag, for which a kernel waits; each is visible before later writes. Returns `None` if
/// the memory has no such place.
fn write_value_and_flag(to: &RegisteredPlace, value: u64, flag: u64) -> Option<()> {
    let words = [(0, value), (8, flag)];
    if let Some(stored) = to.store_copied(&words) {
        return stored.then_some(());
    }
    for (at, word) in words {
        to.store_word(at, WordWidth::Eight, word).then_some(())?;
        to.publish_words();
    }
    Some(())
}

#[cfg(test)]
#[path = "../../mem/tests/held/mod.rs"]
mod held;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trunkline_engine::rma::WordAccess;
    use trunkline_mem::MappedMemory;

    use super::held::HeldStores;
    use super::*;

    /// Bytes of the memory for the values.
    const LEN: usize = 64;

    /// Records the words of each copy.
    #[derive(Debug, Default)]
    struct CopiedWords {
        waits: Mutex<Vec<Vec<(u64, u64)>>>,
    }

    impl WordAccess for CopiedWords {
        fn load(&self, _offset: u64, _width: WordWidth) -> Option<u64> {
            None
        }

        fn store(&self, offset: u64, _width: WordWidth, value: u64) -> bool {
            self.store_all(&[(offset, value)])
        }

        fn store_all(&self, words: &[(u64, u64)]) -> bool {
            self.waits.lock().unwrap_or_else(PoisonError::into_inner).push(words.to_vec());
            true
        }
    }

    #[test]
    fn copied_values_and_flags_share_one_wait() {
        let cells = Arc::new(CopiedWords::default());
        assert_eq!(
            write_value_and_flag(&RegisteredPlace::in_cells(Arc::clone(&cells) as Arc<_>, 16), 77, 1),
            Some(())
        );
        let waits = cells.waits.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*waits, [vec![(16, 77), (24, 1)]]);
    }

    #[test]
    fn values_are_visible_before_their_flags() {
        let watch =
            |image: &[u8]| assert!(image[24] == 0 || image[16] == 77, "the flag is visible before the value");
        let held = Arc::new(HeldStores::new(LEN, 1, watch));
        // SAFETY: the range is given to no NIC, so its address is never accessed.
        let mapped = unsafe { MappedMemory::new(1 << 40, LEN, Arc::clone(&held) as Arc<_>) };
        assert_eq!(write_value_and_flag(&RegisteredPlace::in_mapping(mapped, 16), 77, 1), Some(()));
        assert_eq!(held.held_back(), 0, "a flag is held back");
        assert_eq!((held.image()[16], held.image()[24]), (77, 1));
    }
}
