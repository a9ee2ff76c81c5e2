//! One end of a link over TCP: its socket, what is on its way out, and what has come in. Driven by its queue pair.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_mem::{OutOfMemory, try_zeros};

use super::events::SocketEvents;
use super::frame::{BYTES as HEAD, FrameBody, TcpFrame};
use super::health::TcpWatch;
use super::listener::{self, DialToken, LinkListener};
use super::socket::{MovedBytes, TcpSocket};
use crate::record::RingRecord;

/// Bytes of the buffer for heads and small payload on their way out.
const OUTBOX: usize = 16 << 10;
/// Bytes of the buffer for what comes in.
const INBOX: usize = 32 << 10;
/// Read behind a large payload: the next head and little more, so that the next large payload is not copied.
const BEHIND: usize = 1024;
/// Executed records after which the peer is told, at the latest; of a small queue, a quarter of its depth.
const ACK_EVERY: u64 = 64;

/// What the peer said about its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerEnd {
    /// Names its link.
    pub(crate) token: DialToken,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Position of the first record it expects.
    pub(crate) start: u64,
    /// Operations it may have outstanding.
    pub(crate) depth: u32,
}

/// One end.
pub(crate) struct LinkStream {
    door: Arc<LinkListener>,
    token: DialToken,
    socket: Option<TcpSocket>,
    watch: TcpWatch,
    /// The rail's events report its socket.
    is_watched: bool,
    pub(super) out: StreamOutput,
    pub(super) inc: StreamInput,
}

/// What is on its way out.
pub(super) struct StreamOutput {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// Bytes of a job's payload that follow the buffer straight from their memory.
    pub(super) body: u64,
    /// They answer the peer; otherwise they are of an operation of this side.
    pub(super) of_reply: bool,
    /// Position of the next record.
    pub(super) head: u64,
    /// Position up to which the peer has executed.
    pub(super) acked: u64,
    /// Receives the peer has posted.
    pub(super) peer_posted: u64,
    /// Position up to which this side has executed, and what the peer was told of that.
    executed: u64,
    told_executed: u64,
    /// Receives this side has posted, and what the peer was told of that.
    posted: u64,
    told_posted: u64,
    /// The peer waits to hear that a record was executed.
    pub(super) awaited: bool,
    ack_every: u64,
    /// Nothing goes out any more.
    ended: bool,
    /// Number of the operation whose frame was the first in the buffer.
    first: u64,
}

/// What has come in.
pub(super) struct StreamInput {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// The record whose payload is arriving, for the bytes that have not.
    pub(super) current: Option<RingRecord>,
    /// Why and where the peer refused a record.
    pub(super) nak: Option<(u64, u64)>,
    /// What has come of it is less than can be executed.
    pub(super) held: bool,
    /// The last payload was large: so may the next one be.
    pub(super) large: bool,
    /// The last look at the socket found less than was asked for: there is no more now.
    pub(super) quiet: bool,
    /// Nothing more comes.
    pub(super) ended: bool,
    /// Turns without a whole record since the last one.
    pub(super) idle: u32,
}

impl LinkStream {
    /// Connects to the other end, or waits for it: the one with the smaller token dials, from the address `from`
    /// if there is one. The network may leave it unanswered for `limit`. This side's positions begin at `start`,
    /// and `posted` is the position after the last receive that it has posted.
    pub(crate) fn connect(
        door: Arc<LinkListener>,
        token: DialToken,
        other: &PeerEnd,
        from: Option<IpAddr>,
        limit: Duration,
        start: u64,
        posted: u64,
    ) -> io::Result<Self> {
        let no_memory = |error: OutOfMemory| io::Error::new(io::ErrorKind::OutOfMemory, error);
        let mut out = StreamOutput {
            buffer: try_zeros(OUTBOX).map_err(no_memory)?,
            from: 0,
            to: 0,
            body: 0,
            of_reply: false,
            head: other.start,
            acked: other.start,
            peer_posted: other.start,
            executed: start,
            told_executed: start,
            posted,
            told_posted: start,
            awaited: false,
            ack_every: ACK_EVERY.min(u64::from(other.depth / 4).max(1)),
            ended: false,
            first: start,
        };
        // Before the socket or the token, which would have to be given back.
        let into = try_zeros(INBOX).map_err(no_memory)?;
        let watch = TcpWatch::new(limit);
        let socket = if token < other.token {
            out.append_bytes(&listener::hello_bytes(&other.token));
            let socket = TcpSocket::dial(other.address, from)?;
            socket.ask_each(watch.probe_interval());
            Some(socket)
        } else {
            door.expect_link(token);
            None
        };
        let inc = StreamInput {
            buffer: into,
            from: 0,
            to: 0,
            current: None,
            nak: None,
            held: false,
            large: false,
            quiet: true,
            ended: false,
            idle: 0,
        };
        let mut stream = Self { door, token, socket, watch, is_watched: false, out, inc };
        // On this host there is a connection already.
        stream.write_buffer();
        Ok(stream)
    }

    /// Whether both ends have the connection, or this one has said for which link it is; `None` once it never will.
    /// An error if the peer has no chance to get here.
    pub(crate) fn has_greeted(&mut self) -> io::Result<Option<bool>> {
        let up = self.poll_socket()?;
        self.write_buffer();
        let over = up && !self.has_unsent() && self.socket.as_ref().is_some_and(TcpSocket::is_over);
        Ok((!self.out.ended && !over).then_some(up && !self.has_unsent()))
    }

    /// Whether there is a connection, or one is asked for.
    pub(super) fn is_up(&mut self) -> bool {
        // Who waits for it asks, and hears of errors, by `has_greeted`.
        self.poll_socket().unwrap_or(false)
    }

    fn poll_socket(&mut self) -> io::Result<bool> {
        if self.socket.is_none() {
            self.socket = self.door.fetch_socket(&self.token)?;
            if let Some(socket) = &self.socket {
                socket.ask_each(self.watch.probe_interval());
            }
        }
        Ok(self.socket.is_some())
    }

    /// Whether the network carries nothing more of it.
    pub(crate) fn is_cut(&mut self) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        Ok(self.watch.is_dead(&socket.tcp_health()?, Instant::now()))
    }

    /// Position of the next record on its way out.
    #[inline]
    pub(crate) fn head_position(&self) -> u64 {
        self.out.head
    }

    /// Position up to which the peer has executed, as far as it has said.
    #[inline]
    pub(crate) fn acked_position(&self) -> u64 {
        self.out.acked
    }

    /// Receives the peer has posted, as far as it has said.
    #[inline]
    pub(crate) fn peer_posted(&self) -> u64 {
        self.out.peer_posted
    }

    /// This side has posted so many receives.
    #[inline]
    pub(crate) fn set_posted(&mut self, posted: u64) {
        self.out.posted = posted;
    }

    /// This side has executed up to a position.
    #[inline]
    pub(crate) fn set_executed(&mut self, executed: u64) {
        self.out.executed = executed;
    }

    /// Whether the other end has not dialled yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.socket.is_none()
    }

    /// Whether bytes wait in the buffer.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.out.from != self.out.to && !self.out.ended
    }

    /// Number of the first operation that is in the buffer, if any is.
    #[inline]
    pub(crate) fn first_unsent(&self) -> u64 {
        self.out.first
    }

    /// The next frames are of this operation.
    #[inline]
    pub(crate) fn begin_op(&mut self, flight: u64) {
        if self.out.from == self.out.to {
            self.out.first = flight;
        }
    }

    /// Whether the peer should hear how far this side is, with nothing else to say; `taken` receives were used up.
    pub(super) fn owes_ack(&self, taken: u64) -> bool {
        let out = &self.out;
        let fresh = out.posted.wrapping_sub(out.told_posted);
        let starving = fresh > 0 && out.told_posted == taken;
        out.awaited
            || starving
            || fresh >= out.ack_every
            || out.executed.wrapping_sub(out.told_executed) >= out.ack_every
    }

    /// Whether this side is further than the peer has heard.
    pub(super) fn has_news(&self) -> bool {
        self.out.executed != self.out.told_executed
    }

    /// Adds the head of a frame; false if there is no room for it and for `more` bytes behind it.
    #[inline]
    pub(super) fn push(&mut self, body: FrameBody, more: usize) -> bool {
        if !self.out.has_room(HEAD + more)
            && (self.write_buffer() == MovedBytes::Ended || !self.out.has_room(HEAD + more))
        {
            return false;
        }
        let out = &mut self.out;
        let frame = TcpFrame { body, executed: out.executed, posted: out.posted };
        out.append_bytes(&frame.to_bytes());
        (out.told_executed, out.told_posted, out.awaited) = (out.executed, out.posted, false);
        if matches!(body, FrameBody::Record(_)) {
            out.head = out.head.wrapping_add(1);
        }
        true
    }

    /// Adds a record without payload, if nothing is in its way.
    pub(crate) fn push_record(&mut self, record: &RingRecord) -> bool {
        self.out.body == 0 && self.push(FrameBody::Record(*record), 0)
    }

    /// Sends what waits in the buffer.
    #[inline]
    pub(crate) fn write_buffer(&mut self) -> MovedBytes {
        if self.out.from == self.out.to {
            return MovedBytes::Later;
        }
        // SAFETY: no bytes are asked for but the buffer's.
        unsafe { self.write_with(std::ptr::null(), 0) }.0
    }

    /// Sends what waits in the buffer and then the next `len` bytes of the payload behind it, at `body`; tells what
    /// was moved in all, and how many bytes of the payload.
    ///
    /// # Safety
    /// `body` is readable for `len` bytes.
    pub(super) unsafe fn write_with(&mut self, body: *const u8, len: usize) -> (MovedBytes, usize) {
        let out = &mut self.out;
        let Some(socket) = &self.socket else { return (MovedBytes::Later, 0) };
        if out.ended {
            return (MovedBytes::Ended, 0);
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { socket.send(&out.buffer[out.from..out.to], body, len) };
        let mut beyond = 0;
        match moved {
            MovedBytes::Bytes(count) => {
                let buffered = count.min(out.to - out.from);
                out.from += buffered;
                if out.from == out.to {
                    (out.from, out.to) = (0, 0);
                }
                beyond = count - buffered;
                out.body -= beyond as u64;
            }
            MovedBytes::Later => {}
            // What comes in will say why.
            MovedBytes::Ended => out.ended = true,
        }
        (moved, beyond)
    }

    /// The rest of the buffer, to put payload into; at least as much as [`LinkStream::push`] was asked for.
    #[inline]
    pub(super) fn free_buffer(&mut self) -> &mut [u8] {
        &mut self.out.buffer[self.out.to..]
    }

    /// So much of it was used.
    #[inline]
    pub(super) fn commit_bytes(&mut self, len: usize) {
        self.out.to += len;
    }

    /// Whether nothing more can be taken in now.
    pub(super) fn is_idle(&self) -> bool {
        let least = if self.inc.current.is_some() { 1 } else { HEAD };
        self.inc.quiet && (self.inc.held || self.inbox().len() < least)
    }

    /// Prepares a wait for the socket. True if nothing is left to be done before bytes arrive. A peer that has yet to learn how
    /// far this side is learns it now.
    pub(crate) fn arm_socket(&mut self, events: &SocketEvents) -> bool {
        let Some(socket) = &self.socket else { return false };
        if !self.is_watched {
            if events.watch_socket(socket).is_err() {
                return false;
            }
            self.is_watched = true;
        }
        if self.has_news() && self.out.body == 0 {
            self.push(FrameBody::Ack, 0);
        }
        self.write_buffer();
        let is_sent = self.out.body == 0 && !self.has_unsent();
        is_sent && self.is_idle() && !self.inc.held && !self.inc.ended
    }

    /// Ends the watch of the socket, which may stay open for long.
    pub(crate) fn unwatch_socket(&mut self, events: &SocketEvents) {
        if let Some(socket) = self.socket.as_ref().filter(|_| self.is_watched) {
            events.unwatch_socket(socket);
            self.is_watched = false;
        }
    }

    /// Bytes that have come in and were not looked at.
    #[inline]
    pub(super) fn inbox(&self) -> &[u8] {
        &self.inc.buffer[self.inc.from..self.inc.to]
    }

    /// So many of those were used.
    #[inline]
    pub(super) fn consume_inbox(&mut self, count: usize) {
        self.inc.from += count;
        if self.inc.from == self.inc.to {
            (self.inc.from, self.inc.to) = (0, 0);
        }
    }

    /// Reads up to `len` bytes to `body`, and what is behind them into the inbox, which must be empty; returns how many
    /// bytes came to `body`.
    ///
    /// # Safety
    /// `body` is writable for `len` bytes.
    pub(super) unsafe fn read_to(&mut self, body: *mut u8, len: usize) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        // SAFETY: the caller's promise.
        let moved = unsafe { socket.read(body, len, &mut self.inc.buffer[..BEHIND]) };
        let count = self.inc.note_read(moved, len + BEHIND);
        let direct = count.min(len);
        (self.inc.from, self.inc.to) = (0, count - direct);
        direct
    }

    /// Reads more into the inbox; how many bytes.
    pub(super) fn fill_inbox(&mut self) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        let inc = &mut self.inc;
        if inc.from > 0 {
            inc.buffer.copy_within(inc.from..inc.to, 0);
            (inc.from, inc.to) = (0, inc.to - inc.from);
        }
        let end = if inc.large { (inc.to + BEHIND).min(INBOX) } else { INBOX };
        let moved = socket.fill_buffer(&mut inc.buffer[inc.to..end]);
        let count = inc.note_read(moved, end - inc.to);
        inc.to += count;
        count
    }

    /// The link is in error: tells the peer why, if it is for this side to say, and sends nothing more.
    pub(crate) fn end_stream(&mut self, nak: Option<(u64, u64)>) {
        if let Some((code, at)) = nak {
            // In the middle of a payload there is no place for it: then the peer learns only that the link has ended.
            if self.out.body == 0 {
                self.push(FrameBody::Nak { code, at }, 0);
            }
        }
        self.write_buffer();
        if let Some(socket) = &self.socket {
            socket.shut_down();
        }
        self.out.ended = true;
    }
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        if self.socket.is_none() {
            self.door.forget_link(self.token);
        }
    }
}

impl StreamOutput {
    #[inline]
    fn has_room(&self, len: usize) -> bool {
        OUTBOX - self.to >= len
    }

    #[inline]
    fn append_bytes(&mut self, bytes: &[u8]) {
        self.buffer[self.to..self.to + bytes.len()].copy_from_slice(bytes);
        self.to += bytes.len();
    }
}

impl StreamInput {
    /// Notes what a read of so many bytes found; how many.
    #[inline]
    fn note_read(&mut self, moved: MovedBytes, asked: usize) -> usize {
        self.ended |= moved == MovedBytes::Ended;
        let count = if let MovedBytes::Bytes(count) = moved { count } else { 0 };
        self.quiet = count < asked;
        count
    }
}
