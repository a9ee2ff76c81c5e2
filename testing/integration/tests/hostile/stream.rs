//! Attacks on the software NIC's TCP wire. Streams without a proof are opened to the port where links are dialled. On a
//! link of its own, the attacker sends frames that no peer sends, lengths that overflow, and an end in the middle of a
//! payload.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use crate::attacker::{Attack, AttackReport, until};
use crate::channel::TestChannel;
use crate::intruder::IntrudingMember;
use crate::stay::raise_limit;

/// Offsets of a link's token, and of the port where it is dialled, in a link address.
const TOKEN: std::ops::Range<usize> = 80..96;
const PORT: std::ops::Range<usize> = 100..102;
/// Connections that are held at each victim: more than it keeps.
const HELD: usize = 320;
/// Connections at a time.
const BURST: usize = 16;
/// Bytes of a frame's head.
const HEAD: usize = 64;
const WRITE: u64 = 1;
const READ: u64 = 3;
const LAST: u64 = 1 << 8;
const AWAITED: u64 = 4 << 8;
const PLACED: u64 = 2 << 16;
const STREAMED: u64 = 5 << 16;
const NAK: u8 = 0xa1;
/// Offset of the number of executed records in a head.
const EXECUTED: std::ops::Range<usize> = 48..56;
/// A connection inside the host is established immediately.
const CONNECTS: Duration = Duration::from_millis(500);

/// The frame that names a connection's link.
fn hello(token: &[u8]) -> Vec<u8> {
    [b"TLSOFTCP".as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0], token].concat()
}

/// Closes a connection with RST.
pub(crate) fn reset(stream: TcpStream) {
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
    drop(stream);
}

fn port(link: &[u8]) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_le_bytes(link[PORT].try_into().unwrap())))
}

/// Connects to the ports of both victims, and sends nothing or bytes that are not a token. Occasionally a link of its
/// own must still be established.
pub(crate) struct StreamStrangers {
    member: IntrudingMember,
    held: [VecDeque<TcpStream>; 2],
}

impl StreamStrangers {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        raise_limit();
        let mut member = IntrudingMember::new(channel, false);
        [0, 1].into_iter().for_each(|victim| member.reach(victim));
        Self { member, held: [VecDeque::new(), VecDeque::new()] }
    }

    fn call(&mut self, victim: usize, report: &mut AttackReport) {
        let at = port(&self.member.told(victim).link);
        let Ok(mut stream) = TcpStream::connect_timeout(&at, CONNECTS) else { return };
        let _ = stream.set_nonblocking(true);
        report.acts += 1;
        let _ = match report.acts % 8 {
            0 | 1 => stream.write(&hello(&[0x5a; 16])),
            2 | 3 => stream.write(&hello(&[0x5a; 16])[..20]),
            4 => stream.write(&[0xff; 32]),
            _ => Ok(0),
        };
        // Held connections keep their places until the victim closes them.
        if report.acts % 8 == 4 {
            return reset(stream);
        }
        self.held[victim].push_back(stream);
        if self.held[victim].len() > HELD {
            self.held[victim].pop_front();
        }
    }
}

impl Attack for StreamStrangers {
    fn begin(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            while self.held[victim].len() < HELD {
                self.call(victim, report);
            }
        }
    }

    fn go_on(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            (0..BURST).for_each(|_| self.call(victim, report));
        }
        let stream = 1 + (report.acts % 32) as u8;
        if let Some(mut link) = RawLink::new(&mut self.member, 0, stream)
            && !link.carries(&mut self.member)
        {
            report.claim("unauthenticated connections prevented a link");
        }
        self.member.leave(0, stream);
    }

    fn pause(&mut self) {
        self.held.iter_mut().for_each(VecDeque::clear);
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 2000
    }
}

/// A link whose local end is a socket that the attack writes to.
struct RawLink {
    stream: TcpStream,
    victim: usize,
    /// The key of the victim's heap, and the address of the scratch bytes.
    place: (u64, u64),
    /// The address after the heap.
    end: u64,
}

impl RawLink {
    /// `None` if the victim would dial: the end with the smaller token does.
    fn new(member: &mut IntrudingMember, victim: usize, stream: u8) -> Option<Self> {
        let own = member.own_link_over_tcp();
        let token = own[TOKEN].to_vec();
        let id = member.ask(victim, stream, own, None);
        let taken = member.await_answer(victim, id).ok()?;
        if token >= taken.link[TOKEN].to_vec() {
            return None;
        }
        let mut stream = TcpStream::connect_timeout(&port(&taken.link), CONNECTS).ok()?;
        stream.set_nonblocking(true).unwrap();
        stream.write_all(&hello(&taken.link[TOKEN])).ok()?;
        let (heap, len) = (taken.heaps[0].region, taken.heaps[0].len);
        let place = (heap.key, heap.addr + crate::one_sided::SCRATCH);
        Some(Self { stream, victim, place, end: heap.addr + len })
    }

    /// The head of a frame: the words of its record, and the position up to which this end has executed.
    fn head(words: [u64; 6], executed: u64) -> Vec<u8> {
        let words = words.into_iter().chain([executed, 0]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn write(&mut self, bytes: &[u8]) {
        // The write fails if the victim has closed the connection.
        let _ = self.stream.write_all(bytes);
    }

    /// Whether a valid write arrives.
    fn carries(&mut self, member: &mut IntrudingMember) -> bool {
        let (key, addr) = self.place;
        let word = u64::from(std::process::id()) << 32 | 0x5aa5;
        let mut frame = Self::head([WRITE | LAST | AWAITED | STREAMED, key, addr, 8, 0, 0], 0);
        frame.extend(word.to_le_bytes());
        self.write(&frame);
        self.is_answered() && member.scratch(self.victim)[..8] == word.to_le_bytes()
    }

    /// Waits until the victim has acknowledged a record; false if it refuses or closes the connection.
    fn is_answered(&mut self) -> bool {
        while let Some(head) = self.next_head() {
            if head[0] == NAK {
                return false;
            }
            // Other heads announce receives.
            if head[EXECUTED] != [0; 8] {
                return true;
            }
        }
        false
    }

    /// The next head from the victim; `None` once it has closed the connection.
    fn next_head(&mut self) -> Option<[u8; HEAD]> {
        let (mut head, mut count) = ([0; HEAD], 0);
        until("a frame on a link", || match self.stream.read(&mut head[count..]) {
            Ok(0) => Some(None),
            Ok(read) => {
                count += read;
                (count == HEAD).then_some(Some(head))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(_) => Some(None),
        })
    }
}

/// Invalid frames on a link of its own.
pub(crate) struct StreamFrames(IntrudingMember);

impl StreamFrames {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let mut member = IntrudingMember::new(channel, false);
        member.reach(0);
        Self(member)
    }

    /// Sends one of the frames; returns whether the victim accepted it.
    fn say(&mut self, link: &mut RawLink, variant: u64, report: &mut AttackReport) -> bool {
        let (key, addr) = link.place;
        let (secret, retired) = (self.0.facts[0].private, self.0.facts[0].retired);
        let write = WRITE | LAST | AWAITED | STREAMED;
        let head = match variant {
            // Longer than the heap: the first bytes are inside it, and the length exceeds any counter.
            0 => RawLink::head([write, key, link.end - 64, u64::MAX, 0, 0], 0),
            1 => RawLink::head([write, key, u64::MAX - 3, 8, 0, 0], 0),
            // Into memory outside all regions, and into memory without rights, by its local key.
            2 => RawLink::head([write, secret, 0, 8, 0, 0], 0),
            3 => RawLink::head([WRITE | LAST | AWAITED | PLACED, key, addr, secret, 0, 8], 0),
            // Reads whose bytes are not all in a region.
            4 => RawLink::head([READ | LAST, secret, 0, 64, 7, 0], 0),
            5 => RawLink::head([READ | LAST, key, addr, u64::MAX, 7, 0], 0),
            // Acknowledges a record that was not sent.
            6 => RawLink::head([0xa0, 0, 0, 0, 0, 0], u64::MAX / 2),
            // Retired memory accepts any bytes; the length exceeds any count.
            _ => RawLink::head([write, retired, 0, u64::MAX, 0, 0], 0),
        };
        link.write(&head);
        match variant {
            6 => link.write(&[RawLink::head([write, key, addr, 8, 0, 0], u64::MAX / 2), vec![0; 8]].concat()),
            _ => link.write(&[0x5a; 4096]),
        }
        let is_executed = variant < 7 && link.is_answered();
        // Bytes after a head may be a secret.
        let mut rest = [0; 4096];
        let read = link.stream.read(&mut rest).unwrap_or(0);
        report.keep(&rest[..read]);
        is_executed
    }
}

impl Attack for StreamFrames {
    fn go_on(&mut self, report: &mut AttackReport) {
        let stream = 1 + (report.acts % 32) as u8;
        let variant = report.acts % 9;
        if let Some(mut link) = RawLink::new(&mut self.0, 0, stream) {
            if variant == 8 {
                // Close in the middle of a payload.
                let (key, addr) = link.place;
                link.write(&RawLink::head([WRITE | LAST | STREAMED, key, addr, 4096, 0, 0], 0));
                link.write(&[0; 1000]);
            } else if self.say(&mut link, variant, report) {
                report.claim("an invalid frame was executed");
            }
            report.acts += 1;
            reset(link.stream);
        }
        self.0.leave(0, stream);
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 36
    }
}
