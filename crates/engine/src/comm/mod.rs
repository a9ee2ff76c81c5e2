//! Comms and the table that names them. A slot of the table is reused, with another generation, only after many others. The
//! message state of a comm is its lane in its group, and is used only under the group's lock.

pub(crate) mod announce;
pub(crate) mod fins;
pub(crate) mod in_flight;
pub(crate) mod matched;
pub(crate) mod outgoing;
pub(crate) mod pieces;
pub(crate) mod plan;
pub(crate) mod record_run;
pub(crate) mod recv;
pub(crate) mod request;
#[cfg(test)]
mod request_tests;
pub(crate) mod send;
pub(crate) mod send_tables;
pub(crate) mod stripe;
pub(crate) mod striped_recv;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use trunkline_proto::counters::MessageCounts;
use trunkline_proto::id::ProcessId;
use trunkline_proto::reserve::{OutOfMemory, try_filled_with};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::share::ShareOffer;
use trunkline_proto::wire::status::{self as shown, CommState};

use crate::comm::request::RequestTable;
use crate::link::link_frames::LinkFrameQueue;
use crate::pool::groups::MemberLocation;
use crate::pool::member::OpenComm;
use crate::status::{CommStatusRow, EngineStatus as Page};
use crate::{CommId, EngineError};

/// Slots examined per search for another comm of the thread, so that the cost of each call is bounded.
const LOOKS: usize = 8;

/// A slot is not reused before this many others were freed after it, so that stale names of it stay recognisable for
/// longer.
const QUARANTINE: usize = 64;

/// A peer process.
#[derive(Debug)]
pub(crate) struct RemoteProcess {
    pub(crate) process: ProcessId,
    /// Its offer to share links.
    pub(crate) offer: ShareOffer,
    /// Its control stream has ended.
    pub(crate) dead: AtomicBool,
    /// How often a further connection has joined its control stream; wraps.
    pub(crate) joins: AtomicU32,
}

impl RemoteProcess {
    /// Creates a live process.
    pub(crate) fn new(process: ProcessId, offer: ShareOffer) -> Self {
        Self { process, offer, dead: AtomicBool::new(false), joins: AtomicU32::new(0) }
    }
}

/// A slot for a comm.
pub(crate) struct CommSlot {
    generation: AtomicU32,
    pub(crate) requests: RequestTable,
    /// Its group, and its membership there, as bits.
    seat: AtomicU64,
    /// The control stream that may act for the peer, as bits.
    pub(crate) stream: AtomicU64,
    /// The peer closed its end.
    pub(crate) peer_closed: AtomicBool,
    /// Messages the peer had sent, or that had arrived there, when it closed.
    pub(crate) peer_messages: AtomicU64,
    /// Eager messages were sent whose records were not read yet, or some are still queued.
    pub(crate) send_due: AtomicBool,
    /// Some of its shared links are not up yet: it is polled even if other members of its group have completed its requests.
    pub(crate) joining: AtomicBool,
    /// A caller has polled it since the last pass of the helper thread.
    pub(crate) polled: AtomicBool,
    /// The thread that last called send, receive or test on it.
    thread: AtomicUsize,
    /// Frames of the peer about single links.
    pub(crate) news: LinkFrameQueue,
    /// The peer waits for the confirmation that no more writes arrive, and the comm's owner may make no call.
    pub(crate) stopping: AtomicBool,
}

impl CommSlot {
    fn new(row: CommStatusRow) -> Result<Self, OutOfMemory> {
        Ok(Self {
            generation: AtomicU32::new(0),
            requests: RequestTable::new(row)?,
            seat: AtomicU64::new(0),
            stream: AtomicU64::new(0),
            peer_closed: AtomicBool::new(false),
            peer_messages: AtomicU64::new(0),
            send_due: AtomicBool::new(false),
            joining: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            thread: AtomicUsize::new(0),
            news: LinkFrameQueue::default(),
            stopping: AtomicBool::new(false),
        })
    }
}

thread_local! {
    static MARK: Cell<u8> = const { Cell::new(0) };
}

/// Returns a number that no other living thread has.
#[inline]
fn this_thread() -> usize {
    // The address of a thread-local variable: unique among living threads, and cheaper than a
    // thread id.
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl CommSlot {
    /// Returns its location. Whether it is still the comm that was requested shows only under the group's lock.
    #[inline]
    pub(crate) fn member_location(&self) -> MemberLocation {
        MemberLocation::from_bits(self.seat.load(Ordering::Relaxed))
    }

    /// Returns whether frames of the peer wait for its lane.
    pub(crate) fn has_link_frames(&self) -> bool {
        self.news.has_some() || self.stopping.load(Ordering::Acquire)
    }

    /// Marks that its caller polls it, so the helper thread need not.
    #[inline]
    pub(crate) fn mark_polled(&self) {
        // Loaded first: an unconditional store would bounce the cache line between pollers of one
        // comm.
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the calling thread drives this comm.
    #[inline]
    pub(crate) fn set_driving_thread(&self) {
        let thread = this_thread();
        // As above: the store is rare, and the load stays local.
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
        }
    }
}

/// All comms of an engine.
pub(crate) struct CommTable {
    slots: Box<[OnceLock<Box<CommSlot>>]>,
    free: SpinMutex<FreeComms>,
    /// Where the next search for a comm to help starts.
    cursor: AtomicUsize,
    /// Slots that were ever used.
    used: AtomicUsize,
    /// Frames about single links have arrived since the last check.
    pub(crate) news: AtomicBool,
}

struct FreeComms {
    fresh: usize,
    used: VecDeque<u16>,
    open: usize,
}

impl CommTable {
    pub(crate) fn new(limit: usize) -> Result<Self, OutOfMemory> {
        let limit = limit.clamp(1, usize::from(u16::MAX));
        Ok(Self {
            slots: try_filled_with(limit, OnceLock::new)?,
            free: SpinMutex::new(FreeComms { fresh: 0, used: VecDeque::new(), open: 0 }),
            cursor: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            news: AtomicBool::new(false),
        })
    }

    /// Returns the comm of this name.
    #[inline]
    pub(crate) fn get(&self, id: CommId) -> Option<&CommSlot> {
        let comm = self.slots.get(usize::from(id.index))?.get()?;
        // Acquire: pairs with `insert`, so that the comm's fields are visible.
        (comm.generation.load(Ordering::Acquire) == u32::from(id.generation)).then_some(comm)
    }

    /// Returns another open comm that the calling thread drives, round robin; examines a few slots only.
    #[inline]
    pub(crate) fn next_of_thread(&self, than: &CommSlot) -> Option<(CommId, &CommSlot)> {
        let thread = this_thread();
        let used = self.used.load(Ordering::Acquire);
        let start = self.cursor.load(Ordering::Relaxed);
        // Bounded, because this runs in polls of waiting comms.
        for step in 0..used.min(LOOKS) {
            let at = (start + step) % used;
            let Some(comm) = self.slots[at].get() else { continue };
            let generation = comm.generation.load(Ordering::Acquire) as u16;
            if generation != 0
                && comm.thread.load(Ordering::Relaxed) == thread
                && !std::ptr::eq(&raw const **comm, than)
            {
                self.cursor.store(at + 1, Ordering::Relaxed);
                return Some((CommId { index: at as u16, generation }, comm));
            }
        }
        // Continues after the examined slots next time, so that all comms get their turn.
        self.cursor.store(start.wrapping_add(LOOKS) % used.max(1), Ordering::Relaxed);
        None
    }

    /// Opens a comm in a reserved slot: `sit` makes it a member of its group under its future name.
    pub(crate) fn insert(
        &self,
        index: u16,
        mut open: OpenComm,
        now: Instant,
        status: &Page,
        sit: impl FnOnce(OpenComm) -> Result<MemberLocation, EngineError>,
    ) -> Result<CommId, EngineError> {
        // On any error the slot is released, so that it is not lost.
        let comm = self.comm_in(index, status).inspect_err(|_| self.release_slot(index))?;
        let generation = (comm.generation.load(Ordering::Relaxed) >> 16) as u16;
        let generation = generation.checked_add(1).unwrap_or(1);
        // Reset of the previous comm's state; not visible before `generation` is stored below.
        comm.stream.store(open.ends.stream.to_bits(), Ordering::Relaxed);
        comm.peer_closed.store(false, Ordering::Relaxed);
        comm.send_due.store(false, Ordering::Relaxed);
        comm.joining.store(open.many && open.place.is_some(), Ordering::Relaxed);
        comm.news.clear();
        comm.stopping.store(false, Ordering::Relaxed);
        let shown = open.status_row(generation, now);
        let id = CommId { index, generation };
        // The name is set before the comm joins its group: completions may be delivered to it at
        // once.
        open.id = id;
        let seat = match sit(open) {
            Ok(seat) => seat,
            Err(error) => {
                self.release_slot(index);
                return Err(error);
            }
        };
        let ride = status.group_membership(seat);
        comm.requests.row.open_comm(shown::CommRecord { ride, ..shown });
        comm.seat.store(seat.to_bits(), Ordering::Relaxed);
        // Release, and last: from here on other threads find the comm.
        comm.generation.store(u32::from(generation), Ordering::Release);
        Ok(id)
    }

    /// Returns the comm of a slot, allocated on the slot's first use.
    fn comm_in(&self, index: u16, status: &Page) -> Result<&CommSlot, OutOfMemory> {
        let slot = &self.slots[usize::from(index)];
        if let Some(comm) = slot.get() {
            return Ok(comm);
        }
        let made = CommSlot::new(status.row_at(usize::from(index)))?;
        Ok(slot.get_or_init(|| Box::new(made)))
    }

    /// Reserves a slot for a comm, to be used at once.
    pub(crate) fn reserve_slot(&self, status: &Page) -> Result<u16, EngineError> {
        let mut free = self.free.lock();
        let fresh = free.fresh < self.slots.len();
        // Reused slots wait in a queue, so that stale names are recognised for long.
        let index = if free.used.len() > QUARANTINE || !fresh {
            let exhausted = EngineError::Exhausted { what: "connections", limit: self.slots.len() };
            free.used.pop_front().ok_or(exhausted)?
        } else {
            free.fresh += 1;
            // Release: iterators see the slots below this number.
            self.used.store(free.fresh, Ordering::Release);
            status.rows_used(free.fresh);
            (free.fresh - 1) as u16
        };
        free.open += 1;
        Ok(index)
    }

    fn release_slot(&self, index: u16) {
        let mut free = self.free.lock();
        free.open -= 1;
        free.used.push_back(index);
    }

    /// Closes a comm and invalidates its name. Returns whether it existed. Only under its group's lock.
    pub(crate) fn remove(&self, id: CommId) -> bool {
        let Some(comm) = self.get(id) else { return false };
        // Generation in the upper half: the slot is free, and the next comm continues counting.
        let next = u32::from(id.generation) << 16;
        let current = u32::from(id.generation);
        // One of several concurrent closes succeeds.
        if comm.generation.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        comm.requests.clear();
        comm.requests.row.set_comm_state(CommState::Closed, None);
        self.release_slot(id.index);
        true
    }

    pub(crate) fn open_count(&self) -> usize {
        self.free.lock().open
    }

    /// Iterates over all open comms.
    pub(crate) fn open_comms(&self) -> impl Iterator<Item = (CommId, &CommSlot)> {
        let used = self.slots.iter().take(self.used.load(Ordering::Acquire));
        used.enumerate().filter_map(|(index, slot)| {
            let comm = &**slot.get()?;
            let generation = comm.generation.load(Ordering::Acquire) as u16;
            (generation != 0).then_some((CommId { index: index as u16, generation }, comm))
        })
    }

    /// Iterates over the message counts of each slot that was ever used.
    pub(crate) fn slot_counts(&self) -> impl Iterator<Item = MessageCounts> {
        let used = self.slots.iter().take(self.used.load(Ordering::Acquire));
        used.filter_map(|slot| Some(slot.get()?.requests.row.counts()))
    }
}
