//! One end of a link over TCP: its socket, outgoing and received bytes. Driven by its queue pair; it executes no record.

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

/// Bytes of the buffer for outgoing heads and small payload.
const OUTBOX: usize = 16 << 10;
/// Bytes of the buffer for received bytes.
const INBOX: usize = 32 << 10;
/// Bytes read beyond a large payload: the next head and little more, so that the next large payload is not copied.
const BEHIND: usize = 1024;
/// Executed records after which an acknowledgement is sent at the latest; a quarter of the depth if the queue is small.
const ACK_EVERY: u64 = 64;

/// The peer's description of its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerEnd {
    /// Token of its link.
    pub(crate) token: DialToken,
    /// Address of its listener.
    pub(crate) address: SocketAddr,
    /// Position of the first record it expects.
    pub(crate) start: u64,
    /// Operations it may have outstanding.
    pub(crate) depth: u32,
}

/// One end of a link over TCP.
pub(crate) struct LinkStream {
    door: Arc<LinkListener>,
    token: DialToken,
    socket: Option<TcpSocket>,
    watch: TcpWatch,
    /// Whether the rail's events report its socket.
    is_watched: bool,
    pub(super) out: StreamOutput,
    pub(super) inc: StreamInput,
}

/// Outgoing bytes and positions.
pub(super) struct StreamOutput {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// Bytes of a job's payload that follow the buffer and are sent straight from their memory.
    pub(super) body: u64,
    /// Whether they belong to a reply to the peer; otherwise to an operation of this side.
    pub(super) of_reply: bool,
    /// Position of the next record.
    pub(super) head: u64,
    /// Position up to which the peer has executed.
    pub(super) acked: u64,
    /// Receives the peer has posted.
    pub(super) peer_posted: u64,
    /// Position up to which this side has executed, and the value last sent to the peer.
    executed: u64,
    told_executed: u64,
    /// Receives this side has posted, and the value last sent to the peer.
    posted: u64,
    told_posted: u64,
    /// The peer waits for the acknowledgement of a record.
    pub(super) awaited: bool,
    ack_every: u64,
    /// Nothing is sent any more.
    ended: bool,
    /// Number of the operation whose frame was the first in the buffer.
    first: u64,
}

/// Received bytes.
pub(super) struct StreamInput {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// The record whose payload is arriving, for the bytes that have not.
    pub(super) current: Option<RingRecord>,
    /// Why and where the peer refused a record.
    pub(super) nak: Option<(u64, u64)>,
    /// The received bytes of it are too few to execute.
    pub(super) held: bool,
    /// The last payload was large, so the next one may be large too.
    pub(super) large: bool,
    /// The last read of the socket returned fewer bytes than requested, so there are no more at present.
    pub(super) quiet: bool,
    /// No more bytes arrive.
    pub(super) ended: bool,
    /// Polls without a whole record since the last one.
    pub(super) idle: u32,
}

impl LinkStream {
    /// Connects to the other end, or waits for its connection: the end with the smaller token dials, from the address `from`
    /// if one is given. The network may leave the connection unanswered for `limit`. This side's positions begin at `start`,
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
        // Allocated before the socket and the token, which would have to be released if memory were short.
        let into = try_zeros(INBOX).map_err(no_memory)?;
        let watch = TcpWatch::new(limit);
        // Comparing the tokens makes both ends choose the same dialler without a further message.
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
        // Inside a host the connection is established at once, so the hello can leave now.
        stream.write_buffer();
        Ok(stream)
    }

    /// Returns `true` once both ends have the connection, or this one has sent its hello; `None` once it never will.
    ///
    /// # Errors
    /// The peer's connection cannot be accepted.
    pub(crate) fn has_greeted(&mut self) -> io::Result<Option<bool>> {
        let up = self.poll_socket()?;
        self.write_buffer();
        let over = up && !self.has_unsent() && self.socket.as_ref().is_some_and(TcpSocket::is_over);
        Ok((!self.out.ended && !over).then_some(up && !self.has_unsent()))
    }

    /// Whether the socket exists, established or still connecting.
    pub(super) fn is_up(&mut self) -> bool {
        // An error is dropped here: the owner that waits for the connection gets it from `has_greeted`.
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

    /// Whether the network has stopped carrying the connection.
    pub(crate) fn is_cut(&mut self) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        Ok(self.watch.is_dead(&socket.tcp_health()?, Instant::now()))
    }

    /// Position of the next outgoing record.
    #[inline]
    pub(crate) fn head_position(&self) -> u64 {
        self.out.head
    }

    /// Position up to which the peer has executed, as far as it has reported.
    #[inline]
    pub(crate) fn acked_position(&self) -> u64 {
        self.out.acked
    }

    /// Receives the peer has posted, as far as it has reported.
    #[inline]
    pub(crate) fn peer_posted(&self) -> u64 {
        self.out.peer_posted
    }

    /// Sets the number of receives that this side has posted.
    #[inline]
    pub(crate) fn set_posted(&mut self, posted: u64) {
        self.out.posted = posted;
    }

    /// Sets the position up to which this side has executed.
    #[inline]
    pub(crate) fn set_executed(&mut self, executed: u64) {
        self.out.executed = executed;
    }

    /// Whether the connection of the other end has not arrived yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.socket.is_none()
    }

    /// Whether the buffer holds unsent bytes.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.out.from != self.out.to && !self.out.ended
    }

    /// Returns the number of the first operation in the buffer, if any.
    #[inline]
    pub(crate) fn first_unsent(&self) -> u64 {
        self.out.first
    }

    /// Attributes the next frames to an operation.
    #[inline]
    pub(crate) fn begin_op(&mut self, flight: u64) {
        if self.out.from == self.out.to {
            self.out.first = flight;
        }
    }

    /// Whether an acknowledgement is due although no other frame is; `taken` receives were used up.
    pub(super) fn owes_ack(&self, taken: u64) -> bool {
        let out = &self.out;
        let fresh = out.posted.wrapping_sub(out.told_posted);
        let starving = fresh > 0 && out.told_posted == taken;
        out.awaited
            || starving
            || fresh >= out.ack_every
            || out.executed.wrapping_sub(out.told_executed) >= out.ack_every
    }

    /// Whether this side has executed more than it has reported to the peer.
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

    /// Adds a record without payload, unless a payload is still being sent.
    pub(crate) fn push_record(&mut self, record: &RingRecord) -> bool {
        self.out.body == 0 && self.push(FrameBody::Record(*record), 0)
    }

    /// Sends the bytes in the buffer.
    #[inline]
    pub(crate) fn write_buffer(&mut self) -> MovedBytes {
        if self.out.from == self.out.to {
            return MovedBytes::Later;
        }
        // SAFETY: the body is empty, so the null pointer is never read.
        unsafe { self.write_with(std::ptr::null(), 0) }.0
    }

    /// Sends the bytes in the buffer and then the next `len` bytes of the payload behind it, at `body`. Returns the result of
    /// the whole send, and how many bytes of the payload were sent.
    ///
    /// # Safety
    /// `body` is readable for `len` bytes.
    pub(super) unsafe fn write_with(&mut self, body: *const u8, len: usize) -> (MovedBytes, usize) {
        let out = &mut self.out;
        let Some(socket) = &self.socket else { return (MovedBytes::Later, 0) };
        if out.ended {
            return (MovedBytes::Ended, 0);
        }
        // SAFETY: the caller promises that `body` is readable for `len` bytes.
        let moved = unsafe { socket.send(&out.buffer[out.from..out.to], body, len) };
        let mut beyond = 0;
        match moved {
            MovedBytes::Bytes(count) => {
                let buffered = count.min(out.to - out.from);
                out.from += buffered;
                // An empty buffer restarts at its beginning, so that it never wraps.
                if out.from == out.to {
                    (out.from, out.to) = (0, 0);
                }
                beyond = count - buffered;
                out.body -= beyond as u64;
            }
            MovedBytes::Later => {}
            // The reason for the end arrives with the received bytes.
            MovedBytes::Ended => out.ended = true,
        }
        (moved, beyond)
    }

    /// Returns the rest of the buffer, to put payload into; at least `more` bytes of the last [`LinkStream::push`].
    #[inline]
    pub(super) fn free_buffer(&mut self) -> &mut [u8] {
        &mut self.out.buffer[self.out.to..]
    }

    /// Adds `len` bytes of it to those that are sent.
    #[inline]
    pub(super) fn commit_bytes(&mut self, len: usize) {
        self.out.to += len;
    }

    /// Whether no more frames can be taken at present.
    pub(super) fn is_idle(&self) -> bool {
        let least = if self.inc.current.is_some() { 1 } else { HEAD };
        self.inc.quiet && (self.inc.held || self.inbox().len() < least)
    }

    /// Prepares a wait for the socket. Returns true if no work is left before bytes arrive. Sends this side's position to the peer
    /// if that is due.
    pub(crate) fn arm_socket(&mut self, events: &SocketEvents) -> bool {
        let Some(socket) = &self.socket else { return false };
        if !self.is_watched {
            if events.watch_socket(socket).is_err() {
                return false;
            }
            self.is_watched = true;
        }
        // The owner may now wait for long, and the peer may need this position to continue.
        if self.has_news() && self.out.body == 0 {
            self.push(FrameBody::Ack, 0);
        }
        self.write_buffer();
        let is_sent = self.out.body == 0 && !self.has_unsent();
        // Held bytes and an end that was already read do not make the socket readable again, so a poll must handle them.
        is_sent && self.is_idle() && !self.inc.held && !self.inc.ended
    }

    /// Stops watching the socket, which may stay open for long.
    pub(crate) fn unwatch_socket(&mut self, events: &SocketEvents) {
        if let Some(socket) = self.socket.as_ref().filter(|_| self.is_watched) {
            events.unwatch_socket(socket);
            self.is_watched = false;
        }
    }

    /// Returns the received bytes that were not parsed yet.
    #[inline]
    pub(super) fn inbox(&self) -> &[u8] {
        &self.inc.buffer[self.inc.from..self.inc.to]
    }

    /// Removes `count` of those bytes.
    #[inline]
    pub(super) fn consume_inbox(&mut self, count: usize) {
        self.inc.from += count;
        if self.inc.from == self.inc.to {
            (self.inc.from, self.inc.to) = (0, 0);
        }
    }

    /// Reads up to `len` bytes to `body`, and the bytes behind them into the inbox, which must be empty. Returns the number of
    /// bytes read to `body`.
    ///
    /// # Safety
    /// `body` is writable for `len` bytes.
    pub(super) unsafe fn read_to(&mut self, body: *mut u8, len: usize) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        // SAFETY: the caller promises that `body` is writable for `len` bytes.
        let moved = unsafe { socket.read(body, len, &mut self.inc.buffer[..BEHIND]) };
        let count = self.inc.note_read(moved, len + BEHIND);
        let direct = count.min(len);
        // The inbox was empty, so the bytes behind the body become its beginning.
        (self.inc.from, self.inc.to) = (0, count - direct);
        direct
    }

    /// Reads more bytes into the inbox; returns how many.
    pub(super) fn fill_inbox(&mut self) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        let inc = &mut self.inc;
        // Unparsed bytes are moved to the front, so that a head is always contiguous.
        if inc.from > 0 {
            inc.buffer.copy_within(inc.from..inc.to, 0);
            (inc.from, inc.to) = (0, inc.to - inc.from);
        }
        // After a large payload only little is read ahead, because bytes of the next one would have to be copied out of the inbox.
        let end = if inc.large { (inc.to + BEHIND).min(INBOX) } else { INBOX };
        let moved = socket.fill_buffer(&mut inc.buffer[inc.to..end]);
        let count = inc.note_read(moved, end - inc.to);
        inc.to += count;
        count
    }

    /// Ends the stream of a link in error: sends the peer the reason if this side refused a record, and then nothing more.
    pub(crate) fn end_stream(&mut self, nak: Option<(u64, u64)>) {
        if let Some((code, at)) = nak {
            // A head cannot be sent in the middle of a payload: then the peer learns only that the link has ended.
            if self.out.body == 0 {
                self.push(FrameBody::Nak { code, at }, 0);
            }
        }
        self.write_buffer();
        // Only the sending direction is closed, so that the peer can still read all that was sent, including a refusal.
        if let Some(socket) = &self.socket {
            socket.shut_down();
        }
        self.out.ended = true;
    }
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        // The listener still expects only a link that was not dialled.
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
    /// Records the result of a read of `asked` bytes; returns how many were read.
    #[inline]
    fn note_read(&mut self, moved: MovedBytes, asked: usize) -> usize {
        self.ended |= moved == MovedBytes::Ended;
        let count = if let MovedBytes::Bytes(count) = moved { count } else { 0 };
        // A short read means that the socket is empty, which saves a call that would return EAGAIN.
        self.quiet = count < asked;
        count
    }
}
