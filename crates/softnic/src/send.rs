//! The requester and the writing half of the responder: turns jobs into records and staged bytes. Called by `post` for
//! the first part of an operation and by `poll` for what did not fit; never waits.

use trunkline_fabric::{Extent, LocalKey, Status};

use crate::direct::Direct;
use crate::job::{Body, Job, Kind, OwedReply};
use crate::method::Method;
use crate::qp::{Answer, Env, Flight, Qp, Wanted, Wire};
use crate::queue::Queue;
use crate::record::{INLINE, Payload, Record, Verb};
use crate::register::{Place, right};
use crate::ring::Producer;
use crate::tcp::{self, Stream};

/// Most bytes that one record names in place, so that a poll of the target stays short.
const PLACE: u64 = crate::claim::BYTES_MAX;
/// Bytes of a record that both sides copy: enough that a system call is a small part of it.
const SHARE: u64 = 256 << 10;
/// How much longer than usual the long segments are.
const LONG: u32 = 4;

/// How far a job came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// All of it is out.
    Done,
    /// The ring is full.
    Full,
    /// The budget of this call is used up.
    Spent,
    /// Its source is gone.
    Bad,
}

/// What the transmitter needs to know of a link besides its ring.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// The wire.
    pub(crate) wire: Wire,
    /// Bytes staged by one record.
    pub(crate) segment: u32,
}

/// Emits as much of a job as fits. Call inside a guard if the job has a body.
#[inline]
pub(crate) fn transmit(
    tx: &mut Producer,
    direct: &mut Option<Direct>,
    env: &Env<'_>,
    manner: Manner,
    job: &mut Job,
    budget: &mut u64,
) -> Step {
    loop {
        if !tx.has_room() {
            return Step::Full;
        }
        if let Some(request) = request(job) {
            tx.push(&request);
            job.started = true;
            return Step::Done;
        }
        let left = job.total - job.sent;
        if left <= INLINE as u64 {
            return if finish_inline(tx, env, job) { Step::Done } else { Step::Bad };
        }
        if *budget == 0 {
            return Step::Spent;
        }
        let prefix = u64::from(job.prefix_len);
        if job.sent < prefix {
            let from = job.sent as usize;
            let len = INLINE.min((prefix - job.sent) as usize);
            let record = record(job, Payload::Inline { len: len as u32 }, false);
            let Some(bytes) = job.prefix.get(from..from + len) else { return Step::Bad };
            // SAFETY: a slice of that length.
            unsafe { tx.push_inline(&record, bytes.as_ptr(), len) };
            advance(job, len as u64);
            continue;
        }
        let step = match (manner.wire, job.body) {
            (Wire::Mem, Body::Local { key, offset }) if !is_mapped(env, key) => {
                let len = left.min(PLACE);
                let offset = offset + (job.sent - prefix);
                // This side's keys mean something to the peer: both are in one fabric.
                let payload = Payload::Placed { nic: env.nic as u32, key, offset, len };
                tx.push(&record(job, payload, len == left));
                advance(job, len);
                *budget = budget.saturating_sub(4096);
                if len == left { Step::Done } else { continue }
            }
            (Wire::Shm, Body::Local { key, offset })
                if matches!(job.method, Method::Pulled | Method::Shared) && direct.is_some() =>
            {
                let Some(len) = name(tx, direct, env, job, (key, offset + (job.sent - prefix)), left) else {
                    return Step::Bad;
                };
                *budget = budget.saturating_sub(4096);
                if len == left { Step::Done } else { continue }
            }
            _ => match stage(tx, env, manner, job, left) {
                Ok(len) => {
                    *budget = budget.saturating_sub(len);
                    if len == left { Step::Done } else { continue }
                }
                Err(step) => step,
            },
        };
        return step;
    }
}

/// Names the next bytes of a job, in this side's memory at a local key and offset, for the target to copy; how many.
fn name(
    tx: &mut Producer,
    direct: &mut Option<Direct>,
    env: &Env<'_>,
    job: &mut Job,
    (key, offset): (u64, u64),
    left: u64,
) -> Option<u64> {
    let share = job.method == Method::Shared;
    let len = left.min(if share { SHARE } else { PLACE });
    let addr = source(env, job, len)?.at.expose_provenance() as u64;
    let shared = direct.as_mut()?.offer(tx.head(), key, offset, len, share);
    tx.pin();
    tx.push(&record(job, Payload::Pulled { addr, len, shared }, len == left));
    advance(job, len);
    Some(len)
}

/// Stages one segment.
#[inline]
fn stage(tx: &mut Producer, env: &Env<'_>, manner: Manner, job: &mut Job, left: u64) -> Result<u64, Step> {
    let long = if job.method == Method::StagedLong { LONG } else { 1 };
    let want = u32::try_from(left).unwrap_or(u32::MAX).min(manner.segment.saturating_mul(long));
    let (offset, len) = tx.stage(want).ok_or(Step::Full)?;
    let from = source(env, job, u64::from(len)).ok_or(Step::Bad)?;
    let last = u64::from(len) == left;
    if !(last && tx.drops_last()) {
        // SAFETY: `source` found the bytes registered, and the caller holds the guard; there is room for as many.
        tx.fill_by(offset, len, |to| unsafe { env.table().copy_out(from, to, len as usize) });
    }
    tx.push(&record(job, Payload::Staged { offset, len }, last));
    advance(job, u64::from(len));
    Ok(u64::from(len))
}

/// Emits the last record of a job, with all that is left inside it.
#[inline]
fn finish_inline(tx: &mut Producer, env: &Env<'_>, job: &mut Job) -> bool {
    let left = (job.total - job.sent) as usize;
    let from = job.sent as usize;
    let prefix = usize::from(job.prefix_len);
    let record = record(job, Payload::Inline { len: left as u32 }, true);
    if from + left <= prefix {
        // SAFETY: inside the prefix.
        let bytes = unsafe { job.prefix.as_ptr().add(from) };
        // SAFETY: `left` bytes from there are inside the prefix.
        unsafe { tx.push_inline(&record, bytes, left) };
    } else {
        let held = prefix.saturating_sub(from);
        let mut gathered = [0; INLINE];
        if held > 0 {
            gathered[..held].copy_from_slice(&job.prefix[from..prefix]);
        }
        job.sent += held as u64;
        let Some(place) = source(env, job, (left - held) as u64) else { return false };
        let to = gathered[held..].as_mut_ptr();
        // SAFETY: `source` found the bytes registered, and `left <= INLINE`.
        unsafe { env.table().copy_out(place, to, left - held) };
        // SAFETY: `left` bytes were gathered.
        unsafe { tx.push_inline(&record, gathered.as_ptr(), left) };
    }
    job.sent = job.total;
    job.started = true;
    true
}

/// Whether a region of this side is mapped write-combined, so that its bytes are copied before they are named.
#[inline]
fn is_mapped(env: &Env<'_>, key: u64) -> bool {
    env.table().local(key, 0, 0).is_some_and(|place| place.rights & right::MAPPED != 0)
}

/// The next `len` bytes of a job's body.
#[inline]
pub(crate) fn source(env: &Env<'_>, job: &Job, len: u64) -> Option<Place> {
    let done = job.sent - u64::from(job.prefix_len);
    match job.body {
        Body::Local { key, offset } => env.table().local(key, offset.checked_add(done)?, len),
        Body::Exposed { key, addr } => env.table().remote(key, addr.wrapping_add(done), len, right::READ),
    }
}

#[inline]
pub(crate) fn advance(job: &mut Job, len: u64) {
    job.sent += len;
    job.started = true;
}

/// The record for the next bytes of a job.
#[inline]
pub(crate) fn record(job: &Job, payload: Payload, last: bool) -> Record {
    let (verb, imm) = match job.kind {
        Kind::Write { to, imm } => (
            Verb::Write { key: to.key.0, addr: to.addr.wrapping_add(job.sent) },
            if last { imm } else { None },
        ),
        Kind::Send { imm } => (Verb::Send { offset: job.sent }, if last { imm } else { None }),
        Kind::Matched { grant } => (Verb::Matched { grant, offset: job.sent }, None),
        Kind::Reply { id } => (Verb::Reply { id, offset: job.sent }, None),
        // Requests have no bytes, see `request`.
        Kind::Read { .. }
        | Kind::Add { .. }
        | Kind::Swap { .. }
        | Kind::Decline { .. }
        | Kind::Nop
        | Kind::Wait { .. } => (Verb::Send { offset: 0 }, None),
    };
    Record { verb, payload, last, awaited: last && job.awaited, imm }
}

/// The only record of a job that carries no bytes.
#[inline]
pub(crate) fn request(job: &Job) -> Option<Record> {
    let id = job.flight;
    let verb = match job.kind {
        Kind::Read { from, len } => Verb::Read { key: from.key.0, addr: from.addr, len, id },
        Kind::Add { at, add } => Verb::Add { key: at.key.0, addr: at.addr, add, id },
        Kind::Swap { at, expect, swap } => Verb::Swap { key: at.key.0, addr: at.addr, expect, swap, id },
        Kind::Decline { grant } => Verb::Decline { grant },
        Kind::Write { .. }
        | Kind::Send { .. }
        | Kind::Matched { .. }
        | Kind::Reply { .. }
        | Kind::Nop
        | Kind::Wait { .. } => return None,
    };
    // Requests are answered, which says enough.
    let awaited = job.awaited && matches!(job.kind, Kind::Decline { .. });
    Some(Record { verb, payload: Payload::Inline { len: 0 }, last: true, awaited, imm: None })
}

/// See [`Qp::parts`].
pub(crate) struct Parts<'a> {
    out: Out<'a>,
    flights: &'a mut Queue<Flight>,
    wanted: &'a mut Queue<Wanted>,
    sends: &'a mut u64,
}

/// Where jobs go.
enum Out<'a> {
    /// Into the peer's ring.
    Ring(&'a mut Producer, &'a mut Option<Direct>, Manner),
    /// Into frames.
    Stream(&'a mut Stream),
}

impl Out<'_> {
    #[inline]
    fn transmit(&mut self, env: &Env<'_>, job: &mut Job, budget: &mut u64) -> Step {
        match self {
            Self::Ring(tx, direct, manner) => transmit(tx, direct, env, *manner, job, budget),
            Self::Stream(stream) => tcp::transmit(stream, env, job, budget),
        }
    }

    #[inline]
    fn head(&self) -> u64 {
        match self {
            Self::Ring(tx, ..) => tx.head(),
            Self::Stream(stream) => stream.head(),
        }
    }
}

/// The queues of jobs, to be used beside [`Parts`].
pub(crate) struct Queues<'a> {
    pending: &'a mut Queue<Job>,
    replies: &'a mut Queue<OwedReply>,
}

impl Parts<'_> {
    /// Emits what it can of a job that may begin or has begun, and books the result.
    #[inline]
    pub(crate) fn drive(&mut self, env: &Env<'_>, job: &mut Job, budget: &mut u64) -> Step {
        let before = job.started;
        let step = match job.kind {
            Kind::Nop => Step::Done,
            _ => self.out.transmit(env, job, budget),
        };
        if job.started && !before {
            if matches!(job.kind, Kind::Send { .. }) {
                *self.sends = self.sends.wrapping_add(1);
            }
            if let Some(into) = answer_place(job) {
                self.wanted.push(Wanted { flight: job.flight, into, got: 0 });
            }
        }
        if step == Step::Done
            && !matches!(job.kind, Kind::Reply { .. })
            && let Some(flight) = self.flights.get_mut(job.flight)
        {
            flight.end = self.out.head();
            flight.sent = true;
        }
        step
    }
}

impl Qp {
    /// Whether the next job may begin: a send needs a posted receive of the peer, a read a free place among the
    /// outstanding ones.
    #[inline]
    pub(crate) fn may_begin(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::Send { .. } => self.may_send(),
            Kind::Read { .. } | Kind::Add { .. } | Kind::Swap { .. } => !self.wanted.is_full(),
            _ => true,
        }
    }

    /// Whether the peer has a receive for one more send.
    #[inline]
    pub(crate) fn may_send(&mut self) -> bool {
        if self.sends == self.peer_posted {
            self.peer_posted = match (&self.tx, &self.stream) {
                (Some(tx), _) => tx.peer_posted(),
                (None, Some(stream)) => stream.peer_posted(),
                (None, None) => return false,
            };
        }
        self.sends != self.peer_posted
    }

    /// The parts that a job changes while it goes out, apart from the queues that hold it.
    #[inline]
    pub(crate) fn parts<'a>(&'a mut self, env: &Env<'_>) -> Option<(Parts<'a>, Queues<'a>)> {
        let manner = Manner { wire: self.wire, segment: env.shared.config.segment };
        let out = match &mut self.tx {
            Some(tx) => Out::Ring(tx, &mut self.direct, manner),
            None => Out::Stream(self.stream.as_mut()?),
        };
        let flights = &mut self.flights;
        let wanted = &mut self.wanted;
        let sends = &mut self.sends;
        let parts = Parts { out, flights, wanted, sends };
        Some((parts, Queues { pending: &mut self.pending, replies: &mut self.replies }))
    }

    /// Continues answers, grants and pending operations, in that order, by so many bytes at most; whether any went.
    #[inline]
    pub(crate) fn pump(&mut self, env: &Env<'_>, budget: u64) -> bool {
        let mut left = budget;
        self.pump_some(env, &mut left);
        left < budget
    }

    fn pump_some(&mut self, env: &Env<'_>, budget: &mut u64) {
        self.pump_replies(env, budget);
        self.pump_grants();
        while self.failure.is_none() {
            let Some(kind) = self.pending.front().map(|job| job.kind) else { return };
            let begun = self.pending.front().is_some_and(|job| job.started);
            if let Kind::Wait { cq, index } = kind
                && !self.end_wait(env, cq, index)
            {
                return;
            }
            if !begun && !self.may_begin(kind) {
                if matches!(kind, Kind::Send { .. }) {
                    self.receiver_not_ready(env);
                }
                return;
            }
            self.waiting = None;
            let Some((mut parts, queues)) = self.parts(env) else { return };
            let step = queues.pending.front_mut().map(|job| parts.drive(env, job, budget));
            match step {
                Some(Step::Done) => {
                    self.pending.pop();
                }
                Some(Step::Bad) => return self.fail_with(Status::LocalProtection, false, None),
                _ => return,
            }
        }
    }

    fn pump_replies(&mut self, env: &Env<'_>, budget: &mut u64) {
        while !self.replies.is_empty() {
            let Some((mut parts, queues)) = self.parts(env) else { return };
            let Some(reply) = queues.replies.front_mut() else { return };
            let mut job = reply.to_job();
            let step = parts.drive(env, &mut job, budget);
            reply.sent = job.sent;
            match step {
                Step::Done => {
                    self.replies.pop();
                }
                Step::Bad => {
                    let at = reply.at;
                    self.turn_down(crate::error::Nak::Access, at);
                    return self.fail_with(Status::Flushed, false, None);
                }
                Step::Full | Step::Spent => return,
            }
        }
    }

    fn pump_grants(&mut self) {
        while let Some((key, id)) = self.matcher.revoked() {
            if !self.push_bare(Verb::Revoke { key, id }) {
                return;
            }
            self.matcher.was_revoked();
        }
        while let Some(&id) = self.matcher.ungranted.front() {
            let Some(receive) = self.matcher.receive(id).copied() else {
                self.matcher.ungranted.pop_front();
                continue;
            };
            let verb = Verb::Grant { key: receive.key, len: receive.into.len, id };
            if !self.push_bare(verb) {
                return;
            }
            self.matcher.ungranted.pop_front();
        }
    }

    /// Sends a record that nobody waits for; false if there is no room.
    fn push_bare(&mut self, verb: Verb) -> bool {
        let payload = Payload::Inline { len: 0 };
        let record = Record { verb, payload, last: true, awaited: false, imm: None };
        let Some(tx) = &mut self.tx else {
            return self.stream.as_mut().is_some_and(|stream| stream.push_record(&record));
        };
        let room = tx.has_room();
        if room {
            tx.push(&record);
        }
        room
    }

    fn receiver_not_ready(&mut self, env: &Env<'_>) {
        let Some(limit) = env.shared.config.receiver_wait else { return };
        let since = *self.waiting.get_or_insert_with(std::time::Instant::now);
        if since.elapsed().as_nanos() > u128::from(limit.0) {
            self.fail_with(Status::ReceiverNotReady, false, None);
        }
    }
}

/// Where the answer to a request goes, which its job keeps in the body.
#[inline]
fn answer_place(job: &Job) -> Option<Extent> {
    let Body::Local { key, offset } = job.body else { return None };
    let len = match job.kind {
        Kind::Read { len, .. } => len,
        Kind::Add { .. } | Kind::Swap { .. } => 8,
        _ => return None,
    };
    Some(Extent { key: LocalKey(key), offset, len })
}

impl Answer {
    /// What an operation of a kind has to wait for.
    #[inline]
    pub(crate) fn to(kind: Kind) -> Self {
        match kind {
            Kind::Read { .. } | Kind::Add { .. } | Kind::Swap { .. } => Self::Awaited,
            _ => Self::None,
        }
    }
}
