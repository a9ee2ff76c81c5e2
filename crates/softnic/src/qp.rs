//! A queue pair: one end of a link, with everything that is posted on it. Driven by the rail's `post` and `poll`; it
//! never acts by itself.

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

/// How the two ends of a link move bytes; chosen at connect by the location of the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkWire {
    /// Both ends are in one fabric: large sources are named in place, and the target copies once.
    Mem,
    /// Same host: large sources are staged.
    Shm,
    /// Another host: there are no rings, but a stream of frames.
    Tcp,
}

/// The objects outside a queue pair that it works with.
pub(crate) struct RailContext<'a> {
    /// The fabric.
    pub(crate) shared: &'a SharedFabric,
    /// Number of the NIC the rail is on.
    pub(crate) nic: usize,
    /// The rail's own guard, which it has entered.
    pub(crate) guard: &'a RailGuard,
}

impl RailContext<'_> {
    /// The NIC's regions.
    #[inline]
    pub(crate) fn region_table(&self) -> &RegionTable {
        &self.shared.nics[self.nic].table
    }
}

/// Completions to be returned to the caller of `poll`.
pub(crate) struct CompletionSink<'a> {
    /// The caller's array.
    pub(crate) out: &'a mut [Completion],
    /// How many are filled.
    pub(crate) count: usize,
    /// Whether bytes were sent or received, which need not complete anything here.
    pub(crate) moved: bool,
}

impl CompletionSink<'_> {
    /// Whether it is full.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.out.len()
    }

    /// Adds one; the caller has checked [`CompletionSink::is_full`].
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) {
        if let Some(place) = self.out.get_mut(self.count) {
            *place = completion;
            self.count += 1;
        }
    }
}

/// Whether an operation completes only with a reply, in addition to its execution.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AnswerWait {
    /// No reply is needed.
    None,
    /// The reply has not arrived.
    Awaited,
    /// The reply has arrived.
    Had,
    /// No reply is needed: the receive of a matched send is too short for it.
    TooLong {
        /// Whether it was posted as signalled.
        owed: bool,
    },
}

/// A posted operation that has not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutstandingOp {
    /// The caller's number of the operation.
    pub(crate) wr_id: u64,
    /// Position after its last record, once all are written.
    pub(crate) end: u64,
    /// All records are written.
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

/// A read or atomic that waits for its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedAnswer {
    /// The flight.
    pub(crate) flight: u64,
    /// The destination of the reply.
    pub(crate) into: RegionExtent,
    /// Bytes placed.
    pub(crate) got: u64,
}

/// Why the queue pair is in error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpFailure {
    /// Status of the operation that failed; everything else is flushed.
    pub(crate) status: OpStatus,
    /// Whether a completion has reported it.
    pub(crate) told: bool,
    /// Operations whose records end here or before were executed.
    pub(crate) good: u64,
    /// All operations were returned.
    pub(crate) done: bool,
}

/// The names of a new queue pair.
pub(crate) struct QpNames {
    /// Names it to the process that dials it.
    pub(crate) token: DialToken,
    /// Lets the peer verify that its direct reads reach this process.
    pub(crate) proof: ProofWord,
    /// Its entry among the links made by this fabric.
    pub(crate) own: OwnLink,
    /// The listener at which it is dialled, if other hosts reach this NIC.
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
    /// Replaces the two rings on the wire to another host.
    pub(crate) stream: Option<Box<LinkStream>>,
    /// Position of the next record from the stream.
    pub(crate) arrived: u64,
    /// Names this end to the process that dials it.
    pub(crate) token: DialToken,
    /// Lets the peer verify that its direct reads reach this process.
    pub(crate) proof: ProofWord,
    /// Keeps the token registered among those of links made by this fabric.
    _own: OwnLink,
    /// The listener at which it is dialled, if other hosts reach this NIC.
    pub(crate) door: Option<Arc<LinkListener>>,
    pub(crate) wire: LinkWire,
    /// Copies directly between the two processes, where that is allowed.
    pub(crate) direct: Option<DirectCopier>,
    /// The measurements of copy methods towards this peer.
    pub(crate) chooser: LinkMethodChooser,
    pub(crate) start: u64,
    pub(crate) depth: u64,
    /// Posted operations, oldest first.
    pub(crate) flights: GrowingQueue<OutstandingOp>,
    /// Those of them that are not completely written.
    pub(crate) pending: GrowingQueue<TransmitJob>,
    /// Flushes, which concern only this side.
    pub(crate) flushes: GrowingQueue<(u64, bool)>,
    /// The posted receives.
    pub(crate) receives: ReceiveQueue,
    /// Sends that the peer has receives for.
    pub(crate) credit: SendCredit,
    /// Reads and atomics whose replies have not arrived.
    pub(crate) wanted: GrowingQueue<AwaitedAnswer>,
    /// Replies that this side owes the peer.
    pub(crate) replies: GrowingQueue<OwedReply>,
    pub(crate) matcher: LinkMatcher,
    /// Writes of the peer that are not visible yet, where visibility is delayed.
    pub(crate) held: HeldWrites,
    /// Bytes of the write that is arriving.
    pub(crate) written: u64,
    /// Completions owed to the caller.
    pub(crate) owed: u32,
    /// Of those, signalled flights.
    pub(crate) signalled: u32,
    /// Polls without progress.
    pub(crate) idle: u32,
    /// Time since when the oldest send waits for a receive.
    pub(crate) waiting: Option<std::time::Instant>,
    /// Records that are still executed before the link fails.
    pub(crate) draining: u64,
    pub(crate) failure: Option<QpFailure>,
    /// In error: the rails that may still be copying.
    readers: Option<GuardSnapshot>,
    /// Why and where this side refused a record of the peer.
    pub(crate) refused: Option<(u64, u64)>,
    /// The completion queue of its rail.
    pub(crate) cq: Arc<CompletionCounter>,
    /// The queue of the last wait at the front.
    pub(crate) awaited: AwaitedCounter,
}

impl SoftQp {
    /// Creates a queue pair in state Init.
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
            // The protocol can neither defer a peer's request nor restart one of this side, so room for all of them is allocated now.
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

    /// Frees memory that an idle link does not need. Returns whether nothing has arrived in the posted receives.
    pub(crate) fn trim_idle_memory(&mut self) -> bool {
        if let Some(tx) = &mut self.tx {
            tx.trim_idle_memory();
        }
        !self.receives.has_arriving()
    }

    /// Returns the number of outstanding operations, without receives.
    #[inline]
    pub(crate) fn outstanding_ops(&self) -> u64 {
        self.flights.len() + self.flushes.len() + self.matcher.sends.len() as u64
    }

    /// Whether posted work, apart from receives, would still produce a completion.
    pub(crate) fn owes_news(&self) -> bool {
        self.signalled > 0 || !self.flushes.is_empty() || !self.matcher.sends.is_empty()
    }

    /// Returns the number of operations, from the oldest one that has unsent parts, to the newest.
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

    /// Returns the number of operations that can be posted now.
    #[inline]
    pub(crate) fn post_credits(&self) -> u32 {
        if self.state != QueuePairState::ReadyToSend {
            return 0;
        }
        // The depth was given in 32 bits.
        self.depth.saturating_sub(self.outstanding_ops()) as u32
    }

    /// Puts the queue pair into error: the first operation that was not executed gets `status`, all later ones are
    /// flushed. `good` limits the operations that count as executed.
    pub(crate) fn fail_with(&mut self, status: OpStatus, told: bool, good: Option<u64>) {
        if self.failure.is_some() {
            return;
        }
        self.state = QueuePairState::Error;
        // Without an acknowledgement no record counts as executed.
        let mut executed = self.start;
        if let Some(tx) = &mut self.tx {
            // The last position that the peer published still counts. An invalid one is ignored, because the link fails anyway.
            let _ = tx.refresh_acked();
            executed = tx.acked_position();
            tx.publish_state(side::ERROR);
        }
        if let Some(stream) = &mut self.stream {
            executed = stream.acked_position();
            stream.end_stream(self.refused);
        }
        // After the refusal that `turn_down` may have published: the peer reads it once it sees this state.
        self.rx.publish_state(side::ERROR);
        self.failure = Some(QpFailure { status, told, good: good.unwrap_or(executed), done: false });
    }

    /// Returns the position of the record that is being executed.
    #[inline]
    pub(crate) fn record_position(&self) -> u64 {
        if self.wire == LinkWire::Tcp { self.arrived } else { self.rx.next() }
    }

    /// Refuses the record at a position; the caller fails the link next.
    pub(crate) fn turn_down(&mut self, nak: NakReason, at: u64) {
        self.refused = Some((nak.to_code(), at));
        self.rx.publish_nak(nak.to_code(), at);
    }

    /// Completes the operations that were executed, oldest first, as far as the sink has room.
    #[inline]
    pub(crate) fn retire_ops(&mut self, env: &RailContext<'_>, executed: u64, sink: &mut CompletionSink<'_>) {
        while let Some(flight) = self.flights.front() {
            // Positions wrap, so they are compared by their signed difference.
            let out = flight.sent && executed.wrapping_sub(flight.end) as i64 >= 0;
            if !out || flight.answer == AnswerWait::Awaited {
                return;
            }
            if flight.signalled {
                // It stays at the front until a later poll has room, because its completion must not be lost.
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
            // Reclaiming stops at a signalled operation, which must still complete.
            let out = flight.sent && executed.wrapping_sub(flight.end) as i64 >= 0;
            if !out || flight.signalled || flight.answer == AnswerWait::Awaited {
                return;
            }
            self.flights.pop();
        }
    }

    /// Creates a completion of this link.
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

    /// Adds a completion in error, and marks it in the counter for the links that wait for this queue.
    #[cold]
    pub(crate) fn push_failed(&self, sink: &mut CompletionSink<'_>, completion: Completion) {
        self.cq.mark_failed(sink.count);
        sink.push(completion);
    }

    /// Whether it is in error and has returned all its completions.
    pub(crate) fn is_quiet(&self) -> bool {
        self.failure.is_some_and(|failure| failure.done) && self.flushes.is_empty()
    }

    /// In error: whether the peer is still inside a copy from or to memory of this side.
    fn still_copied(&mut self) -> bool {
        self.direct.as_mut().is_some_and(DirectCopier::end_copies)
    }

    /// In error: whether another rail of this fabric may be copying bytes that this side has sent. A rail that begins later sees the error first.
    fn still_read(&mut self, env: &RailContext<'_>) -> bool {
        if self.wire != LinkWire::Mem {
            return false;
        }
        let readers = self.readers.get_or_insert_with(|| env.shared.guards.rails_inside(env.guard));
        !readers.all_left()
    }

    /// In error: completes all posted operations as flushed, as far as the sink has room.
    pub(crate) fn flush_out(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        let Some(mut failure) = self.failure else { return };
        if failure.done || self.still_copied() || self.still_read(env) {
            return;
        }
        self.retire_ops(env, failure.good, sink);
        while !sink.is_full() {
            // Each queue is returned in the order of posting, because owners rely on it.
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
            // No posted operation is left to report the failure, so a completion of its own does.
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
