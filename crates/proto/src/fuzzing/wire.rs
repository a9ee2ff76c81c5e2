//! The parsers: whatever parses must print to what parses to the same.

use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::num::NonZeroU64;

use super::variants;
use crate::counters::Counts;
use crate::id::ProcessId;
use crate::limits::STRIPES_MAX;
use crate::nics::Nics;
use crate::rma::incoming;
use crate::slots::SlotId;
use crate::wire::cts::{self, Cts, Others};
use crate::wire::dial::{self, Card, Word};
use crate::wire::eager::{self, Eager};
use crate::wire::fabric::ChosenFabric;
use crate::wire::fin::Fin;
use crate::wire::frame::{Answer, Frame, LinkDown, LinkOpen, LinkResult, Open, Region, Reply};
use crate::wire::handle::{self, Handle};
use crate::wire::imm::{Imm, Token};
use crate::wire::member::MemberId;
use crate::wire::memory_handle::{MemoryHandle, Registered};
use crate::wire::pe::{Pe, Segment};
use crate::wire::proof::{Epoch, Proof};
use crate::wire::rma::Stream;
use crate::wire::share::{self, Given, Mode, Offer, Request};
use crate::wire::standing::{Standing, Waiting};
use crate::wire::status::group::{self, Numbers, Taken};
use crate::wire::status::{
    Comm, ControlStreams, Direction, Fault, Group, Head, Links, Ride, Row, State, Status, Usage,
};
use crate::wire::strand::{self, Join, Kind};

/// The input's first bytes, zeros where it is too short.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let used = bytes.len().min(N);
    out[..used].copy_from_slice(&bytes[..used]);
    out
}

pub(super) fn handle(bytes: &[u8]) {
    let mut bytes = padded::<{ handle::BYTES }>(bytes);
    let Ok(parsed) = Handle::from_bytes(&bytes) else { return };
    assert_eq!(Handle::from_bytes(&parsed.to_bytes()).as_ref(), Ok(&parsed));
    Handle::set_attempt(&mut bytes, !parsed.attempt);
    assert_eq!(Handle::from_bytes(&bytes), Ok(Handle { attempt: !parsed.attempt, ..parsed }));
}

pub(super) fn handle_seeds() -> Vec<Vec<u8>> {
    let with = |nics: &[u16], address: Vec<u8>, attempt| {
        let process = ProcessId([0x11; 16]);
        let nonce = [0x22; 16];
        let nics = Nics::new(nics).unwrap_or(Nics::NONE);
        let fabric = ChosenFabric::new("soft", if attempt > 0 { "shm" } else { "" });
        let listen = 3 << 32 | 7;
        let near = attempt > 0;
        Handle { process, nonce, nics, listen, address, attempt, p2p: false, near, fabric }
            .to_bytes()
            .to_vec()
    };
    let address = b"trunkline-0123456789abcdef".to_vec();
    variants(&[
        with(&[3, 2, 1, 0], address.clone(), 0),
        with(&[7], vec![0x5a; handle::ADDRESS_MAX], u64::MAX),
        with(&[0, 0x1234], vec![0], 1),
        with(&[0], vec![7; 60], 0),
        with(&[1], vec![], 0),
        with(&[], address, 0),
    ])
}

pub(super) fn frame(bytes: &[u8]) {
    let Ok(parsed) = Frame::from_bytes(bytes) else { return };
    let printed = parsed.to_bytes();
    assert_eq!(printed.len(), bytes.len());
    assert_eq!(Frame::from_bytes(&printed), Ok(parsed));
}

pub(super) fn frame_seeds() -> Vec<Vec<u8>> {
    let region = Region { key: 0x0123_4567_89ab_cdef, addr: 0x7f00_0000_1000 };
    let open = |matched, link, mode| {
        let conn = 1 << 32 | 2;
        let links = if matched { 1 } else { 4 };
        let share = Request { mode, turn: 1 };
        Frame::Open(Open {
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
        Frame::Result(Reply {
            conn: 5,
            answer,
            matched: true,
            remote_len: false,
            comm: 6,
            fins: region,
            eager_max: 4096,
            eager_credits: 32,
            link,
            share: share::Answer { given, turn: 1 },
        })
    };
    let epoch = Epoch(NonZeroU64::MAX);
    let proof = Proof(7);
    let member = MemberId::of(SlotId { slot: 5, generation: 6 });
    let waiting = vec![Waiting { token: Token::new(9, 1), stripes: 0b1010, fin: true }];
    let standing = Standing { next: 3, frontier: 4, ahead: 5, waiting };
    let made = LinkResult { id: 5, link: 1, epoch: 3, fins: region, address: vec![2; 80] };
    let frames = [
        Frame::Hello { min: 1, max: 1, offer: Offer { groups: 2 }, process: ProcessId([9; 16]) },
        open(false, vec![1; 80], Mode::Alone),
        reply(Answer::Accepted, vec![2; 256], Given::Alone),
        Frame::Ready { comm: 6, conn: 5 },
        Frame::Close { id: u64::MAX, messages: 0 },
        open(true, vec![], Mode::Join(epoch, proof)),
        reply(Answer::Other(200), vec![], Given::Alone),
        reply(Answer::NoResources, vec![3], Given::Alone),
        open(true, vec![1; 20], Mode::Create(epoch)),
        open(true, vec![1; 20], Mode::First(epoch)),
        open(true, vec![1; 20], Mode::Join(epoch, proof)),
        open(false, vec![], Mode::Rather),
        reply(Answer::Accepted, vec![2; 20], Given::Created { epoch, proof, member }),
        reply(Answer::Accepted, vec![], Given::Joined { epoch, member }),
        reply(Answer::Accepted, vec![], Given::Alone),
        reply(Answer::Accepted, vec![], Given::Retry),
        reply(Answer::Refused, vec![], Given::Full),
        Frame::Gone { id: 6 },
        Frame::Stop { id: 5 },
        Frame::LinkDown(LinkDown {
            id: 6,
            link: 1,
            epoch: 2,
            answer: true,
            next: 0,
            standing: Some(standing),
        }),
        Frame::LinkDown(LinkDown { id: 5, link: 3, epoch: 0, answer: false, next: 70, standing: None }),
        Frame::LinkOpen(LinkOpen { id: 6, link: 1, epoch: 3, mailbox: region, address: vec![1; 80] }),
        Frame::LinkResult(made),
        Frame::LinkReady { id: 6, link: 1, epoch: 3 },
    ];
    variants(&frames.map(|frame| frame.to_bytes()))
}

/// 65 bytes: the line, then the index that is asked for.
pub(super) fn cts(bytes: &[u8]) {
    let input = padded::<{ cts::BYTES + 1 }>(bytes);
    let mut words = [0; cts::WORDS];
    for (word, bytes) in words.iter_mut().zip(input.chunks_exact(8)) {
        *word = u64::from_le_bytes(padded(bytes));
    }
    let number = cts::head(words[0]);
    let index = input[cts::BYTES];
    if let Some(parsed) = Cts::from_words(&words, number, index) {
        assert!(parsed.index < parsed.count && parsed.count <= 8);
        assert_eq!(Cts::from_words(&parsed.to_words(), number, index), Some(parsed));
        assert_eq!(Cts::from_words(&words, number.wrapping_add(1), index), None);
    }
    if let Some(parsed) = Others::from_words(&words, number, index) {
        assert_eq!(parsed.to_words(), words);
    }
    // What a record says survives, also where random words fail its check.
    let said = Cts::unchecked(&words, number, index & 7);
    let back = Cts::from_words(&said.to_words(), number, index & 7);
    assert_eq!(back, (said.index < said.count).then_some(said));
}

pub(super) fn cts_seeds() -> Vec<Vec<u8>> {
    let record = |number, index, count, len| {
        let token = Token::new(number as u16, 3);
        let cts = Cts { number, index, count, addr: 0x1000, len, tag: 9, token, key: 0x1111 };
        let mut bytes = cts.to_bytes().to_vec();
        bytes.push(index);
        bytes
    };
    let place = |rail: u64| Region { key: 0x1111 * rail, addr: 0x1000 * rail };
    let others = Others { number: 5, index: 2, places: [place(1), place(2), place(3)] };
    let mut second = others.to_bytes().to_vec();
    second.push(2);
    variants(&[
        second,
        record(1, 0, 1, 64),
        record(u32::MAX, 7, 8, u64::MAX),
        record(0, 1, 2, 0),
        record(127, 3, 4, 1 << 32),
        record(128, 2, 2, 8),
    ])
}

pub(super) fn imm(bytes: &[u8]) {
    let bits = u32::from_le_bytes(padded(bytes));
    let token = Token::from_bits(bits);
    assert_eq!(token.to_bits(), bits & 0xff_ffff);
    assert_eq!(Token::new(token.slot() as u16, token.generation()), token);
    if let Some(parsed) = Imm::from_bits(bits) {
        assert_eq!((parsed.to_bits(), parsed.token()), (bits, token));
    }
}

pub(super) fn imm_seeds() -> Vec<Vec<u8>> {
    let token = Token::new(0x1ff, 0x3ff);
    let all = [Imm::Full(token), Imm::Whole(token.next()), Imm::Stripe(token, 15), Imm::Fin(token)];
    let mut valid: Vec<Vec<u8>> = all.iter().map(|imm| imm.to_bits().to_le_bytes().to_vec()).collect();
    valid.push(vec![0; 4]);
    variants(&valid)
}

pub(super) fn eager(bytes: &[u8]) {
    let Ok(parsed) = Eager::from_bytes(bytes) else { return };
    assert_eq!(parsed.to_bytes(), bytes[..eager::BYTES]);
    assert_eq!(Eager::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn eager_seeds() -> Vec<Vec<u8>> {
    let header = |number, len| Eager { number, base: number, tag: 7, len }.to_bytes().to_vec();
    let mut with_payload = header(3, 8);
    with_payload.extend_from_slice(b"payload!");
    variants(&[header(0, 0), header(u32::MAX, 4096), header(1, eager::LEN_MAX), with_payload])
}

pub(super) fn fin(bytes: &[u8]) {
    if let Ok(parsed) = Fin::from_message(bytes) {
        assert_eq!(Fin::from_message(&parsed.to_message()), Ok(parsed));
    }
    let Ok(parsed) = Fin::from_bytes(bytes) else { return };
    assert!(usize::from(parsed.stripes) <= STRIPES_MAX);
    assert_eq!(Fin::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn fin_seeds() -> Vec<Vec<u8>> {
    let record = |len, stripes| Fin { len, stripes, token: Token::new(511, 1) }.to_bytes().to_vec();
    variants(&[record(0, 0), record(u64::MAX, 16), record(1 << 32, 1), record(90, 17)])
}

/// Memory that NVSHMEM registered.
pub(super) fn memory_handle(bytes: &[u8]) {
    let bytes = padded(bytes);
    let Ok(parsed) = MemoryHandle::from_bytes(&bytes) else { return };
    assert_eq!(MemoryHandle::memory_of(&bytes), Ok(parsed.memory));
    assert_eq!(MemoryHandle::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn memory_handle_seeds() -> Vec<Vec<u8>> {
    let handle = |n: u64| MemoryHandle {
        memory: Registered { heap: n as u8, generation: n as u32 + 1, base: n << 12, len: n << 30 },
        rails: (0..=n % 4).map(|rail| Region { key: rail, addr: n << 12 }).collect(),
    };
    variants(&[handle(0), handle(7), handle(255)].map(|handle| handle.to_bytes()[..128].to_vec()))
}

/// A process with symmetric memory.
pub(super) fn pe(bytes: &[u8]) {
    let Ok(parsed) = Pe::from_bytes(bytes) else { return };
    assert_eq!(Pe::from_bytes(&parsed.to_bytes()), Ok(parsed));
}

pub(super) fn pe_seeds() -> Vec<Vec<u8>> {
    let segment = |n: u64| Segment { len: n << 12, inode: n, fd: n as u32 };
    let pe = |n: u64| Pe {
        node: [n as u8; 24],
        pid: n as u32,
        segments: [segment(n), segment(n + 1), segment(0)],
    };
    variants(&[pe(0), pe(7), pe(u64::MAX >> 13)].map(|pe| pe.to_bytes().to_vec()))
}

/// A card, and a word about the links of one-sided work.
pub(super) fn dial(bytes: &[u8]) {
    if let Ok(card) = Card::from_bytes(&padded(bytes)) {
        assert_eq!(Card::from_bytes(&card.to_bytes()), Ok(card));
    }
    let Ok(word) = Word::from_bytes(bytes) else { return };
    let printed = word.to_bytes();
    assert!(printed.len() <= bytes.len() && printed.len() <= 4096);
    match &word {
        Word::Standing { standing, .. } => {
            assert!(standing.seen.len() <= dial::EPOCHS_MAX && standing.signals.len() <= dial::EPOCHS_MAX);
            assert!(standing.applied < 1 << 48);
        }
        Word::MakeUp { stream, lost } => {
            assert!((1..=dial::EPOCHS_MAX).contains(&lost.len()));
            assert!(lost.iter().all(|one| one.stream == *stream && one.count > 0));
        }
        _ => {}
    }
    assert_eq!(Word::from_bytes(&printed), Ok(word));
}

pub(super) fn dial_seeds() -> Vec<Vec<u8>> {
    let Some(stream) = Stream::new(5) else { return Vec::new() };
    let process = ProcessId([1; 16]);
    let fabric = ChosenFabric::new("ofi", "efa");
    let card = Card { process, key: [4; 32], rails: 4, address: vec![3; 48], executes: false, fabric };
    let heap = |n: u64| dial::Heap { len: n << 20, region: Region { key: !n, addr: n << 40 } };
    let standing = |epochs: u16| incoming::Standing {
        applied: 0x0102_0304_0506,
        seen: (0..epochs).map(|epoch| (epoch, 7)).collect(),
        signals: (0..epochs).collect(),
    };
    let lost = |epochs: u16| (0..epochs).map(|epoch| incoming::MakeUp { stream, epoch, count: 9 }).collect();
    let words = [
        Word::Dial { id: 1, proof: [9; 16], member: 7, stream, path: 3, link: vec![5; 120] },
        Word::Taken { id: 1, served: 2, receives: 200, heaps: (0..3).map(heap).collect(), link: vec![6; 56] },
        Word::Refused { id: 3, why: dial::Refusal::Protocol },
        Word::Leave { stream },
        Word::Down { served: 4 },
        Word::Standing { id: 5, standing: standing(0) },
        Word::Standing { id: 5, standing: standing(dial::EPOCHS_MAX as u16) },
        Word::MakeUp { stream, lost: lost(2) },
        Word::Spoil { proof: [8; 16], heap: 2, offset: 4096, value: 1 << 32 },
    ];
    let words = words.iter().map(Word::to_bytes);
    variants(&words.chain([card.to_bytes().to_vec()]).collect::<Vec<_>>())
}

pub(super) fn strand(bytes: &[u8]) {
    let Ok(head) = strand::Head::from_bytes(&padded(bytes)) else { return };
    assert!(usize::from(head.len) <= strand::BODY_MAX);
    assert_eq!(strand::Head::from_bytes(&head.to_bytes()), Ok(head));
    let Some(body) = bytes.get(strand::HEAD..) else { return };
    let Ok(join) = Join::from_bytes(body) else { return };
    assert!(join.places.len() <= strand::STRANDS_MAX);
    assert_eq!(join.to_bytes(), body);
}

pub(super) fn strand_seeds() -> Vec<Vec<u8>> {
    let record = |kind, number, received, body: &[u8]| {
        let head = strand::Head { kind, len: body.len() as u16, number, received };
        [&head.to_bytes(), body].concat()
    };
    let v4 = |last: u8| SocketAddr::from(([192, 0, 2, last], 40_000 + u16::from(last)));
    let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7));
    let join = |places| Join { name: [6; 16], places }.to_bytes();
    variants(&[
        record(Kind::Join, 0, 0, &join(vec![])),
        record(Kind::Join, 0, 9, &join(vec![v4(1), v6, v4(2)])),
        record(Kind::Join, 0, u64::MAX, &join(vec![v6; strand::STRANDS_MAX])),
        record(Kind::Frame, 3, 2, &[1; 40]),
        record(Kind::Taken, 3, 16, &[]),
        record(Kind::End, u64::MAX, 0, &[]),
    ])
}

pub(super) fn status(bytes: &[u8]) {
    let Ok(parsed) = Status::from_bytes(bytes) else { return };
    assert!(parsed.rows.len() <= parsed.head.rows as usize);
    assert_eq!(Status::from_bytes(&parsed.to_bytes()).as_ref(), Ok(&parsed));
    // Whatever the words are, adding them up ends well.
    let _ = (parsed.counters(), parsed.rows.iter().map(Row::own).count());
}

pub(super) fn status_seeds() -> Vec<Vec<u8>> {
    let row = |state, direction, fault| {
        let before = Counts { begun: 4, sent: 3, ..Counts::default() };
        let peer = ProcessId([0x44; 16]);
        let links = Links::new(&[0, 3, 1], 0b101);
        let ride = MemberId::from_bits(0x0c05).map(|member| Ride { record: Some(31), member });
        let ride = ride.filter(|_| direction == Direction::Send);
        let comm = Comm { state, direction, links, generation: 1, fault, peer, opened: 7, ride, before };
        Row { comm: Some(comm), counts: Counts::from_array([u64::MAX, 5, 40, 6, 48, 7, 1]) }
    };
    let taken = |used, total| Taken { used, total };
    let numbers =
        Numbers { routed: 77, dropped: 1, eager: taken(3, 64), slices: taken(8, 8), queue: taken(5, 512) };
    let peer = ProcessId([0x44; 16]);
    let group = Group { direction: Direction::Send, links: 2, nic: 1, members: 128, peer, numbers };
    let page = |rows: Vec<Row>, nics: usize| {
        let mut records = [None; group::RECORDS];
        (records[0], records[31]) = (Some(Group { direction: Direction::Recv, ..group }), Some(group));
        let head = Head {
            rows: rows.len() as u32 + 1,
            used: rows.len() as u32,
            process: ProcessId([0x33; 16]),
            pid: 4242,
            made_unix: 1_700_000_000_000_000_000,
            made: 1 << 40,
            fault: Some(Fault::Link),
            fault_at: 1 << 41,
            fabric: "soft".into(),
            nics: vec!["soft0".into(); nics],
            usage: vec![Usage { queue_pairs: 7, queue_pairs_max: 64, ..Usage::default() }; nics],
            groups: 40,
            records,
            tallies: [1, 2, 3, 4, 5, 6, 7, 8, 9],
            control: ControlStreams::default(),
        };
        Status { head, rows }.to_bytes()
    };
    let all = vec![
        row(State::Open, Direction::Send, None),
        row(State::Failed, Direction::Recv, Some(Fault::PeerDied)),
        row(State::Closed, Direction::Send, Some(Fault::Other)),
        Row::default(),
    ];
    variants(&[page(all, 2), page(Vec::new(), 0), page(vec![Row::default()], 16)])
}
