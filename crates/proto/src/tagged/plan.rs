//! How the bytes of a message go: decided once by the sender, who has learned what is the fastest, and once by the receiver when a receive matches.

use crate::chooser::Methods;
use crate::wire::tagged::EAGER_MAX;

/// Whether memory can be given to others by a handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// It belongs to the process alone.
    Private,
    /// Another process may map it.
    Mapped,
}

/// Who copies long messages of memory that others reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// The receiver.
    Pull,
    /// The receiver one message, the sender the next, at the same time.
    Turns,
    /// Both, by way of the stage.
    Stage,
}

impl Methods<3> for Method {
    const ALL: [Self; 3] = [Self::Pull, Self::Turns, Self::Stage];
}

/// Who says which method it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Choice {
    /// Each process learns for each peer and size what is the fastest.
    #[default]
    Learned,
    /// It is that one.
    Fixed(Method),
}

/// Messages in a row that needed no new export, from which on turns are looked at where memory is mapped: the receiver's is exported and mapped
/// for them, too, which only memory that is used again is worth.
pub const SETTLED: u32 = 128;

/// Which methods may be looked at: `maps`, whether others map the memory, in place of reaching it by the kernel's calls; `settled`, the messages before in a
/// row that needed no new export.
#[inline]
#[must_use]
pub const fn allowed(maps: bool, settled: u32) -> [bool; 3] {
    // A stage has two copies where a mapping has one; the kernel's calls cost what they cost.
    [true, !maps || settled >= SETTLED, !maps]
}

/// What the sender does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// The bytes go with the message.
    Eager,
    /// The receiver is to copy from the sender's memory; or, if `offer`, rather to have the sender copy into its own.
    Refer {
        /// The wish.
        offer: bool,
    },
    /// The receiver says when, and how; if `pieces`, by the stage.
    Ready {
        /// The wish.
        pieces: bool,
    },
}

/// What the receiver answers to a message that is ready, or does with one that it was referred to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reply {
    /// Pieces, by way of the stage.
    Clear,
    /// The sender is to copy into the receiver's memory.
    Offer,
    /// The receiver copies.
    Copy,
}

/// Bytes from which it is worth to share memory: below, two copies are cheaper than a message and its answer.
const REFER_MIN: u64 = EAGER_MAX as u64 + 1;

/// Whether a message of so many bytes goes with all of them at once.
#[inline]
#[must_use]
pub const fn is_eager(len: u64) -> bool {
    len < REFER_MIN
}

/// How a message of so many bytes goes, by that method if its memory can be reached, of whose messages this is the one with that number.
#[inline]
#[must_use]
pub const fn way(len: u64, source: Reach, method: Method, number: u64) -> Way {
    match (source, method) {
        _ if is_eager(len) => Way::Eager,
        (Reach::Private, _) => Way::Ready { pieces: false },
        (Reach::Mapped, Method::Pull) => Way::Refer { offer: false },
        (Reach::Mapped, Method::Turns) => Way::Refer { offer: number % 2 == 1 },
        (Reach::Mapped, Method::Stage) => Way::Ready { pieces: true },
    }
}

/// How a message comes that goes that way. Without a wish the sender's memory is its own if it is ready, or was not to be had.
#[inline]
#[must_use]
pub const fn answer(target: Reach, way: Way) -> Reply {
    match (target, way) {
        (Reach::Mapped, Way::Refer { offer: true } | Way::Ready { pieces: false }) => Reply::Offer,
        (_, Way::Refer { .. }) => Reply::Copy,
        (_, Way::Ready { .. } | Way::Eager) => Reply::Clear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACHES: [Reach; 2] = [Reach::Private, Reach::Mapped];

    #[test]
    fn short_messages_go_at_once_and_long_ones_by_the_memory_that_can_be_mapped() {
        for (source, method) in
            REACHES.into_iter().flat_map(|source| Method::ALL.map(|method| (source, method)))
        {
            assert_eq!([0, 8192].map(|len| way(len, source, method, 1)), [Way::Eager; 2]);
            assert!(is_eager(8192) && !is_eager(8193));
        }
        for method in Method::ALL {
            assert_eq!(way(8193, Reach::Private, method, 1), Way::Ready { pieces: false });
        }
        let mapped = |method| [0, 1, 2].map(|number| way(8193, Reach::Mapped, method, number));
        assert_eq!(mapped(Method::Pull), [Way::Refer { offer: false }; 3]);
        assert_eq!(mapped(Method::Turns), [false, true, false].map(|offer| Way::Refer { offer }));
        assert_eq!(mapped(Method::Stage), [Way::Ready { pieces: true }; 3]);
    }

    #[test]
    fn a_wish_is_granted_by_who_can() {
        let both = |way| REACHES.map(|target| answer(target, way));
        assert_eq!(both(Way::Ready { pieces: false }), [Reply::Clear, Reply::Offer]);
        assert_eq!(both(Way::Ready { pieces: true }), [Reply::Clear; 2]);
        assert_eq!(both(Way::Refer { offer: false }), [Reply::Copy; 2]);
        assert_eq!(both(Way::Refer { offer: true }), [Reply::Copy, Reply::Offer]);
    }

    #[test]
    fn mapped_memory_is_staged_by_nobody_and_taken_in_turns_once_it_is_settled() {
        assert_eq!([0, SETTLED].map(|settled| allowed(false, settled)), [[true; 3]; 2]);
        assert_eq!(allowed(true, SETTLED - 1), [true, false, false]);
        assert_eq!(allowed(true, SETTLED), [true, true, false]);
    }
}
