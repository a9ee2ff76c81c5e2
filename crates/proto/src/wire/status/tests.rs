//! Encoded pages parse to the same values, and other bytes are rejected.

use std::string::{String, ToString as _};
use std::vec::Vec;

use proptest::prelude::*;

use super::group::{CreditUsage, GroupCounters};
use super::*;
use crate::limits::{LINKS_MAX, MEMBERS_OF_GROUP_MAX};
use crate::slots::SlotId;
use crate::wire::member::MemberId;

fn counts() -> impl Strategy<Value = MessageCounts> {
    any::<[u64; MessageCounts::LEN]>().prop_map(MessageCounts::from_array)
}

fn comm() -> impl Strategy<Value = CommRecord> {
    let state = prop_oneof![Just(CommState::Open), Just(CommState::Failed), Just(CommState::Closed)];
    let direction = prop_oneof![Just(CommDirection::Send), Just(CommDirection::Recv)];
    let nics = proptest::collection::vec(any::<u16>(), 1..=LINKS_MAX);
    let links = (nics, any::<u8>()).prop_map(|(nics, carrying)| RowLinks::new(&nics, carrying));
    let who = (state, direction, links, any::<u16>(), any::<u8>(), ride());
    (who, any::<[u8; 16]>(), any::<u64>(), counts()).prop_map(|(who, peer, opened, before)| {
        let (state, direction, links, generation, code, ride) = who;
        let fault = FaultCode::from_code(code);
        CommRecord { state, direction, links, generation, fault, peer: ProcessId(peer), opened, ride, before }
    })
}

fn ride() -> impl Strategy<Value = Option<GroupMembership>> {
    let member = (0..MemberId::SLOTS_MAX as u32, 1_u32..);
    let member = member.prop_map(|(slot, generation)| MemberId::from_slot(SlotId { slot, generation }));
    let record = prop::option::of(0..group::RECORDS as u8);
    prop::option::of((record, member).prop_map(|(record, member)| GroupMembership { record, member }))
}

fn group() -> impl Strategy<Value = QueueGroupRecord> {
    let direction = prop_oneof![Just(CommDirection::Send), Just(CommDirection::Recv)];
    let who = (direction, 1..=LINKS_MAX as u8, any::<u16>(), 0..=MEMBERS_OF_GROUP_MAX as u16);
    (who, any::<[u8; 16]>(), any::<[u64; 2]>(), any::<[u32; 6]>()).prop_map(
        |(who, peer, [routed, dropped], of)| {
            let (direction, links, nic, members) = who;
            let taken = |at| CreditUsage { used: of[at], total: of[at + 1] };
            let numbers =
                GroupCounters { routed, dropped, eager: taken(0), slices: taken(2), queue: taken(4) };
            QueueGroupRecord { direction, links, nic, members, peer: ProcessId(peer), numbers }
        },
    )
}

fn records() -> impl Strategy<Value = [Option<QueueGroupRecord>; group::RECORDS]> {
    proptest::collection::vec(prop::option::of(group()), group::RECORDS)
        .prop_map(|records| core::array::from_fn(|at| records[at]))
}

fn row() -> impl Strategy<Value = StatusRow> {
    (prop::option::of(comm()), counts()).prop_map(|(comm, counts)| StatusRow { comm, counts })
}

fn name() -> impl Strategy<Value = String> {
    proptest::collection::vec(0x21_u8..0x7f, 1..NAME_BYTES)
        .prop_map(|letters| letters.into_iter().map(|letter| letter as char).collect())
}

fn usage([queue_pairs, queue_pairs_max, completion_queues, regions, regions_max]: [u32; 5]) -> NicUsage {
    NicUsage { queue_pairs, queue_pairs_max, completion_queues, regions, regions_max }
}

fn status() -> impl Strategy<Value = StatusSnapshot> {
    let names = (name(), proptest::collection::vec(name(), 0..=NICS_MAX));
    let numbers =
        (any::<[u8; 16]>(), any::<u32>(), any::<[u64; 3]>(), any::<u8>(), any::<[u64; ProcessTally::LEN]>());
    let rows = (proptest::collection::vec(row(), 0..5), 0_u32..1000);
    let control = any::<u64>().prop_map(ControlStreams::from_word);
    let more = (any::<[[u32; 5]; NICS_MAX]>(), (any::<u32>(), control), records());
    (names, numbers, rows, more).prop_map(|((fabric, nics), numbers, (rows, more), of)| {
        let (of_nics, (groups, control), records) = of;
        let (process, pid, [made_unix, made, fault_at], code, tallies) = numbers;
        let used = rows.len() as u32;
        let head = StatusHead {
            rows: used + more + 1,
            used,
            process: ProcessId(process),
            pid,
            made_unix,
            made,
            fault: FaultCode::from_code(code),
            fault_at,
            fabric,
            usage: of_nics.iter().take(nics.len()).map(|&of| usage(of)).collect(),
            nics,
            groups,
            records,
            tallies,
            control,
        };
        StatusSnapshot { head, rows }
    })
}

fn example() -> StatusSnapshot {
    let comm = CommRecord {
        state: CommState::Open,
        direction: CommDirection::Send,
        links: RowLinks::new(&[1, 0], 0b01),
        generation: 2,
        fault: None,
        peer: ProcessId([7; 16]),
        opened: 5,
        ride: MemberId::from_bits(0x0c05).map(|member| GroupMembership { record: Some(1), member }),
        before: MessageCounts { sent: 1, ..MessageCounts::default() },
    };
    let numbers = GroupCounters {
        routed: 6,
        dropped: 7,
        eager: CreditUsage { used: 8, total: 9 },
        slices: CreditUsage { used: 10, total: 11 },
        queue: CreditUsage { used: 12, total: 13 },
    };
    let peer = ProcessId([7; 16]);
    let group =
        QueueGroupRecord { direction: CommDirection::Recv, links: 2, nic: 3, members: 4, peer, numbers };
    let mut records = [None; group::RECORDS];
    (records[1], records[31]) =
        (Some(group), Some(QueueGroupRecord { direction: CommDirection::Send, ..group }));
    let head = StatusHead {
        rows: 8192,
        used: 1,
        process: ProcessId([9; 16]),
        pid: 42,
        made_unix: 1,
        made: 2,
        fault: None,
        fault_at: 0,
        fabric: "soft".to_string(),
        nics: Vec::from(["soft0".to_string(), "soft1".to_string()]),
        usage: Vec::from([usage([1, 2, 3, 4, 5]), usage([6, 7, 8, 9, 10])]),
        groups: 33,
        records,
        tallies: [1, 0, 0, 0, 0, 0, 0, 2, 0],
        control: ControlStreams { streams: 2, fewest: 1, connections: 3 },
    };
    StatusSnapshot {
        head,
        rows: Vec::from([StatusRow {
            comm: Some(comm),
            counts: MessageCounts { sent: 4, ..MessageCounts::default() },
        }]),
    }
}

fn changed(at: usize, to: &[u8]) -> Result<StatusSnapshot, StatusError> {
    let mut bytes = example().to_bytes();
    bytes[at..at + to.len()].copy_from_slice(to);
    StatusSnapshot::from_bytes(&bytes)
}

#[test]
fn invalid_links_are_rejected() {
    let at = HEAD_BYTES + 5 * 8;
    assert!(changed(at, &[2]).is_ok());
    // No links, five; a missing link carries, or has a NIC.
    for (wrong, word) in
        [(&[0, 0][..], 0), (&[5, 1], 0x105), (&[2, 4], 0x402), (&[2, 1, 0, 0, 1], 0x1_0000_0102)]
    {
        assert_eq!(changed(at, wrong), Err(StatusError::Links(word)), "{wrong:?}");
    }
}

#[test]
fn invalid_groups_are_rejected() {
    let at = 2048 + 64;
    let who = |changes: u64| (2 | 2 << 8 | 3 << 16 | 4 << 32) ^ changes;
    // Another direction; no link, five; 129 members, 260; a free record with contents.
    for changes in [3 ^ 2, 2 << 8, (5 ^ 2) << 8, (129 ^ 4) << 32, 256 << 32, 2] {
        let word = who(changes);
        assert_eq!(changed(at, &word.to_le_bytes()), Err(StatusError::Group(word)), "{word:#x}");
        // A reader that meets a change ignores the whole record.
        let read = changed(at, &(word | 1 << 48).to_le_bytes()).unwrap();
        assert_eq!(read.head.records[1], None);
    }
    let most = changed(at, &who((128 ^ 4) << 32).to_le_bytes()).unwrap().head.records[1];
    assert_eq!(most.map(|group| group.members), Some(128));
    assert_eq!(
        changed(at, &(8_u64 << 48).to_le_bytes()).unwrap().head.records[1],
        None,
        "a free record was read as a group"
    );
    assert_eq!(changed(88 + 4, &[1]), Err(StatusError::Groups(1 << 32 | 33)));
}

#[test]
fn invalid_memberships_are_rejected() {
    let at = HEAD_BYTES + 6 * 8;
    let changed = |group: u64, member: u64| {
        let read = changed(at, &[group.to_le_bytes(), member.to_le_bytes()].concat());
        read.map(|status| status.rows[0].comm.unwrap().ride)
    };
    let ride = |record| MemberId::from_bits(0x0c05).map(|member| GroupMembership { record, member });
    assert_eq!(changed(0, 0), Ok(None));
    assert_eq!(changed(32, 0x0c05), Ok(ride(Some(31))));
    assert_eq!(changed(0xffff, 0x0c05), Ok(ride(None)), "the group has no record");
    // No group but a member, a record out of range; no member, the reserved slot, too many bits.
    for (group, member) in
        [(0, 0x0c05), (33, 0x0c05), (1 << 32 | 1, 0x0c05), (1, 0), (1, 0x0fff), (1, 1 << 32 | 0x0c05)]
    {
        assert_eq!(changed(group, member), Err(StatusError::Ride(group, member)));
    }
}

proptest! {
    #[test]
    fn status_pages_round_trip(status in status()) {
        prop_assert_eq!(StatusSnapshot::from_bytes(&status.to_bytes()), Ok(status));
    }

    #[test]
    fn changed_bytes_are_read_or_refused(status in status(), at in any::<prop::sample::Index>(), to: u8) {
        let mut bytes = status.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(read) = StatusSnapshot::from_bytes(&bytes) {
            prop_assert_eq!(StatusSnapshot::from_bytes(&read.to_bytes()), Ok(read));
        }
    }

    #[test]
    fn any_bytes_are_refused_until_they_begin_as_a_page(bytes: Vec<u8>) {
        prop_assert_eq!(StatusSnapshot::from_bytes(&bytes), Err(StatusError::Short(bytes.len())));
    }
}

#[test]
fn status_page_is_laid_out_as_documented() {
    let bytes = example().to_bytes();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"TRKLSTAT");
    assert_eq!((word(8), word(16), word(24)), (4096 << 32 | 5, 8192 << 32 | 256, 1));
    assert_eq!((word(32), word(48)), (0x0909_0909_0909_0909, 2 << 32 | 42));
    assert_eq!(&bytes[96..101], b"soft\0");
    assert_eq!((&bytes[256..262], &bytes[288..294]), (&b"soft0\0"[..], &b"soft1\0"[..]));
    assert_eq!(word(128), 1, "comms opened");
    let used = |nic: usize| [0, 1, 2, 3].map(|at| word(1024 + 32 * nic + 8 * at));
    assert_eq!(used(0), [2 << 32 | 1, 5 << 32 | 4, 3, 0]);
    assert_eq!(used(1), [7 << 32 | 6, 10 << 32 | 9, 8, 0]);
    assert_eq!(word(88), 33, "groups");
    let record = |nth: usize| [0, 1, 2, 3, 4, 5, 6, 7].map(|at| word(2048 + 64 * nth + 8 * at));
    let peer = 0x0707_0707_0707_0707;
    let numbers = [peer, peer, 6, 7, 9 << 32 | 8, 11 << 32 | 10, 13 << 32 | 12];
    assert_eq!(record(1)[0], 2 | 2 << 8 | 3 << 16 | 4 << 32);
    assert_eq!(record(31)[0], 1 | 2 << 8 | 3 << 16 | 4 << 32);
    assert_eq!((&record(1)[1..], &record(31)[1..]), (&numbers[..], &numbers[..]));
    assert_eq!((record(0), record(30)), ([0; 8], [0; 8]));
    let row = |at: usize| word(4096 + 8 * at);
    assert_eq!((row(6), row(7)), (2, 0x0c05), "the second record, and the member");
    assert_eq!(row(1), 1 | 1 << 8 | 1 << 16 | 2 << 32);
    assert_eq!(row(5), 2 | 1 << 8, "two links, one of which carries");
    assert_eq!((row(2), row(4)), (0x0707_0707_0707_0707, 5));
    assert_eq!((row(8 + 1), row(16 + 1)), (1, 4), "messages sent, before and now");
    assert_eq!(example().rows[0].comm_counts().sent, 3);
}

#[test]
fn invalid_pages_are_rejected() {
    assert_eq!(changed(0, b"X"), Err(StatusError::Magic));
    assert_eq!(changed(8, &[3]), Err(StatusError::Version(3)));
    assert_eq!(changed(12, &[1]), Err(StatusError::Sizes(4097, 256, 8192, 1)));
    assert_eq!(changed(16, &[0, 2]), Err(StatusError::Sizes(4096, 512, 8192, 1)));
    assert_eq!(changed(20, &[0; 4]), Err(StatusError::Sizes(4096, 256, 0, 1)));
    assert_eq!(changed(20, &[0, 0, 1, 0]), Err(StatusError::Sizes(4096, 256, 65536, 1)));
    assert_eq!(changed(24, &8193_u64.to_le_bytes()), Err(StatusError::Sizes(4096, 256, 8192, 8193)));
    assert_eq!(changed(24, &[2]), Err(StatusError::Short(4096 + 256)));
    assert_eq!(changed(52, &[17]), Err(StatusError::Nics(17)));
    assert_eq!(changed(96, &[0]), Err(StatusError::Name), "an empty name");
    assert_eq!(changed(97, &[0x1b]), Err(StatusError::Name), "a control character");
    assert_eq!(changed(110, b"x"), Err(StatusError::Name), "letters after the end");
    assert_eq!(changed(256, &[b'x'; 32]), Err(StatusError::Name), "no end");
    for (at, to) in [(0, 4), (1, 0), (1, 3), (7, 1)] {
        assert!(matches!(changed(4096 + 8 + at, &[to]), Err(StatusError::Row(_))), "byte {at} of word 1");
    }
    assert!(example().head.check_length(page_bytes(8192)).is_ok());
    assert!(example().head.check_length(page_bytes(8191)).is_err());
}

#[test]
fn changing_row_has_counts_and_no_comm() {
    let mut words = example().rows[0].to_words();
    words[row::SEQUENCE] += 1;
    words[1] = u64::MAX;
    let counts = example().rows[0].counts;
    assert_eq!(StatusRow::from_words(&words), Ok(StatusRow { comm: None, counts }));
    assert_eq!(StatusRow::from_words(&[0; ROW_WORDS]), Ok(StatusRow::default()));
}

#[test]
fn unprintable_names_are_made_printable() {
    let mut status = example();
    status.head.fabric = "a b\u{1b}ü".to_string();
    status.head.nics = Vec::from(["x".repeat(40), String::new()]);
    let read = StatusSnapshot::from_bytes(&status.to_bytes()).unwrap();
    assert_eq!(read.head.fabric, "a?b??");
    assert_eq!(read.head.nics, ["x".repeat(31), "?".to_string()]);
}
