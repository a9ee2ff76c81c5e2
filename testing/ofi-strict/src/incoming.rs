//! A connection from a peer: its requests are carried out here, and answered.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use trunkline_sys::ofi::{caps, errno};

use crate::matching::{Envelope, Matching, Receive};
use crate::memory::{self, Range};
use crate::queue::Completion;
use crate::registry::MrId;
use crate::socket;
use crate::state::World;
use crate::wire::{Address, Answer, FRAME, Request};

/// Bytes that one call to the kernel is given at most.
const CHUNK: usize = 1 << 20;
/// Requests that are taken in at once.
const REQUESTS_AT_ONCE: usize = 64;
/// Answers that wait before no more requests are taken in.
const ANSWERS_MAX: usize = 1024;

/// Where payload goes.
enum Sink {
    Posted(Receive),
    Kept(u64),
    Memory(MrId, Range),
    /// Memory of a device, which sees it later.
    Device(MrId, Range, Vec<u8>),
    Refused(u16),
}

/// What is being read.
enum Reading {
    Head {
        have: usize,
        bytes: [u8; FRAME],
    },
    /// A request that finds no room yet.
    Stalled(Request),
    Body {
        request: Request,
        sink: Sink,
        got: usize,
        len: usize,
    },
}

const HEAD: Reading = Reading::Head { have: 0, bytes: [0; FRAME] };

/// An answer on its way.
struct Out {
    head: [u8; FRAME],
    sent: usize,
    body: Option<(MrId, Range)>,
}

impl Out {
    /// What was to end well ends with an error.
    fn refuse(&mut self) {
        if let Ok(Answer::Done { op, .. }) = Answer::of_bytes(&self.head) {
            self.head = Answer::Done { op, error: refusal(errno::EKEYREJECTED) }.to_bytes();
        }
    }
}

/// The peer has gone, or says what is no request.
pub(crate) enum Ended {
    Gone,
    Malformed,
}

/// What requests are about: the endpoint's own.
pub(crate) struct Target<'a> {
    pub(crate) plain: &'a mut Matching,
    pub(crate) tagged: &'a mut Matching,
    /// Answers for other connections, to be handed on.
    pub(crate) answers: &'a mut Vec<(u64, Answer)>,
}

impl Target<'_> {
    fn matching(&mut self, is_tagged: bool) -> &mut Matching {
        if is_tagged { self.tagged } else { self.plain }
    }
}

/// The connection.
pub(crate) struct Incoming {
    socket: OwnedFd,
    token: u64,
    peer: Option<Address>,
    wants_room: bool,
    reading: Reading,
    out: VecDeque<Out>,
}

impl Incoming {
    pub(crate) fn new(socket: OwnedFd, token: u64) -> Self {
        Self { socket, token, peer: None, wants_room: false, reading: HEAD, out: VecDeque::new() }
    }

    /// Whether something is to be done that no event will tell.
    pub(crate) fn is_restless(&self) -> bool {
        matches!(self.reading, Reading::Stalled(_)) || (!self.out.is_empty() && !self.wants_room)
    }

    /// Puts in an answer.
    pub(crate) fn answer(&mut self, answer: Answer) {
        self.out.push_back(Out { head: answer.to_bytes(), sent: 0, body: None });
    }

    /// Sends what can be sent.
    ///
    /// # Errors
    /// When the peer has gone.
    pub(crate) fn flush(&mut self, watcher: &OwnedFd, world: &mut World<'_>) -> Result<(), Ended> {
        let result = self.send_answers(world);
        let blocked = matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if blocked != self.wants_room {
            self.wants_room = blocked;
            socket::watch_room(watcher, &self.socket, self.token, blocked);
        }
        if result.is_err() && !blocked { Err(Ended::Gone) } else { Ok(()) }
    }

    fn send_answers(&mut self, world: &mut World<'_>) -> io::Result<()> {
        while let Some(out) = self.out.front_mut() {
            let head = out.head.get(out.sent..).unwrap_or(&[]);
            let skip = out.sent.saturating_sub(FRAME);
            let payload = out.body.map_or(0, |(_, range)| range.len);
            let ranges = match out.body {
                None => Vec::new(),
                Some((id, range)) if world.memory.is_live(id) => memory::part(&[range], skip, CHUNK),
                // The program closed what is being read. The reader gets bytes of no meaning, and is told so behind them.
                Some((_, range)) => {
                    let len = (range.len - skip).min(world.scratch.len());
                    vec![Range { base: world.scratch.as_ptr() as usize, len }]
                }
            };
            let is_lost = out.body.is_some_and(|(id, _)| !world.memory.is_live(id));
            out.sent += memory::write(&self.socket, head, &ranges)?;
            let is_out = out.sent >= FRAME + payload;
            if is_out {
                self.out.pop_front();
            }
            if is_lost && let Some(done) = self.out.get_mut(usize::from(!is_out)) {
                done.refuse();
            }
        }
        Ok(())
    }

    /// Takes in requests.
    ///
    /// # Errors
    /// When the peer has gone, or is none.
    pub(crate) fn serve(&mut self, target: &mut Target<'_>, world: &mut World<'_>) -> Result<(), Ended> {
        for _ in 0..REQUESTS_AT_ONCE {
            let is_between = !matches!(self.reading, Reading::Body { .. });
            if is_between && (self.out.len() >= ANSWERS_MAX || world.is_rx_full()) {
                break;
            }
            if let Reading::Stalled(request) = self.reading {
                self.begin(request, target, world)?;
                if matches!(self.reading, Reading::Stalled(_)) {
                    break;
                }
            }
            if !self.read_some(target, world)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads once; `false` if there is no more now.
    fn read_some(&mut self, target: &mut Target<'_>, world: &mut World<'_>) -> Result<bool, Ended> {
        let ranges = match &mut self.reading {
            Reading::Head { have, bytes } => {
                let left = &mut bytes[*have..];
                vec![Range { base: left.as_mut_ptr() as usize, len: left.len() }]
            }
            Reading::Stalled(_) => return Ok(false),
            Reading::Body { sink, got, len, .. } => {
                if let Sink::Memory(id, _) = sink
                    && !world.memory.is_live(*id)
                {
                    *sink = Sink::Refused(refusal(errno::EKEYREJECTED));
                }
                payload_place(sink, *got, *len - *got, world.scratch)
            }
        };
        let count = match memory::read(&self.socket, &ranges) {
            Ok(0) => return Err(Ended::Gone),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return self.memory_went(world),
            Err(_) => return Err(Ended::Gone),
        };
        match &mut self.reading {
            Reading::Head { have, bytes } => {
                *have += count;
                if *have == FRAME {
                    let request = Request::of_bytes(bytes).map_err(|_| Ended::Malformed)?;
                    self.reading = HEAD;
                    self.begin(request, target, world)?;
                }
            }
            Reading::Stalled(_) => {}
            Reading::Body { request, sink, got, len } => {
                *got += count;
                let is_tagged = matches!(request, Request::Send { tag: Some(_), .. });
                if let Sink::Kept(id) = sink
                    && let Some((receive, message)) =
                        target.matching(is_tagged).extend(*id, &world.scratch[..count])
                {
                    world.deliver(receive, &message, target.answers);
                }
                if *got == *len {
                    self.finish(world);
                }
            }
        }
        Ok(true)
    }

    /// What was registered, or posted, is no longer mapped.
    fn memory_went(&mut self, world: &mut World<'_>) -> Result<bool, Ended> {
        world.violation("memory that a peer's message goes to is no longer mapped");
        match &mut self.reading {
            Reading::Body { sink: sink @ Sink::Memory(..), .. } => {
                *sink = Sink::Refused(refusal(errno::EFAULT));
                Ok(true)
            }
            _ => Err(Ended::Gone),
        }
    }

    /// Begins a request.
    fn begin(
        &mut self,
        request: Request,
        target: &mut Target<'_>,
        world: &mut World<'_>,
    ) -> Result<(), Ended> {
        let (sink, len) = match (request, self.peer) {
            (Request::Hello(address), None) => {
                self.peer = Some(address);
                return Ok(());
            }
            (Request::Hello(_), Some(_)) | (_, None) => return Err(Ended::Malformed),
            (Request::Send { tag, data, delivery, op, len }, Some(src)) => {
                let len = usize::try_from(len).map_err(|_| Ended::Malformed)?;
                let answer = delivery.then_some((self.token, op));
                let is_tagged = tag.is_some();
                let envelope = Envelope { src, tag: tag.unwrap_or(0), is_tagged, data, len, answer };
                let matching = target.matching(is_tagged);
                match matching.arrive(&envelope) {
                    Some(receive) => (Sink::Posted(receive), len),
                    None if matching.has_room(len) => (Sink::Kept(matching.keep(envelope)), len),
                    None => {
                        self.reading = Reading::Stalled(request);
                        return Ok(());
                    }
                }
            }
            (Request::Write { key, addr, len, .. }, Some(_)) => match world.remote(key, addr, len, true) {
                Ok((id, range)) if world.memory.is_of_device(id) => {
                    (Sink::Device(id, range, vec![0; range.len]), range.len)
                }
                Ok((id, range)) => (Sink::Memory(id, range), range.len),
                Err(error) => {
                    let len = usize::try_from(len).map_err(|_| Ended::Malformed)?;
                    (Sink::Refused(refusal(error)), len)
                }
            },
            (Request::Read { op, key, addr, len }, Some(_)) => {
                let error = match world.remote(key, addr, len, false) {
                    Ok(body) => {
                        if world.memory.is_of_device(body.0) {
                            world.memory.held.show(None);
                        }
                        let head = Answer::Data { op, len }.to_bytes();
                        self.out.push_back(Out { head, sent: 0, body: Some(body) });
                        0
                    }
                    Err(error) => refusal(error),
                };
                self.answer(Answer::Done { op, error });
                self.reading = HEAD;
                return Ok(());
            }
        };
        self.reading = Reading::Body { request, sink, got: 0, len };
        if len == 0 {
            self.finish(world);
        }
        Ok(())
    }

    /// A request's payload is all here.
    fn finish(&mut self, world: &mut World<'_>) {
        let reading = std::mem::replace(&mut self.reading, HEAD);
        let (Reading::Body { request, mut sink, len, .. }, Some(src)) = (reading, self.peer) else { return };
        if let Sink::Device(id, range, bytes) = sink {
            if world.memory.is_live(id) {
                world.memory.held.push(id, bytes, range);
                sink = Sink::Memory(id, range);
            } else {
                sink = Sink::Refused(refusal(errno::EKEYREJECTED));
            }
        }
        match (request, sink) {
            (Request::Send { op, tag, data, .. }, Sink::Posted(receive)) => {
                world.received(receive, (src, tag, data, len));
                self.answer(Answer::Done { op, error: 0 });
            }
            (Request::Send { op, delivery: false, .. }, Sink::Kept(_)) => {
                self.answer(Answer::Done { op, error: 0 });
            }
            (Request::Write { op, data, .. }, Sink::Memory(..)) => {
                if let Some(data) = data {
                    let flags = caps::RMA | caps::REMOTE_WRITE | caps::REMOTE_CQ_DATA;
                    let src = world.source(&src);
                    let told = Completion { flags, len, data, src, ..Completion::NOTHING };
                    world.complete_rx(told);
                }
                self.answer(Answer::Done { op, error: 0 });
            }
            (Request::Write { op, .. }, Sink::Refused(error)) => self.answer(Answer::Done { op, error }),
            _ => {}
        }
    }

    /// The peer has gone: what it had begun is undone.
    pub(crate) fn abandon(&mut self, target: &mut Target<'_>) {
        let reading = std::mem::replace(&mut self.reading, HEAD);
        let Reading::Body { request, sink, .. } = reading else { return };
        let matching = target.matching(matches!(request, Request::Send { tag: Some(_), .. }));
        match sink {
            Sink::Posted(receive) => matching.give_back(receive),
            Sink::Kept(id) => matching.lose(id),
            _ => {}
        }
    }
}

/// Where the next payload goes. What finds no room in a receive goes nowhere.
fn payload_place(sink: &mut Sink, got: usize, left: usize, scratch: &mut [u8]) -> Vec<Range> {
    let nowhere = Range { base: scratch.as_mut_ptr() as usize, len: left.min(scratch.len()) };
    let ranges = match sink {
        Sink::Posted(receive) => memory::part(&receive.ranges, got, left.min(CHUNK)),
        Sink::Memory(_, range) => memory::part(&[*range], got, left.min(CHUNK)),
        Sink::Device(_, _, bytes) => {
            let all = Range { base: bytes.as_mut_ptr() as usize, len: bytes.len() };
            memory::part(&[all], got, left.min(CHUNK))
        }
        Sink::Kept(_) | Sink::Refused(_) => Vec::new(),
    };
    if ranges.is_empty() { vec![nowhere] } else { ranges }
}

fn refusal(error: i32) -> u16 {
    u16::try_from(error).unwrap_or(u16::MAX)
}
