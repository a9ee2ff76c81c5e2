//! The receives of the two ends of a link: those posted here, and how many of the peer's are left for sends of this side. The
//! queue pair calls it from `post` and `poll`; it moves no bytes and completes nothing.

use trunkline_fabric::{RailConfig, RecvOrder, RegionExtent};

use crate::queue::GrowingQueue;

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedRecv {
    /// The caller's number of the operation.
    pub(crate) wr_id: u64,
    /// The destination of the bytes.
    pub(crate) into: RegionExtent,
}

/// Holds the posted receives of one queue pair, and the receive that a send of the peer is filling. The requester posts into it, and the responder
/// takes from it; it never reads memory, and it publishes nothing.
///
/// Invariant: a receive is either in the queue, or arriving, or with the caller that took it. The posted position only grows, and
/// it is ahead of the taken one by the length of the queue.
pub(crate) struct ReceiveQueue {
    queue: GrowingQueue<PostedRecv>,
    /// The newest receive is filled by the next send, and not the oldest.
    newest_first: bool,
    /// Position after the last receive that was posted.
    posted: u64,
    /// The receive that a send is filling, and the bytes placed.
    arriving: Option<(PostedRecv, u64)>,
}

impl ReceiveQueue {
    /// Creates an empty queue, whose first receive has position `start`.
    pub(crate) fn new(rail: &RailConfig, start: u64) -> Self {
        Self {
            queue: GrowingQueue::new(rail.recv_depth, 0),
            newest_first: rail.recv_order == RecvOrder::Any,
            posted: start,
            arriving: None,
        }
    }

    /// Adds a receive; false if the queue is full, or there is no memory for one more.
    #[inline]
    pub(crate) fn post_receive(&mut self, receive: PostedRecv) -> bool {
        if !self.queue.push(receive) {
            return false;
        }
        self.posted = self.posted.wrapping_add(1);
        true
    }

    /// Returns the position after the last receive that was posted.
    #[inline]
    pub(crate) fn posted_position(&self) -> u64 {
        self.posted
    }

    /// Returns the position after the last receive that sends have used up.
    #[inline]
    pub(crate) fn taken_position(&self) -> u64 {
        self.posted.wrapping_sub(self.queue.len())
    }

    /// Takes the posted receive that the next send fills.
    #[inline]
    pub(crate) fn take_receive(&mut self) -> Option<PostedRecv> {
        if self.newest_first { self.queue.pop_newest() } else { self.queue.pop() }
    }

    /// Takes the oldest posted receive; for flushing.
    #[inline]
    pub(crate) fn take_oldest(&mut self) -> Option<PostedRecv> {
        self.queue.pop()
    }

    /// Takes the receive that a send is filling, and the bytes placed so far.
    #[inline]
    pub(crate) fn take_arriving(&mut self) -> Option<(PostedRecv, u64)> {
        self.arriving.take()
    }

    /// Keeps a receive that has got `got` bytes of a send, for the rest of that send.
    #[inline]
    pub(crate) fn keep_arriving(&mut self, receive: PostedRecv, got: u64) {
        self.arriving = Some((receive, got));
    }

    /// Finds the receive of the send whose bytes are next, and the bytes placed so far. It stays the arriving one.
    #[inline]
    pub(crate) fn find_arriving(&mut self) -> Option<(PostedRecv, u64)> {
        let (receive, got) = self.arriving.or_else(|| Some((self.take_receive()?, 0)))?;
        self.arriving = Some((receive, got));
        Some((receive, got))
    }

    /// Whether a part of a send has arrived, and the rest of it has not.
    #[inline]
    pub(crate) fn has_arriving(&self) -> bool {
        self.arriving.is_some()
    }
}

/// How many sends of this side the peer has receives for. The requester checks it before it begins a send, and counts each send that it began.
/// It never reads the peer's word itself.
///
/// Invariant: both positions begin at the peer's first one. If the requester checks first, no more sends are begun than the peer
/// has posted receives, unless the peer takes back a position that it published.
pub(crate) struct SendCredit {
    /// Position after the last send that was begun.
    begun: u64,
    /// Position after the last receive of the peer, as last seen.
    peer_posted: u64,
}

impl SendCredit {
    /// Creates it without credit; the first send has position `start`.
    pub(crate) const fn new(start: u64) -> Self {
        Self { begun: start, peer_posted: start }
    }

    /// Whether every known receive of the peer is used up.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.begun == self.peer_posted
    }

    /// Sets how many receives the peer has posted.
    #[inline]
    pub(crate) fn set_peer_posted(&mut self, posted: u64) {
        self.peer_posted = posted;
    }

    /// Counts `count` sends that were begun.
    #[inline]
    pub(crate) fn count_sends(&mut self, count: u64) {
        self.begun = self.begun.wrapping_add(count);
    }
}
