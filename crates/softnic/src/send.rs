//! The requester and the writing half of the responder: records posted operations, and turns jobs into records and staged bytes. Called by
//! `post` for the first part of an operation and by `poll` for the rest; never waits.

use trunkline_fabric::{LocalKey, OpStatus, PostError, RegionExtent};
use trunkline_proto::chooser;
use trunkline_proto::time::Instant;

use crate::config::CopyMode;
use crate::cq::WaitOutlook;
use crate::direct::DirectCopier;
use crate::job::{JobBody, JobKind, OwedReply, TransmitJob};
use crate::matched::{MatchedReceive, ReceiveGrant, UnmatchedSend};
use crate::method::{AllowedMethods, SoftCopyMethod};
use crate::qp::{AnswerWait, AwaitedAnswer, LinkWire, OutstandingOp, RailContext, SoftQp};
use crate::qp_state::QueuePairState;
use crate::queue::GrowingQueue;
use crate::receive_queue::{PostedRecv, SendCredit};
use crate::record::{INLINE, RecordPayload, RecordVerb, RingRecord};
use crate::register::{CheckedPlace, right};
use crate::ring::RingProducer;
use crate::tcp::{self, LinkStream};

/// Most bytes that `post` itself moves, which bounds its duration; `poll` moves the rest.
const POST_BYTES: u64 = 512 << 10;
/// Most bytes that one record names in place, so that a poll of the target stays short.
const PLACE: u64 = crate::copy_claim::BYTES_MAX;
/// Bytes of a record that both sides copy: enough that a system call is a small part of it.
const SHARE: u64 = 256 << 10;
/// Factor by which long segments exceed usual ones.
const LONG: u32 = 4;

/// Progress of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TransmitStep {
    /// All of it is sent.
    Done,
    /// The ring is full.
    Full,
    /// The budget of this call is used up.
    Spent,
    /// Its source is no longer registered.
    Bad,
}

/// The parameters of a link that the transmitter needs in addition to its ring.
#[derive(Clone, Copy)]
pub(crate) struct TransmitConfig {
    /// The wire.
    pub(crate) wire: LinkWire,
    /// Bytes staged by one record.
    pub(crate) segment: u32,
}

/// Emits the part of a job that fits. Call inside a guard if the job has a body.
#[inline]
pub(crate) fn transmit_records(
    tx: &mut RingProducer,
    direct: &mut Option<DirectCopier>,
    env: &RailContext<'_>,
    manner: TransmitConfig,
    job: &mut TransmitJob,
    budget: &mut u64,
) -> TransmitStep {
    loop {
        if !tx.has_room() {
            return TransmitStep::Full;
        }
        if let Some(request) = request_record(job) {
            tx.push(&request);
            job.started = true;
            return TransmitStep::Done;
        }
        let left = job.total - job.sent;
        // The last bytes are sent inline if they fit: they need no room in the payload ring, and lie in the slot that the target reads anyway.
        if left <= INLINE as u64 {
            return if finish_inline(tx, env, job) { TransmitStep::Done } else { TransmitStep::Bad };
        }
        // Only payload is charged to the budget, because a request or an inline record costs no more than its slot.
        if *budget == 0 {
            return TransmitStep::Spent;
        }
        let prefix = u64::from(job.prefix_len);
        // The prefix lies in the job and not in a region, so the target cannot read it directly: it is sent in inline records.
        if job.sent < prefix {
            let from = job.sent as usize;
            let len = INLINE.min((prefix - job.sent) as usize);
            let record = payload_record(job, RecordPayload::Inline { len: len as u32 }, false);
            let Some(bytes) = job.prefix.get(from..from + len) else { return TransmitStep::Bad };
            // SAFETY: a slice of that length.
            unsafe { tx.push_inline(&record, bytes.as_ptr(), len) };
            advance_job(job, len as u64);
            continue;
        }
        // Bytes of a write-combined region are staged instead, because only the copy functions of the region table may read them.
        let step = match (manner.wire, job.body) {
            (LinkWire::Mem, JobBody::Local { key, offset }) if !is_mapped(env, key) => {
                let len = left.min(PLACE);
                let offset = offset + (job.sent - prefix);
                // The peer can resolve this side's keys, because both are in one fabric.
                let payload = RecordPayload::Placed { nic: env.nic as u32, key, offset, len };
                tx.push(&payload_record(job, payload, len == left));
                advance_job(job, len);
                // Charged as one page, because the copy itself is the target's work.
                *budget = budget.saturating_sub(4096);
                if len == left { TransmitStep::Done } else { continue }
            }
            (LinkWire::Shm, JobBody::Local { key, offset })
                if matches!(job.method, SoftCopyMethod::Pulled | SoftCopyMethod::Shared)
                    && direct.is_some() =>
            {
                let offset = offset + (job.sent - prefix);
                let Some(len) = name_source(tx, direct, env, job, key, offset, left) else {
                    return TransmitStep::Bad;
                };
                *budget = budget.saturating_sub(4096);
                if len == left { TransmitStep::Done } else { continue }
            }
            _ => match stage_segment(tx, env, manner, job, left) {
                Ok(len) => {
                    *budget = budget.saturating_sub(len);
                    if len == left { TransmitStep::Done } else { continue }
                }
                Err(step) => step,
            },
        };
        return step;
    }
}

/// Emits a record that names the next bytes of a job, in this side's memory, for the target to copy; returns how many.
fn name_source(
    tx: &mut RingProducer,
    direct: &mut Option<DirectCopier>,
    env: &RailContext<'_>,
    job: &mut TransmitJob,
    key: u64,
    offset: u64,
    left: u64,
) -> Option<u64> {
    let share = job.method == SoftCopyMethod::Shared;
    let len = left.min(if share { SHARE } else { PLACE });
    let addr = source(env, job, len)?.at.expose_provenance() as u64;
    // The pin is added before the record is published, because the peer may read the memory as soon as it sees the record.
    let shared = direct.as_mut()?.offer_record(tx.head_position(), key, offset, len, share);
    tx.pin_next();
    tx.push(&payload_record(job, RecordPayload::Pulled { addr, len, shared }, len == left));
    advance_job(job, len);
    Some(len)
}

/// Stages one segment.
#[inline]
fn stage_segment(
    tx: &mut RingProducer,
    env: &RailContext<'_>,
    manner: TransmitConfig,
    job: &mut TransmitJob,
    left: u64,
) -> Result<u64, TransmitStep> {
    let long = if job.method == SoftCopyMethod::StagedLong { LONG } else { 1 };
    let want = u32::try_from(left).unwrap_or(u32::MAX).min(manner.segment.saturating_mul(long));
    let (offset, len) = tx.stage_payload(want).ok_or(TransmitStep::Full)?;
    let from = source(env, job, u64::from(len)).ok_or(TransmitStep::Bad)?;
    let last = u64::from(len) == left;
    // SAFETY: `source` found the bytes registered, and the caller holds the guard; `stage_payload` found `len` bytes of room.
    tx.fill_by(offset, len, |to| unsafe { env.region_table().copy_out(from, to, len as usize) });
    tx.push(&payload_record(job, RecordPayload::Staged { offset, len }, last));
    advance_job(job, u64::from(len));
    Ok(u64::from(len))
}

/// Emits the last record of a job, with all its remaining bytes inside.
#[inline]
fn finish_inline(tx: &mut RingProducer, env: &RailContext<'_>, job: &mut TransmitJob) -> bool {
    let left = (job.total - job.sent) as usize;
    let from = job.sent as usize;
    let prefix = usize::from(job.prefix_len);
    let record = payload_record(job, RecordPayload::Inline { len: left as u32 }, true);
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
        // `source` counts from `job.sent`, which must therefore be past the prefix.
        job.sent += held as u64;
        let Some(place) = source(env, job, (left - held) as u64) else { return false };
        let to = gathered[held..].as_mut_ptr();
        // SAFETY: `source` found the bytes registered, and `left <= INLINE`.
        unsafe { env.region_table().copy_out(place, to, left - held) };
        // SAFETY: `left` bytes were gathered.
        unsafe { tx.push_inline(&record, gathered.as_ptr(), left) };
    }
    job.sent = job.total;
    job.started = true;
    true
}

/// Whether a region of this side is mapped write-combined, so that its bytes are copied before they are named.
#[inline]
fn is_mapped(env: &RailContext<'_>, key: u64) -> bool {
    env.region_table().find_local(key, 0, 0).is_some_and(|place| place.rights & right::MAPPED != 0)
}

/// Returns the place of the next `len` bytes of a job's body.
#[inline]
pub(crate) fn source(env: &RailContext<'_>, job: &TransmitJob, len: u64) -> Option<CheckedPlace> {
    let done = job.sent - u64::from(job.prefix_len);
    match job.body {
        JobBody::Local { key, offset } => env.region_table().find_local(key, offset.checked_add(done)?, len),
        JobBody::Exposed { key, addr } => {
            env.region_table().find_remote(key, addr.wrapping_add(done), len, right::READ)
        }
    }
}

#[inline]
pub(crate) fn advance_job(job: &mut TransmitJob, len: u64) {
    job.sent += len;
    job.started = true;
}

/// Creates the record for the next bytes of a job.
#[inline]
pub(crate) fn payload_record(job: &TransmitJob, payload: RecordPayload, last: bool) -> RingRecord {
    // Only the last record carries the immediate: the target completes the write with it once all bytes are placed.
    let (verb, imm) = match job.kind {
        JobKind::Write { to, imm } => (
            RecordVerb::Write { key: to.key.0, addr: to.addr.wrapping_add(job.sent) },
            if last { imm } else { None },
        ),
        JobKind::Send { imm } => (RecordVerb::Send { offset: job.sent }, if last { imm } else { None }),
        JobKind::Matched { grant } => (RecordVerb::Matched { grant, offset: job.sent }, None),
        JobKind::Reply { id } => (RecordVerb::Reply { id, offset: job.sent }, None),
        // Requests have no bytes, see `request_record`.
        JobKind::Read { .. }
        | JobKind::Add { .. }
        | JobKind::Swap { .. }
        | JobKind::Decline { .. }
        | JobKind::Nop
        | JobKind::Wait { .. } => (RecordVerb::Send { offset: 0 }, None),
    };
    RingRecord { verb, payload, last, awaited: last && job.awaited, imm }
}

/// Creates the only record of a job that carries no bytes.
#[inline]
pub(crate) fn request_record(job: &TransmitJob) -> Option<RingRecord> {
    // The reply returns this number, by which it finds its operation.
    let id = job.flight;
    let verb = match job.kind {
        JobKind::Read { from, len } => RecordVerb::Read { key: from.key.0, addr: from.addr, len, id },
        JobKind::Add { at, add } => RecordVerb::Add { key: at.key.0, addr: at.addr, add, id },
        JobKind::Swap { at, expect, swap } => {
            RecordVerb::Swap { key: at.key.0, addr: at.addr, expect, swap, id }
        }
        JobKind::Decline { grant } => RecordVerb::Decline { grant },
        JobKind::Write { .. }
        | JobKind::Send { .. }
        | JobKind::Matched { .. }
        | JobKind::Reply { .. }
        | JobKind::Nop
        | JobKind::Wait { .. } => return None,
    };
    // A request needs no acknowledgement, because its reply confirms it.
    let awaited = job.awaited && matches!(job.kind, JobKind::Decline { .. });
    Some(RingRecord { verb, payload: RecordPayload::Inline { len: 0 }, last: true, awaited, imm: None })
}

/// See [`SoftQp::transmit_parts`].
pub(crate) struct TransmitParts<'a> {
    out: TransmitTarget<'a>,
    flights: &'a mut GrowingQueue<OutstandingOp>,
    wanted: &'a mut GrowingQueue<AwaitedAnswer>,
    credit: &'a mut SendCredit,
}

/// The destination of jobs.
enum TransmitTarget<'a> {
    /// Into the peer's ring.
    Ring(&'a mut RingProducer, &'a mut Option<DirectCopier>, TransmitConfig),
    /// Into frames.
    Stream(&'a mut LinkStream),
}

impl TransmitTarget<'_> {
    #[inline]
    fn transmit_job(
        &mut self,
        env: &RailContext<'_>,
        job: &mut TransmitJob,
        budget: &mut u64,
    ) -> TransmitStep {
        match self {
            Self::Ring(tx, direct, manner) => transmit_records(tx, direct, env, *manner, job, budget),
            Self::Stream(stream) => tcp::transmit_frames(stream, env, job, budget),
        }
    }

    #[inline]
    fn head_position(&self) -> u64 {
        match self {
            Self::Ring(tx, ..) => tx.head_position(),
            Self::Stream(stream) => stream.head_position(),
        }
    }
}

/// The queues of jobs, to be used beside [`TransmitParts`].
pub(crate) struct JobQueues<'a> {
    pending: &'a mut GrowingQueue<TransmitJob>,
    replies: &'a mut GrowingQueue<OwedReply>,
}

impl TransmitParts<'_> {
    /// Emits the records of a job that may begin or has begun, as far as there is room, and records the result.
    #[inline]
    pub(crate) fn drive_job(
        &mut self,
        env: &RailContext<'_>,
        job: &mut TransmitJob,
        budget: &mut u64,
    ) -> TransmitStep {
        let before = job.started;
        let step = match job.kind {
            JobKind::Nop => TransmitStep::Done,
            _ => self.out.transmit_job(env, job, budget),
        };
        if job.started && !before {
            // Counted when the first record is written and not when the send is posted: only then does it use up a receive of the peer.
            if matches!(job.kind, JobKind::Send { .. }) {
                self.credit.count_sends(1);
            }
            // Replies arrive in the order of the requests, so this queue is filled in the order in which requests are sent.
            if let Some(into) = answer_place(job) {
                self.wanted.push(AwaitedAnswer { flight: job.flight, into, got: 0 });
            }
        }
        // The end is known only now, because the number of records depends on the room that each of them found.
        if step == TransmitStep::Done
            && !matches!(job.kind, JobKind::Reply { .. })
            && let Some(flight) = self.flights.get_mut(job.flight)
        {
            flight.end = self.out.head_position();
            flight.sent = true;
        }
        step
    }
}

impl SoftQp {
    /// Posts a receive.
    #[inline]
    pub(crate) fn post_receive(&mut self, receive: PostedRecv) -> Result<(), PostError> {
        if !self.state.takes_receives() {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        if !self.receives.post_receive(receive) {
            return Err(PostError::Busy);
        }
        let posted = self.receives.posted_position();
        self.rx.publish_posted(posted);
        if let Some(stream) = &mut self.stream {
            stream.set_posted(posted);
        }
        Ok(())
    }

    /// Posts a matched receive.
    #[inline]
    pub(crate) fn post_matched_receive(&mut self, receive: MatchedReceive) -> Result<(), PostError> {
        if !self.state.takes_receives() {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        if self.matcher.post_receive(receive) { Ok(()) } else { Err(PostError::Busy) }
    }

    /// Posts a flush.
    #[inline]
    pub(crate) fn post_flush(&mut self, wr_id: u64, signalled: bool) -> Result<(), PostError> {
        // A flush needs no peer.
        if self.state != QueuePairState::Error {
            self.prepare_post()?;
        }
        if self.flushes.push((wr_id, signalled)) { Ok(()) } else { Err(PostError::Busy) }
    }

    /// Makes room for one more operation, or returns the reason why there is none.
    #[inline(always)]
    fn prepare_post(&mut self) -> Result<(), PostError> {
        if self.state != QueuePairState::ReadyToSend {
            // An unconnected link returns `Busy` and not an error, because the same post succeeds later.
            let before = matches!(self.state, QueuePairState::Init | QueuePairState::ReadyToReceive);
            return Err(if before { PostError::Busy } else { PostError::Refused(OpStatus::Flushed) });
        }
        if self.outstanding_ops() >= self.depth {
            // Unsignalled operations have no completion, so `poll` may not have freed their slots yet.
            self.reclaim_ops();
            if self.outstanding_ops() >= self.depth {
                return Err(PostError::Busy);
            }
        }
        // Matched sends become operations like the others when their grants arrive, and then need room, too.
        let more = 1 + self.matcher.sends.len() as u64;
        if !self.flights.make_room(more) || !self.pending.make_room(more) {
            return Err(PostError::Busy);
        }
        Ok(())
    }

    /// Writes the record of a small write or send, of at most [`INLINE`] bytes, if no operation is queued before it and there is room. Returns
    /// false if it must be posted as a job.
    #[inline(always)]
    pub(crate) fn post_small(
        &mut self,
        wr_id: u64,
        verb: RecordVerb,
        bytes: &[u8],
        imm: Option<u32>,
        signalled: bool,
    ) -> Result<bool, PostError> {
        self.prepare_post()?;
        let sends = matches!(verb, RecordVerb::Send { .. });
        // A small operation must not overtake queued ones, and a send needs a posted receive of the peer.
        if !self.pending.is_empty() || (sends && !self.may_send()) {
            return Ok(false);
        }
        let Some(tx) = &mut self.tx else { return Ok(false) };
        if !tx.has_room() {
            return Ok(false);
        }
        let payload = RecordPayload::Inline { len: bytes.len() as u32 };
        let record = RingRecord { verb, payload, last: true, awaited: signalled, imm };
        // SAFETY: a slice of at most INLINE bytes.
        unsafe { tx.push_inline(&record, bytes.as_ptr(), bytes.len()) };
        let end = tx.head_position();
        self.credit.count_sends(u64::from(sends));
        self.flights.push(OutstandingOp { wr_id, end, sent: true, signalled, answer: AnswerWait::None });
        self.signalled += u32::from(signalled);
        Ok(true)
    }

    /// Posts a matched send.
    #[inline]
    pub(crate) fn post_matched(
        &mut self,
        env: &RailContext<'_>,
        send: UnmatchedSend,
    ) -> Result<(), PostError> {
        self.prepare_post()?;
        if self.matcher.sends.try_reserve(1).is_err() {
            return Err(PostError::Busy);
        }
        match self.matcher.take_grant(send.key) {
            Some(grant) => self.release_matched(env, send, grant),
            None => self.matcher.sends.push_back(send),
        }
        self.pump_jobs(env, POST_BYTES);
        Ok(())
    }

    /// Cancels a matched operation. Returns by how many completions less the queue pair owes then, or `None` if there is no such operation.
    #[inline]
    pub(crate) fn take_back(&mut self, wr_id: u64) -> Option<u32> {
        let owed = match self.matcher.take_send_back(wr_id) {
            Some(send) => u32::from(send.signalled),
            None if self.matcher.take_receive_back(wr_id) => 1,
            None => return None,
        };
        self.owed -= owed;
        Some(owed)
    }

    /// Turns a matched send that has its grant into an ordinary operation.
    pub(crate) fn release_matched(
        &mut self,
        env: &RailContext<'_>,
        send: UnmatchedSend,
        grant: ReceiveGrant,
    ) {
        if send.job.total > grant.len {
            return self.decline_send(&send, grant);
        }
        let mut job = send.job;
        job.kind = JobKind::Matched { grant: grant.id };
        job.flight = self.take_off(send.wr_id, send.signalled, AnswerWait::None);
        job.awaited = send.signalled;
        job.method = self.choose_method(env, &job, send.signalled);
        self.pending.push(job);
    }

    /// Declines a matched send that is longer than its receive: both complete with an error, and the link stays usable.
    #[cold]
    fn decline_send(&mut self, send: &UnmatchedSend, grant: ReceiveGrant) {
        let mut job = TransmitJob::new(JobKind::Decline { grant: grant.id }, 0);
        // It completes even if it was not signalled, because a failure always has a completion.
        job.flight = self.take_off(send.wr_id, true, AnswerWait::TooLong { owed: send.signalled });
        job.awaited = true;
        self.pending.push(job);
    }

    /// Records an operation as outstanding; returns its number.
    #[inline]
    fn take_off(&mut self, wr_id: u64, signalled: bool, answer: AnswerWait) -> u64 {
        let flight = self.flights.next();
        self.flights.push(OutstandingOp { wr_id, end: 0, sent: false, signalled, answer });
        self.signalled += u32::from(signalled);
        flight
    }

    /// Posts a wait for a completion queue.
    // Not inlined, so that it costs the others nothing.
    #[inline(never)]
    pub(crate) fn post_wait(
        &mut self,
        env: &RailContext<'_>,
        wr_id: u64,
        signalled: bool,
        cq: u64,
        index: u64,
    ) -> Result<(), PostError> {
        // Checked first, so that an unknown queue is refused even if the link's own queue is full.
        self.awaited.check_wait(&env.shared.cqs, env.nic, cq)?;
        self.prepare_post()?;
        let mut job = TransmitJob::new(JobKind::Wait { cq, index }, 0);
        job.flight = self.take_off(wr_id, signalled, AnswerWait::None);
        self.pending.push(job);
        self.pump_jobs(env, POST_BYTES);
        Ok(())
    }

    /// Posts an operation by its job.
    #[inline]
    pub(crate) fn post_job(
        &mut self,
        env: &RailContext<'_>,
        wr_id: u64,
        signalled: bool,
        mut job: TransmitJob,
    ) -> Result<(), PostError> {
        self.prepare_post()?;
        job.flight = self.take_off(wr_id, signalled, AnswerWait::expected_for(job.kind));
        job.awaited = signalled;
        job.method = self.choose_method(env, &job, signalled);
        // Begun at once if no operation is queued before it; the budget bounds the time of the post.
        if self.pending.is_empty() && self.may_begin(job.kind) {
            let mut budget = POST_BYTES;
            if let Some((mut parts, _)) = self.transmit_parts(env) {
                match parts.drive_job(env, &mut job, &mut budget) {
                    TransmitStep::Done => return Ok(()),
                    TransmitStep::Full | TransmitStep::Spent | TransmitStep::Bad => {}
                }
            }
        }
        self.pending.push(job);
        Ok(())
    }

    /// Which methods the link can use for a job.
    #[inline]
    fn allowed_methods(&self, env: &RailContext<'_>, kind: JobKind, bytes: u64) -> AllowedMethods {
        let long = bytes > u64::from(env.shared.config.segment);
        let (Some(direct), Some(tx)) = (&self.direct, &self.tx) else {
            return AllowedMethods { long, pulled: false, shared: false };
        };
        // Read for each operation: the peer publishes it when it connects, which may be later than this side's connect.
        let pulled = tx.peer_reaches();
        AllowedMethods { long, pulled, shared: direct.can_push(kind, bytes) && pulled }
    }

    /// Chooses the copy method for the bytes of a new job.
    #[inline]
    fn choose_method(&mut self, env: &RailContext<'_>, job: &TransmitJob, signalled: bool) -> SoftCopyMethod {
        if job.total < chooser::LEAST || self.wire != LinkWire::Shm {
            return SoftCopyMethod::Staged;
        }
        let JobBody::Local { key, offset } = job.body else { return SoftCopyMethod::Staged };
        // If system calls of the peer cannot reach the memory, a pull would fail, so it is staged.
        if env.region_table().find_local(key, offset, 0).is_none_or(|place| place.rights & right::DIRECT == 0)
        {
            return SoftCopyMethod::Staged;
        }
        let allowed = self.allowed_methods(env, job.kind, job.total);
        match env.shared.config.copy {
            // Only signalled operations are timed, because the others have no completion to measure by.
            CopyMode::Auto if signalled => {
                let now = Instant(env.shared.elapsed_nanos());
                self.chooser.choose_method(job.flight, job.total, allowed.to_array(), now)
            }
            CopyMode::Share if allowed.shared => SoftCopyMethod::Shared,
            CopyMode::Pull | CopyMode::Share if allowed.pulled => SoftCopyMethod::Pulled,
            _ => SoftCopyMethod::Staged,
        }
    }

    /// Whether the next job may begin: a send needs a posted receive of the peer, a read a free place among the
    /// outstanding ones.
    #[inline]
    fn may_begin(&mut self, kind: JobKind) -> bool {
        match kind {
            JobKind::Send { .. } => self.may_send(),
            JobKind::Read { .. } | JobKind::Add { .. } | JobKind::Swap { .. } => !self.wanted.is_full(),
            _ => true,
        }
    }

    /// Whether the peer has a receive for one more send.
    #[inline]
    fn may_send(&mut self) -> bool {
        // The peer's count is in a cache line that the peer writes, so it is read only when the known credit is used up.
        if self.credit.is_spent() {
            let posted = match (&self.tx, &self.stream) {
                (Some(tx), _) => tx.peer_posted(),
                (None, Some(stream)) => stream.peer_posted(),
                (None, None) => return false,
            };
            self.credit.set_peer_posted(posted);
        }
        !self.credit.is_spent()
    }

    /// Returns the parts that sending a job changes, and, apart from them, the queues that hold jobs.
    #[inline]
    fn transmit_parts<'a>(&'a mut self, env: &RailContext<'_>) -> Option<(TransmitParts<'a>, JobQueues<'a>)> {
        let manner = TransmitConfig { wire: self.wire, segment: env.shared.config.segment };
        let out = match &mut self.tx {
            Some(tx) => TransmitTarget::Ring(tx, &mut self.direct, manner),
            None => TransmitTarget::Stream(self.stream.as_mut()?),
        };
        let flights = &mut self.flights;
        let wanted = &mut self.wanted;
        let credit = &mut self.credit;
        let parts = TransmitParts { out, flights, wanted, credit };
        Some((parts, JobQueues { pending: &mut self.pending, replies: &mut self.replies }))
    }

    /// Continues replies, grants and posted operations, in that order, by at most `budget` bytes; returns whether any progressed.
    #[inline]
    pub(crate) fn pump_jobs(&mut self, env: &RailContext<'_>, budget: u64) -> bool {
        let mut left = budget;
        self.pump_some(env, &mut left);
        left < budget
    }

    fn pump_some(&mut self, env: &RailContext<'_>, budget: &mut u64) {
        // Replies first, because the peer waits for them and they free the room for its further requests. Then grants, because sends of
        // the peer wait for them.
        self.pump_replies(env, budget);
        self.pump_grants();
        while self.failure.is_none() {
            let Some(kind) = self.pending.front().map(|job| job.kind) else { return };
            let begun = self.pending.front().is_some_and(|job| job.started);
            if let JobKind::Wait { cq, index } = kind
                && !self.end_wait(env, cq, index)
            {
                return;
            }
            if !begun && !self.may_begin(kind) {
                if matches!(kind, JobKind::Send { .. }) {
                    self.receiver_not_ready(env);
                }
                return;
            }
            self.waiting = None;
            let Some((mut parts, queues)) = self.transmit_parts(env) else { return };
            let step = queues.pending.front_mut().map(|job| parts.drive_job(env, job, budget));
            match step {
                Some(TransmitStep::Done) => {
                    self.pending.pop();
                }
                // The source was deregistered while the operation was outstanding: a local error, because the peer has done nothing wrong.
                Some(TransmitStep::Bad) => return self.fail_with(OpStatus::LocalProtection, false, None),
                _ => return,
            }
        }
    }

    /// Ends the wait at the front of the pending operations if its completion has happened; it then becomes a job that does nothing. If it cannot
    /// succeed any more, the link fails, once every operation before it has ended.
    // Not inlined, so that it costs other operations nothing.
    #[inline(never)]
    fn end_wait(&mut self, env: &RailContext<'_>, id: u64, index: u64) -> bool {
        let outlook = self.awaited.find_outlook(&env.shared.cqs, env.nic, id, index);
        let oldest = self.flights.first_number();
        match (outlook, self.pending.front_mut()) {
            (WaitOutlook::Reached, Some(job)) => job.kind = JobKind::Nop,
            // A lost wait fails the link only as its oldest operation, so that all operations before it keep their own result.
            (WaitOutlook::Lost, Some(job)) if job.flight == oldest => {
                self.fail_with(OpStatus::Flushed, false, None);
            }
            _ => {}
        }
        outlook == WaitOutlook::Reached
    }

    fn pump_replies(&mut self, env: &RailContext<'_>, budget: &mut u64) {
        while !self.replies.is_empty() {
            let Some((mut parts, queues)) = self.transmit_parts(env) else { return };
            let Some(reply) = queues.replies.front_mut() else { return };
            let mut job = reply.to_job();
            let step = parts.drive_job(env, &mut job, budget);
            reply.sent = job.sent;
            match step {
                TransmitStep::Done => {
                    self.replies.pop();
                }
                // The region of an accepted read was deregistered since: refuse the request's record, as if it had just arrived.
                TransmitStep::Bad => {
                    let at = reply.at;
                    self.turn_down(crate::error::NakReason::Access, at);
                    return self.fail_with(OpStatus::Flushed, false, None);
                }
                TransmitStep::Full | TransmitStep::Spent => return,
            }
        }
    }

    fn pump_grants(&mut self) {
        // Revocations first, so that the peer pairs no further send with a cancelled receive.
        while let Some((key, id)) = self.matcher.oldest_revocation() {
            if !self.push_bare(RecordVerb::Revoke { key, id }) {
                return;
            }
            self.matcher.was_revoked();
        }
        while let Some(&id) = self.matcher.ungranted.front() {
            let Some(receive) = self.matcher.find_receive(id).copied() else {
                self.matcher.ungranted.pop_front();
                continue;
            };
            let verb = RecordVerb::Grant { key: receive.key, len: receive.into.len, id };
            if !self.push_bare(verb) {
                return;
            }
            self.matcher.ungranted.pop_front();
        }
    }

    /// Sends a record that needs no acknowledgement; false if there is no room.
    fn push_bare(&mut self, verb: RecordVerb) -> bool {
        let payload = RecordPayload::Inline { len: 0 };
        let record = RingRecord { verb, payload, last: true, awaited: false, imm: None };
        let Some(tx) = &mut self.tx else {
            return self.stream.as_mut().is_some_and(|stream| stream.push_record(&record));
        };
        let room = tx.has_room();
        if room {
            tx.push(&record);
        }
        room
    }

    fn receiver_not_ready(&mut self, env: &RailContext<'_>) {
        let Some(limit) = env.shared.config.receiver_wait else { return };
        let since = *self.waiting.get_or_insert_with(std::time::Instant::now);
        if since.elapsed().as_nanos() > u128::from(limit.0) {
            self.fail_with(OpStatus::ReceiverNotReady, false, None);
        }
    }
}

/// Returns the destination of a request's reply, which its job keeps in the body.
#[inline]
fn answer_place(job: &TransmitJob) -> Option<RegionExtent> {
    let JobBody::Local { key, offset } = job.body else { return None };
    let len = match job.kind {
        JobKind::Read { len, .. } => len,
        JobKind::Add { .. } | JobKind::Swap { .. } => 8,
        _ => return None,
    };
    Some(RegionExtent { key: LocalKey(key), offset, len })
}

impl AnswerWait {
    /// Returns the reply that an operation of a kind has to wait for.
    #[inline]
    pub(crate) fn expected_for(kind: JobKind) -> Self {
        match kind {
            JobKind::Read { .. } | JobKind::Add { .. } | JobKind::Swap { .. } => Self::Awaited,
            _ => Self::None,
        }
    }
}
