//! Words about single links of a comm, on their way between its lane and the control stream: what the peer said waits
//! here until the lane is polled, because who reads the control stream does not own the lane.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use trunkline_fabric::PassedFd;
use trunkline_proto::wire::frame::ControlFrame;

/// Words that may wait. What comes beyond is dropped; whoever waits for an answer says it again.
const NEWS_MAX: usize = 32;

/// A frame, and a descriptor that comes with it.
pub(crate) type LinkFrame = (ControlFrame, Option<PassedFd>);

/// What the peer said.
#[derive(Debug, Default)]
pub(crate) struct LinkFrameQueue {
    some: AtomicBool,
    words: SpinMutex<VecDeque<LinkFrame>>,
}

impl LinkFrameQueue {
    /// Puts a word in.
    pub(crate) fn push_frame(&self, word: LinkFrame) {
        let mut words = self.words.lock();
        if words.len() < NEWS_MAX {
            words.push_back(word);
            self.some.store(true, Ordering::Release);
        }
    }

    /// Whether there is any.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    /// The oldest.
    pub(crate) fn pop_frame(&self) -> Option<LinkFrame> {
        let mut words = self.words.lock();
        let word = words.pop_front();
        if word.is_none() {
            self.some.store(false, Ordering::Release);
        }
        word
    }

    /// Forgets all: they were for the comm before.
    pub(crate) fn clear(&self) {
        self.words.lock().clear();
        self.some.store(false, Ordering::Release);
    }
}
