//! Numbers of an executor's queues, which are also those of their doorbells. A number belongs to one queue at a time, and an epoch
//! distinguishes its successive queues. Used by `executor`; it accesses no queue.

use std::collections::VecDeque;

use trunkline_proto::reserve::OutOfMemory;

/// A number for one queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct QueueNumber {
    pub(super) number: u32,
    pub(super) epoch: u32,
    /// The entries in progress for which memory was reserved with this number.
    pub(super) window: u32,
}

/// The free numbers.
#[derive(Debug, Default)]
pub(super) struct QueueNumberPool {
    /// The first number that was never used.
    next: u32,
    /// Returned numbers, oldest first. A producer may still hold a doorbell of a removed queue, so a number is reused as late as possible.
    back: VecDeque<QueueNumber>,
}

impl QueueNumberPool {
    /// Acquires a number below `count`.
    pub(super) fn take_number(&mut self, count: u32) -> Option<QueueNumber> {
        if self.next < count {
            let number = self.next;
            self.next += 1;
            return Some(QueueNumber { number, epoch: 0, window: 0 });
        }
        self.back.pop_front()
    }

    /// Reserves memory for `count` returned numbers, so that a later return allocates nothing.
    pub(super) fn reserve_room(&mut self, count: usize) -> Result<(), OutOfMemory> {
        let more = count.saturating_sub(self.back.len());
        self.back.try_reserve(more).map_err(|_| OutOfMemory { bytes: count * size_of::<QueueNumber>() })
    }

    /// Returns an unused number. The next call of `take_number` gets it, as no producer has seen it.
    pub(super) fn return_unused(&mut self, number: QueueNumber) {
        if number.number + 1 == self.next && number.epoch == 0 {
            self.next = number.number;
        } else {
            self.back.push_front(number);
        }
    }

    /// Returns the number of a removed queue.
    pub(super) fn give_back(&mut self, number: QueueNumber) {
        self.back.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_reused_after_all_others() {
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
