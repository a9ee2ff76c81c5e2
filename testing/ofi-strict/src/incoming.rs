//! A connection from a peer: executes the peer's requests and sends the replies.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use trunkline_sys::ofi::{caps, errno};

use crate::matching::{MatchQueues, MessageEnvelope, WaitingReceive};
use crate::memory::{self, ProgramRange};
use crate::queue::StrictCompletion;
use crate::registry::StrictMrId;
use crate::socket;
use crate::state::EndpointContext;
use crate::wire::{FRAME, StrictAddress, WireAnswer, WireRequest};

/// Most bytes per system call.
const CHUNK: usize = 1 << 20;
/// Most requests read per call.
const REQUESTS_AT_ONCE: usize = 64;
/// Queued replies at which no more requests are read.
const ANSWERS_MAX: usize = 1024;

/// Destination of a request's payload.
enum PayloadSink {
    Posted(WaitingReceive),
    Kept(u64),
    Memory(StrictMrId, ProgramRange),
    /// Memory of a device, to which the bytes become visible later.
    Device(StrictMrId, ProgramRange, Vec<u8>),
    Refused(u16),
}

/// The part of a request that is being read.
enum RequestReading {
    Head {
        have: usize,
        bytes: [u8; FRAME],
    },
    /// A message that waits, because the unexpected messages have reached their limit.
    Stalled(WireRequest),
    Body {
        request: WireRequest,
        sink: PayloadSink,
        got: usize,
        len: usize,
    },
}

const HEAD: RequestReading = RequestReading::Head { have: 0, bytes: [0; FRAME] };

/// A reply that is being sent.
struct OutgoingAnswer {
    head: [u8; FRAME],
    sent: usize,
    body: Option<(StrictMrId, ProgramRange)>,
}

impl OutgoingAnswer {
    /// Replaces the success in a reply with an error.
    fn turn_into_error(&mut self) {
        if let Ok(WireAnswer::Done { op, .. }) = WireAnswer::of_bytes(&self.head) {
            self.head = WireAnswer::Done { op, error: refusal_code(errno::EKEYREJECTED) }.to_bytes();
        }
    }
}

/// Why a connection has ended: the peer closed it, or sent a malformed request.
pub(crate) enum ConnectionEnd {
    Gone,
    Malformed,
}

/// The endpoint's state that requests use.
pub(crate) struct RequestTarget<'a> {
    pub(crate) plain: &'a mut MatchQueues,
    pub(crate) tagged: &'a mut MatchQueues,
    /// Replies for other connections, which the endpoint queues there.
    pub(crate) answers: &'a mut Vec<(u64, WireAnswer)>,
}

impl RequestTarget<'_> {
    fn matching_for(&mut self, is_tagged: bool) -> &mut MatchQueues {
        if is_tagged { self.tagged } else { self.plain }
    }
}

/// A connection from a peer.
pub(crate) struct IncomingConnection {
    socket: OwnedFd,
    token: u64,
    peer: Option<StrictAddress>,
    wants_room: bool,
    reading: RequestReading,
    out: VecDeque<OutgoingAnswer>,
}

impl IncomingConnection {
    pub(crate) fn new(socket: OwnedFd, token: u64) -> Self {
        Self { socket, token, peer: None, wants_room: false, reading: HEAD, out: VecDeque::new() }
    }

    /// Whether progress is possible that no event will report.
    pub(crate) fn is_restless(&self) -> bool {
        matches!(self.reading, RequestReading::Stalled(_)) || (!self.out.is_empty() && !self.wants_room)
    }

    /// Queues a reply.
    pub(crate) fn queue_answer(&mut self, answer: WireAnswer) {
        self.out.push_back(OutgoingAnswer { head: answer.to_bytes(), sent: 0, body: None });
    }

    /// Sends queued replies until the socket is full.
    ///
    /// # Errors
    /// If the peer has closed the connection.
    pub(crate) fn flush_answers(
        &mut self,
        watcher: &OwnedFd,
        world: &mut EndpointContext<'_>,
    ) -> Result<(), ConnectionEnd> {
        let result = self.send_answers(world);
        let blocked = matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if blocked != self.wants_room {
            self.wants_room = blocked;
            socket::watch_room(watcher, &self.socket, self.token, blocked);
        }
        if result.is_err() && !blocked { Err(ConnectionEnd::Gone) } else { Ok(()) }
    }

    fn send_answers(&mut self, world: &mut EndpointContext<'_>) -> io::Result<()> {
        while let Some(out) = self.out.front_mut() {
            let head = out.head.get(out.sent..).unwrap_or(&[]);
            let skip = out.sent.saturating_sub(FRAME);
            let payload = out.body.map_or(0, |(_, range)| range.len);
            let ranges = match out.body {
                None => Vec::new(),
                Some((id, range)) if world.memory.is_live(id) => memory::sub_ranges(&[range], skip, CHUNK),
                // The program closed the registration during the read. The reader gets meaningless bytes, and an
                // error in the reply that follows them.
                Some((_, range)) => {
                    let len = (range.len - skip).min(world.scratch.len());
                    vec![ProgramRange { base: world.scratch.as_ptr() as usize, len }]
                }
            };
            let is_lost = out.body.is_some_and(|(id, _)| !world.memory.is_live(id));
            out.sent += memory::write_socket(&self.socket, head, &ranges)?;
            let is_out = out.sent >= FRAME + payload;
            if is_out {
                self.out.pop_front();
            }
            if is_lost && let Some(done) = self.out.get_mut(usize::from(!is_out)) {
                done.turn_into_error();
            }
        }
        Ok(())
    }

    /// Reads and executes requests.
    ///
    /// # Errors
    /// If the peer has closed the connection, or sent a malformed request.
    pub(crate) fn serve_requests(
        &mut self,
        target: &mut RequestTarget<'_>,
        world: &mut EndpointContext<'_>,
    ) -> Result<(), ConnectionEnd> {
        for _ in 0..REQUESTS_AT_ONCE {
            let is_between = !matches!(self.reading, RequestReading::Body { .. });
            if is_between && (self.out.len() >= ANSWERS_MAX || world.is_rx_full()) {
                break;
            }
            if let RequestReading::Stalled(request) = self.reading {
                self.begin_request(request, target, world)?;
                if matches!(self.reading, RequestReading::Stalled(_)) {
                    break;
                }
            }
            if !self.read_some(target, world)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads from the socket once; returns `false` if no more data is available.
    fn read_some(
        &mut self,
        target: &mut RequestTarget<'_>,
        world: &mut EndpointContext<'_>,
    ) -> Result<bool, ConnectionEnd> {
        let ranges = match &mut self.reading {
            RequestReading::Head { have, bytes } => {
                let left = &mut bytes[*have..];
                vec![ProgramRange { base: left.as_mut_ptr() as usize, len: left.len() }]
            }
            RequestReading::Stalled(_) => return Ok(false),
            RequestReading::Body { sink, got, len, .. } => {
                if let PayloadSink::Memory(id, _) = sink
                    && !world.memory.is_live(*id)
                {
                    *sink = PayloadSink::Refused(refusal_code(errno::EKEYREJECTED));
                }
                payload_place(sink, *got, *len - *got, world.scratch)
            }
        };
        let count = match memory::read_socket(&self.socket, &ranges) {
            Ok(0) => return Err(ConnectionEnd::Gone),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return self.memory_went(world),
            Err(_) => return Err(ConnectionEnd::Gone),
        };
        match &mut self.reading {
            RequestReading::Head { have, bytes } => {
                *have += count;
                if *have == FRAME {
                    let request = WireRequest::of_bytes(bytes).map_err(|_| ConnectionEnd::Malformed)?;
                    self.reading = HEAD;
                    self.begin_request(request, target, world)?;
                }
            }
            RequestReading::Stalled(_) => {}
            RequestReading::Body { request, sink, got, len } => {
                *got += count;
                let is_tagged = matches!(request, WireRequest::Send { tag: Some(_), .. });
                if let PayloadSink::Kept(id) = sink
                    && let Some((receive, message)) =
                        target.matching_for(is_tagged).extend(*id, &world.scratch[..count])
                {
                    world.deliver_message(receive, &message, target.answers);
                }
                if *got == *len {
                    self.finish_request(world);
                }
            }
        }
        Ok(true)
    }

    /// Reports that the memory of a registration or receive is no longer mapped.
    fn memory_went(&mut self, world: &mut EndpointContext<'_>) -> Result<bool, ConnectionEnd> {
        world.report_violation("the destination memory of a peer's message is no longer mapped");
        match &mut self.reading {
            RequestReading::Body { sink: sink @ PayloadSink::Memory(..), .. } => {
                *sink = PayloadSink::Refused(refusal_code(errno::EFAULT));
                Ok(true)
            }
            _ => Err(ConnectionEnd::Gone),
        }
    }

    /// Starts the execution of a request.
    fn begin_request(
        &mut self,
        request: WireRequest,
        target: &mut RequestTarget<'_>,
        world: &mut EndpointContext<'_>,
    ) -> Result<(), ConnectionEnd> {
        let (sink, len) = match (request, self.peer) {
            (WireRequest::Hello(address), None) => {
                self.peer = Some(address);
                return Ok(());
            }
            (WireRequest::Hello(_), Some(_)) | (_, None) => return Err(ConnectionEnd::Malformed),
            (WireRequest::Send { tag, data, delivery, op, len }, Some(src)) => {
                let len = usize::try_from(len).map_err(|_| ConnectionEnd::Malformed)?;
                let answer = delivery.then_some((self.token, op));
                let is_tagged = tag.is_some();
                let envelope = MessageEnvelope { src, tag: tag.unwrap_or(0), is_tagged, data, len, answer };
                let matching = target.matching_for(is_tagged);
                match matching.match_arrival(&envelope) {
                    Some(receive) => (PayloadSink::Posted(receive), len),
                    None if matching.has_room(len) => {
                        (PayloadSink::Kept(matching.keep_message(envelope)), len)
                    }
                    None => {
                        self.reading = RequestReading::Stalled(request);
                        return Ok(());
                    }
                }
            }
            (WireRequest::Write { key, addr, len, .. }, Some(_)) => {
                match world.check_remote(key, addr, len, true) {
                    Ok((id, range)) if world.memory.is_of_device(id) => {
                        (PayloadSink::Device(id, range, vec![0; range.len]), range.len)
                    }
                    Ok((id, range)) => (PayloadSink::Memory(id, range), range.len),
                    Err(error) => {
                        let len = usize::try_from(len).map_err(|_| ConnectionEnd::Malformed)?;
                        (PayloadSink::Refused(refusal_code(error)), len)
                    }
                }
            }
            (WireRequest::Read { op, key, addr, len }, Some(_)) => {
                let error = match world.check_remote(key, addr, len, false) {
                    Ok(body) => {
                        if world.memory.is_of_device(body.0) {
                            world.memory.held.show_writes(None);
                        }
                        let head = WireAnswer::Data { op, len }.to_bytes();
                        self.out.push_back(OutgoingAnswer { head, sent: 0, body: Some(body) });
                        0
                    }
                    Err(error) => refusal_code(error),
                };
                self.queue_answer(WireAnswer::Done { op, error });
                self.reading = HEAD;
                return Ok(());
            }
        };
        self.reading = RequestReading::Body { request, sink, got: 0, len };
        if len == 0 {
            self.finish_request(world);
        }
        Ok(())
    }

    /// Completes a request whose payload has been received.
    fn finish_request(&mut self, world: &mut EndpointContext<'_>) {
        let reading = std::mem::replace(&mut self.reading, HEAD);
        let (RequestReading::Body { request, mut sink, len, .. }, Some(src)) = (reading, self.peer) else {
            return;
        };
        if let PayloadSink::Device(id, range, bytes) = sink {
            if world.memory.is_live(id) {
                world.memory.held.push(id, bytes, range);
                sink = PayloadSink::Memory(id, range);
            } else {
                sink = PayloadSink::Refused(refusal_code(errno::EKEYREJECTED));
            }
        }
        match (request, sink) {
            (WireRequest::Send { op, tag, data, .. }, PayloadSink::Posted(receive)) => {
                world.complete_receive(receive, src, tag, data, len);
                self.queue_answer(WireAnswer::Done { op, error: 0 });
            }
            (WireRequest::Send { op, delivery: false, .. }, PayloadSink::Kept(_)) => {
                self.queue_answer(WireAnswer::Done { op, error: 0 });
            }
            (WireRequest::Write { op, data, .. }, PayloadSink::Memory(..)) => {
                if let Some(data) = data {
                    let flags = caps::RMA | caps::REMOTE_WRITE | caps::REMOTE_CQ_DATA;
                    let src = world.source(&src);
                    let told = StrictCompletion { flags, len, data, src, ..StrictCompletion::NOTHING };
                    world.complete_rx(told);
                }
                self.queue_answer(WireAnswer::Done { op, error: 0 });
            }
            (WireRequest::Write { op, .. }, PayloadSink::Refused(error)) => {
                self.queue_answer(WireAnswer::Done { op, error })
            }
            _ => {}
        }
    }

    /// Restores the state before an incomplete request, after the peer has closed the connection.
    pub(crate) fn abandon_request(&mut self, target: &mut RequestTarget<'_>) {
        let reading = std::mem::replace(&mut self.reading, HEAD);
        let RequestReading::Body { request, sink, .. } = reading else { return };
        let matching = target.matching_for(matches!(request, WireRequest::Send { tag: Some(_), .. }));
        match sink {
            PayloadSink::Posted(receive) => matching.give_back(receive),
            PayloadSink::Kept(id) => matching.lose_message(id),
            _ => {}
        }
    }
}

/// Returns the destination of the next payload. Bytes beyond a receive's buffer are discarded.
fn payload_place(sink: &mut PayloadSink, got: usize, left: usize, scratch: &mut [u8]) -> Vec<ProgramRange> {
    let nowhere = ProgramRange { base: scratch.as_mut_ptr() as usize, len: left.min(scratch.len()) };
    let ranges = match sink {
        PayloadSink::Posted(receive) => memory::sub_ranges(&receive.ranges, got, left.min(CHUNK)),
        PayloadSink::Memory(_, range) => memory::sub_ranges(&[*range], got, left.min(CHUNK)),
        PayloadSink::Device(_, _, bytes) => {
            let all = ProgramRange { base: bytes.as_mut_ptr() as usize, len: bytes.len() };
            memory::sub_ranges(&[all], got, left.min(CHUNK))
        }
        PayloadSink::Kept(_) | PayloadSink::Refused(_) => Vec::new(),
    };
    if ranges.is_empty() { vec![nowhere] } else { ranges }
}

fn refusal_code(error: i32) -> u16 {
    u16::try_from(error).unwrap_or(u16::MAX)
}
