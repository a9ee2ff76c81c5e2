//! A queue pair: one end of a link, with everything that is posted on it. Driven by the rail's `post` and `poll`; it
//! does nothing by itself.

use std::sync::Arc;

use trunkline_fabric::{Completion, CompletionKind, LinkId, OpStatus, RailConfig, RegionExtent};
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::time::Instant;

use crate::cq::{AwaitedCounter, CompletionCounter};
use crate::direct::DirectCopier;
use crate::error::NakReason;
use crate::guard::{GuardSnapshot, RailGuard};
use crate::hold::HeldWrites;
use crate::job::{OwedReply, TransmitJob};
use crate::matched::LinkMatcher;
use crate::method::LinkMethodChooser;
use crate::nic::{QueuePairSlot, SharedFabric};
use crate::own_links::OwnLink;
use crate::peer_memory::ProofWord;
use crate::qp_state::QueuePairState;
use crate::queue::GrowingQueue;
use crate::receive_queue::{ReceiveQueue, SendCredit};
use crate::register::RegionTable;
use crate::ring::{RingConsumer, RingProducer, side};
use crate::tcp::{DialToken, LinkListener, LinkStream};

/// How the two ends of a link move bytes; chosen at connect by who the peer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkWire {
    /// Both ends are in one fabric: large sources are named in place, and the target copies once.
    Mem,
    /// Same host: large sources are staged.
    Shm,
    /// Another host: there are no rings, but a stream of frames.
    Tcp,
}

/// What a queue pair works with besides itself.
pub(crate) struct RailContext<'a> {
    /// The fabric.
    pub(crate) shared: &'a SharedFabric,
    /// Number of the NIC the rail is on.
    pub(crate) nic: usize,
    /// The rail's own guard, in which it is.
    pub(crate) guard: &'a RailGuard,
}

impl RailContext<'_> {
    /// The NIC's regions.
    #[inline]
    pub(crate) fn region_table(&self) -> &RegionTable {
        &self.shared.nics[self.nic].table
    }
}

/// Completions on their way to the caller of `poll`.
pub(crate) struct CompletionSink<'a> {
    /// The caller's array.
    pub(crate) out: &'a mut [Completion],
    /// How many are filled.
    pub(crate) count: usize,
    /// Something has come or gone, which need not complete anything here.
    pub(crate) moved: bool,
}

impl CompletionSink<'_> {
    /// Whether no more fit.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.out.len()
    }

    /// Adds one; the caller has looked at [`CompletionSink::is_full`].
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
pub(crate) enum AnswerWait {
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
pub(crate) struct OutstandingOp {
    /// Of the operation.
    pub(crate) wr_id: u64,
    /// Position after its last record, once all are out.
    pub(crate) end: u64,
    /// All records are out.
    pub(crate) sent: bool,
    /// Completes even if it succeeds.
    pub(crate) signalled: bool,
    /// See [`AnswerWait`].
    pub(crate) answer: AnswerWait,
}

impl OutstandingOp {
    /// Whether its completion counts as owed.
    #[inline]
    fn is_owed(&self) -> bool {
        self.signalled && self.answer != AnswerWait::TooLong { owed: false }
    }
}

/// A read or atomic that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedAnswer {
    /// The flight.
    pub(crate) flight: u64,
    /// Where the answer goes.
    pub(crate) into: RegionExtent,
    /// Bytes placed.
    pub(crate) got: u64,
}

/// Why the queue pair went into error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpFailure {
    /// Of the operation that failed; everything else is flushed.
    pub(crate) status: OpStatus,
    /// Whether a completion has told it.
    pub(crate) told: bool,
    /// Operations whose records end here or before were executed.
    pub(crate) good: u64,
    /// Everything was given back.
    pub(crate) done: bool,
}

/// The names by which a new queue pair is known.
pub(crate) struct QpNames {
    /// Names it to a process that dials.
    pub(crate) token: DialToken,
    /// Shows its peer that it reads this process.
    pub(crate) proof: ProofWord,
    /// Its note among the links made here.
    pub(crate) own: OwnLink,
    /// Where it is dialled, if other hosts reach this NIC.
    pub(crate) door: Option<Arc<LinkListener>>,
}

/// One end of a link.
pub(crate) struct SoftQp {
    pub(crate) id: LinkId,
    pub(crate) number: u32,
    pub(crate) pipeline: u32,
    pub(crate) state: QueuePairState,
    pub(crate) rx: RingConsumer,
    pub(crate) tx: Option<RingProducer>,
    /// Instead of the two rings, on the wire to another host.
    pub(crate) stream: Option<Box<LinkStream>>,
    /// Position of the next record that comes by it.
    pub(crate) arrived: u64,
    /// Names this end to whoever dials.
    pub(crate) token: DialToken,
    /// Shows the peer that it reads this process.
    pub(crate) proof: ProofWord,
    /// Keeps the token among those of links made here.
    _own: OwnLink,
    /// Where that is, if other hosts reach this NIC.
    pub(crate) door: Option<Arc<LinkListener>>,
    pub(crate) wire: LinkWire,
    /// For copies straight between the two processes, where those are allowed.
    pub(crate) direct: Option<DirectCopier>,
    /// What was learned about copying to this peer.
    pub(crate) chooser: LinkMethodChooser,
    pub(crate) start: u64,
    pub(crate) depth: u64,
    /// Posted, oldest first.
    pub(crate) flights: GrowingQueue<OutstandingOp>,
    /// Of those, not yet all out.
    pub(crate) pending: GrowingQueue<TransmitJob>,
    /// Flushes, which concern only this side.
    pub(crate) flushes: GrowingQueue<(u64, bool)>,
    /// The posted receives.
    pub(crate) receives: ReceiveQueue,
    /// Sends that the peer has receives for.
    pub(crate) credit: SendCredit,
    /// Reads and atomics whose answers are to come.
    pub(crate) wanted: GrowingQueue<AwaitedAnswer>,
    /// Answers to the peer's.
    pub(crate) replies: GrowingQueue<OwedReply>,
    pub(crate) matcher: LinkMatcher,
    /// Jobs of matched sends, by flight, while they wait for a grant.
    pub(crate) held: HeldWrites,
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
    pub(crate) failure: Option<QpFailure>,
    /// In error: who may still be copying.
    readers: Option<GuardSnapshot>,
    /// Why and where this side refused a record of the peer.
    pub(crate) refused: Option<(u64, u64)>,
    /// The completion queue of its rail.
    pub(crate) cq: Arc<CompletionCounter>,
    /// The one that the last wait in front was for.
    pub(crate) awaited: AwaitedCounter,
}

impl SoftQp {
    /// A queue pair in state Init.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(
        id: LinkId,
        slot: QueuePairSlot,
        QpNames { token, proof, own, door }: QpNames,
        rx: RingConsumer,
        cq: Arc<CompletionCounter>,
        rail: &RailConfig,
        shared: &SharedFabric,
    ) -> Result<Self, OutOfMemory> {
        let start = rx.next();
        let reads = shared.config.max_reads;
        Ok(Self {
            id,
            number: slot.number,
            pipeline: slot.pipeline,
            state: QueuePairState::Reset.transition_to(QueuePairState::Init).unwrap_or(QueuePairState::Error),
            rx,
            tx: None,
            stream: None,
            arrived: start,
            token,
            proof,
            _own: own,
            door,
            wire: LinkWire::Shm,
            direct: None,
            chooser: LinkMethodChooser::new(),
            start,
            depth: u64::from(rail.depth),
            flights: GrowingQueue::new(rail.depth, start),
            pending: GrowingQueue::new(rail.depth, 0),
            flushes: GrowingQueue::new(rail.depth, 0),
            receives: ReceiveQueue::new(rail, start),
            credit: SendCredit::new(start),
            // There is no way to tell the peer to ask later, or this side to begin again: room for all is made now.
            wanted: GrowingQueue::with_all_room(reads)?,
            replies: GrowingQueue::with_all_room(reads)?,
            matcher: LinkMatcher::new(rail.recv_depth),
            held: HeldWrites::default(),
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
            awaited: AwaitedCounter::default(),
        })
    }

    /// Gives back memory that an idle link does not need; whether nothing has come into the posted receives.
    pub(crate) fn trim_idle_memory(&mut self) -> bool {
        if let Some(tx) = &mut self.tx {
            tx.trim_idle_memory();
        }
        !self.receives.has_arriving()
    }

    /// Operations outstanding, receives apart.
    #[inline]
    pub(crate) fn outstanding_ops(&self) -> u64 {
        self.flights.len() + self.flushes.len() + self.matcher.sends.len() as u64
    }

    /// Whether there is posted work, receives apart, that would still give a completion.
    pub(crate) fn owes_news(&self) -> bool {
        self.signalled > 0 || !self.flushes.is_empty() || !self.matcher.sends.is_empty()
    }

    /// Operations from the oldest one on of which something waits here.
    #[inline]
    pub(crate) fn unsent_ops(&self) -> u32 {
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
    pub(crate) fn post_credits(&self) -> u32 {
        if self.state != QueuePairState::ReadyToSend {
            return 0;
        }
        // The depth came from 32 bits.
        self.depth.saturating_sub(self.outstanding_ops()) as u32
    }

    /// Puts the queue pair into error: the first operation that was not executed gets `status`, all later ones are
    /// flushed. `good` limits what counts as executed.
    pub(crate) fn fail_with(&mut self, status: OpStatus, told: bool, good: Option<u64>) {
        if self.failure.is_some() {
            return;
        }
        self.state = QueuePairState::Error;
        let mut executed = self.start;
        if let Some(tx) = &mut self.tx {
            // What the peer published last still counts, unless it is nonsense.
            let _ = tx.refresh_acked();
            executed = tx.acked_position();
            tx.publish_state(side::ERROR);
        }
        if let Some(stream) = &mut self.stream {
            executed = stream.acked_position();
            stream.end_stream(self.refused);
        }
        self.rx.publish_state(side::ERROR);
        self.failure = Some(QpFailure { status, told, good: good.unwrap_or(executed), done: false });
    }

    /// Position of the record that is being executed.
    #[inline]
    pub(crate) fn record_position(&self) -> u64 {
        if self.wire == LinkWire::Tcp { self.arrived } else { self.rx.next() }
    }

    /// Refuses the record at a position; the link is to fail next.
    pub(crate) fn turn_down(&mut self, nak: NakReason, at: u64) {
        self.refused = Some((nak.to_code(), at));
        self.rx.publish_nak(nak.to_code(), at);
    }

    /// Gives back the operations that were executed, oldest first, as far as the sink takes them.
    #[inline]
    pub(crate) fn retire_ops(&mut self, env: &RailContext<'_>, executed: u64, sink: &mut CompletionSink<'_>) {
        while let Some(flight) = self.flights.front() {
            let out = flight.sent && executed.wrapping_sub(flight.end) as i64 >= 0;
            if !out || flight.answer == AnswerWait::Awaited {
                return;
            }
            if flight.signalled {
                if sink.is_full() {
                    return;
                }
                let ended = self.make_completion(flight.wr_id, CompletionKind::Posted, OpStatus::Ok, 0);
                match flight.answer {
                    AnswerWait::TooLong { .. } => {
                        self.push_failed(sink, Completion { status: OpStatus::TooLong, ..ended });
                    }
                    AnswerWait::None | AnswerWait::Awaited | AnswerWait::Had => sink.push(ended),
                }
                self.signalled -= 1;
                self.owed -= u32::from(flight.is_owed());
            }
            let first = self.flights.first_number();
            if self.chooser.is_oldest_timed(first) {
                self.chooser.record_completion(first, Instant(env.shared.elapsed_nanos()));
            }
            self.flights.pop();
        }
    }

    /// Drops unsignalled operations that were executed, to make room for new ones.
    #[inline]
    pub(crate) fn reclaim_ops(&mut self) {
        let executed = if let Some(tx) = &mut self.tx {
            if tx.peer_nak().is_some() || tx.refresh_acked().is_err() {
                return;
            }
            tx.acked_position()
        } else if let Some(stream) = &self.stream {
            stream.acked_position()
        } else {
            return;
        };
        while let Some(flight) = self.flights.front() {
            let out = flight.sent && executed.wrapping_sub(flight.end) as i64 >= 0;
            if !out || flight.signalled || flight.answer == AnswerWait::Awaited {
                return;
            }
            self.flights.pop();
        }
    }

    /// A completion on this link.
    #[inline]
    pub(crate) fn make_completion(
        &self,
        wr_id: u64,
        done: CompletionKind,
        status: OpStatus,
        len: u64,
    ) -> Completion {
        Completion { wr_id, link: self.id, done, status, imm: None, len }
    }

    /// Adds a completion that tells of an error, and lets the waits for it know.
    #[cold]
    pub(crate) fn push_failed(&self, sink: &mut CompletionSink<'_>, completion: Completion) {
        self.cq.mark_failed(sink.count);
        sink.push(completion);
    }

    /// Whether it is in error and has told all there is to tell.
    pub(crate) fn is_quiet(&self) -> bool {
        self.failure.is_some_and(|failure| failure.done) && self.flushes.is_empty()
    }

    /// In error: whether the peer is still inside a copy from or to memory of this side.
    fn still_copied(&mut self) -> bool {
        self.direct.as_mut().is_some_and(DirectCopier::end_copies)
    }

    /// In error: whether another rail of this fabric may be copying what this side has sent. It sees the error before it begins.
    fn still_read(&mut self, env: &RailContext<'_>) -> bool {
        if self.wire != LinkWire::Mem {
            return false;
        }
        let readers = self.readers.get_or_insert_with(|| env.shared.guards.rails_inside(env.guard));
        !readers.all_left()
    }

    /// In error: gives back everything posted, as far as the sink takes it.
    pub(crate) fn flush_out(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        let Some(mut failure) = self.failure else { return };
        if failure.done || self.still_copied() || self.still_read(env) {
            return;
        }
        self.retire_ops(env, failure.good, sink);
        while !sink.is_full() {
            let (wr_id, done, owed) = if let Some(flight) = self.flights.pop() {
                self.signalled -= u32::from(flight.signalled);
                (flight.wr_id, CompletionKind::Posted, flight.is_owed())
            } else if let Some(send) = self.matcher.sends.pop_front() {
                (send.wr_id, CompletionKind::Posted, send.signalled)
            } else if let Some((receive, _)) = self.receives.take_arriving() {
                (receive.wr_id, CompletionKind::Received, true)
            } else if let Some(receive) = self.receives.take_oldest() {
                (receive.wr_id, CompletionKind::Received, true)
            } else if let Some(receive) = self.matcher.flush_receive() {
                (receive.wr_id, CompletionKind::Received, true)
            } else {
                failure.done = true;
                break;
            };
            let status = if failure.told { OpStatus::Flushed } else { failure.status };
            failure.told = true;
            self.owed -= u32::from(owed);
            self.push_failed(sink, self.make_completion(wr_id, done, status, 0));
        }
        if failure.done && !failure.told && failure.status != OpStatus::Flushed {
            // Nothing was posted that could carry the news.
            if sink.is_full() {
                failure.done = false;
            } else {
                failure.told = true;
                self.push_failed(sink, self.make_completion(0, CompletionKind::Written, failure.status, 0));
            }
        }
        self.failure = Some(failure);
    }
}
