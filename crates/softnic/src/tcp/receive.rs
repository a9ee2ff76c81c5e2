//! Takes in what has come and keeps the link going: heads and small payload through a buffer, large payload straight to
//! where it belongs. Called by `poll`, inside the rail's guard; every call is bounded.

use super::frame::{BYTES as HEAD, FrameBody, TcpFrame};
use super::stream::LinkStream;
use crate::error::NakReason;
use crate::qp::{CompletionSink, RailContext, SoftQp};
use crate::qp_state::QueuePairState;
use crate::receive::RecordRefusal;
use crate::record::{RecordPayload, RecordVerb, RingRecord};
use crate::register::{CheckedPlace, right};
use trunkline_fabric::OpStatus;

/// Most frames taken from one link in a call.
const FRAMES: u32 = 64;
/// Most payload bytes moved for one link in a call, each way; the last system call may exceed it.
const BYTES: u64 = 256 << 10;

/// Payload of more than this is received straight to where it belongs, if it has not come with its head. What is shorter goes through the
/// buffer, so that no word of it is ever seen half written: of what the system copies there it does not say in which pieces.
const DIRECT: u64 = 4 << 10;

/// Polls without news after which the peer is told how far this side is, although it did not ask.
const LOOK: u32 = 64;

/// The part of a record that covers the next `len` of its bytes.
fn record_part(record: &RingRecord, len: u64, landed: bool) -> RingRecord {
    let last = record.last && len == record.payload.len();
    RingRecord { payload: RecordPayload::Streamed { len, landed }, last, ..*record }
}

/// What is left of a record after `len` of its bytes; `None` if nothing is.
fn record_rest(record: &RingRecord, len: u64) -> Option<RingRecord> {
    let left = record.payload.len() - len;
    let verb = match record.verb {
        RecordVerb::Write { key, addr } => RecordVerb::Write { key, addr: addr.wrapping_add(len) },
        RecordVerb::Send { offset } => RecordVerb::Send { offset: offset.wrapping_add(len) },
        RecordVerb::Reply { id, offset } => RecordVerb::Reply { id, offset: offset.wrapping_add(len) },
        RecordVerb::Matched { grant, offset } => {
            RecordVerb::Matched { grant, offset: offset.wrapping_add(len) }
        }
        request => request,
    };
    (left > 0).then_some(RingRecord {
        verb,
        payload: RecordPayload::Streamed { len: left, landed: false },
        ..*record
    })
}

/// Where the rest of a long payload can be received to.
fn direct_place(qp: &mut SoftQp, env: &RailContext<'_>, record: &RingRecord) -> Option<CheckedPlace> {
    if record.payload.len() <= DIRECT {
        return None;
    }
    // Mapped bytes are written by copies alone.
    qp.landing_place(env, record).filter(|place| place.rights & right::MAPPED == 0)
}

impl LinkStream {
    /// Takes in frames until the socket has no more, the sink is full, or the turn is over. `qp`, whose stream this is, executes them.
    fn take_frames(
        &mut self,
        qp: &mut SoftQp,
        env: &RailContext<'_>,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let mut frames = 0;
        let mut bytes = 0;
        self.inc.quiet = false;
        while !sink.is_full() && frames < FRAMES && bytes < BYTES {
            if let Some(record) = self.inc.current {
                let moved = self.take_payload(qp, env, &record, sink)?;
                if moved == 0 {
                    return Ok(());
                }
                bytes += moved;
                frames += u32::from(self.inc.current.is_none());
            } else if let Some(head) = self.inbox().first_chunk::<HEAD>() {
                let frame = TcpFrame::parse(head).ok_or(NakReason::Garbled)?;
                self.consume_inbox(HEAD);
                frames += 1;
                self.take_head(qp, env, frame, sink)?;
            } else if self.inc.quiet || self.fill_inbox() == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes in a head; its payload, if there is any, is the next to come.
    fn take_head(
        &mut self,
        qp: &mut SoftQp,
        env: &RailContext<'_>,
        frame: TcpFrame,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let out = &mut self.out;
        if frame.executed.wrapping_sub(out.acked) > out.head.wrapping_sub(out.acked) {
            return Err(NakReason::Garbled.into());
        }
        (out.acked, out.peer_posted) = (frame.executed, frame.posted);
        match frame.body {
            FrameBody::Ack => {}
            FrameBody::Nak { code, at } => self.inc.nak = Some((code, at)),
            FrameBody::Record(record) if record.payload.len() > 0 => {
                self.inc.current = Some(record);
                let rest = record.payload.len().saturating_sub(self.inbox().len() as u64);
                self.inc.large = rest > HEAD as u64 * 8 && record.payload.len() > DIRECT;
            }
            FrameBody::Record(record) => {
                qp.execute_record(env, &record, std::ptr::null(), sink)?;
                self.end_part(qp, &record, 0);
            }
        }
        Ok(())
    }

    /// Takes what has come of a record's payload; how many bytes.
    fn take_payload(
        &mut self,
        qp: &mut SoftQp,
        env: &RailContext<'_>,
        record: &RingRecord,
        sink: &mut CompletionSink<'_>,
    ) -> Result<u64, RecordRefusal> {
        if self.inbox().is_empty() {
            if self.inc.quiet {
                return Ok(0);
            }
            if let Some(place) = direct_place(qp, env, record) {
                let most = record.payload.len().min(BYTES);
                // SAFETY: `direct_place` found so many bytes registered and allowed, inside the guard.
                let landed = unsafe { self.read_to(place.at, most as usize) } as u64;
                if landed > 0 {
                    qp.execute_record(env, &record_part(record, landed, true), std::ptr::null(), sink)?;
                    self.end_part(qp, record, landed);
                }
                return Ok(landed);
            }
            self.fill_inbox();
        }
        let mut len = self.executable_bytes(env, record);
        if len == 0 && !self.inc.quiet {
            self.fill_inbox();
            len = self.executable_bytes(env, record);
        }
        self.inc.held = len == 0;
        if len > 0 {
            qp.execute_record(env, &record_part(record, len, false), self.inbox().as_ptr(), sink)?;
            self.consume_inbox(len as usize);
            self.end_part(qp, record, len);
        }
        Ok(len)
    }

    /// Returns how many received bytes of a payload are executed now. Of a write, these are whole words of memory alone, as another
    /// thread may read them meanwhile. Of a long one all: a part of a word that is kept back would have what follows come through
    /// the buffer, too.
    fn executable_bytes(&self, env: &RailContext<'_>, record: &RingRecord) -> u64 {
        let come = self.inbox().len() as u64;
        let left = record.payload.len();
        let RecordVerb::Write { key, addr } = record.verb else { return come.min(left) };
        if come >= left || left > DIRECT {
            return come.min(left);
        }
        // What is nowhere is refused by whoever executes it.
        let Some(place) = env.region_table().find_remote(key, addr, left, right::WRITE) else { return come };
        let begin = place.at.addr() as u64;
        ((begin + come) & !7).saturating_sub(begin)
    }

    /// Notes that `len` bytes of a record were executed; after the last one, the record is.
    fn end_part(&mut self, qp: &mut SoftQp, record: &RingRecord, len: u64) {
        self.inc.current = record_rest(record, len);
        if self.inc.current.is_none() {
            self.set_executed(qp.end_streamed_record());
            self.out.awaited |= record.awaited;
        }
    }

    /// Sends the waiting bytes, and with them the position of this side, if the peer should have it and no other frame contains it. `taken` is
    /// the position after the last receive that was used up.
    fn send_ack(&mut self, taken: u64) {
        // A peer's Nop waits for what came before it, although that did not ask to be acknowledged.
        let late = self.inc.idle >= LOOK && self.has_news();
        if self.out.body == 0 && (late || self.owes_ack(taken)) {
            self.push(FrameBody::Ack, 0);
        }
        self.write_buffer();
    }
}

/// Gives a link over TCP one turn: executes the frames that its stream has received, continues its jobs, and completes the operations that
/// the peer has executed. A queue pair over TCP calls it in each `poll`; it does nothing with a ring.
pub(crate) fn progress_stream(qp: &mut SoftQp, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
    if qp.state.executes_requests() {
        take_stream(qp, env, sink);
    }
    if !qp.flushes.is_empty() {
        qp.complete_flushes(env, sink);
    }
    if qp.failure.is_none() {
        sink.moved |= qp.pump_jobs(env, BYTES);
        let taken = qp.receives.taken_position();
        if let Some(stream) = &mut qp.stream {
            stream.send_ack(taken);
        }
        complete_stream(qp, env, sink);
    }
    if qp.failure.is_some() {
        qp.flush_out(env, sink);
    }
}

/// Executes the frames that the stream of a queue pair has received.
fn take_stream(qp: &mut SoftQp, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
    // Apart from the rest of the queue pair, which executes what is in it.
    let Some(mut stream) = qp.stream.take() else { return };
    let before = qp.arrived;
    let taken = if stream.is_up() { stream.take_frames(qp, env, sink) } else { Ok(()) };
    stream.inc.idle = if qp.arrived == before { stream.inc.idle.saturating_add(1) } else { 0 };
    sink.moved |= qp.arrived != before;
    qp.stream = Some(stream);
    if let Err(refusal) = taken {
        qp.refuse_record(refusal, sink);
    }
}

/// Sees how far the peer is, and whether it is still there.
fn complete_stream(qp: &mut SoftQp, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
    let Some(stream) = &qp.stream else { return };
    let executed = stream.acked_position();
    let idle = stream.is_idle();
    let ended = stream.inc.ended;
    if let Some((code, at)) = stream.inc.nak {
        return qp.fail_with(NakReason::status_of_code(code), false, Some(at));
    }
    qp.retire_ops(env, executed, sink);
    if qp.state == QueuePairState::Drain {
        if (idle && !sink.is_full()) || qp.draining == 0 {
            qp.fail_with(OpStatus::PeerDead, false, None);
        }
    } else if ended && idle && !sink.is_full() {
        qp.fail_with(OpStatus::Flushed, false, None);
    }
}
