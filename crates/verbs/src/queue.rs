//! What is posted on one work queue, oldest first, and what its completions say of it. Pure: knows no device.

use trunkline_proto::reserve::{OutOfMemory, try_filled};

/// One operation that was posted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct WorkEntry {
    /// The user's number.
    pub(crate) wr_id: u64,
    /// Whether the user is told when it is well.
    pub(crate) told: bool,
    /// Whether it is a send, which can be too long.
    pub(crate) is_send: bool,
    /// It is the bytes of a write whose immediate comes next: the user knows nothing of it.
    pub(crate) half: bool,
}

/// A queue of a fixed number of operations, by their positions, which wrap.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    entries: Box<[WorkEntry]>,
    /// Position of the oldest that has not ended.
    head: u32,
    /// Position of the next.
    tail: u32,
    /// Position up to which the device has been given them.
    given: u32,
    /// Halves among those that have not ended.
    halves: u32,
    /// How many of the last are not signalled.
    quiet: u32,
    /// Whether one has failed: those that the device leaves out from then on were flushed.
    failed: bool,
}

/// What a completion says of the oldest operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndedWork {
    /// It is an earlier one, and it went well.
    Silently(WorkEntry),
    /// It is an earlier one, and it never ran.
    Flushed(WorkEntry),
    /// It is the one.
    This(WorkEntry),
    /// There is none with that position.
    Nobody,
}

impl WorkQueue {
    /// A queue for `depth` operations.
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

    /// Operations that it has room for.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        // As many as it was made for.
        self.entries.len() as u32
    }

    fn entry_index(&self, position: u32) -> usize {
        (position % self.depth()) as usize
    }

    /// Operations that have not ended.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        ring_distance(self.head, self.tail, self.depth())
    }

    /// Operations that the device has been given and has not ended.
    #[inline]
    pub(crate) fn submitted_count(&self) -> u32 {
        ring_distance(self.head, self.given, self.depth())
    }

    /// Of those, what the user posted: halves count with the others.
    #[inline]
    pub(crate) fn operation_count(&self) -> u32 {
        self.len() - self.halves
    }

    /// The oldest leaves.
    #[inline]
    fn pop_oldest(&mut self) -> WorkEntry {
        let entry = self.entries[self.entry_index(self.head)];
        self.head = next(self.head, self.depth());
        self.halves -= u32::from(entry.half);
        entry
    }

    /// Adds an operation; its position, and whether it must be signalled so that places come free in time. There must be
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

    /// The device has been given all.
    #[inline]
    pub(crate) fn mark_submitted(&mut self) {
        self.given = self.tail;
    }

    /// The device took all but the last `count`.
    pub(crate) fn mark_refused(&mut self, count: u32) {
        let lap = 2 * self.depth();
        self.given = (self.tail + lap - count % lap) % lap;
    }

    /// What a completion of `position` says of the oldest operation, which leaves the queue. To be asked again until it is
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

    /// The position behind the last operation that the device was given.
    pub(crate) fn submitted_end(&self) -> u32 {
        self.given
    }

    /// What is to be said of the oldest operation before a mark once the device has come to that: it leaves the queue. To be
    /// asked again until it is [`EndedWork::Nobody`].
    pub(crate) fn end_before(&mut self, mark: u32) -> EndedWork {
        let left = ring_distance(self.head, mark, self.depth());
        if left == 0 || left > self.submitted_count() {
            return EndedWork::Nobody;
        }
        let entry = self.pop_oldest();
        if self.failed { EndedWork::Flushed(entry) } else { EndedWork::Silently(entry) }
    }

    /// The oldest operation, taken out, if the device has none and never gets it.
    pub(crate) fn drop_oldest(&mut self) -> Option<WorkEntry> {
        if self.submitted_count() > 0 || self.len() == 0 {
            return None;
        }
        let entry = self.pop_oldest();
        self.given = self.head;
        Some(entry)
    }
}

/// Positions run through two laps, so that a full queue is not an empty one.
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
    fn earlier_ones_end_silently_and_fail_after_the_first_failure() {
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
    fn what_the_device_did_not_take_is_dropped_last() {
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
    fn what_is_before_a_mark_has_ended_when_that_has() {
        let mut queue = WorkQueue::new(4).unwrap();
        let positions: Vec<u32> = (0..4).map(|wr_id| queue.push(entry(wr_id, false), false).0).collect();
        queue.mark_submitted();
        queue.mark_refused(1);
        let mark = queue.submitted_end();
        assert_eq!(
            queue.end_before(mark),
            EndedWork::Silently(entry(0, false)),
            "it was well, and nobody was told"
        );
        assert_eq!(queue.end_oldest(positions[1], false), EndedWork::This(entry(1, false)));
        assert_eq!(queue.end_before(mark), EndedWork::Flushed(entry(2, false)));
        assert_eq!((queue.end_before(mark), queue.submitted_count(), queue.len()), (EndedWork::Nobody, 0, 1));
        assert_eq!(queue.end_before(positions[0]), EndedWork::Nobody, "a mark that is past");
        assert_eq!(WorkQueue::new(3).unwrap().end_before(0), EndedWork::Nobody);
    }

    proptest! {
        /// Against a list: places come free in order, and a queue that is used without being told never stays full.
        #[test]
        fn places_come_free(depth in 1_u32..20, steps in proptest::collection::vec(any::<u8>(), 0..300)) {
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
                            panic!("it ended as no one");
                        };
                        prop_assert_eq!(Some(ended.wr_id), model.pop_front().map(|one| one.1));
                    }
                }
                prop_assert_eq!(queue.len() as usize, model.len());
                let silent = model.iter().rev().take_while(|one| !one.2).count() as u32;
                prop_assert!(silent < (depth / 4).max(1), "{silent} of {depth} are never heard of");
            }
        }
    }
}
