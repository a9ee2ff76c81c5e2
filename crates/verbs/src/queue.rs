//! What is posted on one work queue, oldest first, and what its completions say of it. Pure: knows no device.

use trunkline_proto::reserve::{OutOfMemory, try_filled};

use crate::error::Planted;

/// One operation that was posted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Entry {
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
pub(crate) struct Queue {
    entries: Box<[Entry]>,
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
    never_signals: Planted,
}

/// What a completion says of the oldest operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ended {
    /// It is an earlier one, and it went well.
    Silently(Entry),
    /// It is an earlier one, and it never ran.
    Flushed(Entry),
    /// It is the one.
    This(Entry),
    /// There is none with that position.
    Nobody,
}

impl Queue {
    /// A queue for `depth` operations.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(depth: u32) -> Result<Self, OutOfMemory> {
        Ok(Self {
            entries: try_filled(Entry::default(), depth.max(1) as usize)?,
            head: 0,
            tail: 0,
            given: 0,
            halves: 0,
            quiet: 0,
            failed: false,
            never_signals: Planted::named("verbs-never-signals-by-itself"),
        })
    }

    /// Operations that it has room for.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        // As many as it was made for.
        self.entries.len() as u32
    }

    fn at(&self, position: u32) -> usize {
        (position % self.depth()) as usize
    }

    /// Operations that have not ended.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        distance(self.head, self.tail, self.depth())
    }

    /// Operations that the device has been given and has not ended.
    #[inline]
    pub(crate) fn given(&self) -> u32 {
        distance(self.head, self.given, self.depth())
    }

    /// Of those, what the user posted: halves count with the others.
    #[inline]
    pub(crate) fn operations(&self) -> u32 {
        self.len() - self.halves
    }

    /// The oldest leaves.
    #[inline]
    fn take(&mut self) -> Entry {
        let entry = self.entries[self.at(self.head)];
        self.head = next(self.head, self.depth());
        self.halves -= u32::from(entry.half);
        entry
    }

    /// Adds an operation; its position, and whether it must be signalled so that places come free in time. There must be
    /// room.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry, last: bool) -> (u32, bool) {
        let position = self.tail;
        let at = self.at(position);
        self.entries[at] = entry;
        self.halves += u32::from(entry.half);
        self.tail = next(self.tail, self.depth());
        let often = (self.depth() / 4).max(1);
        let must = (self.quiet + 1 >= often || last) && !self.never_signals.is_on();
        let signalled = entry.told || must;
        self.quiet = if signalled { 0 } else { self.quiet + 1 };
        (position, signalled)
    }

    /// The device has been given all.
    #[inline]
    pub(crate) fn give(&mut self) {
        self.given = self.tail;
    }

    /// The device took all but the last `count`.
    pub(crate) fn refused(&mut self, count: u32) {
        let lap = 2 * self.depth();
        self.given = (self.tail + lap - count % lap) % lap;
    }

    /// What a completion of `position` says of the oldest operation, which leaves the queue. To be asked again until it is
    /// [`Ended::This`].
    #[inline]
    pub(crate) fn end(&mut self, position: u32, well: bool) -> Ended {
        if distance(self.head, position, self.depth()) >= self.given() {
            return Ended::Nobody;
        }
        let this = self.head == position;
        let entry = self.take();
        if this {
            self.failed |= !well;
            Ended::This(entry)
        } else if self.failed {
            Ended::Flushed(entry)
        } else {
            Ended::Silently(entry)
        }
    }

    /// The position behind the last operation that the device was given.
    pub(crate) fn mark(&self) -> u32 {
        self.given
    }

    /// What is to be said of the oldest operation before a mark once the device has come to that: it leaves the queue. To be
    /// asked again until it is [`Ended::Nobody`].
    pub(crate) fn end_before(&mut self, mark: u32) -> Ended {
        let left = distance(self.head, mark, self.depth());
        if left == 0 || left > self.given() {
            return Ended::Nobody;
        }
        let entry = self.take();
        if self.failed { Ended::Flushed(entry) } else { Ended::Silently(entry) }
    }

    /// The oldest operation, taken out, if the device has none and never gets it.
    pub(crate) fn drop_oldest(&mut self) -> Option<Entry> {
        if self.given() > 0 || self.len() == 0 {
            return None;
        }
        let entry = self.take();
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
fn distance(from: u32, to: u32, depth: u32) -> u32 {
    if to >= from { to - from } else { to + 2 * depth - from }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn entry(wr_id: u64, told: bool) -> Entry {
        Entry { wr_id, told, is_send: false, half: false }
    }

    #[test]
    fn earlier_ones_end_silently_and_fail_after_the_first_failure() {
        let mut queue = Queue::new(8).unwrap();
        let positions: Vec<u32> = (0..6).map(|wr_id| queue.push(entry(wr_id, false), false).0).collect();
        assert_eq!(queue.end(positions[0], true), Ended::Nobody, "the device has none");
        queue.give();
        assert_eq!(queue.end(positions[1], true), Ended::Silently(entry(0, false)));
        assert_eq!(queue.end(positions[1], true), Ended::This(entry(1, false)));
        assert_eq!(queue.end(positions[1], true), Ended::Nobody, "twice");
        assert_eq!(queue.end(positions[2], false), Ended::This(entry(2, false)));
        assert_eq!(queue.end(positions[4], false), Ended::Flushed(entry(3, false)));
        assert_eq!(queue.end(positions[4], false), Ended::This(entry(4, false)));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn what_the_device_did_not_take_is_dropped_last() {
        let mut queue = Queue::new(4).unwrap();
        let positions: Vec<u32> = (0..4).map(|wr_id| queue.push(entry(wr_id, true), false).0).collect();
        queue.give();
        queue.refused(2);
        assert_eq!((queue.len(), queue.given()), (4, 2));
        assert_eq!(queue.drop_oldest(), None, "the device has some");
        assert_eq!(queue.end(positions[2], false), Ended::Nobody);
        assert_eq!(queue.end(positions[0], true), Ended::This(entry(0, true)));
        assert_eq!(queue.end(positions[1], true), Ended::This(entry(1, true)));
        assert_eq!(queue.drop_oldest(), Some(entry(2, true)));
        assert_eq!(queue.drop_oldest(), Some(entry(3, true)));
        assert_eq!(queue.drop_oldest(), None);
    }

    #[test]
    fn what_is_before_a_mark_has_ended_when_that_has() {
        let mut queue = Queue::new(4).unwrap();
        let positions: Vec<u32> = (0..4).map(|wr_id| queue.push(entry(wr_id, false), false).0).collect();
        queue.give();
        queue.refused(1);
        let mark = queue.mark();
        assert_eq!(
            queue.end_before(mark),
            Ended::Silently(entry(0, false)),
            "it was well, and nobody was told"
        );
        assert_eq!(queue.end(positions[1], false), Ended::This(entry(1, false)));
        assert_eq!(queue.end_before(mark), Ended::Flushed(entry(2, false)));
        assert_eq!((queue.end_before(mark), queue.given(), queue.len()), (Ended::Nobody, 0, 1));
        assert_eq!(queue.end_before(positions[0]), Ended::Nobody, "a mark that is past");
        assert_eq!(Queue::new(3).unwrap().end_before(0), Ended::Nobody);
    }

    proptest! {
        /// Against a list: places come free in order, and a queue that is used without being told never stays full.
        #[test]
        fn places_come_free(depth in 1_u32..20, steps in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut queue = Queue::new(depth).unwrap();
            let mut model: VecDeque<(u32, u64, bool)> = VecDeque::new();
            for (wr_id, step) in steps.into_iter().enumerate() {
                if step % 3 > 0 && queue.len() < depth {
                    let entry = entry(wr_id as u64, step % 5 == 0);
                    let (position, signalled) = queue.push(entry, queue.len() + 1 == depth);
                    model.push_back((position, entry.wr_id, signalled));
                    queue.give();
                } else if let Some(at) = model.iter().position(|one| one.2) {
                    let position = model[at].0;
                    for _ in 0..=at {
                        let (Ended::Silently(ended) | Ended::This(ended)) = queue.end(position, true) else {
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
