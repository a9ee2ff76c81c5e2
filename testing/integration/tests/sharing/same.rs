//! One connection receives the same bytes, lengths and order, whether it shares or not. Two engines of one process, over the software NIC.

use std::time::{Duration, Instant};

use trunkline_engine::{CommId, MrId, RecvBuf, RequestId};
use trunkline_mem::MemoryRange;
use trunkline_proto::pool::config::SharingMode;

use super::counts::Duo;

/// Outstanding messages.
const WINDOW: usize = 8;

/// Bytes after each message, which must stay unwritten.
const GUARD: usize = 100;

/// Time limit; a longer wait is taken as endless.
const LIMIT: Duration = Duration::from_secs(30);

/// A digest of 64 bits (FNV-1a) of the bytes given to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Digest(u64);

impl Digest {
    const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn add_message(&mut self, size: u64, tag: u32, buffer: &[u8]) {
        self.add(&size.to_le_bytes());
        self.add(&tag.to_le_bytes());
        self.add(buffer);
    }
}

/// The messages: lengths around every border, and others; each with its tag.
fn script() -> Vec<(usize, u32)> {
    let borders = crate::contract::messages::lengths();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut drawn = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let others: Vec<usize> = (0..100).map(|_| drawn() % [64, 5000, 300_000][drawn() % 3]).collect();
    borders.into_iter().chain(others).zip((0..).map(|at: u32| at.wrapping_mul(0x0101_0101))).collect()
}

fn bytes(at: usize, len: usize) -> Vec<u8> {
    (0..len).map(|byte| (byte * 7 + byte / 251 + at * 13) as u8).collect()
}

/// The digest of all messages that should be received.
fn expected() -> Digest {
    let mut digest = Digest::EMPTY;
    for (at, (len, tag)) in script().into_iter().enumerate() {
        let mut buffer = bytes(at, len);
        buffer.resize(len + GUARD, 0xee);
        digest.add_message(len as u64, tag, &buffer);
    }
    digest
}

/// One message of a connection.
struct Message {
    tag: u32,
    mrs: [MrId; 2],
    into: MemoryRange,
    sent: Option<RequestId>,
    received: Option<RequestId>,
    size: Option<u64>,
}

impl Message {
    /// Registers and fills memory for it.
    fn new(duo: &Duo, (send, recv): (CommId, CommId), bytes: &[u8], tag: u32) -> Self {
        let (out, into) = (MemoryRange::heap(bytes.len().max(1)), MemoryRange::heap(bytes.len() + GUARD));
        out.write(0, bytes).expect("it fits");
        into.write(0, &vec![0xee; bytes.len() + GUARD]).expect("it fits");
        let from = duo.ends[0].register(send, out).expect("a region");
        let to = duo.ends[1].register(recv, into.clone()).expect("a region");
        Self { tag, mrs: [from, to], into, sent: None, received: None, size: None }
    }

    /// Tests the outstanding requests; returns whether both ends have completed.
    fn look(&mut self, duo: &Duo) -> bool {
        let mut sizes = [0; 8];
        let (sender, receiver) = (&duo.ends[0], &duo.ends[1]);
        self.sent = self.sent.filter(|&request| !sender.test(request, &mut sizes).expect("test"));
        if let Some(request) = self.received
            && receiver.test(request, &mut sizes).expect("test")
        {
            (self.received, self.size) = (None, Some(sizes[0]));
        }
        self.sent.is_none() && self.size.is_some()
    }
}

/// Carries messages of one connection that are outstanding together.
fn carry_window(
    duo: &Duo,
    comms: (CommId, CommId),
    first: usize,
    window: &[(usize, u32)],
    digest: &mut Digest,
) {
    let (sender, receiver) = (&duo.ends[0], &duo.ends[1]);
    let began = Instant::now();
    let mut under_way: Vec<Message> = Vec::new();
    for (at, &(len, tag)) in window.iter().enumerate() {
        let mut message = Message::new(duo, comms, &bytes(first + at, len), tag);
        let [from, mr] = message.mrs;
        let buffer = RecvBuf { mr, offset: 0, len: (len + GUARD) as u64, tag };
        while message.received.is_none() || message.sent.is_none() {
            assert!(began.elapsed() < LIMIT, "message {at} after {first} never begins");
            message.received =
                message.received.or_else(|| receiver.irecv(comms.1, &[buffer]).expect("irecv"));
            message.sent =
                message.sent.or_else(|| sender.isend(comms.0, from, 0, len as u64, tag).expect("isend"));
            for earlier in &mut under_way {
                earlier.look(duo);
            }
        }
        under_way.push(message);
    }
    while !under_way.iter_mut().fold(true, |all, message| all & message.look(duo)) {
        assert!(began.elapsed() < LIMIT, "the messages after {first} never end");
    }
    for message in under_way {
        let mut buffer = vec![0; message.into.len()];
        message.into.read(0, &mut buffer).expect("it fits");
        digest.add_message(message.size.expect("it has ended"), message.tag, &buffer);
        sender.deregister(comms.0, message.mrs[0]).expect("deregister");
        receiver.deregister(comms.1, message.mrs[1]).expect("deregister");
    }
}

/// The digest of all messages that one connection receives.
fn carried(sharing: SharingMode, links: u32) -> Digest {
    let duo = Duo::new(sharing, [4, 4], links);
    let comms = duo.connect(0);
    let mut digest = Digest::EMPTY;
    for (at, window) in script().chunks(WINDOW).enumerate() {
        carry_window(&duo, comms, at * WINDOW, window, &mut digest);
    }
    duo.close(0, &[comms]);
    assert!(duo.is_empty());
    digest
}

/// The digest of received messages equals that of the sent ones, with and without sharing, over one link and over several.
pub(super) fn the_same_digest() {
    let expected = expected();
    for links in [1, 3] {
        for sharing in [SharingMode::Off, SharingMode::On, SharingMode::Auto] {
            assert_eq!(carried(sharing, links), expected, "{sharing:?}, {links} links");
        }
    }
}
