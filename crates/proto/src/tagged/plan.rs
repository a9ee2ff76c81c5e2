//! How the bytes of a message go: decided once by the sender, and once by the receiver when a receive matches.

use crate::wire::tagged::EAGER_MAX;

/// Whether memory can be given to others by a handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// It belongs to the process alone.
    Private,
    /// Another process may map it.
    Mapped,
}

/// What the sender does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// The bytes go with the message.
    Eager,
    /// The receiver is to copy from the sender's memory.
    Refer,
    /// The receiver says when, and how.
    Ready,
}

/// What the receiver answers to a message that is ready.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reply {
    /// Pieces, by way of the stage.
    Clear,
    /// The sender is to copy into the receiver's memory.
    Offer,
}

/// Bytes from which it is worth to share memory: below, two copies are cheaper than a message and its answer.
const REFER_MIN: u64 = EAGER_MAX as u64 + 1;

/// How a message of so many bytes goes.
#[inline]
#[must_use]
pub const fn way(len: u64, source: Reach) -> Way {
    match source {
        _ if len < REFER_MIN => Way::Eager,
        Reach::Mapped => Way::Refer,
        Reach::Private => Way::Ready,
    }
}

/// How a message comes that its sender has ready; the sender's memory is its own then, or was not to be had.
#[inline]
#[must_use]
pub const fn answer(target: Reach) -> Reply {
    match target {
        Reach::Mapped => Reply::Offer,
        Reach::Private => Reply::Clear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_go_at_once_and_long_ones_by_the_memory_that_can_be_mapped() {
        for source in [Reach::Private, Reach::Mapped] {
            assert_eq!([way(0, source), way(8192, source)], [Way::Eager; 2]);
        }
        assert_eq!([way(8193, Reach::Private), way(8193, Reach::Mapped)], [Way::Ready, Way::Refer]);
        assert_eq!([answer(Reach::Private), answer(Reach::Mapped)], [Reply::Clear, Reply::Offer]);
    }
}
