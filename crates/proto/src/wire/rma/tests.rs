use proptest::prelude::*;

use super::atomic::{Outcome, REQUEST_BYTES, Slot};
use super::signal::{SIGNAL_BYTES, SignalOp, Update};
use super::word::{Width, Word};
use super::*;
use crate::rma::atomic::{Action, Atomic, Type};

fn stream(number: u8) -> Stream {
    Stream::new(number).unwrap()
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::Four), Just(Width::Eight)]
}

fn word(width: Width) -> impl Strategy<Value = Word> {
    (any::<u8>(), 0..(1_u64 << 48) / width.bytes())
        .prop_map(move |(heap, at)| Word::new(heap, at * width.bytes(), width).unwrap())
}

prop_compose! {
    fn ack()(of in 0..64_u8, number in 1..1_u64 << 48) -> Ack {
        Ack { stream: stream(of), number }
    }
}

prop_compose! {
    fn signal()(wide in width())(
        word in word(wide),
        op in prop_oneof![Just(SignalOp::Set), Just(SignalOp::Add), Just(SignalOp::Max)],
        (value, epoch, count) in any::<(u64, u16, u32)>(),
        of in 0..64_u8,
        at_once in any::<bool>(),
        ack in proptest::option::of(ack()),
    ) -> Signal {
        let update = Update::new(op, word, value & word.width().mask()).unwrap();
        Signal { stream: stream(of), epoch, count, update, at_once, ack }
    }
}

fn action(one: u64, two: u64) -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Fetch),
        Just(Action::Set(one)),
        Just(Action::Add(one)),
        Just(Action::And(one)),
        Just(Action::Or(one)),
        Just(Action::Xor(one)),
        Just(Action::CompareSwap { expect: one, swap: two }),
    ]
}

prop_compose! {
    fn request()(kind in proptest::sample::select(&Type::ALL[..]), (one, two) in any::<(u64, u64)>())(
        kind in Just(kind),
        word in word(kind.width()),
        action in action(one & kind.width().mask(), two & kind.width().mask()),
        (fetches, generation) in any::<(bool, u16)>(),
        of in 0..64_u8,
        slot in 0..64_u8,
    ) -> Option<Request> {
        let atomic = Atomic::new(kind, action, fetches)?;
        Request::new(stream(of), Slot::new(slot, generation).unwrap(), word, atomic)
    }
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        signal().prop_map(Message::Signal),
        ack().prop_map(Message::Ack),
        ack().prop_map(|Ack { stream, number }| Message::Ask(Ask { stream, number })),
        request().prop_filter_map("no such atomic", |request| request.map(Message::Request)),
        (0..64_u8, 0..64_u8, any::<u16>(), any::<u64>(), any::<bool>()).prop_map(
            |(of, slot, generation, value, done)| {
                let outcome = if done { Outcome::Done(value) } else { Outcome::Refused };
                let slot = Slot::new(slot, generation).unwrap();
                Message::Reply(Reply { stream: stream(of), slot, outcome })
            }
        ),
    ]
}

fn bytes_of(message: &Message) -> std::vec::Vec<u8> {
    let (bytes, len) = message.to_bytes();
    bytes[..len].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_read_back(message in message()) {
        let bytes = bytes_of(&message);
        prop_assert_eq!(Message::from_bytes(&bytes), Ok(message));
        for cut in 0..bytes.len() {
            prop_assert_eq!(Message::from_bytes(&bytes[..cut]), Err(MessageError::Short(Short)));
        }
        let long = [&bytes[..], &[0]].concat();
        prop_assert_eq!(Message::from_bytes(&long), Err(MessageError::Long(long.len())));
    }

    #[test]
    fn what_parses_prints_to_itself(message in message(), at: usize, bit in 0..8) {
        let mut bytes = bytes_of(&message);
        let at = at % bytes.len();
        bytes[at] ^= 1_u8 << bit;
        if let Ok(parsed) = Message::from_bytes(&bytes) {
            prop_assert_eq!(bytes_of(&parsed), bytes);
        }
    }
}

fn update() -> Update {
    let word = Word::new(7, 0x0605_0403_0200, Width::Eight).unwrap();
    Update::new(SignalOp::Max, word, 0x1122_3344_5566_7788).unwrap()
}

#[test]
fn a_signal_is_what_the_document_says() {
    let ack = Some(Ack { stream: stream(9), number: 0x0c0b_0a09_0807 });
    let one = Signal { stream: stream(3), epoch: 0x1234, count: 5, update: update(), at_once: true, ack };
    let bytes = [
        3, 1, 0x8e, 0x41, 0x34, 0x12, 7, 9, 5, 0, 0, 0, 7, 8, 9, 10, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
        0x22, 0x11, 0, 2, 3, 4, 5, 6, 11, 12,
    ];
    assert_eq!(one.to_bytes(), bytes);
    assert_eq!(Message::from_bytes(&bytes), Ok(Message::Signal(one)));
    let none = Signal { ack: Some(Ack { stream: stream(9), number: 0 }), ..one };
    assert_eq!(none.to_bytes(), Signal { ack: None, ..one }.to_bytes(), "nothing, and so no stream");
    assert!(one.is_same(&Signal { ack: None, ..one }) && !one.is_same(&Signal { count: 6, ..one }));
}

#[test]
fn requests_and_replies_are_what_the_document_says() {
    let word = Word::new(7, 0x0605_0403_0204, Width::Four).unwrap();
    let atomic = Atomic::new(Type::U32, Action::CompareSwap { expect: 1, swap: 2 }, true).unwrap();
    let slot = Slot::new(63, 0x0102).unwrap();
    let request = Request::new(stream(4), slot, word, atomic).unwrap();
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..16].copy_from_slice(&[4, 1, 0x87, 0x44, 63, 3, 2, 1, 7, 0, 4, 2, 3, 4, 5, 6]);
    (bytes[16], bytes[24]) = (2, 1);
    assert_eq!(request.to_bytes(), bytes);
    let reply = Reply { stream: stream(4), slot, outcome: Outcome::Done(0x55) };
    let bytes = [4, 1, 0, 0x45, 63, 0, 2, 1, 0x55, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(reply.to_bytes(), bytes);
    let ask = Ask { stream: stream(1), number: 0x0605_0403_0201 };
    assert_eq!(ask.to_bytes(), [1, 1, 0, 0x43, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
    let wide = Atomic::new(Type::U64, Action::Fetch, true).unwrap();
    assert_eq!(Request::new(stream(4), slot, word, wide), None, "8 bytes of a word of 4");
}

/// What is said of a signal with one byte replaced.
fn wrong_signal(at: usize, byte: u8) -> MessageError {
    let mut bytes = [0; SIGNAL_BYTES];
    bytes[..4].copy_from_slice(&[0, 1, 2 << 2, 0x41]);
    assert!(Message::from_bytes(&bytes).is_ok());
    bytes[at] = byte;
    Message::from_bytes(&bytes).unwrap_err()
}

#[test]
fn signals_that_cannot_be_are_refused() {
    for (at, byte, error) in [
        (0, 64, MessageError::Stream(64)),
        (1, 2, MessageError::Version(2)),
        (3, 0x31, MessageError::Kind(0x31)),
        (3, 0x46, MessageError::Kind(0x46)),
        (2, 0b1011, MessageError::Operation { op: 0b1011, kind: 2 }),
        (2, 0b0100, MessageError::Operation { op: 0b0100, kind: 1 }),
        (2, 0b1_1000, MessageError::Reserved),
        (7, 1, MessageError::Reserved),
        (20, 1, MessageError::Operand(1 << 32)),
        (24, 2, MessageError::Word(WordError::Alignment { offset: 2, width: 4 })),
    ] {
        assert_eq!(wrong_signal(at, byte), error, "{at} {byte}");
    }
    let ack = Some(Ack { stream: stream(0), number: 1 });
    let mut bytes =
        Signal { stream: stream(0), epoch: 0, count: 0, update: update(), at_once: false, ack }.to_bytes();
    bytes[7] = 64;
    assert_eq!(Message::from_bytes(&bytes), Err(MessageError::Stream(64)));
    for at in [2, 4, 15] {
        let mut bytes = Ack { stream: stream(0), number: 1 }.to_bytes();
        bytes[at] = 1;
        assert_eq!(Message::from_bytes(&bytes), Err(MessageError::Reserved), "{at}");
    }
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let with = |op: u8, kind: u8, changes: &[(usize, u8)]| {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..6].copy_from_slice(&[0, 1, op, 0x44, 0, kind]);
        changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
        Message::from_bytes(&bytes).map(|_| ())
    };
    let unknown = |op, kind| Err(MessageError::Operation { op, kind });
    assert_eq!(with(0x81, 4, &[]), Ok(()));
    for (op, kind) in [(0x80, 4), (0x88, 4), (0x81, 0), (0x81, 7), (0x01, 4), (0x07, 4)] {
        assert_eq!(with(op, kind, &[]), unknown(op, kind), "{op} {kind}");
    }
    for op in [4, 5, 6, 0x87] {
        for kind in [5, 6] {
            assert_eq!(with(op, kind, &[]), unknown(op, kind), "of a floating-point number");
        }
    }
    assert_eq!(with(0x81, 4, &[(16, 1)]), Err(MessageError::Reserved), "an operand of a fetch");
    assert_eq!(with(2, 4, &[(24, 1)]), Err(MessageError::Reserved), "what a set expects");
    assert_eq!(with(2, 4, &[(9, 1)]), Err(MessageError::Reserved));
    assert_eq!(with(2, 4, &[(4, 64)]), Err(MessageError::Slot(64)));
    assert_eq!(with(2, 3, &[(20, 1)]), Err(MessageError::Operand(1 << 32)));
    assert_eq!(with(0x87, 3, &[(28, 1)]), Err(MessageError::Operand(1 << 32)));
    let odd = WordError::Alignment { offset: 4, width: 8 };
    assert_eq!(with(2, 4, &[(10, 4)]), Err(MessageError::Word(odd)));
    for (at, byte, error) in [
        (2, 2, MessageError::Operation { op: 2, kind: 0 }),
        (5, 1, MessageError::Reserved),
        (4, 64, MessageError::Slot(64)),
    ] {
        let slot = Slot::new(0, 1).unwrap();
        let mut bytes = Reply { stream: stream(0), slot, outcome: Outcome::Refused }.to_bytes();
        bytes[at] = byte;
        assert_eq!(Message::from_bytes(&bytes), Err(error));
    }
    let mut bytes = [0, 1, 1, 0x45, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Message::from_bytes(&bytes), Err(MessageError::Reserved), "a value of nothing");
    bytes[2] = 0;
    assert!(Message::from_bytes(&bytes).is_ok());
}
