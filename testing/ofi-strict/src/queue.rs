//! Completion queues: completions that have not been read.

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
    /// A positive error number, or 0.
    pub(crate) error: i32,
    /// Bytes of the message that did not fit into the receive.
    pub(crate) excess: usize,
}

impl StrictCompletion {
    /// A completion with all fields empty.
    pub(crate) const NOTHING: Self =
        Self { context: 0, flags: 0, len: 0, data: 0, tag: 0, src: ADDR_NOTAVAIL, error: 0, excess: 0 };
}

/// The descriptors on which readers of a queue wait.
pub(crate) struct QueueWait {
    /// Readable when the queue has entries or an endpoint can make progress.
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

/// A completion queue.
pub(crate) struct StrictQueue {
    /// Number of entries at which peers must wait.
    size: usize,
    /// Numbers of the bound endpoints.
    pub(crate) endpoints: Vec<u32>,
    pub(crate) wait: Option<QueueWait>,
    waiting: VecDeque<StrictCompletion>,
}

impl StrictQueue {
    pub(crate) fn new(size: usize, wait: Option<QueueWait>) -> Self {
        Self { size, endpoints: Vec::new(), wait, waiting: VecDeque::new() }
    }

    /// Whether peers must wait until entries are read.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a completion; with the probability `reorder` at a random place.
    pub(crate) fn push(&mut self, completion: StrictCompletion, rng: &mut fastrand::Rng, reorder: f64) {
        let overtakes = reorder > 0.0 && rng.f64() < reorder;
        let at = if overtakes { rng.usize(0..=self.waiting.len()) } else { self.waiting.len() };
        self.waiting.insert(at, completion);
        if let Some(wait) = &self.wait {
            // The write fails only if the counter is at its maximum, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&wait.entries, &1_u64.to_ne_bytes());
        }
    }

    /// Removes and returns the next entry if it is not an error.
    pub(crate) fn pop(&mut self) -> Option<StrictCompletion> {
        self.pop_if(|completion| completion.error == 0)
    }

    /// Removes and returns the next entry if it is an error.
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

/// Returns the flags of a receive's completion.
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
    fn error_blocks_later_completions() {
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
    fn completions_overtake_only_with_reordering() {
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
