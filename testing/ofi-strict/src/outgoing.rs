//! A connection to a peer: sends operations and receives their replies.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use trunkline_sys::ofi::{errno, order};

use crate::memory::{self, ProgramRange};
use crate::registry::StrictMrId;
use crate::socket;
use crate::wire::{FRAME, MessageTag, StrictAddress, WireAnswer, WireRequest};

/// Most bytes per system call.
const CHUNK: usize = 1 << 20;
/// Most replies read per call.
const ANSWERS_AT_ONCE: usize = 64;

/// The action of an operation at the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeerAction {
    Send { tag: MessageTag },
    Write { key: u64, addr: u64 },
    Read { key: u64, addr: u64 },
}

/// Payload or destination of an operation.
#[derive(Debug)]
pub(crate) enum OperationBody {
    /// Memory of the program, borrowed until the operation completes.
    Lent(Vec<ProgramRange>),
    /// A copy that belongs to the provider.
    Copied(Vec<u8>),
}

impl OperationBody {
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::Lent(ranges) => memory::total_len(ranges),
            Self::Copied(bytes) => Some(bytes.len()),
        }
    }

    fn sub_ranges(&self, skip: usize, most: usize) -> Vec<ProgramRange> {
        match self {
            Self::Lent(ranges) => memory::sub_ranges(ranges, skip, most),
            Self::Copied(bytes) => memory::sub_ranges(
                &[ProgramRange { base: bytes.as_ptr() as usize, len: bytes.len() }],
                skip,
                most,
            ),
        }
    }
}

/// An operation that has not completed.
#[derive(Debug)]
pub(crate) struct PendingOperation {
    pub(crate) what: PeerAction,
    pub(crate) data: Option<u64>,
    pub(crate) body: OperationBody,
    pub(crate) len: usize,
    pub(crate) uses: Vec<StrictMrId>,
    pub(crate) context: usize,
    /// Flags of its completion.
    pub(crate) flags: u64,
    /// Whether success generates a completion.
    pub(crate) tells: bool,
    /// Whether it completes only once its bytes have been placed at their destination.
    pub(crate) delivery: bool,
    /// Whether it neither overtakes other operations nor is overtaken.
    pub(crate) fence: bool,
}

impl PendingOperation {
    fn to_request(&self, op: u32) -> WireRequest {
        let data = self.data;
        let len = self.len as u64;
        match self.what {
            PeerAction::Send { tag } => WireRequest::Send { op, tag, data, delivery: self.delivery, len },
            PeerAction::Write { key, addr } => WireRequest::Write { op, key, addr, data, len },
            PeerAction::Read { key, addr } => WireRequest::Read { op, key, addr, len },
        }
    }

    fn has_payload(&self) -> bool {
        !matches!(self.what, PeerAction::Read { .. })
    }

    /// Whether it may overtake an earlier operation.
    fn may_pass(&self, earlier: &Self, granted: u64) -> bool {
        !self.fence && !earlier.fence && granted & order_between(self.what, earlier.what) == 0
    }
}

/// Returns the orders that prevent an operation from overtaking an earlier one.
fn order_between(later: PeerAction, earlier: PeerAction) -> u64 {
    use PeerAction::{Read, Send, Write};
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

/// A request that is queued for sending.
struct QueuedFrame {
    /// Number of the operation; `None` for the hello.
    op: Option<u32>,
    head: [u8; FRAME],
    sent: usize,
    ready_at: Instant,
}

/// The part of a reply that is being read.
enum AnswerReading {
    Head { have: usize, bytes: [u8; FRAME] },
    Data { op: u32, got: usize },
}

const HEAD: AnswerReading = AnswerReading::Head { have: 0, bytes: [0; FRAME] };

/// Why a connection has ended: the error of its operations, and a line if a rule was broken.
pub(crate) struct ConnectionFailure {
    pub(crate) error: i32,
    pub(crate) line: Option<&'static str>,
}

impl ConnectionFailure {
    fn from_io_error(error: &io::Error, was_connecting: bool) -> Self {
        match error.raw_os_error() {
            Some(libc::EFAULT) => Self {
                error: errno::EFAULT,
                line: Some("the memory of an operation was unmapped before it completed"),
            },
            Some(libc::ECONNREFUSED) if was_connecting => Self { error: errno::ECONNREFUSED, line: None },
            _ => Self { error: errno::ECONNRESET, line: None },
        }
    }
}

const MALFORMED: ConnectionFailure =
    ConnectionFailure { error: errno::ECONNRESET, line: Some("a peer sent a malformed reply") };

/// A connection to a peer.
pub(crate) struct OutgoingConnection {
    pub(crate) peer: StrictAddress,
    socket: OwnedFd,
    token: u64,
    is_connected: bool,
    wants_room: bool,
    queue: VecDeque<QueuedFrame>,
    operations: BTreeMap<u32, PendingOperation>,
    next: u32,
    reading: AnswerReading,
}

impl OutgoingConnection {
    /// # Errors
    /// An error of the kernel.
    pub(crate) fn new(
        watcher: &OwnedFd,
        token: u64,
        own: StrictAddress,
        peer: StrictAddress,
    ) -> io::Result<Self> {
        let socket = socket::open_socket()?;
        socket::watch_socket(watcher, &socket, token)?;
        let hello = QueuedFrame {
            op: None,
            head: WireRequest::Hello(own).to_bytes(),
            sent: 0,
            ready_at: Instant::now(),
        };
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

    /// Queues an operation. With `passes`, it may be queued in front of operations that `granted` does not order
    /// before it.
    pub(crate) fn push(
        &mut self,
        operation: PendingOperation,
        ready_at: Instant,
        passes: Option<(&mut fastrand::Rng, u64)>,
    ) {
        // A number is reused only after four billion other operations.
        let op = self.next;
        self.next = self.next.wrapping_add(1);
        let mut at = self.queue.len();
        if let Some((rng, granted)) = passes {
            let may_pass = |out: &&QueuedFrame| {
                let earlier = out.op.and_then(|op| self.operations.get(&op));
                out.sent == 0 && earlier.is_some_and(|earlier| operation.may_pass(earlier, granted))
            };
            let passable = self.queue.iter().rev().take_while(may_pass).count();
            at -= rng.usize(0..=passable);
        }
        let head = operation.to_request(op).to_bytes();
        self.queue.insert(at, QueuedFrame { op: Some(op), head, sent: 0, ready_at });
        self.operations.insert(op, operation);
    }

    /// Whether a request can be sent that no event will report.
    pub(crate) fn is_restless(&self) -> bool {
        !self.queue.is_empty() && !self.wants_room
    }

    /// Sends queued requests until the socket is full.
    ///
    /// # Errors
    /// If the connection has ended.
    pub(crate) fn flush_requests(&mut self, watcher: &OwnedFd) -> Result<(), ConnectionFailure> {
        if !self.is_connected {
            match socket::connect_socket(&self.socket, &self.peer) {
                Ok(()) => self.is_connected = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(ConnectionFailure::from_io_error(&error, true)),
            }
        }
        let result = self.send_queue();
        let blocked = matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if blocked != self.wants_room {
            self.wants_room = blocked;
            socket::watch_room(watcher, &self.socket, self.token, blocked);
        }
        match result {
            Err(error) if !blocked => Err(ConnectionFailure::from_io_error(&error, false)),
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
            let ranges = operation.map_or(Vec::new(), |operation| operation.body.sub_ranges(skip, CHUNK));
            out.sent += memory::write_socket(&self.socket, head, &ranges)?;
            if out.sent >= FRAME + payload {
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    /// Reads replies, and appends the completed operations to `ended`, each with its error number or 0.
    ///
    /// # Errors
    /// If the connection has ended. `ended` contains the operations that completed before.
    pub(crate) fn read_answers(
        &mut self,
        ended: &mut Vec<(PendingOperation, i32)>,
    ) -> Result<(), ConnectionFailure> {
        if !self.is_connected {
            return Ok(());
        }
        for _ in 0..ANSWERS_AT_ONCE {
            match self.read_answer(ended) {
                Ok(true) => {}
                Ok(false) => break,
                Err(end) => return Err(end),
            }
        }
        Ok(())
    }

    /// Reads one reply or a part of it; returns `false` if no more data is available.
    fn read_answer(&mut self, ended: &mut Vec<(PendingOperation, i32)>) -> Result<bool, ConnectionFailure> {
        let ranges = match &mut self.reading {
            AnswerReading::Head { have, bytes } => {
                let left = &mut bytes[*have..];
                vec![ProgramRange { base: left.as_mut_ptr() as usize, len: left.len() }]
            }
            AnswerReading::Data { op, got } => {
                let Some(operation) = self.operations.get(op) else { return Err(MALFORMED) };
                operation.body.sub_ranges(*got, CHUNK)
            }
        };
        let count = match memory::read_socket(&self.socket, &ranges) {
            Ok(0) => return Err(ConnectionFailure { error: errno::ECONNRESET, line: None }),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(ConnectionFailure::from_io_error(&error, false)),
        };
        match &mut self.reading {
            AnswerReading::Head { have, bytes } => {
                *have += count;
                if *have == FRAME {
                    let answer = WireAnswer::of_bytes(bytes).map_err(|_| MALFORMED)?;
                    self.reading = HEAD;
                    self.begin_answer(answer, ended)?;
                }
            }
            AnswerReading::Data { op, got } => {
                *got += count;
                if self.operations.get(op).is_none_or(|operation| *got >= operation.len) {
                    self.reading = HEAD;
                }
            }
        }
        Ok(true)
    }

    fn begin_answer(
        &mut self,
        answer: WireAnswer,
        ended: &mut Vec<(PendingOperation, i32)>,
    ) -> Result<(), ConnectionFailure> {
        match answer {
            WireAnswer::Done { op, error } => {
                if self.queue.iter().any(|out| out.op == Some(op)) {
                    return Err(MALFORMED);
                }
                let operation = self.operations.remove(&op).ok_or(MALFORMED)?;
                ended.push((operation, error.into()));
            }
            WireAnswer::Data { op, len } => {
                let wanted = self.operations.get(&op).filter(|operation| !operation.has_payload());
                if wanted.is_none_or(|operation| operation.len as u64 != len) {
                    return Err(MALFORMED);
                }
                if len > 0 {
                    self.reading = AnswerReading::Data { op, got: 0 };
                }
            }
        }
        Ok(())
    }

    /// Removes and returns all operations, when the connection is closed.
    pub(crate) fn drain_operations(&mut self) -> Vec<PendingOperation> {
        self.queue.clear();
        std::mem::take(&mut self.operations).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(what: PeerAction, fence: bool) -> PendingOperation {
        PendingOperation {
            what,
            data: None,
            body: OperationBody::Copied(Vec::new()),
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
    fn granted_orders_and_fences_prevent_overtaking() {
        let send = || operation(PeerAction::Send { tag: None }, false);
        let write = || operation(PeerAction::Write { key: 0, addr: 0 }, false);
        assert!(send().may_pass(&write(), order::SAS) && !send().may_pass(&write(), order::SAW));
        assert!(write().may_pass(&send(), order::SAW) && !write().may_pass(&send(), order::WAS));
        assert!(!write().may_pass(&write(), order::RMA_WAW) && write().may_pass(&write(), 0));
        assert!(!operation(PeerAction::Send { tag: None }, true).may_pass(&send(), 0));
        assert!(!send().may_pass(&operation(PeerAction::Send { tag: None }, true), 0));
    }
}
