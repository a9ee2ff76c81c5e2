//! Flushes: a read from ourselves. A queue pair that is connected to itself reads a word of our own memory, or a byte of a
//! GPU's; by the rules of the bus its answer pushes earlier writes of the device to that memory before it. Needs no peer,
//! and works when a link is in error. There is one for a port, made with the first flush and gone with the last rail that
//! has flushed: each rail has a [`Seat`], behind a lock that is held for a post or a look and never for a wait.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use trunkline_fabric::{Access, Ctrl, LinkId, Mr, Registrar, Remote};
use trunkline_mem::Memory;
use trunkline_proto::reserve::try_deque;
use trunkline_sys::verbs::{QpCap, Rdma, SEND_SIGNALED, SendWr, Sge, Wc, wc_status, wr_opcode};

use crate::cq::CompletionQueue;
use crate::device::Port;
use crate::error::Planted;
use crate::ladder::{self, Limits, Ours, Rung, Theirs};
use crate::qp::Qp;
use crate::register::rkey;

/// Bytes that a flush of memory of the host reads.
const BYTES: u64 = 8;
/// Flushes that the device has at once; others wait here.
const ROOM: u32 = 256;
/// Nobody's seat: who asked is gone.
const NOBODY: u64 = 0;

/// One flush that was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Asked {
    /// By which link,
    pub(crate) link: LinkId,
    /// in which of its lives.
    pub(crate) life: u64,
    /// The user's number.
    pub(crate) wr_id: u64,
    /// Whether the user is told.
    pub(crate) told: bool,
}

/// The same, with what is to be read and who is to hear of it.
#[derive(Clone, Copy, Debug)]
struct Flush {
    seat: u64,
    asked: Asked,
    /// `None`: a word of ours.
    at: Option<Remote>,
}

/// The queue pair of a port that reads from itself.
pub(crate) struct Flusher {
    state: Mutex<State>,
    port: Arc<Port>,
    ours: Ours,
    limits: Limits,
}

/// What the lock is for.
struct State {
    // In the order in which they may go.
    qp: Qp,
    cq: CompletionQueue,
    region: Mr<Ctrl>,
    to: Sge,
    /// Those that the device has, oldest first.
    posted: VecDeque<Flush>,
    /// Those that it is still to be given.
    waiting: VecDeque<Flush>,
    /// Those that have ended, with the status, until their rail looks.
    done: VecDeque<(Flush, u32)>,
    seats: u64,
    keeps_broken: Planted,
}

/// What a rail has of the flusher of its port.
pub(crate) struct Seat {
    flusher: Arc<Flusher>,
    number: u64,
}

impl Seat {
    /// A seat at the flusher of a port, which is made if there is none.
    ///
    /// # Errors
    /// The system's error, with the attribute that was wrong.
    pub(crate) fn new(
        port: &Arc<Port>,
        registrar: &Arc<dyn Registrar>,
        (ours, limits): (&Ours, &Limits),
    ) -> io::Result<Self> {
        let mut place = port.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        let alone = Planted::named("verbs-makes-a-flusher-for-each").is_on();
        let flusher = match place.upgrade().filter(|_| !alone) {
            Some(flusher) => flusher,
            None => {
                let made = Arc::new(Flusher::new(port, registrar, (ours, limits))?);
                *place = Arc::downgrade(&made);
                made
            }
        };
        drop(place);
        let number = {
            let mut state = flusher.state();
            state.seats += 1;
            state.seats
        };
        Ok(Self { flusher, number })
    }

    /// Has memory of the host flushed, or that at a place.
    pub(crate) fn post(&self, asked: Asked, at: Option<Remote>) {
        let mut state = self.flusher.state();
        state.waiting.push_back(Flush { seat: self.number, asked, at });
        state.give();
    }

    /// One that was asked for from here and has ended, with its status. None too while another rail looks.
    pub(crate) fn next(&self) -> Option<(Asked, u32)> {
        let mut state = match self.flusher.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let mine = |state: &State| state.done.iter().position(|(flush, _)| flush.seat == self.number);
        let at = mine(&state).or_else(|| {
            self.flusher.collect(&mut state);
            mine(&state)
        });
        let (flush, status) = state.done.remove(at?)?;
        Some((flush.asked, status))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.flusher.state();
        let number = self.number;
        state.waiting.retain(|flush| flush.seat != number);
        state.done.retain(|(flush, _)| flush.seat != number);
        // What the device has ends when it ends.
        for flush in state.posted.iter_mut().filter(|flush| flush.seat == number) {
            flush.seat = NOBODY;
        }
    }
}

impl Flusher {
    fn new(
        port: &Arc<Port>,
        registrar: &Arc<dyn Registrar>,
        (ours, limits): (&Ours, &Limits),
    ) -> io::Result<Self> {
        let memory = Memory::try_heap(2 * BYTES as usize).map_err(io::Error::other)?;
        let access = Access { write: false, read: true, atomic: false };
        let region = Mr::register(registrar, memory, access).map_err(io::Error::other)?;
        let to = port.device.regions.place(region.extent(BYTES, BYTES)).ok_or(io::ErrorKind::InvalidData)?;
        let cq = CompletionQueue::new(&port.device, ROOM)?;
        let qp = connected(port, &cq, ours, limits)?;
        let posted = try_deque(ROOM as usize).map_err(io::Error::other)?;
        let waiting = VecDeque::new();
        let done = VecDeque::new();
        let seats = NOBODY;
        let keeps_broken = Planted::named("verbs-keeps-broken-flusher");
        let state = State { qp, cq, region, to, posted, waiting, done, seats, keeps_broken };
        Ok(Self { state: Mutex::new(state), port: Arc::clone(port), ours: *ours, limits: *limits })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has ended, and gives the device what waits.
    fn collect(&self, state: &mut State) {
        // More than it has cannot end.
        for _ in 0..ROOM {
            let more = state.cq.refill();
            while let Some(wc) = state.cq.oldest() {
                state.cq.tell();
                if state.end(&wc) && !state.keeps_broken.is_on() {
                    self.mend(state);
                }
            }
            if !more {
                break;
            }
        }
        state.give();
    }

    /// One has failed, for which its own asker is to blame, or the device; the queue pair is in error. What others have
    /// asked for goes over a new one.
    #[cold]
    fn mend(&self, state: &mut State) {
        let made = connected(&self.port, &state.cq, &self.ours, &self.limits);
        while let Some(flush) = state.posted.pop_back() {
            state.waiting.push_front(flush);
        }
        match made {
            Ok(qp) => {
                // The old one goes here, and all it had to tell with it.
                state.qp = qp;
                state.cq.sift(|_| false);
            }
            Err(_) => {
                let State { waiting, done, .. } = state;
                done.extend(waiting.drain(..).map(|flush| (flush, wc_status::WR_FLUSH_ERR)));
            }
        }
    }
}

/// A queue pair of a port that is connected to itself.
fn connected(port: &Port, cq: &CompletionQueue, ours: &Ours, limits: &Limits) -> io::Result<Qp> {
    let cap =
        QpCap { max_send_wr: ROOM, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = Qp::new(&port.device, cq, cap, false)?;
    let at = port.read_own_address().map_err(io::Error::other)?;
    let ours = &Ours { gid_index: at.gid.index as u8, ..*ours };
    let itself = Theirs {
        number: qp.number(),
        psn: ours.psn,
        mtu: at.attr.active_mtu as u8,
        lid: at.attr.lid,
        gid: at.gid.raw,
    };
    let rungs = [
        (Rung::Init, ladder::init(ours)),
        (Rung::Receive, ladder::receive(ours, &itself)),
        (Rung::Send, ladder::send(ours)),
    ];
    for (rung, (attr, mask)) in rungs {
        qp.modify(&attr, mask).map_err(|error| ladder::blame(rung, &attr, limits, &error))?;
    }
    Ok(qp)
}

impl State {
    /// Gives the device what waits, as far as it has room.
    fn give(&mut self) {
        while self.posted.len() < ROOM as usize
            && let Some(flush) = self.waiting.pop_front()
        {
            let keys = self.region.keys();
            let of_host =
                Remote { key: keys.remote, addr: keys.remote_base, purpose: trunkline_fabric::Purpose::Data };
            let (at, length) = flush.at.map_or((of_host, self.to.length), |at| (at, 1));
            let mut into = Sge { length, ..self.to };
            let mut wr = SendWr::ZERO;
            (wr.opcode, wr.send_flags, wr.num_sge) = (wr_opcode::RDMA_READ, SEND_SIGNALED, 1);
            wr.sg_list = &raw mut into;
            wr.wr.rdma = Rdma { remote_addr: at.addr, rkey: rkey(at.key) };
            match self.qp.post_send(&raw mut wr) {
                Ok(()) => self.posted.push_back(flush),
                // The device is lost.
                Err(_) => self.done.push_back((flush, wc_status::GENERAL_ERR)),
            }
        }
    }

    /// The oldest has ended; whether badly.
    fn end(&mut self, wc: &Wc) -> bool {
        if wc.qp_num != self.qp.number() {
            return false;
        }
        let Some(flush) = self.posted.pop_front() else { return false };
        if flush.seat != NOBODY {
            self.done.push_back((flush, wc.status));
        }
        wc.status != wc_status::SUCCESS
    }
}
