//! Completion queues: what has completed and was not read yet.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, epoll, eventfd};
use trunkline_sys::ofi::{ADDR_NOTAVAIL, Addr, caps};

/// An operation that has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StrictCompletion {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) src: Addr,
    /// An error number, or 0.
    pub(crate) error: i32,
    /// Bytes that found no room.
    pub(crate) excess: usize,
}

impl StrictCompletion {
    /// Of nothing.
    pub(crate) const NOTHING: Self =
        Self { context: 0, flags: 0, len: 0, data: 0, tag: 0, src: ADDR_NOTAVAIL, error: 0, excess: 0 };
}

/// What a waiter's descriptor is made of.
pub(crate) struct QueueWait {
    /// Readable when there may be something.
    pub(crate) all: OwnedFd,
    /// Readable when the queue has entries.
    entries: OwnedFd,
}

impl QueueWait {
    /// # Errors
    /// The kernel's.
    pub(crate) fn new() -> std::io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let entries = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&all, &entries, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { all, entries })
    }
}

/// A queue.
pub(crate) struct StrictQueue {
    /// Entries at which peers have to wait.
    size: usize,
    /// Endpoints that are bound to it.
    pub(crate) endpoints: Vec<u32>,
    pub(crate) wait: Option<QueueWait>,
    waiting: VecDeque<StrictCompletion>,
}

impl StrictQueue {
    pub(crate) fn new(size: usize, wait: Option<QueueWait>) -> Self {
        Self { size, endpoints: Vec::new(), wait, waiting: VecDeque::new() }
    }

    /// Whether peers have to wait until it is read.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts in a completion, before others with some probability.
    pub(crate) fn push(&mut self, completion: StrictCompletion, rng: &mut fastrand::Rng, reorder: f64) {
        let overtakes = reorder > 0.0 && rng.f64() < reorder;
        let at = if overtakes { rng.usize(0..=self.waiting.len()) } else { self.waiting.len() };
        self.waiting.insert(at, completion);
        if let Some(wait) = &self.wait {
            // A counter that is full is readable, too.
            let _ = rustix::io::write(&wait.entries, &1_u64.to_ne_bytes());
        }
    }

    /// Takes the next one that is no error.
    pub(crate) fn pop(&mut self) -> Option<StrictCompletion> {
        self.pop_if(|completion| completion.error == 0)
    }

    /// Takes the next one if it is an error.
    pub(crate) fn pop_error(&mut self) -> Option<StrictCompletion> {
        self.pop_if(|completion| completion.error != 0)
    }

    fn pop_if(&mut self, wanted: impl FnOnce(&StrictCompletion) -> bool) -> Option<StrictCompletion> {
        let taken = if self.waiting.front().is_some_and(wanted) { self.waiting.pop_front() } else { None };
        if let Some(wait) = self.wait.as_ref().filter(|_| self.waiting.is_empty()) {
            let _ = rustix::io::read(&wait.entries, &mut [0_u8; 8]);
        }
        taken
    }

    pub(crate) fn has_error_next(&self) -> bool {
        self.waiting.front().is_some_and(|completion| completion.error != 0)
    }
}

/// The flags of a completion of a receive.
pub(crate) fn receive_flags(is_tagged: bool, has_data: bool) -> u64 {
    let kind = if is_tagged { caps::TAGGED } else { caps::MSG };
    caps::RECV | kind | if has_data { caps::REMOTE_CQ_DATA } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(context: usize, error: i32) -> StrictCompletion {
        StrictCompletion { context, flags: 0, len: 0, data: 0, tag: 0, src: 0, error, excess: 0 }
    }

    #[test]
    fn an_error_stops_what_is_behind_it() {
        let mut queue = StrictQueue::new(4, None);
        let rng = &mut fastrand::Rng::with_seed(1);
        for (context, error) in [(1, 0), (2, 5), (3, 0)] {
            queue.push(completion(context, error), rng, 0.0);
        }
        assert_eq!(queue.pop_error(), None);
        assert_eq!(queue.pop().map(|c| c.context), Some(1));
        assert_eq!((queue.pop(), queue.has_error_next()), (None, true));
        assert_eq!(queue.pop_error().map(|c| c.context), Some(2));
        assert_eq!(queue.pop().map(|c| c.context), Some(3));
    }

    #[test]
    fn completions_overtake_where_they_may() {
        let order = |reorder: f64| {
            let mut queue = StrictQueue::new(4, None);
            let rng = &mut fastrand::Rng::with_seed(1);
            (0..50).for_each(|n| queue.push(completion(n, 0), rng, reorder));
            std::iter::from_fn(|| queue.pop()).map(|c| c.context).collect::<Vec<_>>()
        };
        let mut other = order(1.0);
        assert_ne!(other, order(0.0));
        other.sort_unstable();
        assert_eq!(other, order(0.0));
    }
}
