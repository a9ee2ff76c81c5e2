//! Encoded messages parse to the same values, and other bytes are rejected.

use std::vec;

use proptest::prelude::*;

use super::*;

fn name(slot: u32, generation: u32) -> ExportName {
    ExportName::new(SlotId { slot, generation }).unwrap()
}

fn part(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

fn announce(handle: &[u8]) -> IpcMessage {
    IpcMessage::Announce(ExportAnnouncement {
        name: name(0x0102, 0x0304_0506),
        span: part(0x7f00_0000_0000, 0x20_0000),
        device: 7,
        descriptor: true,
        handle: ExportHandle::new(9, handle).unwrap(),
    })
}

/// Parses the message with one byte replaced.
fn with(message: &IpcMessage, at: usize, byte: u8) -> Result<IpcMessage, IpcError> {
    let mut bytes = message.to_bytes();
    bytes[at] = byte;
    IpcMessage::from_bytes(&bytes)
}

fn every_kind() -> Vec<IpcMessage> {
    let reference = ExportReference { name: name(1, 2), part: part(3, 4) };
    vec![
        announce(&[1, 2, 3]),
        IpcMessage::Refer { operation: 5, reference },
        IpcMessage::Done { operation: 6, outcome: CopyOutcome::NotMapped },
        IpcMessage::Retire(ExportNames::new(&[name(7, 8), name(9, 10)]).unwrap()),
        IpcMessage::Retired(ExportNames::new(&[name(7, 8)]).unwrap()),
        IpcMessage::Bye,
        IpcMessage::Hello(IpcHello { process: [11; 16], operations: 12 }),
        IpcMessage::Inbox(InboxSizes::new(64, 128, 1 << 16).unwrap()),
    ]
}

#[test]
fn a_reference_is_24_bytes_as_documented() {
    let reference = ExportReference { name: name(0x0102, 0x0304_0506), part: part(0x0708, 0x090a) };
    let bytes = [2, 1, 0, 0, 6, 5, 4, 3, 8, 7, 0, 0, 0, 0, 0, 0, 0xa, 9, 0, 0, 0, 0, 0, 0];
    assert_eq!((reference.to_bytes(), ExportReference::from_bytes(&bytes)), (bytes, Ok(reference)));
    let message = IpcMessage::Refer { operation: 0x0b0c, reference }.to_bytes();
    assert_eq!(message[..16], [2, 1, 0, 0, 0, 0, 0, 0, 0xc, 0xb, 0, 0, 0, 0, 0, 0]);
    assert_eq!(message[16..], bytes);
}

#[test]
fn an_announcement_is_as_documented() {
    let bytes = announce(&[0xaa, 0xbb]).to_bytes();
    assert_eq!(bytes[..16], [1, 1, 2, 0, 0, 0, 0, 0, 2, 1, 0, 0, 6, 5, 4, 3]);
    assert_eq!(bytes[16..32], [0, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[32..], [7, 0, 0, 0, 9, 1, 0, 0, 0xaa, 0xbb]);
    let Ok(IpcMessage::Announce(read)) = IpcMessage::from_bytes(&bytes) else { unreachable!() };
    assert_eq!(
        (read.handle.memory_kind(), read.handle.as_bytes(), read.descriptor),
        (9, &[0xaa, 0xbb][..], true)
    );
}

#[test]
fn short_messages_are_as_documented() {
    let [done, retire, retired, bye, hello, inbox] = &every_kind()[2..] else { unreachable!() };
    assert_eq!(done.to_bytes(), [3, 1, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let names = [7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0];
    assert_eq!(retire.to_bytes(), [&[4, 1, 2, 0, 0, 0, 0, 0][..], &names].concat());
    assert_eq!(retired.to_bytes(), [&[5, 1, 1, 0, 0, 0, 0, 0][..], &names[..8]].concat());
    assert_eq!(bye.to_bytes(), [6, 1, 0, 0, 0, 0, 0, 0]);
    let said = [&[7, 1, 0, 0, 0, 0, 0, 0][..], b"trunkipc", &[11; 16], &[12, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(hello.to_bytes(), said);
    let said = [8, 1, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 128, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];
    assert_eq!(inbox.to_bytes(), said);
}

#[test]
fn messages_of_wrong_length_are_rejected() {
    for message in every_kind() {
        let mut bytes = message.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(
                IpcMessage::from_bytes(&bytes[..len]),
                Err(IpcError::Short(ShortInput)),
                "{len} of {message:?}"
            );
        }
        assert_eq!(IpcMessage::from_bytes(&bytes), Ok(message));
        bytes.push(0);
        assert_eq!(IpcMessage::from_bytes(&bytes), Err(IpcError::Long(1)));
    }
}

#[test]
fn other_versions_kinds_and_reserved_bits_are_refused() {
    for message in every_kind() {
        assert_eq!(with(&message, 1, 2), Err(IpcError::Version(2)));
        assert_eq!(with(&message, 1, 0), Err(IpcError::Version(0)));
        assert_eq!(with(&message, 7, 1), Err(IpcError::Reserved));
    }
    assert_eq!(with(&IpcMessage::Bye, 0, 0), Err(IpcError::Kind(0)));
    assert_eq!(with(&IpcMessage::Bye, 0, 9), Err(IpcError::Kind(9)));
    let all = every_kind();
    for (at, byte) in [(37, 2), (38, 1), (39, 1)] {
        assert_eq!(with(&all[0], at, byte), Err(IpcError::Reserved), "byte {at} of an announcement");
    }
    assert_eq!(with(&all[2], 23, 1), Err(IpcError::Reserved));
    assert_eq!(with(&all[2], 16, 3), Err(IpcError::Outcome(3)));
    assert_eq!(with(&all[6], 36, 1), Err(IpcError::Reserved));
    assert_eq!(with(&all[7], 20, 1), Err(IpcError::Reserved));
    assert_eq!(with(&all[7], 8, 65), Err(IpcError::Inbox([65, 128, 1 << 16])));
    for (at, byte) in [(8, 0), (15, b'd'), (32, 0)] {
        assert_eq!(with(&all[6], at, byte), Err(IpcError::Hello), "byte {at} of a HELLO");
    }
}

#[test]
fn counts_match_the_body_and_have_limits() {
    for at in [1, 2, 5, 6, 7] {
        assert_eq!(with(&every_kind()[at], 2, 1), Err(IpcError::Count(1)), "the kind has no count");
    }
    let many = [name(1, 1); NAMES_MAX + 1];
    assert_eq!((ExportNames::new(&[]), ExportNames::new(&many)), (None, None));
    let mut bytes = IpcMessage::Retire(ExportNames::new(&many[1..]).unwrap()).to_bytes();
    assert_eq!(bytes.len(), MESSAGE_MAX);
    bytes.extend_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    bytes[2] = 33;
    assert_eq!(IpcMessage::from_bytes(&bytes), Err(IpcError::Count(33)));
    bytes.truncate(HEAD_BYTES);
    bytes[2] = 0;
    assert_eq!(IpcMessage::from_bytes(&bytes), Err(IpcError::Count(0)));
    assert_eq!(ExportHandle::new(0, &[0; HANDLE_MAX + 1]), None);
    assert_eq!(ExportHandle::new(0, &[0; 300]), None);
    let mut bytes = announce(&[5; HANDLE_MAX]).to_bytes();
    assert!(bytes.len() <= MESSAGE_MAX && IpcMessage::from_bytes(&bytes).is_ok());
    bytes.push(5);
    bytes[2] = 193;
    assert_eq!(IpcMessage::from_bytes(&bytes), Err(IpcError::Count(193)));
}

#[test]
fn invalid_names_and_parts_are_rejected() {
    let refer = &every_kind()[1];
    assert_eq!(with(refer, 20, 0), Err(IpcError::Name(1, 0)), "generations begin at 1");
    assert_eq!(with(refer, 18, 1), Err(IpcError::Name(0x1_0001, 2)), "the slot is out of range");
    assert_eq!(with(refer, 32, 0), Err(IpcError::Span { start: 3, len: 0 }));
    let most = (EXPORTS_MAX - 1) as u32;
    assert!(ExportName::new(SlotId { slot: most, generation: u32::MAX }).is_some());
    assert!(ExportName::new(SlotId { slot: most + 1, generation: 1 }).is_none());
    let mut bytes = refer.to_bytes();
    bytes[24..40].fill(0xff);
    let (start, len) = (u64::MAX, u64::MAX);
    assert_eq!(IpcMessage::from_bytes(&bytes), Err(IpcError::Span { start, len }));
}

fn names() -> impl Strategy<Value = ExportName> {
    (0..EXPORTS_MAX as u32, 1..=u32::MAX).prop_map(|(slot, generation)| name(slot, generation))
}

fn parts() -> impl Strategy<Value = ByteSpan> {
    (0..u64::MAX >> 1, 1..u64::MAX >> 1)
        .prop_filter_map("an address", |(start, len)| ByteSpan::new(start, len))
}

fn messages() -> impl Strategy<Value = IpcMessage> {
    let handles = (any::<u8>(), prop::collection::vec(any::<u8>(), 0..=HANDLE_MAX));
    let lists =
        || prop::collection::vec(names(), 1..=NAMES_MAX).prop_map(|list| ExportNames::new(&list).unwrap());
    let outcome =
        prop_oneof![Just(CopyOutcome::Copied), Just(CopyOutcome::NotMapped), Just(CopyOutcome::Ended)];
    prop_oneof![
        (names(), parts(), any::<(u32, bool)>(), handles).prop_map(
            |(name, span, (device, descriptor), of)| {
                let handle = ExportHandle::new(of.0, &of.1).unwrap();
                IpcMessage::Announce(ExportAnnouncement { name, span, device, descriptor, handle })
            }
        ),
        (any::<u64>(), names(), parts()).prop_map(|(operation, name, part)| {
            IpcMessage::Refer { operation, reference: ExportReference { name, part } }
        }),
        (any::<u64>(), outcome).prop_map(|(operation, outcome)| IpcMessage::Done { operation, outcome }),
        lists().prop_map(IpcMessage::Retire),
        lists().prop_map(IpcMessage::Retired),
        Just(IpcMessage::Bye),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn values_round_trip(message in messages()) {
        let bytes = message.to_bytes();
        prop_assert!(bytes.len() <= MESSAGE_MAX);
        prop_assert_eq!(IpcMessage::from_bytes(&bytes), Ok(message));
    }

    /// A parsed message encodes to the same bytes.
    #[test]
    fn parsed_message_encodes_to_the_same_bytes(message in messages(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = message.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = IpcMessage::from_bytes(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
    }
}
