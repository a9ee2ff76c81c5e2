//! Turns jobs into frames: small payload is copied behind its head, large payload goes to the socket straight from its
//! memory, in the same call as the heads before it.

use super::frame::Body;
use super::socket::Moved;
use super::stream::Stream;
use crate::job::{Job, Kind};
use crate::qp::Env;
use crate::record::Payload;
use crate::register::{Place, right};
use crate::send::{Step, advance, record, request, source};

/// Most payload bytes of a frame: after so many, other frames get their turn.
const FRAME: u64 = 1 << 20;
/// Payload up to this size is copied into the buffer: that is cheaper than to send it apart, and its memory is free.
const SMALL: u64 = 4096;

/// Payload that is copied at once where the socket is not to read its memory: bytes that the socket does not take are copied again.
const COPIED: usize = 16 << 10;

/// Emits as much of a job as fits. Call inside a guard if the job has a body.
#[inline]
pub(crate) fn transmit(stream: &mut Stream, env: &Env<'_>, job: &mut Job, budget: &mut u64) -> Step {
    let reply = matches!(job.kind, Kind::Reply { .. });
    if !reply {
        stream.begin(job.flight);
    }
    loop {
        if stream.out.body > 0 {
            if stream.out.of_reply != reply {
                return Step::Full;
            }
            match send_body(stream, env, job, budget) {
                Step::Done if job.sent == job.total => return Step::Done,
                Step::Done => continue,
                other => return other,
            }
        }
        if let Some(request) = request(job) {
            if !stream.push(Body::Record(request), 0) {
                return Step::Full;
            }
            job.started = true;
            return Step::Done;
        }
        if *budget == 0 {
            return Step::Spent;
        }
        match begin_frame(stream, env, job, reply) {
            Step::Done if stream.out.body == 0 && job.sent == job.total => return Step::Done,
            Step::Done => {}
            other => return other,
        }
    }
}

/// Puts the head of the next frame of a job into the buffer, and its payload behind it if that is small.
#[inline]
fn begin_frame(stream: &mut Stream, env: &Env<'_>, job: &mut Job, reply: bool) -> Step {
    let left = job.total - job.sent;
    let len = left.min(FRAME);
    let prefix = u64::from(job.prefix_len).saturating_sub(job.sent).min(len);
    let rest = len - prefix;
    let buffered = if rest <= SMALL { rest } else { 0 };
    let next = record(job, Payload::Streamed { len, landed: false }, len == left);
    if !stream.push(Body::Record(next), (prefix + buffered) as usize) {
        return Step::Full;
    }
    if prefix > 0 {
        let from = job.sent as usize;
        let Some(bytes) = job.prefix.get(from..from + prefix as usize) else { return Step::Bad };
        stream.room()[..bytes.len()].copy_from_slice(bytes);
        stream.add(bytes.len());
    }
    advance(job, prefix);
    if buffered > 0 {
        let Some(place) = source(env, job, buffered) else { return Step::Bad };
        let to = stream.room().as_mut_ptr();
        // SAFETY: `source` found the bytes registered, inside the guard; `push` found room for them.
        unsafe { env.table().copy_out(place, to, buffered as usize) };
        stream.add(buffered as usize);
        advance(job, buffered);
    } else if rest > 0 {
        (stream.out.body, stream.out.of_reply) = (rest, reply);
    }
    Step::Done
}

/// Gives the socket what it takes of the payload under way; done once all of the frame is out.
fn send_body(stream: &mut Stream, env: &Env<'_>, job: &mut Job, budget: &mut u64) -> Step {
    while stream.out.body > 0 {
        if *budget == 0 {
            return Step::Spent;
        }
        let len = stream.out.body;
        let Some(place) = stream.bugs.body(len, source(env, job, len)) else { return Step::Bad };
        let (moved, sent) = match place.rights & right::MAPPED {
            // SAFETY: `source` found the bytes registered, inside the guard.
            0 => unsafe { stream.write_with(place.at.cast_const(), len as usize) },
            _ => send_copied(stream, env, place, len),
        };
        advance(job, sent as u64);
        *budget = budget.saturating_sub(sent as u64);
        if !matches!(moved, Moved::Bytes(_)) {
            return Step::Full;
        }
    }
    Step::Done
}

/// Gives the socket a copy of the first bytes of a place, up to the number that it takes.
#[cold]
fn send_copied(stream: &mut Stream, env: &Env<'_>, place: Place, len: u64) -> (Moved, usize) {
    let mut buffer = [0; COPIED];
    let len = COPIED.min(len as usize);
    // SAFETY: the caller has looked up as many or more, inside the guard.
    unsafe { env.table().copy_out(place, buffer.as_mut_ptr(), len) };
    // SAFETY: as many were copied.
    unsafe { stream.write_with(buffer.as_ptr(), len) }
}
