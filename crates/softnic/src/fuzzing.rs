//! The checks that the fuzz targets of this crate run on their input: descriptors of a ring, and link addresses. Input that
//! parses must encode to bytes that parse to the same value.

mod matched;
mod queue_pair;
mod relay;
mod seeds;

use trunkline_proto::fuzzing::{FuzzTarget, make_variants};

use crate::connect::SoftLinkAddress;
use crate::peer_memory::LinkProof;
use crate::record::{INLINE_U32, RecordPayload, RecordVerb, RingRecord, WORDS};
use crate::segment::SegmentGeometry;
use crate::tcp::{self, FRAME_BYTES, FrameBody, HELLO, TcpFrame};

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "softnic_record", check: fuzz_record, seeds: record_seeds },
    FuzzTarget { name: "softnic_frame", check: fuzz_frame, seeds: frame_seeds },
    FuzzTarget { name: "softnic_address", check: fuzz_address, seeds: address_seeds },
    FuzzTarget { name: "softnic_queue_pair", check: queue_pair::run_actions, seeds: seeds::action_seeds },
    FuzzTarget { name: "door_hello", check: fuzz_hello, seeds: hello_seeds },
];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}

fn descriptor_words(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    words
}

fn stamped_words(record: &RingRecord) -> [u64; WORDS] {
    let mut all = [0; WORDS];
    all[1..].copy_from_slice(&record.to_words());
    all
}

fn fuzz_record(bytes: &[u8]) {
    let Some(parsed) = RingRecord::parse(&descriptor_words(bytes)) else { return };
    if let RecordPayload::Inline { len } = parsed.payload {
        assert!(len <= INLINE_U32);
    }
    assert_eq!(RingRecord::parse(&stamped_words(&parsed)), Some(parsed));
}

fn record_seeds() -> Vec<Vec<u8>> {
    let inline = |len| RecordPayload::Inline { len };
    let staged = RecordPayload::Staged { offset: 4096, len: u32::MAX };
    let placed = RecordPayload::Placed { nic: 1, key: 2, offset: 3, len: 4 };
    let key = 0x0123_4567_89ab_cdef;
    let addr = 0x7f00_0000_1000;
    let id = 1 << 40 | 5;
    let all = [
        (RecordVerb::Write { key, addr }, inline(8), Some(0x1000_0001)),
        (RecordVerb::Write { key, addr }, staged, Some(u32::MAX)),
        (RecordVerb::Send { offset: 4096 }, placed, None),
        (
            RecordVerb::Reply { id, offset: 0 },
            RecordPayload::Pulled { addr, len: 1 << 30, shared: false },
            None,
        ),
        (
            RecordVerb::Write { key, addr },
            RecordPayload::Pulled { addr, len: 1 << 20, shared: true },
            Some(7),
        ),
        (RecordVerb::Matched { grant: id, offset: 64 }, inline(INLINE_U32), Some(0)),
        (RecordVerb::Read { key, addr, len: u64::MAX, id }, inline(0), None),
        (RecordVerb::Add { key, addr, add: u64::MAX, id }, inline(0), None),
        (RecordVerb::Swap { key, addr, expect: 1, swap: 2, id }, inline(0), None),
        (RecordVerb::Grant { key, len: 4096, id }, inline(0), None),
        (RecordVerb::Revoke { key, id }, inline(0), None),
        (RecordVerb::Decline { grant: id }, inline(0), None),
    ];
    let bytes = |(verb, payload, imm): (RecordVerb, RecordPayload, Option<u32>)| {
        let record = RingRecord { verb, payload, last: imm.is_some(), awaited: false, imm };
        stamped_words(&record).iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    make_variants(&all.map(bytes))
}

fn fuzz_frame(bytes: &[u8]) {
    let Some(head) = bytes.first_chunk::<FRAME_BYTES>() else { return };
    let Some(parsed) = TcpFrame::parse(head) else { return };
    assert_eq!(TcpFrame::parse(&parsed.to_bytes()), Some(parsed));
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let key = 0x0123_4567_89ab_cdef;
    let addr = 0x7f00_0000_1000;
    let id = 1 << 40 | 5;
    let streamed = RecordPayload::Streamed { len: 1 << 20, landed: false };
    let none = RecordPayload::Inline { len: 0 };
    let record = |verb, payload, imm| {
        FrameBody::Record(RingRecord { verb, payload, last: true, awaited: imm != Some(0), imm })
    };
    let all = [
        FrameBody::Ack,
        FrameBody::Nak { code: 1, at: u64::MAX },
        record(RecordVerb::Write { key, addr }, streamed, Some(0x1000_0001)),
        record(RecordVerb::Send { offset: 4096 }, streamed, None),
        record(RecordVerb::Reply { id, offset: 0 }, streamed, None),
        record(RecordVerb::Matched { grant: id, offset: 64 }, streamed, Some(0)),
        record(RecordVerb::Read { key, addr, len: u64::MAX, id }, none, None),
        record(RecordVerb::Add { key, addr, add: u64::MAX, id }, none, None),
        record(RecordVerb::Swap { key, addr, expect: 1, swap: 2, id }, none, None),
        record(RecordVerb::Grant { key, len: 4096, id }, none, None),
        record(RecordVerb::Revoke { key, id }, none, None),
        record(RecordVerb::Decline { grant: id }, none, None),
    ];
    make_variants(&all.map(|body| TcpFrame { body, executed: 7, posted: u64::MAX }.to_bytes().to_vec()))
}

fn fuzz_hello(bytes: &[u8]) {
    let Some(said) = bytes.first_chunk::<HELLO>() else { return };
    let Some(token) = tcp::parse_hello(said) else { return };
    assert_eq!(tcp::hello_bytes(&token), *said, "one hello per token");
}

fn hello_seeds() -> Vec<Vec<u8>> {
    make_variants(&[[0; 16], [7; 16], [0xff; 16]].map(|token| tcp::hello_bytes(&token).to_vec()))
}

fn fuzz_address(bytes: &[u8]) {
    let Ok(parsed) = SoftLinkAddress::parse(bytes) else { return };
    assert_eq!(parsed.to_bytes(), bytes);
    assert_eq!(SoftLinkAddress::parse(&parsed.to_bytes()), Ok(parsed));
}

fn address_seeds() -> Vec<Vec<u8>> {
    let with = |slots, payload, receives, start, door: Option<&str>| {
        let door = door.map(|door| door.parse().ok()).unwrap_or_default();
        let geometry = SegmentGeometry::new(slots, payload)?;
        let address = SoftLinkAddress {
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
        Some(address.to_bytes())
    };
    let all = [
        with(512, 1 << 20, 512, 0, None),
        with(16, 4096, 0, u64::MAX, Some("192.0.2.7:4711")),
        with(1 << 16, 1 << 26, 1 << 16, 1, Some("[2001:db8::7]:4711")),
        with(64, 8192, (1 << 16) + 1, 0, None),
    ];
    make_variants(&all.into_iter().flatten().collect::<Vec<_>>())
}
