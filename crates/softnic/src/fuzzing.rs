//! What the fuzz targets of this crate do with their input: descriptors of a ring, and link addresses. Whatever parses
//! must print to what parses to the same.

mod matched;
mod queue_pair;
mod relay;
mod seeds;

use trunkline_proto::fuzzing::{Target, variants};

use crate::connect::Address;
use crate::peer_memory::LinkProof;
use crate::record::{INLINE_U32, Payload, Record, Verb, WORDS};
use crate::segment::Geometry;
use crate::tcp::{self, FRAME_BYTES, Frame, FrameBody, HELLO};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "softnic_record", check: record, seeds: record_seeds },
    Target { name: "softnic_frame", check: frame, seeds: frame_seeds },
    Target { name: "softnic_address", check: address, seeds: address_seeds },
    Target { name: "softnic_queue_pair", check: queue_pair::actions, seeds: seeds::action_seeds },
    Target { name: "door_hello", check: hello, seeds: hello_seeds },
];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}

fn words(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    words
}

fn with(record: &Record) -> [u64; WORDS] {
    let mut all = [0; WORDS];
    all[1..].copy_from_slice(&record.words());
    all
}

fn record(bytes: &[u8]) {
    let Some(parsed) = Record::parse(&words(bytes)) else { return };
    if let Payload::Inline { len } = parsed.payload {
        assert!(len <= INLINE_U32);
    }
    assert_eq!(Record::parse(&with(&parsed)), Some(parsed));
}

fn record_seeds() -> Vec<Vec<u8>> {
    let inline = |len| Payload::Inline { len };
    let staged = Payload::Staged { offset: 4096, len: u32::MAX };
    let placed = Payload::Placed { nic: 1, key: 2, offset: 3, len: 4 };
    let key = 0x0123_4567_89ab_cdef;
    let addr = 0x7f00_0000_1000;
    let id = 1 << 40 | 5;
    let all = [
        (Verb::Write { key, addr }, inline(8), Some(0x1000_0001)),
        (Verb::Write { key, addr }, staged, Some(u32::MAX)),
        (Verb::Send { offset: 4096 }, placed, None),
        (Verb::Reply { id, offset: 0 }, Payload::Pulled { addr, len: 1 << 30, shared: false }, None),
        (Verb::Write { key, addr }, Payload::Pulled { addr, len: 1 << 20, shared: true }, Some(7)),
        (Verb::Matched { grant: id, offset: 64 }, inline(INLINE_U32), Some(0)),
        (Verb::Read { key, addr, len: u64::MAX, id }, inline(0), None),
        (Verb::Add { key, addr, add: u64::MAX, id }, inline(0), None),
        (Verb::Swap { key, addr, expect: 1, swap: 2, id }, inline(0), None),
        (Verb::Grant { key, len: 4096, id }, inline(0), None),
        (Verb::Revoke { key, id }, inline(0), None),
        (Verb::Decline { grant: id }, inline(0), None),
    ];
    let bytes = |(verb, payload, imm): (Verb, Payload, Option<u32>)| {
        let record = Record { verb, payload, last: imm.is_some(), awaited: false, imm };
        with(&record).iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    variants(&all.map(bytes))
}

fn frame(bytes: &[u8]) {
    let Some(head) = bytes.first_chunk::<FRAME_BYTES>() else { return };
    let Some(parsed) = Frame::parse(head) else { return };
    assert_eq!(Frame::parse(&parsed.bytes()), Some(parsed));
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let key = 0x0123_4567_89ab_cdef;
    let addr = 0x7f00_0000_1000;
    let id = 1 << 40 | 5;
    let streamed = Payload::Streamed { len: 1 << 20, landed: false };
    let none = Payload::Inline { len: 0 };
    let record = |verb, payload, imm| {
        FrameBody::Record(Record { verb, payload, last: true, awaited: imm != Some(0), imm })
    };
    let all = [
        FrameBody::Ack,
        FrameBody::Nak { code: 1, at: u64::MAX },
        record(Verb::Write { key, addr }, streamed, Some(0x1000_0001)),
        record(Verb::Send { offset: 4096 }, streamed, None),
        record(Verb::Reply { id, offset: 0 }, streamed, None),
        record(Verb::Matched { grant: id, offset: 64 }, streamed, Some(0)),
        record(Verb::Read { key, addr, len: u64::MAX, id }, none, None),
        record(Verb::Add { key, addr, add: u64::MAX, id }, none, None),
        record(Verb::Swap { key, addr, expect: 1, swap: 2, id }, none, None),
        record(Verb::Grant { key, len: 4096, id }, none, None),
        record(Verb::Revoke { key, id }, none, None),
        record(Verb::Decline { grant: id }, none, None),
    ];
    variants(&all.map(|body| Frame { body, executed: 7, posted: u64::MAX }.bytes().to_vec()))
}

fn hello(bytes: &[u8]) {
    let Some(said) = bytes.first_chunk::<HELLO>() else { return };
    let Some(token) = tcp::parse_hello(said) else { return };
    assert_eq!(tcp::hello(&token), *said, "one hello per token");
}

fn hello_seeds() -> Vec<Vec<u8>> {
    variants(&[[0; 16], [7; 16], [0xff; 16]].map(|token| tcp::hello(&token).to_vec()))
}

fn address(bytes: &[u8]) {
    let Ok(parsed) = Address::parse(bytes) else { return };
    assert_eq!(parsed.bytes(), bytes);
    assert_eq!(Address::parse(&parsed.bytes()), Ok(parsed));
}

fn address_seeds() -> Vec<Vec<u8>> {
    let with = |slots, payload, receives, start, door: Option<&str>| {
        let door = door.map(|door| door.parse().ok()).unwrap_or_default();
        let geometry = Geometry::new(slots, payload)?;
        let address = Address {
            nic: 1,
            number: 7,
            fabric: [0x33; 16],
            start,
            geometry,
            receives,
            reads: 16,
            proof: LinkProof { addr: 0x7fff_0000_1000, word: 0x5555_aaaa },
            token: [0x77; 16],
            depth: 512,
            door,
        };
        Some(address.bytes())
    };
    let all = [
        with(512, 1 << 20, 512, 0, None),
        with(16, 4096, 0, u64::MAX, Some("192.0.2.7:4711")),
        with(1 << 16, 1 << 26, 1 << 16, 1, Some("[2001:db8::7]:4711")),
        with(64, 8192, (1 << 16) + 1, 0, None),
    ];
    variants(&all.into_iter().flatten().collect::<Vec<_>>())
}
