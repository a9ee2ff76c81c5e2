//! How the bytes of a message go: decided once by the sender, who has learned what is the fastest, and once by the receiver when a receive matches.

use crate::chooser::MethodSet;
use crate::wire::tagged::EAGER_MAX;

/// Whether memory can be given to others by a handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryReach {
    /// It belongs to the process alone.
    Private,
    /// Another process may map it.
    Mapped,
}

/// Who copies long messages of memory that others reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyMethod {
    /// The receiver.
    Pull,
    /// The receiver one message, the sender the next, at the same time.
    Turns,
    /// Both, by way of the stage.
    Stage,
}

impl MethodSet<3> for CopyMethod {
    const ALL: [Self; 3] = [Self::Pull, Self::Turns, Self::Stage];
}

/// Who says which method it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MethodChoice {
    /// Each process learns for each peer and size what is the fastest.
    #[default]
    Learned,
    /// It is that one.
    Fixed(CopyMethod),
}

/// Messages in a row that needed no new export, from which on turns are looked at where memory is mapped: the receiver's is exported and mapped
/// for them, too, which only memory that is used again is worth.
pub const SETTLED: u32 = 128;

/// Which methods may be looked at: `maps`, whether others map the memory, in place of reaching it by the kernel's calls; `settled`, the messages before in a
/// row that needed no new export.
#[inline]
#[must_use]
pub const fn allowed_methods(maps: bool, settled: u32) -> [bool; 3] {
    // A stage has two copies where a mapping has one; the kernel's calls cost what they cost.
    [true, !maps || settled >= SETTLED, !maps]
}

/// What the sender does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendMethod {
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
pub enum ReceiveMethod {
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
pub const fn choose_send_method(
    len: u64,
    source: MemoryReach,
    method: CopyMethod,
    number: u64,
) -> SendMethod {
    match (source, method) {
        _ if is_eager(len) => SendMethod::Eager,
        (MemoryReach::Private, _) => SendMethod::Ready { pieces: false },
        (MemoryReach::Mapped, CopyMethod::Pull) => SendMethod::Refer { offer: false },
        (MemoryReach::Mapped, CopyMethod::Turns) => SendMethod::Refer { offer: number % 2 == 1 },
        (MemoryReach::Mapped, CopyMethod::Stage) => SendMethod::Ready { pieces: true },
    }
}

/// How a message comes that goes that way. Without a wish the sender's memory is its own if it is ready, or was not to be had.
#[inline]
#[must_use]
pub const fn choose_receive_method(target: MemoryReach, way: SendMethod) -> ReceiveMethod {
    match (target, way) {
        (MemoryReach::Mapped, SendMethod::Refer { offer: true } | SendMethod::Ready { pieces: false }) => {
            ReceiveMethod::Offer
        }
        (_, SendMethod::Refer { .. }) => ReceiveMethod::Copy,
        (_, SendMethod::Ready { .. } | SendMethod::Eager) => ReceiveMethod::Clear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACHES: [MemoryReach; 2] = [MemoryReach::Private, MemoryReach::Mapped];

    #[test]
    fn short_messages_go_at_once_and_long_ones_by_the_memory_that_can_be_mapped() {
        for (source, method) in
            REACHES.into_iter().flat_map(|source| CopyMethod::ALL.map(|method| (source, method)))
        {
            assert_eq!(
                [0, 8192].map(|len| choose_send_method(len, source, method, 1)),
                [SendMethod::Eager; 2]
            );
            assert!(is_eager(8192) && !is_eager(8193));
        }
        for method in CopyMethod::ALL {
            assert_eq!(
                choose_send_method(8193, MemoryReach::Private, method, 1),
                SendMethod::Ready { pieces: false }
            );
        }
        let mapped =
            |method| [0, 1, 2].map(|number| choose_send_method(8193, MemoryReach::Mapped, method, number));
        assert_eq!(mapped(CopyMethod::Pull), [SendMethod::Refer { offer: false }; 3]);
        assert_eq!(mapped(CopyMethod::Turns), [false, true, false].map(|offer| SendMethod::Refer { offer }));
        assert_eq!(mapped(CopyMethod::Stage), [SendMethod::Ready { pieces: true }; 3]);
    }

    #[test]
    fn a_wish_is_granted_by_who_can() {
        let both = |way| REACHES.map(|target| choose_receive_method(target, way));
        assert_eq!(both(SendMethod::Ready { pieces: false }), [ReceiveMethod::Clear, ReceiveMethod::Offer]);
        assert_eq!(both(SendMethod::Ready { pieces: true }), [ReceiveMethod::Clear; 2]);
        assert_eq!(both(SendMethod::Refer { offer: false }), [ReceiveMethod::Copy; 2]);
        assert_eq!(both(SendMethod::Refer { offer: true }), [ReceiveMethod::Copy, ReceiveMethod::Offer]);
    }

    #[test]
    fn mapped_memory_is_staged_by_nobody_and_taken_in_turns_once_it_is_settled() {
        assert_eq!([0, SETTLED].map(|settled| allowed_methods(false, settled)), [[true; 3]; 2]);
        assert_eq!(allowed_methods(true, SETTLED - 1), [true, false, false]);
        assert_eq!(allowed_methods(true, SETTLED), [true, true, false]);
    }
}
