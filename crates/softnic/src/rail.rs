//! An open software NIC: its links and the posting and polling of work. The engine owns it, one thread at a time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use trunkline_fabric::{
    Caps, Completion, CqId, LinkId, MemoryRegistrar, Op, OpSource, OpStatus, PostError, Rail, RailConfig,
    RegionExtent, RemoteLocation, WaitMethod,
};
use trunkline_proto::time::Duration;

use crate::cq::CompletionCounter;
use crate::error::PROTOCOL;
use crate::guard::RailGuard;
use crate::job::{JobBody, JobKind, TransmitJob};
use crate::matched;
use crate::nic::SharedFabric;
use crate::qp::{CompletionSink, RailContext, SoftQp};
use crate::qp_state::QueuePairState;
use crate::receive_queue::PostedRecv;
use crate::record::{INLINE, RecordVerb};
use crate::register::{RegionTable, SoftRegistrar};
use crate::tcp::{STRANGER_TIME, SocketEvents};

/// Time until the next poll where no event can be waited for.
const AGAIN: Duration = Duration::from_micros(50);

/// An open software NIC.
pub struct SoftRail {
    pub(crate) shared: Arc<SharedFabric>,
    pub(crate) nic: usize,
    pub(crate) config: RailConfig,
    pub(crate) caps: Caps,
    pub(crate) guard: Arc<RailGuard>,
    pub(crate) cq: Arc<CompletionCounter>,
    pub(crate) links: Vec<Option<Box<SoftQp>>>,
    pub(crate) cursor: usize,
    pub(crate) owed: u32,
    /// Number of links to other hosts.
    pub(crate) streams: u32,
    /// Bytes were sent or received since the last [`Rail::arm_wait`].
    pub(crate) stirred: bool,
    /// Reports the sockets of its links, once a caller waits for them.
    pub(crate) events: Option<SocketEvents>,
    /// Time when a link ended that had not been dialled. Until [`STRANGER_TIME`] has passed, polls reject its late dialler.
    pub(crate) tends: Option<Instant>,
}

impl SoftRail {
    /// Opens NIC number `nic`.
    pub(crate) fn new(shared: Arc<SharedFabric>, nic: usize, config: RailConfig, caps: Caps) -> Self {
        let guard = shared.guards.add_guard();
        let cq = shared.cqs.add_counter(nic, shared.config.start_position);
        shared.nics[nic].queues.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            nic,
            config,
            caps,
            guard,
            cq,
            links: Vec::new(),
            cursor: 0,
            owed: 0,
            streams: 0,
            stirred: false,
            events: None,
            tends: None,
        }
    }

    /// Posts an operation. Inlined because callers pass a constant kind, which lets the compiler drop the other branches.
    #[inline(always)]
    fn post_inside(
        &mut self,
        link: LinkId,
        wr_id: u64,
        op: Op<'_>,
        signalled: bool,
    ) -> Result<(), PostError> {
        match op {
            Op::Write { from: OpSource::Inline(bytes), to, imm } => {
                self.post_write(link, wr_id, bytes, to, imm, signalled)
            }
            Op::Send { head, body: OpSource::Inline([]), imm } => {
                self.post_send(link, wr_id, head, imm, signalled)
            }
            Op::Recv { into } => self.post_receive(link, wr_id, into),
            _ => self.post_large(link, wr_id, op, signalled),
        }
    }

    #[inline(never)]
    fn post_write(
        &mut self,
        link: LinkId,
        wr_id: u64,
        bytes: &[u8],
        to: RemoteLocation,
        imm: Option<u32>,
        signalled: bool,
    ) -> Result<(), PostError> {
        let verb = RecordVerb::Write { key: to.key.0, addr: to.addr };
        if self.post_small(link, wr_id, verb, bytes, imm, signalled)? {
            return Ok(());
        }
        self.post_large(link, wr_id, Op::Write { from: OpSource::Inline(bytes), to, imm }, signalled)
    }

    #[inline(never)]
    fn post_send(
        &mut self,
        link: LinkId,
        wr_id: u64,
        head: &[u8],
        imm: Option<u32>,
        signalled: bool,
    ) -> Result<(), PostError> {
        if self.post_small(link, wr_id, RecordVerb::Send { offset: 0 }, head, imm, signalled)? {
            return Ok(());
        }
        self.post_large(link, wr_id, Op::Send { head, body: OpSource::Inline(&[]), imm }, signalled)
    }

    /// Posts a small write or send directly when no other operation is queued before it; false if it must be posted as a job.
    #[inline(always)]
    fn post_small(
        &mut self,
        link: LinkId,
        wr_id: u64,
        verb: RecordVerb,
        bytes: &[u8],
        imm: Option<u32>,
        signalled: bool,
    ) -> Result<bool, PostError> {
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Ok(false) };
        if bytes.len() > INLINE || self.owed >= self.caps.completions_max {
            return Ok(false);
        }
        let posted = qp.post_small(wr_id, verb, bytes, imm, signalled)?;
        let owes = u32::from(posted && signalled);
        qp.owed += owes;
        self.owed += owes;
        Ok(posted)
    }

    #[inline(never)]
    fn post_receive(&mut self, link: LinkId, wr_id: u64, into: RegionExtent) -> Result<(), PostError> {
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        if self.owed >= self.caps.completions_max {
            return Err(PostError::Busy);
        }
        check_extent(&self.shared.nics[self.nic].table, into)?;
        qp.post_receive(PostedRecv { wr_id, into })?;
        qp.owed += 1;
        self.owed += 1;
        Ok(())
    }

    /// Posts every other operation as a job; not inlined, so that it costs the small ones nothing.
    #[inline(never)]
    fn post_large(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        let env = RailContext { shared: &self.shared, nic: self.nic, guard: &self.guard };
        let table = env.region_table();
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        let owes = u32::from(signalled || matches!(op, Op::MatchedRecv { .. }));
        if self.owed + owes > self.caps.completions_max {
            return Err(PostError::Busy);
        }
        match op {
            Op::Recv { into } => return self.post_receive(link, wr_id, into),
            Op::MatchedRecv { into, key } => {
                check_extent(table, into)?;
                qp.post_matched_receive(matched::MatchedReceive { wr_id, into, key: key.0, got: 0 })?;
            }
            Op::Flush => qp.post_flush(wr_id, signalled)?,
            // No memory of devices is registered here, and all writes complete only once placed.
            Op::FlushAt { .. } | Op::PlacedWrite { .. } => {
                return Err(PostError::Refused(OpStatus::Other(PROTOCOL)));
            }
            Op::MatchedSend { from, key } => {
                let job = carrying_job(table, JobKind::Matched { grant: 0 }, &[], from)?;
                qp.post_matched(&env, matched::UnmatchedSend { wr_id, signalled, key: key.0, job })?;
            }
            Op::Wait { cq, index } => qp.post_wait(&env, wr_id, signalled, cq.0, index)?,
            Op::Write { from, to, imm } => {
                qp.post_job(
                    &env,
                    wr_id,
                    signalled,
                    carrying_job(table, JobKind::Write { to, imm }, &[], from)?,
                )?;
            }
            Op::Send { head, body, imm } => {
                qp.post_job(&env, wr_id, signalled, carrying_job(table, JobKind::Send { imm }, head, body)?)?;
            }
            Op::Read { into, from } => {
                let kind = JobKind::Read { from, len: into.len };
                qp.post_job(&env, wr_id, signalled, asking_job(table, kind, into)?)?;
            }
            Op::FetchAdd { old, at, add } => {
                check_word(old)?;
                qp.post_job(&env, wr_id, signalled, asking_job(table, JobKind::Add { at, add }, old)?)?;
            }
            Op::CompareSwap { old, at, expect, swap } => {
                check_word(old)?;
                qp.post_job(
                    &env,
                    wr_id,
                    signalled,
                    asking_job(table, JobKind::Swap { at, expect, swap }, old)?,
                )?;
            }
            Op::Nop => qp.post_job(&env, wr_id, signalled, TransmitJob::new(JobKind::Nop, 0))?,
        }
        qp.owed += owes;
        self.owed += owes;
        Ok(())
    }
}

/// Whether the range can be used by an operation of this side.
#[inline]
fn check_extent(table: &RegionTable, extent: RegionExtent) -> Result<(), PostError> {
    let RegionExtent { key, offset, len } = extent;
    let found = table.find_local(key.0, offset, len);
    if found.is_some() { Ok(()) } else { Err(PostError::Refused(OpStatus::LocalProtection)) }
}

#[inline]
fn check_source(table: &RegionTable, source: OpSource<'_>) -> Result<(), PostError> {
    match source {
        OpSource::Inline(bytes) if bytes.len() > INLINE => Err(PostError::Refused(OpStatus::TooLong)),
        OpSource::Inline(_) => Ok(()),
        OpSource::Region(extent) => check_extent(table, extent),
    }
}

fn check_word(old: RegionExtent) -> Result<(), PostError> {
    if old.len == 8 { Ok(()) } else { Err(PostError::Refused(OpStatus::LocalProtection)) }
}

/// A job that carries bytes, with its memory checked.
#[inline]
fn carrying_job(
    table: &RegionTable,
    kind: JobKind,
    head: &[u8],
    body: OpSource<'_>,
) -> Result<TransmitJob, PostError> {
    check_source(table, OpSource::Inline(head))?;
    check_source(table, body)?;
    let mut job = TransmitJob::new(kind, 0);
    job.add_inline(head);
    job.add_source(body);
    Ok(job)
}

/// Creates a job whose reply is placed `into`, which is checked.
#[inline]
fn asking_job(table: &RegionTable, kind: JobKind, into: RegionExtent) -> Result<TransmitJob, PostError> {
    check_extent(table, into)?;
    let mut job = TransmitJob::new(kind, 0);
    job.body = JobBody::Local { key: into.key.0, offset: into.offset };
    Ok(job)
}

impl SoftRail {
    /// Sends the queued frames of links to other hosts: one system call each.
    fn flush_streams(&mut self) {
        self.guard.enter();
        for qp in self.links.iter_mut().flatten() {
            if let Some(stream) = &mut qp.stream
                && qp.state == QueuePairState::ReadyToSend
            {
                stream.write_buffer();
            }
        }
        self.guard.leave();
    }

    /// Prepares a wait for the sockets of all links; false while a link needs polls.
    fn arm_streams(&mut self) -> bool {
        // Ring links report no event, and the peer of a link that has ended may be dialling.
        if self.tends.is_some() || self.links.iter().flatten().any(|qp| qp.tx.is_some()) {
            return false;
        }
        if self.events.is_none() {
            self.events = SocketEvents::new().ok();
        }
        let Some(events) = &self.events else { return false };
        self.links.iter_mut().flatten().all(|qp| qp.arm_stream(events))
    }

    #[cold]
    fn tend_door(&mut self) {
        match self.shared.nics[self.nic].open_door() {
            Some(door) => {
                door.accept_pending();
                self.tends = self.tends.filter(|since| since.elapsed() < STRANGER_TIME);
            }
            // With the listener closed, the kernel itself refuses diallers.
            None => self.tends = None,
        }
    }
}

impl Rail for SoftRail {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        let wait = std::time::Duration::from_nanos(self.config.peer_time.0);
        Arc::new(SoftRegistrar::new(Arc::clone(&self.shared), self.nic, wait))
    }

    #[inline]
    fn post_credits(&self, link: LinkId) -> u32 {
        match self.links.get(link.0 as usize) {
            Some(Some(qp)) => qp.post_credits().min(self.caps.completions_max.saturating_sub(self.owed)),
            _ => 0,
        }
    }

    #[inline(always)]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        self.guard.enter();
        let posted = self.post_inside(link, wr_id, op, signalled);
        self.guard.leave();
        posted
    }

    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return false };
        // The owner may read the memory once the receive is cancelled, so held writes land now and not later.
        qp.held.land_all(&self.shared.nics[self.nic].table);
        let owed = qp.take_back(wr_id);
        self.owed -= owed.unwrap_or(0);
        owed.is_some()
    }

    #[inline]
    fn flush(&mut self) {
        if self.streams > 0 {
            self.flush_streams();
        }
    }

    #[inline]
    fn unsent_ops(&self, link: LinkId) -> u32 {
        match self.links.get(link.0 as usize) {
            Some(Some(qp)) => qp.unsent_ops(),
            _ => 0,
        }
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.guard.enter();
        let mut sink = CompletionSink { out, count: 0, moved: false };
        let env = RailContext { shared: &self.shared, nic: self.nic, guard: &self.guard };
        let links = self.links.len();
        for _ in 0..links {
            if sink.is_full() {
                break;
            }
            // The next call begins after the last link that was polled, so that a full sink does not always favour the first links.
            self.cursor = if self.cursor + 1 < links { self.cursor + 1 } else { 0 };
            if let Some(Some(qp)) = self.links.get_mut(self.cursor) {
                let before = qp.owed;
                qp.progress_link(&env, &mut sink);
                self.owed -= before - qp.owed;
            }
        }
        self.guard.leave();
        self.stirred |= sink.moved;
        if self.tends.is_some() {
            self.tend_door();
        }
        if sink.count > 0 {
            self.cq.count_completions(sink.count);
        }
        sink.count
    }

    fn cq_position(&self) -> Option<trunkline_fabric::CqPosition> {
        Some(trunkline_fabric::CqPosition { id: CqId(self.cq.id), next: self.cq.next() })
    }

    fn arm_wait(&mut self) -> WaitMethod {
        // Peers' reads and writes complete nothing here, and further ones are likely to follow.
        if std::mem::take(&mut self.stirred) {
            return WaitMethod::After(Duration(0));
        }
        if self.arm_streams() { WaitMethod::Event } else { WaitMethod::After(AGAIN) }
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(self.events.as_ref()?.descriptor()))
    }
}

impl Drop for SoftRail {
    fn drop(&mut self) {
        use trunkline_fabric::LinkControl;
        for link in 0..self.links.len() {
            // Link numbers are counted in 32 bits by `create_link`.
            self.destroy_link(LinkId(link as u32));
        }
        self.shared.end_all_abandoned(self.nic);
        self.shared.cqs.close_counter(&self.cq);
        self.shared.nics[self.nic].queues.fetch_sub(1, Ordering::Relaxed);
        self.shared.guards.remove(&self.guard);
    }
}
