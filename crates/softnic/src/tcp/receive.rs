//! Executes received frames and drives the link: heads and small payload pass through a buffer, large payload is read straight to
//! its destination. Called by `poll`, inside the rail's guard; every call is bounded.

use super::frame::{BYTES as HEAD, FrameBody, TcpFrame};
use super::stream::LinkStream;
use crate::error::NakReason;
use crate::qp::{CompletionSink, RailContext, SoftQp};
use crate::qp_state::QueuePairState;
use crate::receive::RecordRefusal;
use crate::record::{RecordPayload, RecordVerb, RingRecord};
use crate::register::{CheckedPlace, right};
use trunkline_fabric::OpStatus;

/// Most frames taken from one link in a call, so that one link cannot starve the others of its rail.
const FRAMES: u32 = 64;
/// Most payload bytes moved for one link in a call, each way; the last system call may exceed it.
const BYTES: u64 = 256 << 10;

/// Payload of more bytes than this is received straight to its destination, unless it arrived with its head. Shorter payload passes through the
/// buffer, so that no reader sees a half-written word: readv(2) does not define in which pieces the kernel copies.
const DIRECT: u64 = 4 << 10;

/// Polls without a new record after which this side sends its position unrequested.
const LOOK: u32 = 64;

/// The part of a record that covers the next `len` of its bytes.
fn record_part(record: &RingRecord, len: u64, landed: bool) -> RingRecord {
    let last = record.last && len == record.payload.len();
    RingRecord { payload: RecordPayload::Streamed { len, landed }, last, ..*record }
}

/// Returns the part of a record after `len` of its bytes; `None` if none remains.
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

/// Returns the destination to which the rest of a long payload can be received directly.
fn direct_place(qp: &mut SoftQp, env: &RailContext<'_>, record: &RingRecord) -> Option<CheckedPlace> {
    if record.payload.len() <= DIRECT {
        return None;
    }
    // The kernel cannot write to write-combined mappings, so their bytes are copied from a buffer.
    qp.landing_place(env, record).filter(|place| place.rights & right::MAPPED == 0)
}

impl LinkStream {
    /// Executes frames until the socket has no more, the sink is full, or the turn is over. `qp`, whose stream this is, executes them.
    fn take_frames(
        &mut self,
        qp: &mut SoftQp,
        env: &RailContext<'_>,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let mut frames = 0;
        let mut bytes = 0;
        // Bytes may have arrived since the last turn, so the socket is read again.
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

    /// Processes a head; its payload, if any, follows in the stream.
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

    /// Takes the received bytes of a record's payload; returns how many.
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
                // SAFETY: `direct_place` found at least `most` bytes at `place` registered and writable, and the guard keeps them so.
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

    /// Returns how many received bytes of a payload are executed now. A write is executed in whole words of memory, because another
    /// thread may read them meanwhile. A long write is executed entirely: keeping back a part of a word would force the following bytes through
    /// the buffer, too.
    fn executable_bytes(&self, env: &RailContext<'_>, record: &RingRecord) -> u64 {
        let come = self.inbox().len() as u64;
        let left = record.payload.len();
        let RecordVerb::Write { key, addr } = record.verb else { return come.min(left) };
        if come >= left || left > DIRECT {
            return come.min(left);
        }
        // An address outside all regions is not an error here: the responder refuses it when it executes the record.
        let Some(place) = env.region_table().find_remote(key, addr, left, right::WRITE) else { return come };
        let begin = place.at.addr() as u64;
        ((begin + come) & !7).saturating_sub(begin)
    }

    /// Records that `len` bytes of a record were executed; after the last one, the record is.
    fn end_part(&mut self, qp: &mut SoftQp, record: &RingRecord, len: u64) {
        self.inc.current = record_rest(record, len);
        if self.inc.current.is_none() {
            self.set_executed(qp.end_streamed_record());
            self.out.awaited |= record.awaited;
        }
    }

    /// Sends the buffered bytes. Adds an acknowledgement if the peer needs this side's position and no other frame contains it. `taken` is
    /// the position after the last receive that was used up.
    fn send_ack(&mut self, taken: u64) {
        // A peer's Nop completes only after the records before it are acknowledged, although those did not request it.
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
    // Taken out for the call, because the queue pair executes the frames and would otherwise be borrowed twice.
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

/// Completes the operations that the peer has executed, and fails the link if the peer refused a record or has ended.
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
