//! A connection to a peer: operations go out over it, and their answers come back.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use trunkline_sys::ofi::{errno, order};

use crate::memory::{self, Range};
use crate::registry::MrId;
use crate::socket;
use crate::wire::{Address, Answer, FRAME, Request, Tag};

/// Bytes that one call to the kernel is given at most.
const CHUNK: usize = 1 << 20;
/// Answers that are taken in at once.
const ANSWERS_AT_ONCE: usize = 64;

/// What is done at the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum What {
    Send { tag: Tag },
    Write { key: u64, addr: u64 },
    Read { key: u64, addr: u64 },
}

/// Bytes of an operation.
#[derive(Debug)]
pub(crate) enum Body {
    /// The program's, until the operation has completed.
    Lent(Vec<Range>),
    /// Ours.
    Copied(Vec<u8>),
}

impl Body {
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::Lent(ranges) => memory::total(ranges),
            Self::Copied(bytes) => Some(bytes.len()),
        }
    }

    fn part(&self, skip: usize, most: usize) -> Vec<Range> {
        match self {
            Self::Lent(ranges) => memory::part(ranges, skip, most),
            Self::Copied(bytes) => {
                memory::part(&[Range { base: bytes.as_ptr() as usize, len: bytes.len() }], skip, most)
            }
        }
    }
}

/// An operation on its way.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) what: What,
    pub(crate) data: Option<u64>,
    pub(crate) body: Body,
    pub(crate) len: usize,
    pub(crate) uses: Vec<MrId>,
    pub(crate) context: usize,
    /// Flags of its completion.
    pub(crate) flags: u64,
    /// Whether its success is to be told.
    pub(crate) tells: bool,
    /// Whether it completes only when its bytes are where they belong.
    pub(crate) delivery: bool,
    /// Whether nothing overtakes it and it overtakes nothing.
    pub(crate) fence: bool,
}

impl Operation {
    fn request(&self, op: u32) -> Request {
        let data = self.data;
        let len = self.len as u64;
        match self.what {
            What::Send { tag } => Request::Send { op, tag, data, delivery: self.delivery, len },
            What::Write { key, addr } => Request::Write { op, key, addr, data, len },
            What::Read { key, addr } => Request::Read { op, key, addr, len },
        }
    }

    fn has_payload(&self) -> bool {
        !matches!(self.what, What::Read { .. })
    }

    /// Whether it may overtake an earlier one.
    fn may_pass(&self, earlier: &Self, granted: u64) -> bool {
        !self.fence && !earlier.fence && granted & order_between(self.what, earlier.what) == 0
    }
}

/// The orders that keep one operation behind an earlier one.
fn order_between(later: What, earlier: What) -> u64 {
    use What::{Read, Send, Write};
    match (later, earlier) {
        (Read { .. }, Read { .. }) => order::RAR | order::RMA_RAR,
        (Read { .. }, Write { .. }) => order::RAW | order::RMA_RAW,
        (Read { .. }, Send { .. }) => order::RAS,
        (Write { .. }, Read { .. }) => order::WAR | order::RMA_WAR,
        (Write { .. }, Write { .. }) => order::WAW | order::RMA_WAW,
        (Write { .. }, Send { .. }) => order::WAS,
        (Send { .. }, Read { .. }) => order::SAR,
        (Send { .. }, Write { .. }) => order::SAW,
        (Send { .. }, Send { .. }) => order::SAS,
    }
}

/// What waits to go out.
struct Out {
    /// The operation, or the hello.
    op: Option<u32>,
    head: [u8; FRAME],
    sent: usize,
    ready_at: Instant,
}

/// What is being read.
enum Reading {
    Head { have: usize, bytes: [u8; FRAME] },
    Data { op: u32, got: usize },
}

const HEAD: Reading = Reading::Head { have: 0, bytes: [0; FRAME] };

/// Why a connection has ended: what its operations fail with, and a line if somebody broke a rule.
pub(crate) struct Ended {
    pub(crate) error: i32,
    pub(crate) line: Option<&'static str>,
}

impl Ended {
    fn of(error: &io::Error, was_connecting: bool) -> Self {
        match error.raw_os_error() {
            Some(libc::EFAULT) => {
                Self { error: errno::EFAULT, line: Some("memory of an operation went before it completed") }
            }
            Some(libc::ECONNREFUSED) if was_connecting => Self { error: errno::ECONNREFUSED, line: None },
            _ => Self { error: errno::ECONNRESET, line: None },
        }
    }
}

const MALFORMED: Ended =
    Ended { error: errno::ECONNRESET, line: Some("a peer answers with what is no answer") };

/// The connection.
pub(crate) struct Outgoing {
    pub(crate) peer: Address,
    socket: OwnedFd,
    token: u64,
    is_connected: bool,
    wants_room: bool,
    queue: VecDeque<Out>,
    operations: BTreeMap<u32, Operation>,
    next: u32,
    reading: Reading,
}

impl Outgoing {
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(watcher: &OwnedFd, token: u64, own: Address, peer: Address) -> io::Result<Self> {
        let socket = socket::open()?;
        socket::watch(watcher, &socket, token)?;
        let hello = Out { op: None, head: Request::Hello(own).to_bytes(), sent: 0, ready_at: Instant::now() };
        Ok(Self {
            peer,
            socket,
            token,
            is_connected: false,
            wants_room: false,
            queue: VecDeque::from([hello]),
            operations: BTreeMap::new(),
            next: 1,
            reading: HEAD,
        })
    }

    /// Takes an operation; with `passes` it goes in front of others that `granted` does not hold it behind.
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        ready_at: Instant,
        passes: Option<(&mut fastrand::Rng, u64)>,
    ) {
        // A number comes back after four billion others.
        let op = self.next;
        self.next = self.next.wrapping_add(1);
        let mut at = self.queue.len();
        if let Some((rng, granted)) = passes {
            let may_pass = |out: &&Out| {
                let earlier = out.op.and_then(|op| self.operations.get(&op));
                out.sent == 0 && earlier.is_some_and(|earlier| operation.may_pass(earlier, granted))
            };
            let passable = self.queue.iter().rev().take_while(may_pass).count();
            at -= rng.usize(0..=passable);
        }
        let head = operation.request(op).to_bytes();
        self.queue.insert(at, Out { op: Some(op), head, sent: 0, ready_at });
        self.operations.insert(op, operation);
    }

    /// Whether something is to go out that no event will tell.
    pub(crate) fn is_restless(&self) -> bool {
        !self.queue.is_empty() && !self.wants_room
    }

    /// Sends what can be sent.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(crate) fn flush(&mut self, watcher: &OwnedFd) -> Result<(), Ended> {
        if !self.is_connected {
            match socket::connect(&self.socket, &self.peer) {
                Ok(()) => self.is_connected = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Ended::of(&error, true)),
            }
        }
        let result = self.send_queue();
        let blocked = matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if blocked != self.wants_room {
            self.wants_room = blocked;
            socket::watch_room(watcher, &self.socket, self.token, blocked);
        }
        match result {
            Err(error) if !blocked => Err(Ended::of(&error, false)),
            _ => Ok(()),
        }
    }

    fn send_queue(&mut self) -> io::Result<()> {
        let now = Instant::now();
        while let Some(out) = self.queue.front_mut().filter(|out| out.sent > 0 || out.ready_at <= now) {
            let operation = out.op.and_then(|op| self.operations.get(&op)).filter(|op| op.has_payload());
            let payload = operation.map_or(0, |operation| operation.len);
            let head = out.head.get(out.sent..).unwrap_or(&[]);
            let skip = out.sent.saturating_sub(FRAME);
            let ranges = operation.map_or(Vec::new(), |operation| operation.body.part(skip, CHUNK));
            out.sent += memory::write(&self.socket, head, &ranges)?;
            if out.sent >= FRAME + payload {
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    /// Takes in answers; what has ended, each with its error number or 0.
    ///
    /// # Errors
    /// When the connection has ended. What ended before is in `ended`.
    pub(crate) fn answers(&mut self, ended: &mut Vec<(Operation, i32)>) -> Result<(), Ended> {
        if !self.is_connected {
            return Ok(());
        }
        for _ in 0..ANSWERS_AT_ONCE {
            match self.answer(ended) {
                Ok(true) => {}
                Ok(false) => break,
                Err(end) => return Err(end),
            }
        }
        Ok(())
    }

    /// One answer, or part of it; `false` if there is no more now.
    fn answer(&mut self, ended: &mut Vec<(Operation, i32)>) -> Result<bool, Ended> {
        let ranges = match &mut self.reading {
            Reading::Head { have, bytes } => {
                let left = &mut bytes[*have..];
                vec![Range { base: left.as_mut_ptr() as usize, len: left.len() }]
            }
            Reading::Data { op, got } => {
                let Some(operation) = self.operations.get(op) else { return Err(MALFORMED) };
                operation.body.part(*got, CHUNK)
            }
        };
        let count = match memory::read(&self.socket, &ranges) {
            Ok(0) => return Err(Ended { error: errno::ECONNRESET, line: None }),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(Ended::of(&error, false)),
        };
        match &mut self.reading {
            Reading::Head { have, bytes } => {
                *have += count;
                if *have == FRAME {
                    let answer = Answer::of_bytes(bytes).map_err(|_| MALFORMED)?;
                    self.reading = HEAD;
                    self.begin(answer, ended)?;
                }
            }
            Reading::Data { op, got } => {
                *got += count;
                if self.operations.get(op).is_none_or(|operation| *got >= operation.len) {
                    self.reading = HEAD;
                }
            }
        }
        Ok(true)
    }

    fn begin(&mut self, answer: Answer, ended: &mut Vec<(Operation, i32)>) -> Result<(), Ended> {
        match answer {
            Answer::Done { op, error } => {
                if self.queue.iter().any(|out| out.op == Some(op)) {
                    return Err(MALFORMED);
                }
                let operation = self.operations.remove(&op).ok_or(MALFORMED)?;
                ended.push((operation, error.into()));
            }
            Answer::Data { op, len } => {
                let wanted = self.operations.get(&op).filter(|operation| !operation.has_payload());
                if wanted.is_none_or(|operation| operation.len as u64 != len) {
                    return Err(MALFORMED);
                }
                if len > 0 {
                    self.reading = Reading::Data { op, got: 0 };
                }
            }
        }
        Ok(())
    }

    /// All operations, when the connection goes.
    pub(crate) fn drain(&mut self) -> Vec<Operation> {
        self.queue.clear();
        std::mem::take(&mut self.operations).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(what: What, fence: bool) -> Operation {
        Operation {
            what,
            data: None,
            body: Body::Copied(Vec::new()),
            len: 0,
            uses: Vec::new(),
            context: 0,
            flags: 0,
            tells: true,
            delivery: false,
            fence,
        }
    }

    #[test]
    fn what_was_granted_holds_operations_behind_each_other() {
        let send = || operation(What::Send { tag: None }, false);
        let write = || operation(What::Write { key: 0, addr: 0 }, false);
        assert!(send().may_pass(&write(), order::SAS) && !send().may_pass(&write(), order::SAW));
        assert!(write().may_pass(&send(), order::SAW) && !write().may_pass(&send(), order::WAS));
        assert!(!write().may_pass(&write(), order::RMA_WAW) && write().may_pass(&write(), 0));
        assert!(!operation(What::Send { tag: None }, true).may_pass(&send(), 0));
        assert!(!send().may_pass(&operation(What::Send { tag: None }, true), 0));
    }
}
