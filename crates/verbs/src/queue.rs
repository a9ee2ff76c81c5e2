//! The operations posted on one work queue, oldest first, and the results that completions imply for them. A link calls it when it posts and
//! when it polls. Pure: knows no device.

use trunkline_proto::reserve::{OutOfMemory, try_filled};

/// One operation that was posted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct WorkEntry {
    /// The user's number.
    pub(crate) wr_id: u64,
    /// Whether the user gets a completion when it succeeds.
    pub(crate) told: bool,
    /// Whether it is a send, which can be too long for its receive.
    pub(crate) is_send: bool,
    /// Whether it carries the bytes of a write whose immediate is the next request: it has no completion of its own for the user.
    pub(crate) half: bool,
}

/// A queue of a fixed number of operations, addressed by positions that wrap.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    entries: Box<[WorkEntry]>,
    /// Position of the oldest operation that has not ended.
    head: u32,
    /// Position of the next operation.
    tail: u32,
    /// Position up to which operations were submitted to the device.
    given: u32,
    /// Number of halves among the operations that have not ended.
    halves: u32,
    /// Number of unsignalled operations since the last signalled one.
    quiet: u32,
    /// Whether an operation has failed: operations that the device skips from then on were flushed.
    failed: bool,
}

/// The result that a completion implies for the oldest operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndedWork {
    /// It is an earlier operation, and it succeeded.
    Silently(WorkEntry),
    /// It is an earlier operation, and it never ran.
    Flushed(WorkEntry),
    /// It is the completed operation.
    This(WorkEntry),
    /// No operation has that position.
    Nobody,
}

impl WorkQueue {
    /// Creates a queue for `depth` operations.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(depth: u32) -> Result<Self, OutOfMemory> {
        Ok(Self {
            entries: try_filled(WorkEntry::default(), depth.max(1) as usize)?,
            head: 0,
            tail: 0,
            given: 0,
            halves: 0,
            quiet: 0,
            failed: false,
        })
    }

    /// Returns the number of operations that it has room for.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        // The length is the `u32` that `new` was called with.
        self.entries.len() as u32
    }

    fn entry_index(&self, position: u32) -> usize {
        (position % self.depth()) as usize
    }

    /// Returns the number of operations that have not ended.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        ring_distance(self.head, self.tail, self.depth())
    }

    /// Returns the number of operations that were submitted to the device and have not ended.
    #[inline]
    pub(crate) fn submitted_count(&self) -> u32 {
        ring_distance(self.head, self.given, self.depth())
    }

    /// Returns the number of the user's operations that have not ended: a half counts together with its immediate as one.
    #[inline]
    pub(crate) fn operation_count(&self) -> u32 {
        self.len() - self.halves
    }

    /// Removes the oldest operation.
    #[inline]
    fn pop_oldest(&mut self) -> WorkEntry {
        let entry = self.entries[self.entry_index(self.head)];
        self.head = next(self.head, self.depth());
        self.halves -= u32::from(entry.half);
        entry
    }

    /// Adds an operation. Returns its position, and whether it must be signalled. At least one operation per quarter of the queue is, because a
    /// device frees the slots of unsignalled requests only with a later completion. There must be
    /// room.
    #[inline]
    pub(crate) fn push(&mut self, entry: WorkEntry, last: bool) -> (u32, bool) {
        let position = self.tail;
        let at = self.entry_index(position);
        self.entries[at] = entry;
        self.halves += u32::from(entry.half);
        self.tail = next(self.tail, self.depth());
        let often = (self.depth() / 4).max(1);
        let must = self.quiet + 1 >= often || last;
        let signalled = entry.told || must;
        self.quiet = if signalled { 0 } else { self.quiet + 1 };
        (position, signalled)
    }

    /// Marks all operations as submitted.
    #[inline]
    pub(crate) fn mark_submitted(&mut self) {
        self.given = self.tail;
    }

    /// Marks all operations but the last `count` as submitted, because the device refused those.
    pub(crate) fn mark_refused(&mut self, count: u32) {
        let lap = 2 * self.depth();
        self.given = (self.tail + lap - count % lap) % lap;
    }

    /// Removes the oldest operation, and returns the result that a completion of `position` implies for it. The caller repeats it until it returns
    /// [`EndedWork::This`].
    #[inline]
    pub(crate) fn end_oldest(&mut self, position: u32, well: bool) -> EndedWork {
        if ring_distance(self.head, position, self.depth()) >= self.submitted_count() {
            return EndedWork::Nobody;
        }
        let this = self.head == position;
        let entry = self.pop_oldest();
        if this {
            self.failed |= !well;
            EndedWork::This(entry)
        } else if self.failed {
            EndedWork::Flushed(entry)
        } else {
            EndedWork::Silently(entry)
        }
    }

    /// Returns the position behind the last submitted operation.
    pub(crate) fn submitted_end(&self) -> u32 {
        self.given
    }

    /// Removes the oldest operation before a mark that has completed, and returns its result. The caller repeats it until it returns
    /// [`EndedWork::Nobody`].
    pub(crate) fn end_before(&mut self, mark: u32) -> EndedWork {
        let left = ring_distance(self.head, mark, self.depth());
        if left == 0 || left > self.submitted_count() {
            return EndedWork::Nobody;
        }
        let entry = self.pop_oldest();
        if self.failed { EndedWork::Flushed(entry) } else { EndedWork::Silently(entry) }
    }

    /// Removes the oldest operation if no earlier one is with the device, and the device never gets it.
    pub(crate) fn drop_oldest(&mut self) -> Option<WorkEntry> {
        if self.submitted_count() > 0 || self.len() == 0 {
            return None;
        }
        let entry = self.pop_oldest();
        self.given = self.head;
        Some(entry)
    }
}

/// Returns the next position. Positions run through two laps, so that a full queue differs from an empty one.
#[inline]
fn next(position: u32, depth: u32) -> u32 {
    if position + 1 == 2 * depth { 0 } else { position + 1 }
}

#[inline]
fn ring_distance(from: u32, to: u32, depth: u32) -> u32 {
    if to >= from { to - from } else { to + 2 * depth - from }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn entry(wr_id: u64, told: bool) -> WorkEntry {
        WorkEntry { wr_id, told, is_send: false, half: false }
    }

    #[test]
    fn earlier_operations_succeed_until_the_first_failure() {
        let mut queue = WorkQueue::new(8).unwrap();
        let positions: Vec<u32> = (0..6).map(|wr_id| queue.push(entry(wr_id, false), false).0).collect();
        assert_eq!(queue.end_oldest(positions[0], true), EndedWork::Nobody, "the device has none");
        queue.mark_submitted();
        assert_eq!(queue.end_oldest(positions[1], true), EndedWork::Silently(entry(0, false)));
        assert_eq!(queue.end_oldest(positions[1], true), EndedWork::This(entry(1, false)));
        assert_eq!(queue.end_oldest(positions[1], true), EndedWork::Nobody, "twice");
        assert_eq!(queue.end_oldest(positions[2], false), EndedWork::This(entry(2, false)));
        assert_eq!(queue.end_oldest(positions[4], false), EndedWork::Flushed(entry(3, false)));
        assert_eq!(queue.end_oldest(positions[4], false), EndedWork::This(entry(4, false)));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn refused_operations_are_dropped_last() {
        let mut queue = WorkQueue::new(4).unwrap();
        let positions: Vec<u32> = (0..4).map(|wr_id| queue.push(entry(wr_id, true), false).0).collect();
        queue.mark_submitted();
        queue.mark_refused(2);
        assert_eq!((queue.len(), queue.submitted_count()), (4, 2));
        assert_eq!(queue.drop_oldest(), None, "the device has some");
        assert_eq!(queue.end_oldest(positions[2], false), EndedWork::Nobody);
        assert_eq!(queue.end_oldest(positions[0], true), EndedWork::This(entry(0, true)));
        assert_eq!(queue.end_oldest(positions[1], true), EndedWork::This(entry(1, true)));
        assert_eq!(queue.drop_oldest(), Some(entry(2, true)));
        assert_eq!(queue.drop_oldest(), Some(entry(3, true)));
        assert_eq!(queue.drop_oldest(), None);
    }

    #[test]
    fn completed_mark_ends_all_earlier_operations() {
        let mut queue = WorkQueue::new(4).unwrap();
        let positions: Vec<u32> = (0..4).map(|wr_id| queue.push(entry(wr_id, false), false).0).collect();
        queue.mark_submitted();
        queue.mark_refused(1);
        let mark = queue.submitted_end();
        assert_eq!(
            queue.end_before(mark),
            EndedWork::Silently(entry(0, false)),
            "it succeeded, and was not signalled"
        );
        assert_eq!(queue.end_oldest(positions[1], false), EndedWork::This(entry(1, false)));
        assert_eq!(queue.end_before(mark), EndedWork::Flushed(entry(2, false)));
        assert_eq!((queue.end_before(mark), queue.submitted_count(), queue.len()), (EndedWork::Nobody, 0, 1));
        assert_eq!(queue.end_before(positions[0]), EndedWork::Nobody, "an earlier mark");
        assert_eq!(WorkQueue::new(3).unwrap().end_before(0), EndedWork::Nobody);
    }

    proptest! {
        /// Compares with a list: slots are freed in order, and a queue with only unsignalled operations never stays full.
        #[test]
        fn slots_are_freed_in_order(depth in 1_u32..20, steps in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut queue = WorkQueue::new(depth).unwrap();
            let mut model: VecDeque<(u32, u64, bool)> = VecDeque::new();
            for (wr_id, step) in steps.into_iter().enumerate() {
                if step % 3 > 0 && queue.len() < depth {
                    let entry = entry(wr_id as u64, step % 5 == 0);
                    let (position, signalled) = queue.push(entry, queue.len() + 1 == depth);
                    model.push_back((position, entry.wr_id, signalled));
                    queue.mark_submitted();
                } else if let Some(at) = model.iter().position(|one| one.2) {
                    let position = model[at].0;
                    for _ in 0..=at {
                        let (EndedWork::Silently(ended) | EndedWork::This(ended)) = queue.end_oldest(position, true) else {
                            panic!("the completion matched no operation");
                        };
                        prop_assert_eq!(Some(ended.wr_id), model.pop_front().map(|one| one.1));
                    }
                }
                prop_assert_eq!(queue.len() as usize, model.len());
                let silent = model.iter().rev().take_while(|one| !one.2).count() as u32;
                prop_assert!(silent < (depth / 4).max(1), "{silent} of {depth} operations without a completion");
            }
        }
    }
}
