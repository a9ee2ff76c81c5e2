//! Flushes, as loopback reads. A queue pair that is connected to itself reads a word of this process's memory, or a byte of a
//! GPU's. Its read completion cannot pass earlier writes of the device to that memory (PCI Express Base Specification, section 2.4.1), so they are
//! visible then. It needs no peer, and works when a link is in error.
//!
//! Each port has one, made with the first flush and freed with the last rail that
//! has flushed. Each rail has a [`FlusherMember`]. A lock is held for a post or a poll and never for a wait.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use trunkline_fabric::{
    AccessRights, ControlRole, LinkId, MemoryRegistrar, RegisteredRegion, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::try_deque;
use trunkline_sys::verbs::{QpCap, Rdma, SEND_SIGNALED, SendWr, Sge, Wc, wc_status, wr_opcode};

use crate::cq::CompletionQueue;
use crate::device::VerbsPort;
use crate::qp::VerbsQp;
use crate::qp_state::{self, LocalQpAttrs, PeerQpAttrs, QpAttrLimits, QpTransition};
use crate::register::device_rkey;

/// Bytes that a flush of host memory reads.
const BYTES: u64 = 8;
/// Most flushes that the device has at a time; further ones are queued here.
const ROOM: u32 = 256;
/// Member number of flushes whose rail has been closed.
const NOBODY: u64 = 0;

/// One requested flush.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FlushRequest {
    /// The link that requested it.
    pub(crate) link: LinkId,
    /// Distinguishes that link from earlier ones of the same number.
    pub(crate) life: u64,
    /// The user's number.
    pub(crate) wr_id: u64,
    /// Whether the user gets a completion when it succeeds.
    pub(crate) told: bool,
}

/// A flush with the memory to read and the rail that requested it.
#[derive(Clone, Copy, Debug)]
struct QueuedFlush {
    seat: u64,
    asked: FlushRequest,
    /// The byte to read; `None` reads the word of this process.
    at: Option<RemoteLocation>,
}

/// The loopback queue pair of a port.
pub(crate) struct PortFlusher {
    state: Mutex<FlusherQueues>,
    port: Arc<VerbsPort>,
    ours: LocalQpAttrs,
    limits: QpAttrLimits,
}

/// The state behind the lock.
struct FlusherQueues {
    // Fields are dropped in this order: libibverbs refuses to destroy a completion queue that a queue pair still uses (EBUSY), and the
    // queue pair may use the region until it is destroyed.
    qp: VerbsQp,
    cq: CompletionQueue,
    region: RegisteredRegion<ControlRole>,
    to: Sge,
    /// Flushes that the device has, oldest first.
    posted: VecDeque<QueuedFlush>,
    /// Flushes that were not submitted yet.
    waiting: VecDeque<QueuedFlush>,
    /// Flushes that have ended, with their status, until their rail polls.
    done: VecDeque<(QueuedFlush, u32)>,
    seats: u64,
}

/// A rail's membership of the flusher of its port.
pub(crate) struct FlusherMember {
    flusher: Arc<PortFlusher>,
    number: u64,
}

impl FlusherMember {
    /// Joins the flusher of a port, which is created if there is none.
    ///
    /// # Errors
    /// The system's error, with the attribute that was wrong.
    pub(crate) fn new(
        port: &Arc<VerbsPort>,
        registrar: &Arc<dyn MemoryRegistrar>,
        ours: &LocalQpAttrs,
        limits: &QpAttrLimits,
    ) -> io::Result<Self> {
        let mut place = port.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        let flusher = match place.upgrade() {
            Some(flusher) => flusher,
            None => {
                let made = Arc::new(PortFlusher::new(port, registrar, ours, limits)?);
                *place = Arc::downgrade(&made);
                made
            }
        };
        drop(place);
        let number = {
            let mut state = flusher.lock_queues();
            state.seats += 1;
            state.seats
        };
        Ok(Self { flusher, number })
    }

    /// Queues a flush of host memory, or of the memory at `at`, and submits it if the device has room.
    pub(crate) fn post_flush(&self, asked: FlushRequest, at: Option<RemoteLocation>) {
        let mut state = self.flusher.lock_queues();
        state.waiting.push_back(QueuedFlush { seat: self.number, asked, at });
        state.submit_waiting();
    }

    /// Returns the next ended flush of this member, with its status. Returns `None` also while another rail holds the lock.
    pub(crate) fn next(&self) -> Option<(FlushRequest, u32)> {
        let mut state = match self.flusher.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let mine = |state: &FlusherQueues| state.done.iter().position(|(flush, _)| flush.seat == self.number);
        let at = mine(&state).or_else(|| {
            self.flusher.collect_flushes(&mut state);
            mine(&state)
        });
        let (flush, status) = state.done.remove(at?)?;
        Some((flush.asked, status))
    }
}

impl Drop for FlusherMember {
    fn drop(&mut self) {
        let mut state = self.flusher.lock_queues();
        let number = self.number;
        state.waiting.retain(|flush| flush.seat != number);
        state.done.retain(|(flush, _)| flush.seat != number);
        // The device still has these flushes and cannot cancel them; their completions are dropped.
        for flush in state.posted.iter_mut().filter(|flush| flush.seat == number) {
            flush.seat = NOBODY;
        }
    }
}

impl PortFlusher {
    fn new(
        port: &Arc<VerbsPort>,
        registrar: &Arc<dyn MemoryRegistrar>,
        ours: &LocalQpAttrs,
        limits: &QpAttrLimits,
    ) -> io::Result<Self> {
        let memory = MemoryRange::try_heap(2 * BYTES as usize).map_err(io::Error::other)?;
        let access = AccessRights { write: false, read: true, atomic: false };
        let region = RegisteredRegion::register(registrar, memory, access).map_err(io::Error::other)?;
        let to = port
            .device
            .regions
            .resolve_extent(region.extent_at(BYTES, BYTES))
            .ok_or(io::ErrorKind::InvalidData)?;
        let cq = CompletionQueue::new(&port.device, ROOM)?;
        let qp = connect_to_itself(port, &cq, ours, limits)?;
        let posted = try_deque(ROOM as usize).map_err(io::Error::other)?;
        let waiting = VecDeque::new();
        let done = VecDeque::new();
        let seats = NOBODY;
        let state = FlusherQueues { qp, cq, region, to, posted, waiting, done, seats };
        Ok(Self { state: Mutex::new(state), port: Arc::clone(port), ours: *ours, limits: *limits })
    }

    fn lock_queues(&self) -> MutexGuard<'_, FlusherQueues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects ended flushes, and submits queued ones.
    fn collect_flushes(&self, state: &mut FlusherQueues) {
        // A bound only: the device never has more than ROOM flushes to complete.
        for _ in 0..ROOM {
            let more = state.cq.poll_batch();
            while let Some(wc) = state.cq.oldest_completion() {
                state.cq.pop_oldest();
                if state.finish_oldest(&wc) {
                    self.replace_qp(state);
                }
            }
            if !more {
                break;
            }
        }
        state.submit_waiting();
    }

    /// Replaces the queue pair after a failed flush, which puts it into error. Either that flush's key or the device is at fault, so the flushes of
    /// other members are submitted again on a new queue pair.
    #[cold]
    fn replace_qp(&self, state: &mut FlusherQueues) {
        let made = connect_to_itself(&self.port, &state.cq, &self.ours, &self.limits);
        while let Some(flush) = state.posted.pop_back() {
            state.waiting.push_front(flush);
        }
        match made {
            Ok(qp) => {
                // The assignment destroys the old queue pair; its remaining completions are dropped.
                state.qp = qp;
                state.cq.retain_completions(|_| false);
            }
            Err(_) => {
                let FlusherQueues { waiting, done, .. } = state;
                done.extend(waiting.drain(..).map(|flush| (flush, wc_status::WR_FLUSH_ERR)));
            }
        }
    }
}

/// Creates a queue pair of a port that is connected to itself.
fn connect_to_itself(
    port: &VerbsPort,
    cq: &CompletionQueue,
    ours: &LocalQpAttrs,
    limits: &QpAttrLimits,
) -> io::Result<VerbsQp> {
    let cap =
        QpCap { max_send_wr: ROOM, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = VerbsQp::new(&port.device, cq, cap, false)?;
    let at = port.read_own_address().map_err(io::Error::other)?;
    let ours = &LocalQpAttrs { gid_index: at.gid.index as u8, ..*ours };
    let itself = PeerQpAttrs {
        number: qp.qp_number(),
        psn: ours.psn,
        mtu: at.attr.active_mtu as u8,
        lid: at.attr.lid,
        gid: at.gid.raw,
    };
    let rungs = [
        (QpTransition::Init, qp_state::init_attrs(ours)),
        (QpTransition::Receive, qp_state::rtr_attrs(ours, &itself)),
        (QpTransition::Send, qp_state::rts_attrs(ours)),
    ];
    for (rung, (attr, mask)) in rungs {
        qp.modify(&attr, mask).map_err(|error| qp_state::explain_refusal(rung, &attr, limits, &error))?;
    }
    Ok(qp)
}

impl FlusherQueues {
    /// Submits queued flushes as far as the device has room.
    fn submit_waiting(&mut self) {
        while self.posted.len() < ROOM as usize
            && let Some(flush) = self.waiting.pop_front()
        {
            let keys = self.region.region_keys();
            let of_host = RemoteLocation {
                key: keys.remote,
                addr: keys.remote_base,
                purpose: trunkline_fabric::RegionPurpose::Data,
            };
            let (at, length) = flush.at.map_or((of_host, self.to.length), |at| (at, 1));
            let mut into = Sge { length, ..self.to };
            let mut wr = SendWr::ZERO;
            (wr.opcode, wr.send_flags, wr.num_sge) = (wr_opcode::RDMA_READ, SEND_SIGNALED, 1);
            wr.sg_list = &raw mut into;
            wr.wr.rdma = Rdma { remote_addr: at.addr, rkey: device_rkey(at.key) };
            match self.qp.post_send(&raw mut wr) {
                Ok(()) => self.posted.push_back(flush),
                // Only a lost device refuses a request within the granted sizes.
                Err(_) => self.done.push_back((flush, wc_status::GENERAL_ERR)),
            }
        }
    }

    /// Ends the oldest flush; returns whether it failed.
    fn finish_oldest(&mut self, wc: &Wc) -> bool {
        if wc.qp_num != self.qp.qp_number() {
            return false;
        }
        let Some(flush) = self.posted.pop_front() else { return false };
        if flush.seat != NOBODY {
            self.done.push_back((flush, wc.status));
        }
        wc.status != wc_status::SUCCESS
    }
}
