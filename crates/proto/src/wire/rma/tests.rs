use proptest::prelude::*;

use super::atomic::{AtomicOutcome, REQUEST_BYTES, ReplySlot};
use super::signal::{SIGNAL_BYTES, SignalUpdate, UpdateOp};
use super::word::{SymmetricWord, WordWidth};
use super::*;
use crate::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};

fn stream(number: u8) -> RmaStream {
    RmaStream::new(number).unwrap()
}

fn width() -> impl Strategy<Value = WordWidth> {
    prop_oneof![Just(WordWidth::Four), Just(WordWidth::Eight)]
}

fn word(width: WordWidth) -> impl Strategy<Value = SymmetricWord> {
    (any::<u8>(), 0..(1_u64 << 48) / width.byte_len())
        .prop_map(move |(heap, at)| SymmetricWord::new(heap, at * width.byte_len(), width).unwrap())
}

prop_compose! {
    fn ack()(of in 0..64_u8, number in 1..1_u64 << 48) -> SignalAck {
        SignalAck { stream: stream(of), number }
    }
}

prop_compose! {
    fn signal()(wide in width())(
        word in word(wide),
        op in prop_oneof![Just(UpdateOp::Set), Just(UpdateOp::Add), Just(UpdateOp::Max)],
        (value, epoch, count) in any::<(u64, u16, u32)>(),
        of in 0..64_u8,
        at_once in any::<bool>(),
        ack in proptest::option::of(ack()),
    ) -> SignalMessage {
        let update = SignalUpdate::new(op, word, value & word.width().bit_mask()).unwrap();
        SignalMessage { stream: stream(of), epoch, count, update, at_once, ack }
    }
}

fn action(one: u64, two: u64) -> impl Strategy<Value = AtomicAction> {
    prop_oneof![
        Just(AtomicAction::Fetch),
        Just(AtomicAction::Set(one)),
        Just(AtomicAction::Add(one)),
        Just(AtomicAction::And(one)),
        Just(AtomicAction::Or(one)),
        Just(AtomicAction::Xor(one)),
        Just(AtomicAction::CompareSwap { expect: one, swap: two }),
    ]
}

prop_compose! {
    fn request()(kind in proptest::sample::select(&AtomicType::ALL[..]), (one, two) in any::<(u64, u64)>())(
        kind in Just(kind),
        word in word(kind.word_width()),
        action in action(one & kind.word_width().bit_mask(), two & kind.word_width().bit_mask()),
        (fetches, generation) in any::<(bool, u16)>(),
        of in 0..64_u8,
        slot in 0..64_u8,
    ) -> Option<AtomicRequest> {
        let atomic = TypedAtomic::new(kind, action, fetches)?;
        AtomicRequest::new(stream(of), ReplySlot::new(slot, generation).unwrap(), word, atomic)
    }
}

fn message() -> impl Strategy<Value = RmaMessage> {
    prop_oneof![
        signal().prop_map(RmaMessage::Signal),
        ack().prop_map(RmaMessage::Ack),
        ack().prop_map(|SignalAck { stream, number }| RmaMessage::Ask(AckRequest { stream, number })),
        request().prop_filter_map("the type has no such atomic", |request| request.map(RmaMessage::Request)),
        (0..64_u8, 0..64_u8, any::<u16>(), any::<u64>(), any::<bool>()).prop_map(
            |(of, slot, generation, value, done)| {
                let outcome = if done { AtomicOutcome::Done(value) } else { AtomicOutcome::Refused };
                let slot = ReplySlot::new(slot, generation).unwrap();
                RmaMessage::Reply(AtomicReply { stream: stream(of), slot, outcome })
            }
        ),
    ]
}

fn bytes_of(message: &RmaMessage) -> std::vec::Vec<u8> {
    let (bytes, len) = message.to_bytes();
    bytes[..len].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_sided_messages_round_trip(message in message()) {
        let bytes = bytes_of(&message);
        prop_assert_eq!(RmaMessage::from_bytes(&bytes), Ok(message));
        for cut in 0..bytes.len() {
            prop_assert_eq!(RmaMessage::from_bytes(&bytes[..cut]), Err(RmaMessageError::Short(ShortInput)));
        }
        let long = [&bytes[..], &[0]].concat();
        prop_assert_eq!(RmaMessage::from_bytes(&long), Err(RmaMessageError::Long(long.len())));
    }

    #[test]
    fn parsed_messages_encode_to_the_same_bytes(message in message(), at: usize, bit in 0..8) {
        let mut bytes = bytes_of(&message);
        let at = at % bytes.len();
        bytes[at] ^= 1_u8 << bit;
        if let Ok(parsed) = RmaMessage::from_bytes(&bytes) {
            prop_assert_eq!(bytes_of(&parsed), bytes);
        }
    }
}

fn update() -> SignalUpdate {
    let word = SymmetricWord::new(7, 0x0605_0403_0200, WordWidth::Eight).unwrap();
    SignalUpdate::new(UpdateOp::Max, word, 0x1122_3344_5566_7788).unwrap()
}

#[test]
fn signal_is_laid_out_as_documented() {
    let ack = Some(SignalAck { stream: stream(9), number: 0x0c0b_0a09_0807 });
    let one =
        SignalMessage { stream: stream(3), epoch: 0x1234, count: 5, update: update(), at_once: true, ack };
    let bytes = [
        3, 1, 0x8e, 0x41, 0x34, 0x12, 7, 9, 5, 0, 0, 0, 7, 8, 9, 10, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
        0x22, 0x11, 0, 2, 3, 4, 5, 6, 11, 12,
    ];
    assert_eq!(one.to_bytes(), bytes);
    assert_eq!(RmaMessage::from_bytes(&bytes), Ok(RmaMessage::Signal(one)));
    let none = SignalMessage { ack: Some(SignalAck { stream: stream(9), number: 0 }), ..one };
    assert_eq!(
        none.to_bytes(),
        SignalMessage { ack: None, ..one }.to_bytes(),
        "a message without an acknowledgement has no stream of one"
    );
    assert!(
        one.is_same(&SignalMessage { ack: None, ..one }) && !one.is_same(&SignalMessage { count: 6, ..one })
    );
}

#[test]
fn requests_and_replies_are_laid_out_as_documented() {
    let word = SymmetricWord::new(7, 0x0605_0403_0204, WordWidth::Four).unwrap();
    let atomic =
        TypedAtomic::new(AtomicType::U32, AtomicAction::CompareSwap { expect: 1, swap: 2 }, true).unwrap();
    let slot = ReplySlot::new(63, 0x0102).unwrap();
    let request = AtomicRequest::new(stream(4), slot, word, atomic).unwrap();
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..16].copy_from_slice(&[4, 1, 0x87, 0x44, 63, 3, 2, 1, 7, 0, 4, 2, 3, 4, 5, 6]);
    (bytes[16], bytes[24]) = (2, 1);
    assert_eq!(request.to_bytes(), bytes);
    let reply = AtomicReply { stream: stream(4), slot, outcome: AtomicOutcome::Done(0x55) };
    let bytes = [4, 1, 0, 0x45, 63, 0, 2, 1, 0x55, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(reply.to_bytes(), bytes);
    let ask = AckRequest { stream: stream(1), number: 0x0605_0403_0201 };
    assert_eq!(ask.to_bytes(), [1, 1, 0, 0x43, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
    let wide = TypedAtomic::new(AtomicType::U64, AtomicAction::Fetch, true).unwrap();
    assert_eq!(AtomicRequest::new(stream(4), slot, word, wide), None, "8 bytes of a word of 4");
}

/// Parses a signal with one byte replaced, and returns the error.
fn wrong_signal(at: usize, byte: u8) -> RmaMessageError {
    let mut bytes = [0; SIGNAL_BYTES];
    bytes[..4].copy_from_slice(&[0, 1, 2 << 2, 0x41]);
    assert!(RmaMessage::from_bytes(&bytes).is_ok());
    bytes[at] = byte;
    RmaMessage::from_bytes(&bytes).unwrap_err()
}

#[test]
fn invalid_signals_are_rejected() {
    for (at, byte, error) in [
        (0, 64, RmaMessageError::Stream(64)),
        (1, 2, RmaMessageError::Version(2)),
        (3, 0x31, RmaMessageError::Kind(0x31)),
        (3, 0x46, RmaMessageError::Kind(0x46)),
        (2, 0b1011, RmaMessageError::Operation { op: 0b1011, kind: 2 }),
        (2, 0b0100, RmaMessageError::Operation { op: 0b0100, kind: 1 }),
        (2, 0b1_1000, RmaMessageError::Reserved),
        (7, 1, RmaMessageError::Reserved),
        (20, 1, RmaMessageError::Operand(1 << 32)),
        (24, 2, RmaMessageError::Word(WordError::Alignment { offset: 2, width: 4 })),
    ] {
        assert_eq!(wrong_signal(at, byte), error, "{at} {byte}");
    }
    let ack = Some(SignalAck { stream: stream(0), number: 1 });
    let mut bytes =
        SignalMessage { stream: stream(0), epoch: 0, count: 0, update: update(), at_once: false, ack }
            .to_bytes();
    bytes[7] = 64;
    assert_eq!(RmaMessage::from_bytes(&bytes), Err(RmaMessageError::Stream(64)));
    for at in [2, 4, 15] {
        let mut bytes = SignalAck { stream: stream(0), number: 1 }.to_bytes();
        bytes[at] = 1;
        assert_eq!(RmaMessage::from_bytes(&bytes), Err(RmaMessageError::Reserved), "{at}");
    }
}

#[test]
fn invalid_requests_are_rejected() {
    let with = |op: u8, kind: u8, changes: &[(usize, u8)]| {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..6].copy_from_slice(&[0, 1, op, 0x44, 0, kind]);
        changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
        RmaMessage::from_bytes(&bytes).map(|_| ())
    };
    let unknown = |op, kind| Err(RmaMessageError::Operation { op, kind });
    assert_eq!(with(0x81, 4, &[]), Ok(()));
    for (op, kind) in [(0x80, 4), (0x88, 4), (0x81, 0), (0x81, 7), (0x01, 4), (0x07, 4)] {
        assert_eq!(with(op, kind, &[]), unknown(op, kind), "{op} {kind}");
    }
    for op in [4, 5, 6, 0x87] {
        for kind in [5, 6] {
            assert_eq!(
                with(op, kind, &[]),
                unknown(op, kind),
                "the operation is invalid for a floating-point number"
            );
        }
    }
    assert_eq!(with(0x81, 4, &[(16, 1)]), Err(RmaMessageError::Reserved), "a fetch has no operand");
    assert_eq!(with(2, 4, &[(24, 1)]), Err(RmaMessageError::Reserved), "a set has no expected value");
    assert_eq!(with(2, 4, &[(9, 1)]), Err(RmaMessageError::Reserved));
    assert_eq!(with(2, 4, &[(4, 64)]), Err(RmaMessageError::Slot(64)));
    assert_eq!(with(2, 3, &[(20, 1)]), Err(RmaMessageError::Operand(1 << 32)));
    assert_eq!(with(0x87, 3, &[(28, 1)]), Err(RmaMessageError::Operand(1 << 32)));
    let odd = WordError::Alignment { offset: 4, width: 8 };
    assert_eq!(with(2, 4, &[(10, 4)]), Err(RmaMessageError::Word(odd)));
    for (at, byte, error) in [
        (2, 2, RmaMessageError::Operation { op: 2, kind: 0 }),
        (5, 1, RmaMessageError::Reserved),
        (4, 64, RmaMessageError::Slot(64)),
    ] {
        let slot = ReplySlot::new(0, 1).unwrap();
        let mut bytes = AtomicReply { stream: stream(0), slot, outcome: AtomicOutcome::Refused }.to_bytes();
        bytes[at] = byte;
        assert_eq!(RmaMessage::from_bytes(&bytes), Err(error));
    }
    let mut bytes = [0, 1, 1, 0x45, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        RmaMessage::from_bytes(&bytes),
        Err(RmaMessageError::Reserved),
        "a refused request has no value"
    );
    bytes[2] = 0;
    assert!(RmaMessage::from_bytes(&bytes).is_ok());
}
