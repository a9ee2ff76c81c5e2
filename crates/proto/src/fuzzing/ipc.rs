//! Memory shared inside a node: the messages.

use alloc::vec::Vec;

use super::variants;
use crate::intervals::Span;
use crate::slots::SlotId;
use crate::wire::ipc::{Announce, Handle, MESSAGE_MAX, Message, NAMES_MAX, Name, Names, Outcome, Reference};

/// What is read is what would have been written.
pub(super) fn messages(bytes: &[u8]) {
    let Ok(parsed) = Message::from_bytes(bytes) else { return };
    assert!(bytes.len() <= MESSAGE_MAX);
    assert_eq!(parsed.to_bytes(), bytes);
    if let Message::Refer { reference, .. } = parsed {
        assert_eq!(Reference::from_bytes(&reference.to_bytes()), Ok(reference));
    }
}

pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let name = |slot, generation| Name::new(SlotId { slot, generation });
    let (Some(first), Some(last)) = (name(0, 1), name(0xffff, u32::MAX)) else { return Vec::new() };
    let (Some(span), Some(part)) = (Span::new(0x7f00_0000_0000, 0x20_0000), Span::new(0x1000, 8)) else {
        return Vec::new();
    };
    let (Some(handle), Some(none)) = (Handle::new(1, &[0x5a; 64]), Handle::new(0, &[])) else {
        return Vec::new();
    };
    let (Some(one), Some(many)) = (Names::new(&[first, last]), Names::new(&[last; NAMES_MAX])) else {
        return Vec::new();
    };
    let announce = |descriptor, handle| Announce { name: last, span, device: 3, descriptor, handle };
    let all = [
        Message::Announce(announce(true, handle)),
        Message::Refer { operation: 1 << 40, reference: Reference { name: first, part } },
        Message::Done { operation: 7, outcome: Outcome::NotMapped },
        Message::Retire(one),
        Message::Retired(one),
        Message::Announce(announce(false, none)),
        Message::Retire(many),
        Message::Bye,
    ];
    variants(&all.map(|message| message.to_bytes()))
}
