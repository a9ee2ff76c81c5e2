//! Progress of a link over a ring: executes received records, continues jobs, completes operations, and detects the peer's end. Called by
//! the rail for each of its links, inside its guard; every call is bounded.

use trunkline_fabric::{CompletionKind, OpStatus};

use crate::qp::{CompletionSink, LinkWire, RailContext, SoftQp};
use crate::qp_state::QueuePairState;
use crate::receive::{RecordProgress, RecordRefusal};
use crate::record::RingRecord;
use crate::ring::side;
use crate::tcp::{self, SocketEvents};

/// Most records taken from one link in a call, so that one link cannot starve the others of its rail.
const RECORDS: u32 = 64;
/// Most payload bytes moved for one link in a call, each way; the last record may exceed it.
const BYTES: u64 = 64 << 10;
/// Records after which this side publishes its position.
const PUBLISH: u64 = 16;
/// Polls without progress after which the peer's state is read. It is in a cache line that the peer writes, so reading it costs a miss.
const LOOK: u32 = 64;

impl SoftQp {
    /// Makes progress; stops early when the sink is full.
    #[inline]
    pub(crate) fn progress_link(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        if self.state == QueuePairState::Error {
            if !self.flushes.is_empty() {
                self.complete_flushes(env, sink);
            }
            return self.flush_out(env, sink);
        }
        if self.wire == LinkWire::Tcp {
            return tcp::progress_stream(self, env, sink);
        }
        let came = self.state.executes_requests() && self.take_in(env, sink);
        sink.moved |= came;
        if !self.flushes.is_empty() {
            self.complete_flushes(env, sink);
        }
        if self.has_work() {
            sink.moved |= self.pump_jobs(env, BYTES);
        }
        // Checked at once if completions are owed or the queue fills up, else rarely, because it reads cache lines that the peer writes.
        if self.signalled > 0 || self.flights.len() * 2 > self.depth {
            self.check_peer(env, sink);
        } else if came && self.state != QueuePairState::Drain {
            self.idle = 0;
        } else {
            self.idle += 1;
            if self.idle >= LOOK || self.state == QueuePairState::Drain {
                self.check_peer(env, sink);
            }
        }
        if self.failure.is_some() {
            self.flush_out(env, sink);
        } else if sink.count == 0
            && let Some(direct) = &mut self.direct
            && direct.has_pushes()
            && let Some(tx) = &self.tx
        {
            // Only in a poll without completions: otherwise the caller may have more to post first.
            direct.push_oldest(tx, env);
        }
    }

    #[inline]
    fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.replies.is_empty() || self.matcher.has_news()
    }

    /// Executes the records that have arrived; returns whether there were any.
    #[inline]
    fn take_in(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) -> bool {
        let mut records = 0;
        let mut bytes = 0u64;
        while !sink.is_full() && self.rx.is_ready() {
            let words = self.rx.read_record();
            match self.execute_words(env, &words, self.rx.inline_payload(), sink) {
                Ok(RecordProgress::Done) => {}
                Ok(RecordProgress::Waits) => {
                    self.draining = self.draining.saturating_sub(1);
                    break;
                }
                Err(refusal) => {
                    self.refuse_record(refusal, sink);
                    return true;
                }
            }
            self.rx.advance();
            records += 1;
            // All but small inline records are published at once, because their sender waits for the room.
            let large = (words[1] >> 16) & 0xff != 0;
            bytes = bytes.saturating_add(if large { RingRecord::payload_bytes(&words) } else { 128 });
            if large || RingRecord::awaits_ack(&words) || self.rx.unpublished_records() >= PUBLISH {
                self.rx.publish_consumed();
            }
            if self.draining > 0 {
                self.draining -= 1;
            }
            if records >= RECORDS || bytes >= BYTES {
                break;
            }
        }
        if records == 0 && self.rx.unpublished_records() > 0 {
            self.rx.publish_consumed();
        }
        records > 0
    }

    #[cold]
    pub(crate) fn refuse_record(&mut self, refusal: RecordRefusal, sink: &mut CompletionSink<'_>) {
        match refusal {
            RecordRefusal::Nak(nak) => {
                self.turn_down(nak, self.record_position());
                let status = crate::error::NakReason::status_of_code(nak.to_code());
                // A violation by the peer is the peer's failure, and flushes this side. A garbled record is reported here, too.
                let own = if matches!(status, OpStatus::Other(_)) { status } else { OpStatus::Flushed };
                self.fail_with(own, false, None);
            }
            RecordRefusal::Dead => self.fail_with(OpStatus::PeerDead, false, None),
            RecordRefusal::Receive { wr_id, status, nak } => {
                self.turn_down(nak, self.record_position());
                self.owed -= 1;
                self.push_failed(sink, self.make_completion(wr_id, CompletionKind::Received, status, 0));
                self.fail_with(OpStatus::Flushed, true, None);
            }
        }
    }

    pub(crate) fn complete_flushes(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        if env.shared.config.delayed_visibility {
            self.held.land_all(env.region_table());
        }
        while let Some(&(wr_id, signalled)) = self.flushes.front() {
            if signalled {
                if sink.is_full() {
                    return;
                }
                self.owed -= 1;
                sink.push(self.make_completion(wr_id, CompletionKind::Posted, OpStatus::Ok, 0));
            }
            self.flushes.pop();
        }
    }

    /// Completes the operations that the peer has executed, and fails the link if the peer refused a record or has ended.
    fn check_peer(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        self.idle = 0;
        let Some(tx) = &mut self.tx else { return };
        // A refusal first, because it limits which operations count as executed.
        if let Some((code, at)) = tx.peer_nak() {
            return self.fail_with(crate::error::NakReason::status_of_code(code), false, Some(at));
        }
        // Read before the rest, so that all records that the peer published before it ended are seen.
        let peer = tx.peer_state().max(self.rx.peer_state());
        if tx.refresh_acked().is_err() {
            return self.fail_with(OpStatus::Other(crate::error::UNKNOWN), false, None);
        }
        let executed = tx.acked_position();
        self.retire_ops(env, executed, sink);
        let drained = self.draining == 0 || !self.rx.is_ready();
        if self.state == QueuePairState::Drain {
            if drained {
                self.fail_with(OpStatus::PeerDead, false, None);
            }
        } else if peer != side::OPEN && !self.rx.is_ready() && !sink.is_full() {
            // A refusal is published before the state, so it is visible here.
            let nak = self.tx.as_ref().and_then(crate::ring::RingProducer::peer_nak);
            match nak {
                Some((code, at)) => {
                    self.fail_with(crate::error::NakReason::status_of_code(code), false, Some(at))
                }
                None => self.fail_with(OpStatus::Flushed, false, None),
            }
        }
    }

    /// Prepares a wait for the sockets of the rail. Returns true if any further progress of this link begins with bytes that its socket
    /// receives, or with a call of the owner. Acknowledgements that would have left with later frames leave now.
    pub(crate) fn arm_stream(&mut self, events: &SocketEvents) -> bool {
        match self.state {
            // Not connected: nothing can arrive.
            QueuePairState::Reset | QueuePairState::Init => return true,
            QueuePairState::ReadyToReceive | QueuePairState::Drain => return false,
            QueuePairState::ReadyToSend | QueuePairState::Error => {}
        }
        if self.wire != LinkWire::Tcp {
            return false;
        }
        let is_failed = self.state == QueuePairState::Error;
        let is_settled =
            if is_failed { self.is_quiet() } else { self.flushes.is_empty() && !self.has_work() };
        let Some(stream) = &mut self.stream else { return false };
        if is_failed {
            stream.unwatch_socket(events);
            return is_settled;
        }
        is_settled && stream.arm_socket(events)
    }

    /// Fails the link after the records that have already arrived are executed.
    pub(crate) fn start_drain(&mut self) {
        match self.state.transition_to(QueuePairState::Drain) {
            Some(state) => {
                self.state = state;
                self.draining = u64::from(self.rx.segment().geometry().slot_count());
            }
            None => self.fail_with(OpStatus::PeerDead, false, None),
        }
    }
}
