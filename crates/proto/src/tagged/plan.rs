//! The protocol of each message: the sender decides once, by its measurements, and the receiver once, when a receive matches. The node's
//! tagged messages call it; nothing here copies a byte.

use crate::chooser::MethodSet;
use crate::wire::tagged::EAGER_MAX;

/// Whether other processes can reach memory by a handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryReach {
    /// Only its own process can reach it.
    Private,
    /// Another process may map it.
    Mapped,
}

/// Which process copies long messages from memory that other processes can reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyMethod {
    /// The receiver.
    Pull,
    /// The two alternate: the receiver copies one message, the sender the next, so that both copy at the same time.
    Turns,
    /// Both, through the stage.
    Stage,
}

impl MethodSet<3> for CopyMethod {
    const ALL: [Self; 3] = [Self::Pull, Self::Turns, Self::Stage];
}

/// How the copy method is selected.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MethodChoice {
    /// Each process measures for each peer and size which method is the fastest.
    #[default]
    Learned,
    /// This method is used.
    Fixed(CopyMethod),
}

/// Consecutive messages without a new export, from which on alternating copies are tried for mapped memory. Alternating also exports and maps the
/// receiver's memory, which is worth the cost only for memory that is used again.
pub const SETTLED: u32 = 128;

/// Returns which methods may be tried. `maps`: whether peers map the memory, and do not access it by system calls; `settled`: the number of
/// preceding consecutive messages without a new export.
#[inline]
#[must_use]
pub const fn allowed_methods(maps: bool, settled: u32) -> [bool; 3] {
    // The stage needs two copies where a mapping needs one. The cost of the system calls varies, so there the stage is tried too.
    [true, !maps || settled >= SETTLED, !maps]
}

/// How the sender sends a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendMethod {
    /// The bytes are sent with the message.
    Eager,
    /// The message refers to the sender's memory, and the receiver copies. With `offer`, the preferred method is that the receiver offers its own
    /// memory and the sender copies into it.
    Refer {
        /// The preferred method.
        offer: bool,
    },
    /// The message announces that the bytes are ready, and the receiver decides how to transfer them; with `pieces`, through the stage.
    Ready {
        /// The preferred method.
        pieces: bool,
    },
}

/// How the receiver receives a message that is ready, or that refers to the sender's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReceiveMethod {
    /// In pieces, through the stage.
    Clear,
    /// The sender copies into the receiver's memory.
    Offer,
    /// The receiver copies.
    Copy,
}

/// Bytes from which sharing memory is worth its cost: below, two copies are cheaper than a message and its reply.
const REFER_MIN: u64 = EAGER_MAX as u64 + 1;

/// Whether a message of `len` bytes is sent eagerly.
#[inline]
#[must_use]
pub const fn is_eager(len: u64) -> bool {
    len < REFER_MIN
}

/// Returns how to send a message of `len` bytes, by `method` if its memory can be reached. `number` is the message's number among those to this peer.
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

/// Returns how to receive a message that was sent by the method `way`. A message that is ready without a preference is one whose memory is private,
/// or whose memory could not be exported.
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
    fn plan_depends_on_length_and_mappable_memory() {
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
    fn preferred_method_is_used_if_possible() {
        let both = |way| REACHES.map(|target| choose_receive_method(target, way));
        assert_eq!(both(SendMethod::Ready { pieces: false }), [ReceiveMethod::Clear, ReceiveMethod::Offer]);
        assert_eq!(both(SendMethod::Ready { pieces: true }), [ReceiveMethod::Clear; 2]);
        assert_eq!(both(SendMethod::Refer { offer: false }), [ReceiveMethod::Copy; 2]);
        assert_eq!(both(SendMethod::Refer { offer: true }), [ReceiveMethod::Copy, ReceiveMethod::Offer]);
    }

    #[test]
    fn settled_mapped_memory_is_copied_by_turns() {
        assert_eq!([0, SETTLED].map(|settled| allowed_methods(false, settled)), [[true; 3]; 2]);
        assert_eq!(allowed_methods(true, SETTLED - 1), [true, false, false]);
        assert_eq!(allowed_methods(true, SETTLED), [true, true, false]);
    }
}
