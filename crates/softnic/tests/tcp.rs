//! A hostile peer on another host: it dials as docs/wire.md requires, and then sends arbitrary frames, or half of
//! one. The link fails at most: no panic, no byte written without the right, and no false completion.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{Random, hello, place, poll, poll_until, rail, waiting};
use trunkline_fabric::{
    AccessRights, Completion, CompletionKind, LinkControl, LinkId, Op, OpSource, OpStatus, PostError, Rail,
    RegionExtent, RegionKeys, RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{SoftConfig, SoftRail, WireMode};

const HEAD: usize = 64;
const WRITE: u64 = 1;
const SEND: u64 = 2;
const LAST: u64 = 1 << 8;
const IMM: u64 = 2 << 8;
const AWAITED: u64 = 4 << 8;
const STREAMED: u64 = 5 << 16;
const ACK: u64 = 0xa0;
const NAK: u64 = 0xa1;
/// More than the buffers of both sockets and of the link hold.
const LARGE: usize = 8 << 20;

fn config() -> SoftConfig {
    SoftConfig { wire: WireMode::Tcp, ..SoftConfig::default() }
}

/// Returns a head without progress of its sender.
fn head(op: u64, key: u64, addr: u64, len: u64) -> [u64; 8] {
    [op, key, addr, len, 0, 0, 0, 0]
}

fn ack(executed: u64) -> [u64; 8] {
    [ACK, 0, 0, 0, 0, 0, executed, 0]
}

fn bytes(head: [u64; 8]) -> Vec<u8> {
    head.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A link whose other end is a socket of the test.
struct Victim {
    rail: SoftRail,
    link: LinkId,
    peer: TcpStream,
    /// Bytes that the test has received and not parsed.
    inbox: Vec<u8>,
}

impl Victim {
    /// Creates a link that waits until the test dials it.
    fn waiting() -> (SoftRail, LinkId, SocketAddr, Vec<u8>) {
        let (mut rail, mut other) = (rail(config()), rail(config()));
        let (link, door, token) = waiting(&mut rail, &mut other);
        (rail, link, door, token)
    }

    fn new() -> Self {
        let (mut rail, link, door, token) = Self::waiting();
        let mut peer = TcpStream::connect(door).unwrap();
        peer.write_all(&hello(&token)).unwrap();
        peer.set_nonblocking(true).unwrap();
        poll_until("the link", || rail.poll_link_up(link).unwrap().then_some(()));
        Self { rail, link, peer, inbox: Vec::new() }
    }

    fn memory(&self, len: usize, access: AccessRights) -> (MemoryRange, RegionKeys) {
        let memory = MemoryRange::heap(len);
        let keys = self.rail.registrar().register(&memory, access, RegionPurpose::Bounce).unwrap();
        (memory, keys)
    }

    /// Sends bytes while the victim polls; returns the victim's completions. Stops if the connection has ended.
    fn say(&mut self, bytes: &[u8]) -> Vec<Completion> {
        let (mut said, mut seen) = (0, Vec::new());
        let until = Instant::now() + Duration::from_secs(30);
        while said < bytes.len() && Instant::now() < until {
            match self.peer.write(&bytes[said..]) {
                Ok(count) => said += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            seen.extend(poll(&mut self.rail));
        }
        seen
    }

    /// Polls for a moment.
    fn linger(&mut self) -> Vec<Completion> {
        let until = Instant::now() + Duration::from_millis(20);
        let (mut seen, mut polls) = (Vec::new(), 0);
        while Instant::now() < until || polls < 50 {
            seen.extend(poll(&mut self.rail));
            polls += 1;
        }
        seen
    }

    /// Reads the bytes that the victim has sent; returns whether the victim has ended the connection.
    fn hear(&mut self) -> bool {
        let mut some = [0; 4096];
        match self.peer.read(&mut some) {
            Ok(0) => true,
            Ok(count) => {
                self.inbox.extend(&some[..count]);
                false
            }
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// Returns the next head that the victim sends.
    fn next(&mut self) -> [u64; 8] {
        poll_until("a frame", || {
            poll(&mut self.rail);
            self.hear();
            (self.inbox.len() >= HEAD).then_some(())
        });
        let head: Vec<u8> = self.inbox.drain(..HEAD).collect();
        std::array::from_fn(|i| u64::from_le_bytes(head[8 * i..8 * i + 8].try_into().unwrap()))
    }

    /// Waits for the next completion.
    fn completion(&mut self) -> Completion {
        poll_until("a completion", || poll(&mut self.rail).first().copied())
    }

    /// Whether the link has failed.
    fn has_failed(&mut self) -> bool {
        let nop = self.rail.post(self.link, 99, Op::Nop, false);
        nop == Err(PostError::Refused(OpStatus::Flushed))
    }

    /// Polls until the link has failed; returns the completions.
    fn fails(&mut self) -> Vec<Completion> {
        let mut seen = Vec::new();
        poll_until("the error", || {
            seen.extend(poll(&mut self.rail));
            self.has_failed().then_some(())
        });
        seen.extend(self.linger());
        seen
    }

    fn send(&mut self, wr_id: u64) {
        let op = Op::Send { head: &[1; 8], body: OpSource::Inline(&[]), imm: None };
        self.rail.post(self.link, wr_id, op, true).unwrap();
        self.rail.flush();
    }
}

fn is_all(memory: &MemoryRange, from: usize, byte: u8) -> bool {
    let mut bytes = vec![!byte; memory.len() - from];
    memory.read(from as u64, &mut bytes).unwrap();
    bytes.iter().all(|found| *found == byte)
}

#[test]
fn dialler_with_another_token_is_not_the_peer() {
    let (mut rail, link, door, token) = Victim::waiting();
    let (memory, keys) = {
        let memory = MemoryRange::heap(64);
        let keys = rail.registrar().register(&memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
        (memory, keys)
    };
    let mut wrong = token.clone();
    wrong[15] ^= 1;
    let write = bytes(head(WRITE | LAST | STREAMED, keys.remote.0, keys.remote_base, 64));
    let mut stranger = TcpStream::connect(door).unwrap();
    stranger.write_all(&[hello(&wrong), write.clone(), vec![7; 64]].concat()).unwrap();
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        assert!(!rail.poll_link_up(link).unwrap(), "an unauthenticated socket became the link's");
        poll(&mut rail);
    }
    assert!(is_all(&memory, 0, 0));
    let mut peer = TcpStream::connect(door).unwrap();
    peer.write_all(&[hello(&token), write, vec![8; 64]].concat()).unwrap();
    poll_until("the peer's write", || {
        poll(&mut rail);
        is_all(&memory, 0, 8).then_some(())
    });
}

#[test]
fn executed_position_is_sent_without_other_frames() {
    let mut victim = Victim::new();
    let (_memory, keys) = victim.memory(64, AccessRights::ALL);
    let write = |flags| bytes(head(WRITE | LAST | STREAMED | flags, keys.remote.0, keys.remote_base, 8));
    victim.say(&[write(AWAITED), vec![1; 8]].concat());
    let told = victim.next();
    assert_eq!((told[0], told[6]), (ACK, 1), "not acknowledged at once although the sender waits");
    // Few polls, because after many polls without a new record the position is sent unrequested.
    victim.say(&[write(0), vec![2; 8]].concat().repeat(15));
    (0..20).for_each(|_| assert_eq!(poll(&mut victim.rail), []));
    assert!(!victim.hear() && victim.inbox.is_empty(), "not yet");
    let told = victim.next();
    assert_eq!((told[0], told[6]), (ACK, 16), "not acknowledged after polls without records");
    victim.say(&[write(0), vec![3; 8]].concat().repeat(16));
    let told = victim.next();
    assert_eq!((told[0], told[6]), (ACK, 32), "not acknowledged after a quarter of the peer's queue");
}

#[test]
fn new_receive_is_reported_to_sender_without_credit() {
    let mut victim = Victim::new();
    let (_memory, keys) = victim.memory(64, AccessRights::LOCAL);
    let into = RegionExtent { key: keys.local, offset: 0, len: 64 };
    for number in 1..4 {
        victim.rail.post(victim.link, number, Op::Recv { into }, true).unwrap();
        let told = victim.next();
        assert_eq!((told[0], told[7]), (ACK, number));
        let seen = victim.say(&[bytes(head(SEND | LAST | STREAMED, 0, 0, 4)), vec![1; 4]].concat());
        let seen = seen.first().copied().unwrap_or_else(|| victim.completion());
        assert_eq!((seen.wr_id, seen.status, seen.len), (number, OpStatus::Ok, 4));
    }
}

#[test]
fn a_large_write_without_the_right_lands_nowhere() {
    let len = 1 << 18;
    let all = AccessRights::ALL;
    for (what, access, key, addr, claimed) in [
        ("no right", AccessRights { write: false, ..all }, 0, 0, len as u64),
        ("wrong key", all, 1 << 40, 0, len as u64),
        ("before the start", all, 0, u64::MAX - 7, len as u64),
        ("past the end", all, 0, len as u64 - 64, len as u64),
        ("longer than anything", all, 0, len as u64 - 64, 1 << 63),
        ("the largest length", all, 0, len as u64 - 64, u64::MAX),
    ] {
        let mut victim = Victim::new();
        let (memory, keys) = victim.memory(len, access);
        let (key, addr) = (keys.remote.0 ^ key, keys.remote_base.wrapping_add(addr));
        victim.say(&bytes(head(WRITE | LAST | STREAMED, key, addr, claimed)));
        victim.linger();
        // The payload is sent after the victim has processed the head.
        victim.say(&vec![0x55; len]);
        victim.fails();
        let mut there = vec![0; len - 64];
        memory.read(0, &mut there).unwrap();
        assert!(there.iter().all(|byte| *byte == 0), "{what}: bytes landed");
    }
}

#[test]
fn deregistered_memory_receives_no_further_bytes() {
    for op in [WRITE, SEND] {
        let mut victim = Victim::new();
        let (memory, keys) = victim.memory(LARGE, AccessRights::ALL);
        let into = RegionExtent { key: keys.local, offset: 0, len: LARGE as u64 };
        victim.rail.post(victim.link, 1, Op::Recv { into }, true).unwrap();
        let (key, addr) = if op == WRITE { (keys.remote.0, keys.remote_base) } else { (0, 0) };
        victim.say(&bytes(head(op | LAST | STREAMED, key, addr, LARGE as u64)));
        victim.linger();
        victim.say(&vec![0x55; LARGE / 2]);
        poll_until("the first half", || {
            poll(&mut victim.rail);
            let mut byte = [0];
            memory.read(LARGE as u64 / 2 - 1, &mut byte).unwrap();
            (byte == [0x55]).then_some(())
        });
        victim.rail.registrar().deregister(keys.local).unwrap();
        memory.write(0, &vec![0; LARGE]).unwrap();
        let mut seen = victim.say(&vec![0x66; LARGE / 2]);
        seen.extend(victim.fails());
        assert!(is_all(&memory, 0, 0), "bytes landed after the end of the registration");
        assert!(seen.iter().all(|one| one.status != OpStatus::Ok), "{seen:?}");
    }
}

#[test]
fn deregistered_memory_is_not_sent() {
    let mut victim = Victim::new();
    let (memory, keys) = victim.memory(LARGE, AccessRights::LOCAL);
    memory.write(0, &vec![0x11; LARGE]).unwrap();
    let from = OpSource::Region(RegionExtent { key: keys.local, offset: 0, len: LARGE as u64 });
    let to = RemoteLocation { key: trunkline_fabric::RemoteKey(7), addr: 0, purpose: RegionPurpose::Data };
    victim.rail.post(victim.link, 1, Op::Write { from, to, imm: None }, true).unwrap();
    // The victim sends until the buffers of the sockets are full.
    assert_eq!(victim.linger(), []);
    victim.rail.registrar().deregister(keys.local).unwrap();
    memory.write(0, &vec![0x99; LARGE]).unwrap();
    let mut seen = Vec::new();
    poll_until("the end of the connection", || {
        seen.extend(poll(&mut victim.rail));
        victim.hear().then_some(())
    });
    seen.extend(victim.linger());
    assert!(victim.inbox.len() > HEAD, "no payload was sent before the deregistration");
    assert!(!victim.inbox.contains(&0x99), "bytes of a region that had ended were sent");
    let told: Vec<_> = seen.iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(told, [(1, OpStatus::LocalProtection)]);
}

#[test]
fn acknowledgement_beyond_the_sent_records_fails_the_link() {
    for beyond in [2, 1000, u64::MAX, 1 << 63] {
        let mut victim = Victim::new();
        victim.say(&bytes([ACK, 0, 0, 0, 0, 0, 0, 10]));
        victim.linger();
        victim.send(5);
        let mut seen = victim.say(&bytes(ack(beyond)));
        if seen.is_empty() {
            seen.push(victim.completion());
        }
        let told: Vec<_> = seen.iter().map(|one| (one.wr_id, one.done)).collect();
        assert_eq!(told, [(5, CompletionKind::Posted)], "{beyond}");
        assert_ne!(seen[0].status, OpStatus::Ok, "{beyond}");
        assert!(victim.has_failed());
    }
}

#[test]
fn refusal_fails_its_operation_and_flushes_the_rest() {
    let mut victim = Victim::new();
    victim.say(&bytes([ACK, 0, 0, 0, 0, 0, 0, 10]));
    victim.linger();
    for wr_id in 1..4 {
        victim.send(wr_id);
    }
    let mut seen = victim.say(&bytes([NAK, 1, 1, 0, 0, 0, 1, 10]));
    seen.extend(victim.fails());
    let told: Vec<_> = seen.iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(told, [(1, OpStatus::Ok), (2, OpStatus::RemoteAccess), (3, OpStatus::Flushed)]);
}

#[test]
fn refusal_bytes_inside_a_payload_are_payload() {
    let mut victim = Victim::new();
    let (memory, keys) = victim.memory(1 << 17, AccessRights::ALL);
    let len = 1 << 17;
    victim.say(&bytes(head(WRITE | LAST | IMM | STREAMED, keys.remote.0, keys.remote_base, len)));
    victim.say(&vec![0xa1; 1000]);
    let nak = bytes([NAK, 1, 0, 0, 0, 0, 0, 0]);
    victim.say(&nak);
    victim.linger();
    assert!(!victim.has_failed());
    let seen = victim.say(&vec![0xa1; len as usize - 1000 - HEAD]);
    let written = seen.first().copied().unwrap_or_else(|| victim.completion());
    assert_eq!((written.done, written.status, written.len), (CompletionKind::Written, OpStatus::Ok, len));
    let mut there = vec![0; HEAD];
    memory.read(1000, &mut there).unwrap();
    assert_eq!(there, nak);
}

#[test]
fn half_a_frame_is_waited_for() {
    for cut in [1, 40, HEAD, HEAD + 3] {
        let mut victim = Victim::new();
        let (memory, keys) = victim.memory(64, AccessRights::ALL);
        let frame = [bytes(head(WRITE | LAST | STREAMED, keys.remote.0, keys.remote_base, 64)), vec![9; 64]];
        let frame = frame.concat();
        victim.say(&frame[..cut]);
        assert_eq!(victim.linger(), []);
        assert!(!victim.has_failed());
        victim.say(&frame[cut..]);
        poll_until("the write", || {
            poll(&mut victim.rail);
            is_all(&memory, 0, 9).then_some(())
        });
    }
}

/// Unexecuted bytes of a long write would force all later bytes through the buffer, with 1 KiB per system call.
#[test]
fn received_bytes_of_long_writes_are_all_executed() {
    const LEN: usize = 64 << 10;
    for cut in [1, 1001, 4095] {
        let mut victim = Victim::new();
        let (memory, keys) = victim.memory(LEN, AccessRights::ALL);
        let head = head(WRITE | LAST | STREAMED, keys.remote.0, keys.remote_base, LEN as u64);
        victim.say(&[&bytes(head)[..], &vec![0xee; cut]].concat());
        victim.linger();
        let mut there = vec![0; LEN];
        memory.read(0, &mut there).unwrap();
        assert_eq!(there.iter().take_while(|byte| **byte == 0xee).count(), cut);
        victim.say(&vec![0xee; LEN - cut]);
        poll_until("the write", || {
            poll(&mut victim.rail);
            memory.read(0, &mut there).unwrap();
            there.iter().all(|byte| *byte == 0xee).then_some(())
        });
        assert!(!victim.has_failed());
    }
}

#[test]
fn no_word_of_memory_is_seen_half_written() {
    const ROOM: usize = 8 << 10;
    // Where the write begins, its length, and the number of bytes sent first.
    for (at, len, cut) in [
        (0, 8, 1),
        (0, 8, 7),
        (16, 64, 13),
        (16, 64, 8),
        (3, 61, 2),
        (3, 61, 30),
        (4, 20, 11),
        (0, 4096, 1023),
        (5, 4001, 2),
        (5, 4001, 3997),
    ] {
        let mut victim = Victim::new();
        let (memory, keys) = victim.memory(ROOM, AccessRights::ALL);
        let begin = memory.addr() % 8 + at;
        victim.say(&bytes(head(
            WRITE | LAST | STREAMED,
            keys.remote.0,
            keys.remote_base + at as u64,
            len as u64,
        )));
        victim.linger();
        victim.say(&vec![0xee; cut]);
        victim.linger();
        let mut there = vec![0; ROOM];
        memory.read(0, &mut there).unwrap();
        let written = there[at..].iter().take_while(|byte| **byte == 0xee).count();
        assert!(there.iter().enumerate().all(|(i, byte)| *byte == 0 || (at..at + written).contains(&i)));
        let whole = (begin + cut) / 8 * 8;
        assert_eq!(written, whole.saturating_sub(begin), "{len} bytes at {at}, of which {cut} were sent");
        victim.say(&vec![0xee; len - cut]);
        poll_until("the write", || {
            poll(&mut victim.rail);
            memory.read(0, &mut there).unwrap();
            there[at..at + len].iter().all(|byte| *byte == 0xee).then_some(())
        });
        assert!(!victim.has_failed());
    }
}

#[test]
fn connection_cut_inside_a_word_fails() {
    let mut victim = Victim::new();
    let (memory, keys) = victim.memory(64, AccessRights::ALL);
    victim.say(&bytes(head(WRITE | LAST | STREAMED, keys.remote.0, keys.remote_base, 64)));
    victim.say(&[0x77; 13]);
    victim.linger();
    victim.peer = TcpStream::connect(place(&victim.rail.link_address(victim.link).unwrap()).0).unwrap();
    victim.fails();
    assert!(is_all(&memory, 8, 0));
}

#[test]
fn connection_cut_inside_a_payload_delivers_nothing() {
    for (came, reset) in [(0, false), (5000, false), (100_000, false), (100_000, true)] {
        let mut victim = Victim::new();
        let (memory, keys) = victim.memory(1 << 18, AccessRights::ALL);
        let into = RegionExtent { key: keys.local, offset: 0, len: 1 << 17 };
        victim.rail.post(victim.link, 1, Op::Recv { into }, true).unwrap();
        if !reset {
            victim.next();
        } else {
            // Unread bytes make the system reset the connection.
            victim.linger();
        }
        let mut seen = victim.say(&bytes(head(SEND | LAST | STREAMED, 0, 0, 1 << 17)));
        seen.extend(victim.say(&vec![0x77; came]));
        victim.peer = TcpStream::connect(place(&victim.rail.link_address(victim.link).unwrap()).0).unwrap();
        seen.extend(victim.fails());
        let told: Vec<_> = seen.iter().map(|one| (one.wr_id, one.done)).collect();
        assert_eq!(told, [(1, CompletionKind::Received)]);
        assert!(seen.iter().all(|one| one.status != OpStatus::Ok), "{seen:?}");
        assert!(is_all(&memory, 1 << 17, 0));
    }
}

#[test]
fn random_heads_cause_an_error_at_most() {
    let mut errors = 0;
    for seed in 1..160_u64 {
        let mut victim = Victim::new();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (secret, _) = victim.memory(4096, AccessRights::ALL);
        let (into, keys) = victim.memory(4096, AccessRights::LOCAL);
        let extent = RegionExtent { key: keys.local, offset: 0, len: 64 };
        for wr_id in 0..4 {
            victim.rail.post(victim.link, wr_id, Op::Recv { into: extent }, true).unwrap();
        }
        let from =
            RemoteLocation { key: trunkline_fabric::RemoteKey(5), addr: 0, purpose: RegionPurpose::Data };
        victim.rail.post(victim.link, 9, Op::Read { into: extent, from }, true).unwrap();
        for _ in 0..20 {
            let mut words: [u64; 8] = std::array::from_fn(|_| {
                let shift = random.next() % 64;
                random.next() >> shift
            });
            words[0] = (random.next() % 10) | ((random.next() % 8) << 8) | STREAMED;
            if !random.next().is_multiple_of(4) {
                // A plausible acknowledgement, so that the victim parses the record itself.
                (words[4], words[5], words[6], words[7]) = (0, 0, random.next() % 2, random.next() % 4);
            }
            let mut frame = bytes(words);
            frame.extend((0..random.next() % 200).map(|i| i as u8));
            victim.say(&frame);
        }
        victim.linger();
        errors += usize::from(victim.has_failed());
        assert!(is_all(&secret, 0, 0), "seed {seed}: memory was written without its key");
        assert!(is_all(&into, 64, 0), "seed {seed}: bytes outside the receives were written");
    }
    assert!(errors > 120, "too few errors were reported: {errors}");
}
