//! Frames about single links of a comm. The thread that reads the control stream does not hold the comm's lock, so the peer's
//! frames wait here until the lane is polled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use trunkline_fabric::PassedFd;
use trunkline_proto::wire::frame::ControlFrame;

/// The maximum number of queued frames. Further ones are dropped, because the peer decides how many it sends; a peer
/// that waits for a reply repeats its frame.
const NEWS_MAX: usize = 32;

/// A frame, and the descriptor that was passed with it.
pub(crate) type LinkFrame = (ControlFrame, Option<PassedFd>);

/// The queue of the peer's frames.
#[derive(Debug, Default)]
pub(crate) struct LinkFrameQueue {
    some: AtomicBool,
    words: SpinMutex<VecDeque<LinkFrame>>,
}

impl LinkFrameQueue {
    /// Queues a frame.
    pub(crate) fn push_frame(&self, word: LinkFrame) {
        let mut words = self.words.lock();
        if words.len() < NEWS_MAX {
            words.push_back(word);
            self.some.store(true, Ordering::Release);
        }
    }

    /// Returns whether there is any.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    /// Removes the oldest frame.
    pub(crate) fn pop_frame(&self) -> Option<LinkFrame> {
        let mut words = self.words.lock();
        let word = words.pop_front();
        if word.is_none() {
            self.some.store(false, Ordering::Release);
        }
        word
    }

    /// Drops all frames: they were for the previous comm of the slot.
    pub(crate) fn clear(&self) {
        self.words.lock().clear();
        self.some.store(false, Ordering::Release);
    }
}
