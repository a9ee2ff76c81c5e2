//! Turns jobs into frames: small payload is copied behind its head, large payload is handed to the socket straight from its
//! memory, in the same call as the heads before it.

use super::frame::FrameBody;
use super::socket::MovedBytes;
use super::stream::LinkStream;
use crate::job::{JobKind, TransmitJob};
use crate::qp::RailContext;
use crate::record::RecordPayload;
use crate::register::{CheckedPlace, right};
use crate::send::{TransmitStep, advance_job, payload_record, request_record, source};

/// Most payload bytes of a frame, after which frames of other jobs can be sent.
const FRAME: u64 = 1 << 20;
/// Payload up to this size is copied into the buffer: that is cheaper than a separate element of sendmsg(2), and frees its source at once.
const SMALL: u64 = 4096;

/// Payload copied per call if the socket may not read its memory. Kept small, because bytes that the socket does not accept are copied again.
const COPIED: usize = 16 << 10;

/// Emits the part of a job that fits. Call inside a guard if the job has a body.
#[inline]
pub(crate) fn transmit_frames(
    stream: &mut LinkStream,
    env: &RailContext<'_>,
    job: &mut TransmitJob,
    budget: &mut u64,
) -> TransmitStep {
    let reply = matches!(job.kind, JobKind::Reply { .. });
    if !reply {
        stream.begin_op(job.flight);
    }
    loop {
        // Frames are not interleaved, so a payload that is being sent must be complete before the next head.
        if stream.out.body > 0 {
            if stream.out.of_reply != reply {
                return TransmitStep::Full;
            }
            match send_body(stream, env, job, budget) {
                TransmitStep::Done if job.sent == job.total => return TransmitStep::Done,
                TransmitStep::Done => continue,
                other => return other,
            }
        }
        if let Some(request) = request_record(job) {
            if !stream.push(FrameBody::Record(request), 0) {
                return TransmitStep::Full;
            }
            job.started = true;
            return TransmitStep::Done;
        }
        if *budget == 0 {
            return TransmitStep::Spent;
        }
        match begin_frame(stream, env, job, reply) {
            TransmitStep::Done if stream.out.body == 0 && job.sent == job.total => return TransmitStep::Done,
            TransmitStep::Done => {}
            other => return other,
        }
    }
}

/// Puts the head of the next frame of a job into the buffer, and its payload behind it if that is small.
#[inline]
fn begin_frame(
    stream: &mut LinkStream,
    env: &RailContext<'_>,
    job: &mut TransmitJob,
    reply: bool,
) -> TransmitStep {
    let left = job.total - job.sent;
    let len = left.min(FRAME);
    let prefix = u64::from(job.prefix_len).saturating_sub(job.sent).min(len);
    let rest = len - prefix;
    let buffered = if rest <= SMALL { rest } else { 0 };
    let next = payload_record(job, RecordPayload::Streamed { len, landed: false }, len == left);
    if !stream.push(FrameBody::Record(next), (prefix + buffered) as usize) {
        return TransmitStep::Full;
    }
    if prefix > 0 {
        let from = job.sent as usize;
        let Some(bytes) = job.prefix.get(from..from + prefix as usize) else { return TransmitStep::Bad };
        stream.free_buffer()[..bytes.len()].copy_from_slice(bytes);
        stream.commit_bytes(bytes.len());
    }
    advance_job(job, prefix);
    if buffered > 0 {
        let Some(place) = source(env, job, buffered) else { return TransmitStep::Bad };
        let to = stream.free_buffer().as_mut_ptr();
        // SAFETY: `source` found the bytes registered, inside the guard; `push` found room for them.
        unsafe { env.region_table().copy_out(place, to, buffered as usize) };
        stream.commit_bytes(buffered as usize);
        advance_job(job, buffered);
    } else if rest > 0 {
        (stream.out.body, stream.out.of_reply) = (rest, reply);
    }
    TransmitStep::Done
}

/// Hands the payload of the current frame to the socket, as far as it accepts it; done once the whole frame is sent.
fn send_body(
    stream: &mut LinkStream,
    env: &RailContext<'_>,
    job: &mut TransmitJob,
    budget: &mut u64,
) -> TransmitStep {
    while stream.out.body > 0 {
        if *budget == 0 {
            return TransmitStep::Spent;
        }
        let len = stream.out.body;
        let Some(place) = source(env, job, len) else { return TransmitStep::Bad };
        let (moved, sent) = match place.rights & right::MAPPED {
            // SAFETY: `source` found the bytes registered, inside the guard.
            0 => unsafe { stream.write_with(place.at.cast_const(), len as usize) },
            _ => send_copied(stream, env, place, len),
        };
        advance_job(job, sent as u64);
        *budget = budget.saturating_sub(sent as u64);
        if !matches!(moved, MovedBytes::Bytes(_)) {
            return TransmitStep::Full;
        }
    }
    TransmitStep::Done
}

/// Hands the socket a copy of the first bytes of a place, up to the number that it accepts.
#[cold]
fn send_copied(
    stream: &mut LinkStream,
    env: &RailContext<'_>,
    place: CheckedPlace,
    len: u64,
) -> (MovedBytes, usize) {
    let mut buffer = [0; COPIED];
    let len = COPIED.min(len as usize);
    // SAFETY: the caller has checked at least `len` bytes at `place`, inside the guard; the buffer holds `COPIED >= len` bytes.
    unsafe { env.region_table().copy_out(place, buffer.as_mut_ptr(), len) };
    // SAFETY: `len` bytes of the buffer were just written.
    unsafe { stream.write_with(buffer.as_ptr(), len) }
}
