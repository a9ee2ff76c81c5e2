//! Completion queues as a WAIT sees them: how many completions each rail has produced, and the number of the first one in
//! error. A rail's `poll` counts, with one store; the links of other rails read the counts, without a lock. Nothing here
//! holds a completion.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_fabric::{OpStatus, PostError};

/// The number of completions that one rail has produced. Only the owner of the rail writes it.
#[repr(align(128))]
pub(crate) struct CompletionCounter {
    /// Its name within the fabric.
    pub(crate) id: u64,
    nic: usize,
    /// Index of the next completion, modulo 2^64.
    produced: AtomicU64,
    failed: AtomicBool,
    /// Index of the first completion in error; undefined before `failed`.
    failed_at: AtomicU64,
    closed: AtomicBool,
}

/// The expected result of a wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WaitOutlook {
    /// The completion has been produced.
    Reached,
    /// The completion has not been produced yet.
    NotYet,
    /// The completion is never produced, or was in error.
    Lost,
}

impl CompletionCounter {
    /// Index of the next completion.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.produced.load(Ordering::Relaxed)
    }

    /// Counts `count` completions.
    #[inline]
    pub(crate) fn count_completions(&self, count: usize) {
        // The release makes the effects of the completions visible to a link that sees the new count.
        self.produced.store(self.next().wrapping_add(count as u64), Ordering::Release);
    }

    /// Marks the queue as failed because a link that still owed completions was destroyed: completions of other links would get their numbers.
    pub(crate) fn abandon_owed(&self) {
        self.mark_failed(0);
    }

    /// Marks the completion that follows `skipped` others, not yet counted, as one in error; from there on the count is not
    /// reliable.
    pub(crate) fn mark_failed(&self, skipped: usize) {
        if !self.failed.load(Ordering::Relaxed) {
            self.failed_at.store(self.next().wrapping_add(skipped as u64), Ordering::Relaxed);
            self.failed.store(true, Ordering::Release);
        }
    }

    /// Returns the expected result of a wait for completion number `index`.
    #[inline]
    fn wait_outlook(&self, index: u64) -> WaitOutlook {
        // Read before the error: `poll` marks an error before it counts the completion, so a count that includes it implies the mark.
        let produced = self.produced.load(Ordering::Acquire);
        if self.closed.load(Ordering::Acquire) {
            return WaitOutlook::Lost;
        }
        if self.failed.load(Ordering::Acquire) {
            // Indices wrap, so they are compared by their signed difference.
            let behind = index.wrapping_sub(self.failed_at.load(Ordering::Relaxed)) as i64;
            if behind >= 0 {
                return WaitOutlook::Lost;
            }
        }
        let ahead = produced.wrapping_sub(index) as i64;
        if ahead > 0 { WaitOutlook::Reached } else { WaitOutlook::NotYet }
    }
}

/// The completion queues of a fabric's open rails.
pub(crate) struct CounterTable {
    open: Mutex<HashMap<u64, Arc<CompletionCounter>>>,
    next: AtomicU64,
}

impl CounterTable {
    /// Creates an empty table. The first queue gets number `first`, which should be random so that numbers of other fabrics are invalid here.
    pub(crate) fn new(first: u64) -> Self {
        Self { open: Mutex::new(HashMap::new()), next: AtomicU64::new(first) }
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<u64, Arc<CompletionCounter>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue for a new rail of a NIC, whose first completion has number `start`.
    pub(crate) fn add_counter(&self, nic: usize, start: u64) -> Arc<CompletionCounter> {
        let cq = Arc::new(CompletionCounter {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            nic,
            produced: AtomicU64::new(start),
            failed: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        self.lock_open().insert(cq.id, Arc::clone(&cq));
        cq
    }

    /// Closes the queue of a rail that is closed.
    pub(crate) fn close_counter(&self, cq: &CompletionCounter) {
        // Removed first, so that no new wait finds a queue that produces nothing more.
        self.lock_open().remove(&cq.id);
        cq.closed.store(true, Ordering::Release);
    }

    /// Returns an open queue of a NIC.
    fn find_counter(&self, nic: usize, id: u64) -> Option<Arc<CompletionCounter>> {
        self.lock_open().get(&id).filter(|cq| cq.nic == nic).map(Arc::clone)
    }
}

/// The completion queue that the last wait of a link was for, so that a wait for the same one takes no lock. The requester of a queue pair
/// calls it; it posts nothing and ends no link.
///
/// Invariant: a queue that is kept was found by its number among the open ones of the link's NIC. It may have been closed since.
#[derive(Default)]
pub(crate) struct AwaitedCounter {
    kept: Option<Arc<CompletionCounter>>,
}

impl AwaitedCounter {
    /// Refuses a wait for a number that names no completion queue of NIC `nic`. Takes a lock only if the last wait was for another queue.
    ///
    /// # Errors
    /// [`PostError::Refused`] if no open queue of the NIC has that number.
    pub(crate) fn check_wait(&self, cqs: &CounterTable, nic: usize, id: u64) -> Result<(), PostError> {
        let known = self.kept.as_ref().is_some_and(|cq| cq.id == id && !cq.closed.load(Ordering::Acquire));
        if known || cqs.find_counter(nic, id).is_some() {
            return Ok(());
        }
        Err(PostError::Refused(OpStatus::LocalProtection))
    }

    /// Finds the outlook for completion number `index` of a queue of NIC `nic`, and keeps the queue.
    pub(crate) fn find_outlook(
        &mut self,
        cqs: &CounterTable,
        nic: usize,
        id: u64,
        index: u64,
    ) -> WaitOutlook {
        // No lock for the queue of the last wait, because each poll checks the wait at the front.
        if let Some(cq) = &self.kept
            && cq.id == id
        {
            return cq.wait_outlook(index);
        }
        let Some(cq) = cqs.find_counter(nic, id) else { return WaitOutlook::Lost };
        self.kept.insert(cq).wait_outlook(index)
    }
}

#[cfg(test)]
mod tests {
    use super::{CounterTable, WaitOutlook};

    #[test]
    fn indices_wrap() {
        let cqs = CounterTable::new(1);
        let cq = cqs.add_counter(0, u64::MAX - 1);
        assert_eq!(cq.wait_outlook(u64::MAX - 2), WaitOutlook::Reached);
        for index in [u64::MAX - 1, u64::MAX, 0, 1, 2] {
            assert_eq!((cq.next(), cq.wait_outlook(index)), (index, WaitOutlook::NotYet));
            cq.count_completions(1);
            assert_eq!(cq.wait_outlook(index), WaitOutlook::Reached);
        }
        assert_eq!(
            cq.wait_outlook(u64::MAX - 1),
            WaitOutlook::Reached,
            "a produced completion stays reached"
        );
    }

    #[test]
    fn the_first_error_counts_also_across_the_wrap() {
        let cqs = CounterTable::new(1);
        let cq = cqs.add_counter(0, u64::MAX - 2);
        cq.mark_failed(3);
        cq.mark_failed(4);
        cq.count_completions(5);
        cq.mark_failed(0);
        cq.count_completions(2);
        assert_eq!(cq.next(), 4);
        let outlook = [u64::MAX - 2, u64::MAX - 1, u64::MAX, 0, 1, 100].map(|index| cq.wait_outlook(index));
        let reached = WaitOutlook::Reached;
        let lost = WaitOutlook::Lost;
        assert_eq!(outlook, [reached, reached, reached, lost, lost, lost]);
    }

    #[test]
    fn only_open_queues_of_the_nic_are_found() {
        let cqs = CounterTable::new(u64::MAX);
        let one = cqs.add_counter(0, 0);
        let two = cqs.add_counter(1, 0);
        assert_eq!((one.id, two.id), (u64::MAX, 0));
        assert!(cqs.find_counter(0, one.id).is_some() && cqs.find_counter(1, two.id).is_some());
        assert!(cqs.find_counter(1, one.id).is_none() && cqs.find_counter(0, 1).is_none());
        cqs.close_counter(&one);
        assert!(cqs.find_counter(0, one.id).is_none());
        assert_eq!(one.wait_outlook(0), WaitOutlook::Lost);
    }
}
