//! A queue pair: one end of a link, with everything that is posted on it. Driven by the rail's `post` and `poll`; it
//! does nothing by itself.

use std::sync::Arc;

use trunkline_fabric::{Completion, Done, Extent, LinkId, RailConfig, RecvOrder, Status};
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::time::Instant;

use crate::cq::Cq;
use crate::direct::Direct;
use crate::error::{Nak, Planted};
use crate::guard::{Guard, Inside};
use crate::hold::Held;
use crate::job::{Job, OwedReply};
use crate::ladder::State;
use crate::matched::Matcher;
use crate::method::Chooser;
use crate::nic::{Berth, Shared};
use crate::own_links::OwnLink;
use crate::peer_memory::ProofWord;
use crate::queue::Queue;
use crate::register::Table;
use crate::ring::{Consumer, Producer, side};
use crate::tcp::{Door, Stream, Token};

/// How the two ends of a link move bytes; chosen at connect by who the peer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wire {
    /// Both ends are in one fabric: large sources are named in place, and the target copies once.
    Mem,
    /// Same host: large sources are staged.
    Shm,
    /// Another host: there are no rings, but a stream of frames.
    Tcp,
}

/// What a queue pair works with besides itself.
pub(crate) struct Env<'a> {
    /// The fabric.
    pub(crate) shared: &'a Shared,
    /// Number of the NIC the rail is on.
    pub(crate) nic: usize,
    /// The rail's own guard, in which it is.
    pub(crate) guard: &'a Guard,
}

impl Env<'_> {
    /// The NIC's regions.
    #[inline]
    pub(crate) fn table(&self) -> &Table {
        &self.shared.nics[self.nic].table
    }
}

/// Completions on their way to the caller of `poll`.
pub(crate) struct Sink<'a> {
    /// The caller's array.
    pub(crate) out: &'a mut [Completion],
    /// How many are filled.
    pub(crate) count: usize,
    /// Something has come or gone, which need not complete anything here.
    pub(crate) moved: bool,
}

impl Sink<'_> {
    /// Whether no more fit.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.out.len()
    }

    /// Adds one; the caller has looked at [`Sink::is_full`].
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) {
        if let Some(place) = self.out.get_mut(self.count) {
            *place = completion;
            self.count += 1;
        }
    }
}

/// Whether an operation waits for an answer besides being executed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// None is needed.
    None,
    /// Not yet here.
    Awaited,
    /// Here.
    Had,
    /// None is needed: the receive of a matched send is too short for it.
    TooLong {
        /// Its completion was asked for.
        owed: bool,
    },
}

/// A posted operation that has not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Position after its last record, once all are out.
    pub(crate) end: u64,
    /// All records are out.
    pub(crate) sent: bool,
    /// Completes even if it succeeds.
    pub(crate) signalled: bool,
    /// See [`Answer`].
    pub(crate) answer: Answer,
}

impl Flight {
    /// Whether its completion counts as owed.
    #[inline]
    fn is_owed(&self) -> bool {
        self.signalled && self.answer != Answer::TooLong { owed: false }
    }
}

/// A read or atomic that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The flight.
    pub(crate) flight: u64,
    /// Where the answer goes.
    pub(crate) into: Extent,
    /// Bytes placed.
    pub(crate) got: u64,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Where the bytes go.
    pub(crate) into: Extent,
}

/// Why the queue pair went into error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// Of the operation that failed; everything else is flushed.
    pub(crate) status: Status,
    /// Whether a completion has told it.
    pub(crate) told: bool,
    /// Operations whose records end here or before were executed.
    pub(crate) good: u64,
    /// Everything was given back.
    pub(crate) done: bool,
}

/// The names by which a new queue pair is known.
pub(crate) struct Names {
    /// Names it to a process that dials.
    pub(crate) token: Token,
    /// Shows its peer that it reads this process.
    pub(crate) proof: ProofWord,
    /// Its note among the links made here.
    pub(crate) own: OwnLink,
    /// Where it is dialled, if other hosts reach this NIC.
    pub(crate) door: Option<Arc<Door>>,
}

/// One end of a link.
pub(crate) struct Qp {
    pub(crate) id: LinkId,
    pub(crate) number: u32,
    pub(crate) pipeline: u32,
    pub(crate) state: State,
    pub(crate) rx: Consumer,
    pub(crate) tx: Option<Producer>,
    /// Instead of the two rings, on the wire to another host.
    pub(crate) stream: Option<Box<Stream>>,
    /// Position of the next record that comes by it.
    pub(crate) arrived: u64,
    /// Names this end to whoever dials.
    pub(crate) token: Token,
    /// Shows the peer that it reads this process.
    pub(crate) proof: ProofWord,
    /// Keeps the token among those of links made here.
    _own: OwnLink,
    /// Where that is, if other hosts reach this NIC.
    pub(crate) door: Option<Arc<Door>>,
    pub(crate) wire: Wire,
    /// For copies straight between the two processes, where those are allowed.
    pub(crate) direct: Option<Direct>,
    /// What was learned about copying to this peer.
    pub(crate) chooser: Chooser,
    pub(crate) start: u64,
    pub(crate) depth: u64,
    /// Posted, oldest first.
    pub(crate) flights: Queue<Flight>,
    /// Of those, not yet all out.
    pub(crate) pending: Queue<Job>,
    /// Flushes, which concern only this side.
    pub(crate) flushes: Queue<(u64, bool)>,
    /// Posted receives.
    pub(crate) recvs: Queue<Receive>,
    /// Which of them takes a send.
    newest_first: bool,
    /// All receives posted so far.
    pub(crate) posted: u64,
    /// Sends begun so far.
    pub(crate) sends: u64,
    /// Receives the peer had posted, as last seen.
    pub(crate) peer_posted: u64,
    /// Reads and atomics whose answers are to come.
    pub(crate) wanted: Queue<Wanted>,
    /// Answers to the peer's.
    pub(crate) replies: Queue<OwedReply>,
    pub(crate) matcher: Matcher,
    /// Jobs of matched sends, by flight, while they wait for a grant.
    pub(crate) held: Held,
    /// The send that is arriving: its receive and the bytes placed.
    pub(crate) arriving: Option<(Receive, u64)>,
    /// Bytes of the write that is arriving.
    pub(crate) written: u64,
    /// Completions owed to the caller.
    pub(crate) owed: u32,
    /// Of those, signalled flights.
    pub(crate) signalled: u32,
    /// Polls without news.
    pub(crate) idle: u32,
    /// Since when the oldest send waits for a receive.
    pub(crate) waiting: Option<std::time::Instant>,
    /// Records still taken from a link that is to fail.
    pub(crate) draining: u64,
    pub(crate) failure: Option<Failure>,
    /// In error: who may still be copying.
    readers: Option<Inside>,
    /// Why and where this side refused a record of the peer.
    pub(crate) refused: Option<(u64, u64)>,
    /// The completion queue of its rail.
    pub(crate) cq: Arc<Cq>,
    /// The one that the last wait in front was for.
    pub(crate) awaited: Option<Arc<Cq>>,
}

impl Qp {
    /// A queue pair in state Init.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(
        (id, berth): (LinkId, Berth),
        Names { token, proof, own, door }: Names,
        rx: Consumer,
        cq: Arc<Cq>,
        rail: &RailConfig,
        shared: &Shared,
    ) -> Result<Self, OutOfMemory> {
        let start = rx.next();
        let reads = shared.config.max_reads;
        Ok(Self {
            id,
            number: berth.number,
            pipeline: berth.pipeline,
            state: State::Reset.step(State::Init).unwrap_or(State::Error),
            rx,
            tx: None,
            stream: None,
            arrived: start,
            token,
            proof,
            _own: own,
            door,
            wire: Wire::Shm,
            direct: None,
            chooser: Chooser::new(),
            start,
            depth: u64::from(rail.depth),
            flights: Queue::new(rail.depth, start),
            pending: Queue::new(rail.depth, 0),
            flushes: Queue::new(rail.depth, 0),
            recvs: Queue::new(rail.recv_depth, 0),
            newest_first: newest_first(rail.recv_order),
            posted: start,
            sends: start,
            peer_posted: start,
            // There is no way to tell the peer to ask later, or this side to begin again: room for all is made now.
            wanted: Queue::whole(reads)?,
            replies: Queue::whole(reads)?,
            matcher: Matcher::new(rail.recv_depth),
            held: Held::default(),
            arriving: None,
            written: 0,
            owed: 0,
            signalled: 0,
            idle: 0,
            waiting: None,
            draining: 0,
            failure: None,
            readers: None,
            refused: None,
            cq,
            awaited: None,
        })
    }

    /// The posted receive that takes the next send.
    #[inline]
    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        if self.newest_first { self.recvs.pop_newest() } else { self.recvs.pop() }
    }

    /// Gives back memory that an idle link does not need; whether nothing has come into the posted receives.
    pub(crate) fn rest(&mut self) -> bool {
        if let Some(tx) = &mut self.tx {
            tx.rest();
        }
        self.arriving.is_none()
    }

    /// Operations outstanding, receives apart.
    #[inline]
    pub(crate) fn outstanding(&self) -> u64 {
        self.flights.len() + self.flushes.len() + self.matcher.sends.len() as u64
    }

    /// Whether there is posted work, receives apart, that would still give a completion.
    pub(crate) fn owes_news(&self) -> bool {
        self.signalled > 0 || !self.flushes.is_empty() || !self.matcher.sends.is_empty()
    }

    /// Operations from the oldest one on of which something waits here.
    #[inline]
    pub(crate) fn unsent(&self) -> u32 {
        let next = self.flights.next();
        let pending = self.pending.front().map_or(0, |job| next.wrapping_sub(job.flight));
        let buffered = match &self.stream {
            Some(stream) if stream.has_unsent() => next.wrapping_sub(stream.first_unsent()),
            _ => 0,
        };
        if self.failure.is_some() {
            return 0;
        }
        // At most the depth, which has 32 bits.
        pending.max(buffered) as u32
    }

    /// Operations that can be posted now.
    #[inline]
    pub(crate) fn credits(&self) -> u32 {
        if self.state != State::ReadyToSend {
            return 0;
        }
        // The depth came from 32 bits.
        self.depth.saturating_sub(self.outstanding()) as u32
    }

    /// Puts the queue pair into error: the first operation that was not executed gets `status`, all later ones are
    /// flushed. `good` limits what counts as executed.
    pub(crate) fn fail_with(&mut self, status: Status, told: bool, good: Option<u64>) {
        if self.failure.is_some() {
            return;
        }
        self.state = State::Error;
        let mut executed = self.start;
        if let Some(tx) = &mut self.tx {
            // What the peer published last still counts, unless it is nonsense.
            let _ = tx.refresh();
            executed = tx.acked();
            tx.publish_state(side::ERROR);
        }
        if let Some(stream) = &mut self.stream {
            executed = stream.acked();
            stream.end(self.refused);
        }
        self.rx.publish_state(side::ERROR);
        self.failure = Some(Failure { status, told, good: good.unwrap_or(executed), done: false });
    }

    /// Position of the record that is being executed.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        if self.wire == Wire::Tcp { self.arrived } else { self.rx.next() }
    }

    /// Refuses the record at a position; the link is to fail next.
    pub(crate) fn turn_down(&mut self, nak: Nak, at: u64) {
        self.refused = Some((nak.code(), at));
        self.rx.refuse(nak.code(), at);
    }

    /// Gives back the operations that were executed, oldest first, as far as the sink takes them.
    #[inline]
    pub(crate) fn retire(&mut self, env: &Env<'_>, executed: u64, sink: &mut Sink<'_>) {
        while let Some(flight) = self.flights.front() {
            let out = flight.sent && executed.wrapping_sub(flight.end) as i64 >= 0;
            if !out || flight.answer == Answer::Awaited {
                return;
            }
            if flight.signalled {
                if sink.is_full() {
                    return;
                }
                let ended = self.completion(flight.wr_id, Done::Posted, Status::Ok, 0);
                match flight.answer {
                    Answer::TooLong { .. } => {
                        self.push_failed(sink, Completion { status: Status::TooLong, ..ended });
                    }
                    Answer::None | Answer::Awaited | Answer::Had => sink.push(ended),
                }
                self.signalled -= 1;
                self.owed -= u32::from(flight.is_owed());
            }
            let first = self.flights.first();
            if self.chooser.awaits(first) {
                self.chooser.completed(first, Instant(env.shared.nanos()));
            }
            self.flights.pop();
        }
    }

    /// Drops unsignalled operations that were executed, to make room for new ones.
    #[inline]
    pub(crate) fn reclaim(&mut self) {
        let executed = if let Some(tx) = &mut self.tx {
            if tx.nak().is_some() || tx.refresh().is_err() {
                return;
            }
            tx.acked()
        } else if let Some(stream) = &self.stream {
            stream.acked()
        } else {
            return;
        };
        while let Some(flight) = self.flights.front() {
            let out = flight.sent && executed.wrapping_sub(flight.end) as i64 >= 0;
            if !out || flight.signalled || flight.answer == Answer::Awaited {
                return;
            }
            self.flights.pop();
        }
    }

    /// A completion on this link.
    #[inline]
    pub(crate) fn completion(&self, wr_id: u64, done: Done, status: Status, len: u64) -> Completion {
        Completion { wr_id, link: self.id, done, status, imm: None, len }
    }

    /// Adds a completion that tells of an error, and lets the waits for it know.
    #[cold]
    pub(crate) fn push_failed(&self, sink: &mut Sink<'_>, completion: Completion) {
        self.cq.fail(sink.count);
        sink.push(completion);
    }

    /// Whether it is in error and has told all there is to tell.
    pub(crate) fn is_quiet(&self) -> bool {
        self.failure.is_some_and(|failure| failure.done) && self.flushes.is_empty()
    }

    /// In error: whether another rail of this fabric may be copying what this side has sent. It sees the error before it begins.
    fn still_read(&mut self, env: &Env<'_>) -> bool {
        if self.wire != Wire::Mem {
            return false;
        }
        let readers = self.readers.get_or_insert_with(|| env.shared.guards.inside(env.guard));
        !readers.all_left()
    }

    /// In error: gives back everything posted, as far as the sink takes it.
    pub(crate) fn flush_out(&mut self, env: &Env<'_>, sink: &mut Sink<'_>) {
        let Some(mut failure) = self.failure else { return };
        if failure.done || self.still_used() || self.still_read(env) {
            return;
        }
        self.retire(env, failure.good, sink);
        while !sink.is_full() {
            let (wr_id, done, owed) = if let Some(flight) = self.flights.pop() {
                self.signalled -= u32::from(flight.signalled);
                (flight.wr_id, Done::Posted, flight.is_owed())
            } else if let Some(send) = self.matcher.sends.pop_front() {
                (send.wr_id, Done::Posted, send.signalled)
            } else if let Some((receive, _)) = self.arriving.take() {
                (receive.wr_id, Done::Received, true)
            } else if let Some(receive) = self.recvs.pop() {
                (receive.wr_id, Done::Received, true)
            } else if let Some(receive) = self.matcher.flush_receive() {
                (receive.wr_id, Done::Received, true)
            } else {
                failure.done = true;
                break;
            };
            let status = if failure.told { Status::Flushed } else { failure.status };
            failure.told = true;
            self.owed -= u32::from(owed);
            self.push_failed(sink, self.completion(wr_id, done, status, 0));
        }
        if failure.done && !failure.told && failure.status != Status::Flushed {
            // Nothing was posted that could carry the news.
            if sink.is_full() {
                failure.done = false;
            } else {
                failure.told = true;
                self.push_failed(sink, self.completion(0, Done::Written, failure.status, 0));
            }
        }
        self.failure = Some(failure);
    }
}

/// Whether the receive posted last takes the next send.
fn newest_first(order: RecvOrder) -> bool {
    let always = Planted::named("soft-receives-newest-first").is_on();
    let never = Planted::named("soft-receives-oldest-first").is_on();
    (order == RecvOrder::Any || always) && !never
}
