//! A bounded queue that allocates only when it holds more items than ever before, up to its bound, so that an idle link stays small.
//! Queue pairs hold posted work in it; it never shrinks.

use trunkline_proto::reserve::{OutOfMemory, try_filled_with};

/// Items that a queue has room for at first.
const FIRST: u64 = 4;

/// First in, first out, at most `capacity` items.
pub(crate) struct GrowingQueue<T> {
    /// A power of two of slots.
    items: Box<[Option<T>]>,
    head: u64,
    tail: u64,
    /// Items that fit now.
    room: u64,
    capacity: u64,
}

fn empty_places<T>(count: u64) -> Result<Box<[Option<T>]>, OutOfMemory> {
    try_filled_with(usize::try_from(count).unwrap_or(usize::MAX), || None)
}

impl<T> GrowingQueue<T> {
    /// Creates an empty queue; `start` is the number of the first item.
    pub(crate) fn new(capacity: u32, start: u64) -> Self {
        let capacity = u64::from(capacity);
        let items = std::iter::repeat_with(|| None);
        let items: Box<[_]> = items.take(capacity.max(1).next_power_of_two().min(FIRST) as usize).collect();
        Self { room: capacity.min(items.len() as u64), items, head: start, tail: start, capacity }
    }

    /// Creates an empty queue with all its room, for items whose room was promised to a caller.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn with_all_room(capacity: u32) -> Result<Self, OutOfMemory> {
        let capacity = u64::from(capacity);
        let items = empty_places(capacity.max(1).next_power_of_two())?;
        Ok(Self { items, head: 0, tail: 0, room: capacity, capacity })
    }

    /// Lowers the capacity of an empty queue; never raises it.
    pub(crate) fn lower_capacity(&mut self, capacity: u32) {
        self.capacity = self.capacity.min(u64::from(capacity));
        self.room = self.room.min(self.capacity);
    }

    /// Makes room for `more` items; false if they exceed the capacity, or there is no memory for them.
    #[inline(always)]
    pub(crate) fn make_room(&mut self, more: u64) -> bool {
        while self.len() + more > self.room {
            if !self.grow() {
                return false;
            }
        }
        true
    }

    /// Doubles the room; false if the capacity is reached, or there is no memory.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        if self.room >= self.capacity {
            return false;
        }
        let Ok(mut items) = empty_places(2 * self.items.len() as u64) else { return false };
        let mut number = self.head;
        while number != self.tail {
            let from = self.index(number);
            let to = number as usize & (items.len() - 1);
            items[to] = self.items[from].take();
            number = number.wrapping_add(1);
        }
        self.items = items;
        self.room = self.capacity.min(self.items.len() as u64);
        true
    }

    /// Returns the number that the next pushed item gets; numbers wrap.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.tail
    }

    /// Returns the number of the oldest item, if there is one.
    #[inline]
    pub(crate) fn first_number(&self) -> u64 {
        self.head
    }

    #[inline]
    fn index(&self, number: u64) -> usize {
        number as usize & (self.items.len() - 1)
    }

    /// Returns the number of items.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether it holds nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether nothing more fits.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Adds an item; false if the queue is full, or there is no memory for one more.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) -> bool {
        if self.len() >= self.room && !self.grow() {
            return false;
        }
        let index = self.index(self.tail);
        self.items[index] = Some(item);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Returns the oldest item.
    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        if self.is_empty() { None } else { self.items[self.index(self.head)].as_ref() }
    }

    /// Returns the oldest item, to change it.
    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let index = self.index(self.head);
        self.items[index].as_mut()
    }

    /// Returns the item at a place behind the oldest, which has place 0.
    #[inline]
    pub(crate) fn item_at(&self, place: u64) -> Option<&T> {
        if place >= self.len() {
            None
        } else {
            self.items[self.index(self.head.wrapping_add(place))].as_ref()
        }
    }

    /// Returns the item with a number, if it is in the queue.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        if number.wrapping_sub(self.head) >= self.len() {
            return None;
        }
        let index = self.index(number);
        self.items[index].as_mut()
    }

    /// Removes the oldest item and returns it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let index = self.index(self.head);
        self.head = self.head.wrapping_add(1);
        self.items[index].take()
    }
}

impl<T> GrowingQueue<T> {
    /// Removes the newest item and returns it; the next pushed item gets its number.
    #[inline]
    pub(crate) fn pop_newest(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.tail = self.tail.wrapping_sub(1);
        let index = self.index(self.tail);
        self.items[index].take()
    }
}

#[cfg(test)]
mod tests {
    use super::GrowingQueue;

    #[test]
    fn pop_newest_returns_the_newest_item() {
        for start in [0, u64::MAX - 2] {
            let mut queue = GrowingQueue::new(8, start);
            assert!((0..8).all(|item| queue.push(item)));
            assert_eq!((queue.pop_newest(), queue.pop_newest(), queue.pop()), (Some(7), Some(6), Some(0)));
            assert!(queue.push(8) && queue.push(9));
            assert_eq!((queue.pop_newest(), queue.len()), (Some(9), 6));
            assert!([1, 2, 3, 4, 5, 8].iter().all(|&item| queue.pop() == Some(item)));
            assert_eq!(queue.pop_newest(), None);
        }
    }

    #[test]
    fn a_whole_queue_keeps_its_lowered_capacity() {
        let mut queue = GrowingQueue::with_all_room(16).unwrap();
        queue.lower_capacity(20);
        assert!((0..16).all(|item| queue.push(item)) && !queue.push(16), "no capacity is raised");
        while queue.pop().is_some() {}
        queue.lower_capacity(5);
        assert!((0..5).all(|item| queue.push(item)) && !queue.push(5) && queue.is_full());
        assert!((0..5).all(|item| queue.pop() == Some(item)));
    }

    #[test]
    fn made_room_holds_exactly_the_reserved_items() {
        let mut queue = GrowingQueue::new(10, 3);
        assert!(queue.push(0) && queue.make_room(9) && !queue.make_room(10));
        assert!((1..10).all(|item| queue.push(item)) && !queue.push(10) && !queue.make_room(1));
        assert!((0..10).all(|item| queue.pop() == Some(item)));
    }

    #[test]
    fn grows_up_to_its_bound_and_keeps_order() {
        for start in [0, 5, u64::MAX - 40] {
            let mut queue = GrowingQueue::new(100, start);
            for _ in 0..7 {
                assert!(queue.push(0) && queue.pop() == Some(0));
            }
            let first = queue.next();
            assert!((0..100u32).all(|item| queue.push(item)));
            assert!(!queue.push(100) && queue.is_full());
            assert_eq!(queue.get_mut(first.wrapping_add(63)).copied(), Some(63));
            assert_eq!((queue.item_at(99), queue.item_at(100)), (Some(&99), None));
            assert!((0..100).all(|item| queue.pop() == Some(item)));
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn keeps_order_across_the_wrap_of_its_numbers() {
        let mut queue = GrowingQueue::new(3, u64::MAX - 1);
        for round in 0..5u32 {
            let first = queue.next();
            assert!(queue.push(round) && queue.push(round + 10) && queue.push(round + 20));
            assert!(!queue.push(99), "capacity is exact, not rounded up");
            assert_eq!(queue.get_mut(first.wrapping_add(2)).copied(), Some(round + 20));
            assert_eq!(
                (queue.pop(), queue.pop(), queue.pop()),
                (Some(round), Some(round + 10), Some(round + 20))
            );
            assert_eq!(queue.get_mut(first), None);
            assert!(queue.is_empty() && queue.pop().is_none());
        }
    }
}
