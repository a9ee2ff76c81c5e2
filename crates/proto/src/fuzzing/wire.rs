//! Fuzzing of the parsers: a parsed value must encode to bytes that parse to the same value.

use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::num::NonZeroU64;

use super::make_variants;
use crate::counters::MessageCounts;
use crate::id::ProcessId;
use crate::limits::STRIPES_MAX;
use crate::nics::NicList;
use crate::rma::incoming;
use crate::slots::SlotId;
use crate::wire::cts::{self, CtsRecord, CtsSecondLine};
use crate::wire::delivery_report::{DeliveryReport, WaitingBuffer};
use crate::wire::dial::{self, DialMessage, ProcessCard};
use crate::wire::eager::{self, EagerHeader};
use crate::wire::fabric::ChosenFabric;
use crate::wire::fin::FinRecord;
use crate::wire::frame::{
    ControlFrame, LinkDown, LinkOpen, LinkResult, OpenAnswer, OpenFrame, RemoteRegion, ResultFrame,
};
use crate::wire::handle::{self, ConnectionHandle};
use crate::wire::imm::{BufferToken, WriteImmediate};
use crate::wire::member::MemberId;
use crate::wire::memory_handle::{MemoryHandle, RegisteredMemory};
use crate::wire::pe::{PeRecord, SymmetricSegment};
use crate::wire::proof::{GroupEpoch, GroupProof};
use crate::wire::rma::RmaStream;
use crate::wire::share::{self, ShareMode, ShareOffer, ShareOutcome, ShareRequest};
use crate::wire::start_notice::{NoticeKind, StartNotice};
use crate::wire::status::group::{self, CreditUsage, GroupCounters};
use crate::wire::status::{
    CommDirection, CommRecord, CommState, ControlStreams, FaultCode, GroupMembership, NicUsage,
    QueueGroupRecord, RowLinks, StatusHead, StatusRow, StatusSnapshot,
};
use crate::wire::strand::{self, StrandJoin, StrandRecordKind};

/// Returns the input's first bytes, with zeros where it is too short.
pub(super) fn pad_input<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let used = bytes.len().min(N);
    out[..used].copy_from_slice(&bytes[..used]);
    out
}

pub(super) fn check_handle(bytes: &[u8]) {
    let mut bytes = pad_input::<{ handle::BYTES }>(bytes);
    let Ok(parsed) = ConnectionHandle::from_bytes(&bytes) else { return };
    assert_eq!(ConnectionHandle::from_bytes(&parsed.to_bytes()).as_ref(), Ok(&parsed));
    ConnectionHandle::set_attempt(&mut bytes, !parsed.attempt);
    assert_eq!(
        ConnectionHandle::from_bytes(&bytes),
        Ok(ConnectionHandle { attempt: !parsed.attempt, ..parsed })
    );
}

pub(super) fn handle_seeds() -> Vec<Vec<u8>> {
    let with = |nics: &[u16], address: Vec<u8>, attempt| {
        let process = ProcessId([0x11; 16]);
        let nonce = [0x22; 16];
        let nics = NicList::new(nics).unwrap_or(NicList::NONE);
        let fabric = ChosenFabric::new("soft", if attempt > 0 { "shm" } else { "" });
        let listen = 3 << 32 | 7;
        let near = attempt > 0;
        ConnectionHandle { process, nonce, nics, listen, address, attempt, p2p: false, near, fabric }
            .to_bytes()
            .to_vec()
    };
    let address = b"trunkline-0123456789abcdef".to_vec();
    make_variants(&[
        with(&[3, 2, 1, 0], address.clone(), 0),
        with(&[7], vec![0x5a; handle::ADDRESS_MAX], u64::MAX),
        with(&[0, 0x1234], vec![0], 1),
        with(&[0], vec![7; 60], 0),
        with(&[1], vec![], 0),
        with(&[], address, 0),
    ])
}

pub(super) fn check_frame(bytes: &[u8]) {
    let Ok(parsed) = ControlFrame::from_bytes(bytes) else { return };
    let printed = parsed.to_bytes();
    assert_eq!(printed.len(), bytes.len());
    assert_eq!(ControlFrame::from_bytes(&printed), Ok(parsed));
}

pub(super) fn frame_seeds() -> Vec<Vec<u8>> {
    let region = RemoteRegion { key: 0x0123_4567_89ab_cdef, addr: 0x7f00_0000_1000 };
    let open = |matched, link, mode| {
        let conn = 1 << 32 | 2;
        let links = if matched { 1 } else { 4 };
        let share = ShareRequest { mode, turn: 1 };
        ControlFrame::Open(OpenFrame {
            conn,
            listen: 3,
            nonce: [4; 16],
            matched,
            near: !matched,
            links,
            mailbox: region,
            link,
            share,
        })
    };
    let reply = |answer, link, given| {
        ControlFrame::Result(ResultFrame {
            conn: 5,
            answer,
            matched: true,
            remote_len: false,
            comm: 6,
            fins: region,
            eager_max: 4096,
            eager_credits: 32,
            link,
            share: share::ShareAnswer { given, turn: 1 },
        })
    };
    let epoch = GroupEpoch(NonZeroU64::MAX);
    let proof = GroupProof(7);
    let member = MemberId::from_slot(SlotId { slot: 5, generation: 6 });
    let waiting = vec![WaitingBuffer { token: BufferToken::new(9, 1), stripes: 0b1010, fin: true }];
    let standing = DeliveryReport { next: 3, frontier: 4, ahead: 5, waiting };
    let made = LinkResult { id: 5, link: 1, epoch: 3, fins: region, address: vec![2; 80] };
    let frames = [
        ControlFrame::Hello { min: 1, max: 1, offer: ShareOffer { groups: 2 }, process: ProcessId([9; 16]) },
        open(false, vec![1; 80], ShareMode::Alone),
        reply(OpenAnswer::Accepted, vec![2; 256], ShareOutcome::Alone),
        ControlFrame::Ready { comm: 6, conn: 5 },
        ControlFrame::Close { id: u64::MAX, messages: 0 },
        open(true, vec![], ShareMode::Join(epoch, proof)),
        reply(OpenAnswer::Other(200), vec![], ShareOutcome::Alone),
        reply(OpenAnswer::NoResources, vec![3], ShareOutcome::Alone),
        open(true, vec![1; 20], ShareMode::Create(epoch)),
        open(true, vec![1; 20], ShareMode::First(epoch)),
        open(true, vec![1; 20], ShareMode::Join(epoch, proof)),
        open(false, vec![], ShareMode::Rather),
        reply(OpenAnswer::Accepted, vec![2; 20], ShareOutcome::Created { epoch, proof, member }),
        reply(OpenAnswer::Accepted, vec![], ShareOutcome::Joined { epoch, member }),
        reply(OpenAnswer::Accepted, vec![], ShareOutcome::Alone),
        reply(OpenAnswer::Accepted, vec![], ShareOutcome::Retry),
        reply(OpenAnswer::Refused, vec![], ShareOutcome::Full),
        ControlFrame::Gone { id: 6 },
        ControlFrame::Stop { id: 5 },
        ControlFrame::LinkDown(LinkDown {
            id: 6,
            link: 1,
            epoch: 2,
            answer: true,
            next: 0,
            standing: Some(standing),
        }),
        ControlFrame::LinkDown(LinkDown {
            id: 5,
            link: 3,
            epoch: 0,
            answer: false,
            next: 70,
            standing: None,
        }),
        ControlFrame::LinkOpen(LinkOpen { id: 6, link: 1, epoch: 3, mailbox: region, address: vec![1; 80] }),
        ControlFrame::LinkResult(made),
        ControlFrame::LinkReady { id: 6, link: 1, epoch: 3 },
    ];
    make_variants(&frames.map(|frame| frame.to_bytes()))
}

/// Input of 65 bytes: the line, then the expected index.
pub(super) fn check_cts(bytes: &[u8]) {
    let input = pad_input::<{ cts::BYTES + 1 }>(bytes);
    let mut words = [0; cts::WORDS];
    for (word, bytes) in words.iter_mut().zip(input.chunks_exact(8)) {
        *word = u64::from_le_bytes(pad_input(bytes));
    }
    let number = cts::head_number(words[0]);
    let index = input[cts::BYTES];
    if let Some(parsed) = CtsRecord::from_words(&words, number, index) {
        assert!(parsed.index < parsed.count && parsed.count <= 8);
        assert_eq!(CtsRecord::from_words(&parsed.to_words(), number, index), Some(parsed));
        assert_eq!(CtsRecord::from_words(&words, number.wrapping_add(1), index), None);
    }
    if let Some(parsed) = CtsSecondLine::from_words(&words, number, index) {
        assert_eq!(parsed.to_words(), words);
    }
    // The fields of a record survive, also those of random words that fail its check.
    let said = CtsRecord::from_unchecked_words(&words, number, index & 7);
    let back = CtsRecord::from_words(&said.to_words(), number, index & 7);
    assert_eq!(back, (said.index < said.count).then_some(said));
}

pub(super) fn cts_seeds() -> Vec<Vec<u8>> {
    let record = |number, index, count, len| {
        let token = BufferToken::new(number as u16, 3);
        let cts = CtsRecord { number, index, count, addr: 0x1000, len, tag: 9, token, key: 0x1111 };
        let mut bytes = cts.to_bytes().to_vec();
        bytes.push(index);
        bytes
    };
    let place = |rail: u64| RemoteRegion { key: 0x1111 * rail, addr: 0x1000 * rail };
    let others = CtsSecondLine { number: 5, index: 2, places: [place(1), place(2), place(3)] };
    let mut second = others.to_bytes().to_vec();
    second.push(2);
    make_variants(&[
        second,
        record(1, 0, 1, 64),
        record(u32::MAX, 7, 8, u64::MAX),
        record(0, 1, 2, 0),
        record(127, 3, 4, 1 << 32),
        record(128, 2, 2, 8),
    ])
}

pub(super) fn check_imm(bytes: &[u8]) {
    let bits = u32::from_le_bytes(pad_input(bytes));
    let token = BufferToken::from_bits(bits);
    assert_eq!(token.to_bits(), bits & 0xff_ffff);
    assert_eq!(BufferToken::new(token.slot() as u16, token.generation()), token);
    if let Some(parsed) = WriteImmediate::from_bits(bits) {
        assert_eq!((parsed.to_bits(), parsed.buffer_token()), (bits, token));
    }
}

pub(super) fn imm_seeds() -> Vec<Vec<u8>> {
    let token = BufferToken::new(0x1ff, 0x3ff);
    let all = [
        WriteImmediate::Full(token),
        WriteImmediate::Whole(token.next()),
        WriteImmediate::Stripe(token, 15),
        WriteImmediate::Fin(token),
    ];
    let mut valid: Vec<Vec<u8>> = all.iter().map(|imm| imm.to_bits().to_le_bytes().to_vec()).collect();
    valid.push(vec![0; 4]);
    make_variants(&valid)
}

pub(super) fn check_eager(bytes: &[u8]) {
    let Ok(parsed) = EagerHeader::from_bytes(bytes) else { return };
    assert_eq!(parsed.to_bytes(), bytes[..eager::BYTES]);
    assert_eq!(EagerHeader::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn eager_seeds() -> Vec<Vec<u8>> {
    let header = |number, len| EagerHeader { number, base: number, tag: 7, len }.to_bytes().to_vec();
    let mut with_payload = header(3, 8);
    with_payload.extend_from_slice(b"payload!");
    make_variants(&[header(0, 0), header(u32::MAX, 4096), header(1, eager::LEN_MAX), with_payload])
}

pub(super) fn check_fin(bytes: &[u8]) {
    if let Ok(parsed) = FinRecord::from_message(bytes) {
        assert_eq!(FinRecord::from_message(&parsed.to_message()), Ok(parsed));
    }
    let Ok(parsed) = FinRecord::from_bytes(bytes) else { return };
    assert!(usize::from(parsed.stripes) <= STRIPES_MAX);
    assert_eq!(FinRecord::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn fin_seeds() -> Vec<Vec<u8>> {
    let record =
        |len, stripes| FinRecord { len, stripes, token: BufferToken::new(511, 1) }.to_bytes().to_vec();
    make_variants(&[record(0, 0), record(u64::MAX, 16), record(1 << 32, 1), record(90, 17)])
}

/// The handle of memory that NVSHMEM registered.
pub(super) fn memory_handle(bytes: &[u8]) {
    let bytes = pad_input(bytes);
    let Ok(parsed) = MemoryHandle::from_bytes(&bytes) else { return };
    assert_eq!(MemoryHandle::memory_of(&bytes), Ok(parsed.memory));
    assert_eq!(MemoryHandle::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn memory_handle_seeds() -> Vec<Vec<u8>> {
    let handle = |n: u64| MemoryHandle {
        memory: RegisteredMemory { heap: n as u8, generation: n as u32 + 1, base: n << 12, len: n << 30 },
        rails: (0..=n % 4).map(|rail| RemoteRegion { key: rail, addr: n << 12 }).collect(),
    };
    make_variants(&[handle(0), handle(7), handle(255)].map(|handle| handle.to_bytes()[..128].to_vec()))
}

/// The record of a process with symmetric memory.
pub(super) fn check_pe(bytes: &[u8]) {
    let Ok(parsed) = PeRecord::from_bytes(bytes) else { return };
    assert_eq!(PeRecord::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn pe_seeds() -> Vec<Vec<u8>> {
    let segment = |n: u64| SymmetricSegment { len: n << 12, inode: n, fd: n as u32 };
    let pe = |n: u64| PeRecord {
        node: [n as u8; 24],
        pid: n as u32,
        segments: [segment(n), segment(n + 1), segment(0)],
    };
    make_variants(&[pe(0), pe(7), pe(u64::MAX >> 13)].map(|pe| pe.to_bytes().to_vec()))
}

/// The notice of a rank that starts. A notice of the same lines has the same bytes, unless lines are left out.
pub(super) fn check_start_notice(bytes: &[u8]) {
    let mut written = StartNotice::new();
    written.add_lines(NoticeKind::Invalid, &alloc::string::String::from_utf8_lossy(bytes));
    assert_eq!(StartNotice::from_bytes(written.as_bytes()), Ok(written));
    let Ok(parsed) = StartNotice::from_bytes(bytes) else { return };
    assert_eq!(parsed.as_bytes(), bytes);
    let mut copy = StartNotice::new();
    parsed.iter_lines().for_each(|line| copy.add_lines(line.kind, line.text));
    let is_blank = |text: &str| text.trim_ascii().is_empty();
    let is_copied = parsed.left_out() == 0 && !parsed.iter_lines().any(|line| is_blank(line.text));
    assert!(copy.as_bytes() == bytes || !is_copied);
}

pub(super) fn start_notice_seeds() -> Vec<Vec<u8>> {
    let notice = |lines: &[(NoticeKind, &str)]| {
        let mut notice = StartNotice::new();
        lines.iter().for_each(|(kind, text)| notice.add_lines(*kind, text));
        notice.as_bytes().to_vec()
    };
    let long = "A=x: expected a number; ".repeat(18);
    make_variants(&[
        notice(&[]),
        notice(&[(NoticeKind::Invalid, "A=x: expected a number"), (NoticeKind::Warning, "B is no setting")]),
        notice(&[(NoticeKind::Warning, "caf\u{e9}, \u{1f980}")]),
        notice(&[(NoticeKind::Invalid, long.as_str()); 4]),
    ])
}

/// A card, and a message about the links of a context.
pub(super) fn check_dial(bytes: &[u8]) {
    if let Ok(card) = ProcessCard::from_bytes(&pad_input(bytes)) {
        assert_eq!(ProcessCard::from_bytes(&card.to_bytes()), Ok(card));
    }
    let Ok(word) = DialMessage::from_bytes(bytes) else { return };
    let printed = word.to_bytes();
    assert!(printed.len() <= bytes.len() && printed.len() <= 4096);
    match &word {
        DialMessage::Standing { standing, .. } => {
            assert!(standing.seen.len() <= dial::EPOCHS_MAX && standing.signals.len() <= dial::EPOCHS_MAX);
            assert!(standing.applied < 1 << 48);
        }
        DialMessage::MakeUp { stream, lost } => {
            assert!((1..=dial::EPOCHS_MAX).contains(&lost.len()));
            assert!(lost.iter().all(|one| one.stream == *stream && one.count > 0));
        }
        _ => {}
    }
    assert_eq!(DialMessage::from_bytes(&printed), Ok(word));
}

pub(super) fn dial_seeds() -> Vec<Vec<u8>> {
    let Some(stream) = RmaStream::new(5) else { return Vec::new() };
    let process = ProcessId([1; 16]);
    let fabric = ChosenFabric::new("ofi", "efa");
    let card = ProcessCard { process, key: [4; 32], rails: 4, address: vec![3; 48], executes: false, fabric };
    let heap = |n: u64| dial::RemoteHeap { len: n << 20, region: RemoteRegion { key: !n, addr: n << 40 } };
    let standing = |epochs: u16| incoming::PathDeliveryReport {
        applied: 0x0102_0304_0506,
        seen: (0..epochs).map(|epoch| (epoch, 7)).collect(),
        signals: (0..epochs).collect(),
    };
    let lost = |epochs: u16| (0..epochs).map(|epoch| incoming::MakeUp { stream, epoch, count: 9 }).collect();
    let words = [
        DialMessage::Dial { id: 1, proof: [9; 16], member: 7, stream, path: 3, link: vec![5; 120] },
        DialMessage::Taken {
            id: 1,
            served: 2,
            receives: 200,
            heaps: (0..3).map(heap).collect(),
            link: vec![6; 56],
        },
        DialMessage::Refused { id: 3, why: dial::DialRefusal::Protocol },
        DialMessage::Leave { stream },
        DialMessage::Down { served: 4 },
        DialMessage::Standing { id: 5, standing: standing(0) },
        DialMessage::Standing { id: 5, standing: standing(dial::EPOCHS_MAX as u16) },
        DialMessage::MakeUp { stream, lost: lost(2) },
        DialMessage::Spoil { proof: [8; 16], heap: 2, offset: 4096, value: 1 << 32 },
    ];
    let words = words.iter().map(DialMessage::to_bytes);
    make_variants(&words.chain([card.to_bytes().to_vec()]).collect::<Vec<_>>())
}

pub(super) fn check_strand(bytes: &[u8]) {
    let Ok(head) = strand::StrandHead::from_bytes(&pad_input(bytes)) else { return };
    assert!(usize::from(head.len) <= strand::BODY_MAX);
    assert_eq!(strand::StrandHead::from_bytes(&head.to_bytes()), Ok(head));
    let Some(body) = bytes.get(strand::HEAD..) else { return };
    let Ok(join) = StrandJoin::from_bytes(body) else { return };
    assert!(join.places.len() <= strand::STRANDS_MAX);
    assert_eq!(join.to_bytes(), body);
}

pub(super) fn strand_seeds() -> Vec<Vec<u8>> {
    let record = |kind, number, received, body: &[u8]| {
        let head = strand::StrandHead { kind, len: body.len() as u16, number, received };
        [&head.to_bytes(), body].concat()
    };
    let v4 = |last: u8| SocketAddr::from(([192, 0, 2, last], 40_000 + u16::from(last)));
    let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7));
    let join = |places| StrandJoin { name: [6; 16], places }.to_bytes();
    make_variants(&[
        record(StrandRecordKind::Join, 0, 0, &join(vec![])),
        record(StrandRecordKind::Join, 0, 9, &join(vec![v4(1), v6, v4(2)])),
        record(StrandRecordKind::Join, 0, u64::MAX, &join(vec![v6; strand::STRANDS_MAX])),
        record(StrandRecordKind::Frame, 3, 2, &[1; 40]),
        record(StrandRecordKind::Taken, 3, 16, &[]),
        record(StrandRecordKind::End, u64::MAX, 0, &[]),
    ])
}

pub(super) fn check_status(bytes: &[u8]) {
    let Ok(parsed) = StatusSnapshot::from_bytes(bytes) else { return };
    assert!(parsed.rows.len() <= parsed.head.rows as usize);
    assert_eq!(StatusSnapshot::from_bytes(&parsed.to_bytes()).as_ref(), Ok(&parsed));
    // The counters of any rows can be added without a panic.
    let _ = (parsed.process_counters(), parsed.rows.iter().map(StatusRow::comm_counts).count());
}

pub(super) fn status_seeds() -> Vec<Vec<u8>> {
    let row = |state, direction, fault| {
        let before = MessageCounts { begun: 4, sent: 3, ..MessageCounts::default() };
        let peer = ProcessId([0x44; 16]);
        let links = RowLinks::new(&[0, 3, 1], 0b101);
        let ride = MemberId::from_bits(0x0c05).map(|member| GroupMembership { record: Some(31), member });
        let ride = ride.filter(|_| direction == CommDirection::Send);
        let comm =
            CommRecord { state, direction, links, generation: 1, fault, peer, opened: 7, ride, before };
        StatusRow { comm: Some(comm), counts: MessageCounts::from_array([u64::MAX, 5, 40, 6, 48, 7, 1]) }
    };
    let taken = |used, total| CreditUsage { used, total };
    let numbers = GroupCounters {
        routed: 77,
        dropped: 1,
        eager: taken(3, 64),
        slices: taken(8, 8),
        queue: taken(5, 512),
    };
    let peer = ProcessId([0x44; 16]);
    let group =
        QueueGroupRecord { direction: CommDirection::Send, links: 2, nic: 1, members: 128, peer, numbers };
    let page = |rows: Vec<StatusRow>, nics: usize| {
        let mut records = [None; group::RECORDS];
        (records[0], records[31]) =
            (Some(QueueGroupRecord { direction: CommDirection::Recv, ..group }), Some(group));
        let head = StatusHead {
            rows: rows.len() as u32 + 1,
            used: rows.len() as u32,
            process: ProcessId([0x33; 16]),
            pid: 4242,
            made_unix: 1_700_000_000_000_000_000,
            made: 1 << 40,
            fault: Some(FaultCode::Link),
            fault_at: 1 << 41,
            fabric: "soft".into(),
            nics: vec!["soft0".into(); nics],
            usage: vec![NicUsage { queue_pairs: 7, queue_pairs_max: 64, ..NicUsage::default() }; nics],
            groups: 40,
            records,
            tallies: [1, 2, 3, 4, 5, 6, 7, 8, 9],
            control: ControlStreams::default(),
        };
        StatusSnapshot { head, rows }.to_bytes()
    };
    let all = vec![
        row(CommState::Open, CommDirection::Send, None),
        row(CommState::Failed, CommDirection::Recv, Some(FaultCode::PeerDied)),
        row(CommState::Closed, CommDirection::Send, Some(FaultCode::Other)),
        StatusRow::default(),
    ];
    make_variants(&[page(all, 2), page(Vec::new(), 0), page(vec![StatusRow::default()], 16)])
}
