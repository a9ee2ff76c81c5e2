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

/// How many of the bytes of a payload that have come are executed now: of a write, those up to the last word of memory that is there
/// whole, as somebody may look at it meanwhile. Of a long one all: a part of a word that is kept back would have what follows come through
/// the buffer, too.
fn executable_bytes(env: &RailContext<'_>, stream: &LinkStream, record: &RingRecord) -> u64 {
    let come = stream.inbox().len() as u64;
    let left = record.payload.len();
    let RecordVerb::Write { key, addr } = record.verb else { return come.min(left) };
    let is_long = left > DIRECT && !stream.bugs.hoards.is_on();
    if come >= left || is_long || stream.bugs.tears.is_on() {
        return come.min(left);
    }
    // What is nowhere is refused by whoever executes it.
    let Some(place) = env.region_table().find_remote(key, addr, left, right::WRITE) else { return come };
    let begin = place.at.addr() as u64;
    ((begin + come) & !7).saturating_sub(begin)
}

impl SoftQp {
    /// One turn of a link over TCP.
    pub(crate) fn progress_stream(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        if self.state.executes_requests() {
            self.take_stream(env, sink);
        }
        if !self.flushes.is_empty() {
            self.complete_flushes(env, sink);
        }
        if self.failure.is_none() {
            sink.moved |= self.pump_jobs(env, BYTES);
            self.send_ack();
            self.complete_stream(env, sink);
        }
        if self.failure.is_some() {
            self.flush_out(env, sink);
        }
    }

    fn take_stream(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        // Apart from the rest of the queue pair, which executes what is in it.
        let Some(mut stream) = self.stream.take() else { return };
        let before = self.arrived;
        let taken = if stream.is_up() { self.take_frames(env, &mut stream, sink) } else { Ok(()) };
        self.idle = if self.arrived == before { self.idle.saturating_add(1) } else { 0 };
        sink.moved |= self.arrived != before;
        self.stream = Some(stream);
        if let Err(refusal) = taken {
            self.refuse_record(refusal, sink);
        }
    }

    fn take_frames(
        &mut self,
        env: &RailContext<'_>,
        stream: &mut LinkStream,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let mut frames = 0;
        let mut bytes = 0;
        stream.inc.quiet = false;
        while !sink.is_full() && frames < FRAMES && bytes < BYTES {
            if let Some(record) = stream.inc.current {
                let moved = self.take_payload(env, stream, &record, sink)?;
                if moved == 0 {
                    return Ok(());
                }
                bytes += moved;
                frames += u32::from(stream.inc.current.is_none());
            } else if let Some(head) = stream.inbox().first_chunk::<HEAD>() {
                let frame = TcpFrame::parse(head).ok_or(NakReason::Garbled)?;
                stream.consume_inbox(HEAD);
                frames += 1;
                self.take_head(env, stream, frame, sink)?;
            } else if stream.inc.quiet || stream.fill_inbox() == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes what a head says; its payload, if there is any, is the next to come.
    fn take_head(
        &mut self,
        env: &RailContext<'_>,
        stream: &mut LinkStream,
        frame: TcpFrame,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let out = &mut stream.out;
        if frame.executed.wrapping_sub(out.acked) > out.head.wrapping_sub(out.acked)
            && !stream.bugs.believes.is_on()
        {
            return Err(NakReason::Garbled.into());
        }
        (out.acked, out.peer_posted) = (frame.executed, frame.posted);
        match frame.body {
            FrameBody::Ack => {}
            FrameBody::Nak { code, at } => stream.inc.nak = Some((code, at)),
            FrameBody::Record(record) if record.payload.len() > 0 => {
                stream.inc.current = Some(record);
                let rest = record.payload.len().saturating_sub(stream.inbox().len() as u64);
                stream.inc.large = rest > HEAD as u64 * 8 && record.payload.len() > DIRECT;
            }
            FrameBody::Record(record) => {
                self.execute_record(env, &record, std::ptr::null(), sink)?;
                self.goes_on(stream, &record, 0);
            }
        }
        Ok(())
    }

    /// Takes what has come of a record's payload; how many bytes.
    fn take_payload(
        &mut self,
        env: &RailContext<'_>,
        stream: &mut LinkStream,
        record: &RingRecord,
        sink: &mut CompletionSink<'_>,
    ) -> Result<u64, RecordRefusal> {
        if stream.inbox().is_empty() {
            if stream.inc.quiet {
                return Ok(0);
            }
            if let Some(place) = self.direct_place(env, stream, record) {
                let most = record.payload.len().min(BYTES);
                // SAFETY: `direct` found so many bytes registered and allowed, inside the guard.
                let landed = unsafe { stream.read_to(place.at, most as usize) } as u64;
                if landed > 0 {
                    self.execute_record(env, &record_part(record, landed, true), std::ptr::null(), sink)?;
                    self.goes_on(stream, record, landed);
                }
                return Ok(landed);
            }
            stream.fill_inbox();
        }
        let mut len = executable_bytes(env, stream, record);
        if len == 0 && !stream.inc.quiet {
            stream.fill_inbox();
            len = executable_bytes(env, stream, record);
        }
        stream.inc.held = len == 0;
        if len > 0 {
            self.execute_record(env, &record_part(record, len, false), stream.inbox().as_ptr(), sink)?;
            stream.consume_inbox(len as usize);
            self.goes_on(stream, record, len);
        }
        Ok(len)
    }

    /// Where the rest of a long payload can be received to.
    fn direct_place(
        &mut self,
        env: &RailContext<'_>,
        stream: &mut LinkStream,
        record: &RingRecord,
    ) -> Option<CheckedPlace> {
        let left = record.payload.len();
        if left <= DIRECT {
            return None;
        }
        // Mapped bytes are written by copies alone.
        let found = self.landing_place(env, record, stream.bugs.write_right());
        let found = found.filter(|place| place.rights & right::MAPPED == 0);
        stream.bugs.landing_place(left, found)
    }

    /// So many bytes of a record were executed; after the last one, it is.
    fn goes_on(&mut self, stream: &mut LinkStream, record: &RingRecord, len: u64) {
        stream.inc.current = record_rest(record, len);
        if stream.inc.current.is_none() {
            self.arrived = self.arrived.wrapping_add(1);
            stream.set_executed(self.arrived);
            stream.out.awaited |= record.awaited;
            self.draining = self.draining.saturating_sub(1);
        }
    }

    /// Where all that is left of a record's payload goes, if that is known and allowed. What is not is found again, and
    /// refused, when the bytes are here.
    fn landing_place(
        &mut self,
        env: &RailContext<'_>,
        record: &RingRecord,
        write: u32,
    ) -> Option<CheckedPlace> {
        let left = record.payload.len();
        if env.shared.config.delayed_visibility {
            return None;
        }
        match record.verb {
            RecordVerb::Write { key, addr } => env.region_table().find_remote(key, addr, left, write),
            RecordVerb::Send { offset } => {
                let (receive, got) = self.arriving.or_else(|| Some((self.take_receive()?, 0)))?;
                self.arriving = Some((receive, got));
                let room = receive.into.len.checked_sub(got)?;
                let fits = got == offset && left <= room;
                fits.then(|| {
                    env.region_table().find_local(receive.into.key.0, receive.into.offset + got, left)
                })?
            }
            RecordVerb::Reply { id, offset } => {
                let wanted = self.wanted.front()?;
                let room = wanted.into.len.checked_sub(wanted.got)?;
                let fits = wanted.flight == id && wanted.got == offset && left <= room;
                fits.then(|| {
                    env.region_table().find_local(wanted.into.key.0, wanted.into.offset + wanted.got, left)
                })?
            }
            RecordVerb::Matched { grant, offset } => {
                let receive = self.matcher.find_receive(grant)?;
                let room = receive.into.len.checked_sub(receive.got)?;
                let (into, at) = (receive.into, receive.into.offset + receive.got);
                let fits = receive.got == offset && left <= room;
                fits.then(|| env.region_table().find_local(into.key.0, at, left))?
            }
            _ => None,
        }
    }

    /// Tells the peer how far this side is, if it should know and nothing else tells it.
    fn send_ack(&mut self) {
        let taken = self.posted.wrapping_sub(self.recvs.len());
        let Some(stream) = &mut self.stream else { return };
        // A peer's Nop waits for what came before it, although that did not ask to be acknowledged.
        let late = self.idle >= LOOK && stream.has_news();
        if stream.out.body == 0 && (late || stream.owes_ack(taken)) && !stream.bugs.silent.is_on() {
            stream.push(FrameBody::Ack, 0);
        }
        stream.write_buffer();
    }

    /// Sees how far the peer is, and whether it is still there.
    fn complete_stream(&mut self, env: &RailContext<'_>, sink: &mut CompletionSink<'_>) {
        let Some(stream) = &self.stream else { return };
        let executed = stream.acked_position();
        let idle = stream.is_idle();
        let ended = stream.inc.ended;
        if let Some((code, at)) = stream.inc.nak {
            return self.fail_with(NakReason::status_of_code(code), false, Some(at));
        }
        self.retire_ops(env, executed, sink);
        if self.state == QueuePairState::Drain {
            if (idle && !sink.is_full()) || self.draining == 0 {
                self.fail_with(OpStatus::PeerDead, false, None);
            }
        } else if ended && idle && !sink.is_full() {
            self.fail_with(OpStatus::Flushed, false, None);
        }
    }
}
