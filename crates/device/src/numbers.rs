//! Numbers of an executor's queues, which are those of their doorbells: each is one queue's at a time, and an epoch tells those apart that have it one after
//! another. Used by `executor`; it knows nothing of queues.

use std::collections::VecDeque;

use trunkline_proto::reserve::OutOfMemory;

/// A number, for one queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct QueueNumber {
    pub(super) number: u32,
    pub(super) epoch: u32,
    /// Entries that may be under way, for which there has been room with that number.
    pub(super) window: u32,
}

/// Who has which.
#[derive(Debug, Default)]
pub(super) struct QueueNumberPool {
    /// The first that nobody has had.
    next: u32,
    /// Those that were given back, the first one first: of a queue that is gone somebody may still hold what rings its doorbell, so a number rests as long as it can.
    back: VecDeque<QueueNumber>,
}

impl QueueNumberPool {
    /// One of the numbers below `count`.
    pub(super) fn take_number(&mut self, count: u32) -> Option<QueueNumber> {
        if self.next < count {
            let number = self.next;
            self.next += 1;
            return Some(QueueNumber { number, epoch: 0, window: 0 });
        }
        self.back.pop_front()
    }

    /// Makes room for so many that are given back: to take one back allocates nothing.
    pub(super) fn reserve_room(&mut self, count: usize) -> Result<(), OutOfMemory> {
        let more = count.saturating_sub(self.back.len());
        self.back.try_reserve(more).map_err(|_| OutOfMemory { bytes: count * size_of::<QueueNumber>() })
    }

    /// Takes back what was not used: the next one has it.
    pub(super) fn return_unused(&mut self, number: QueueNumber) {
        if number.number + 1 == self.next && number.epoch == 0 {
            self.next = number.number;
        } else {
            self.back.push_front(number);
        }
    }

    /// Takes back what is not used any more.
    pub(super) fn give_back(&mut self, number: QueueNumber) {
        self.back.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_as_long_as_there_are_others() {
        let mut numbers = QueueNumberPool::default();
        let [first, second] = [(); 2].map(|()| numbers.take_number(3).unwrap());
        assert_eq!([first.number, second.number], [0, 1]);
        numbers.give_back(QueueNumber { epoch: 1, window: 8, ..second });
        numbers.give_back(QueueNumber { epoch: 1, window: 4, ..first });
        let third = numbers.take_number(3).unwrap();
        assert_eq!(third.number, 2);
        numbers.return_unused(third);
        assert_eq!(numbers.take_number(3), Some(third));
        assert_eq!(numbers.take_number(3), Some(QueueNumber { number: 1, epoch: 1, window: 8 }));
        let last = numbers.take_number(3).unwrap();
        assert_eq!(last, QueueNumber { number: 0, epoch: 1, window: 4 });
        numbers.return_unused(last);
        assert_eq!(numbers.take_number(3), Some(last));
        assert_eq!(numbers.take_number(3), None);
    }
}
