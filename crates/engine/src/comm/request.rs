//! Outstanding requests of one comm. The lock holder completes them with one release store. Threads that test read them without
//! the lock, and record in another word that they have read the outcome. No word is written by both. So a tester that is
//! suspended in between changes nothing later, not even after a close of the comm and its next use.

use std::sync::OnceLock;

use trunkline_proto::limits::{RECV_BUFFERS_MAX, SENDS_MAX};
use trunkline_proto::reserve::{OutOfMemory, try_filled_with};

use crate::status::CommStatusRow;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const PHASE: u32 = 0x3;
const FREE: u32 = 0;
const PENDING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;
/// The bit offset of the number of sizes.
const COUNT: u32 = 4;
/// The bit offset of the generation.
const GENERATION: u32 = 16;

/// The state of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RequestOutcome {
    /// It has not ended.
    Pending,
    /// Done, and its slot is free; this many sizes were filled in.
    Done(usize),
    /// It failed, and its slot is free.
    Failed,
    /// No such request exists.
    Unknown,
}

/// Names a request of one comm. It is one word because it passes through memory on its way to the caller, and two
/// halves that are read back as one word would stall the processor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RequestTicket(u32);

impl RequestTicket {
    #[inline]
    fn new(slot: u16, generation: u16) -> Self {
        Self(u32::from(slot) | u32::from(generation) << 16)
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn to_bits(self) -> u32 {
        self.0
    }

    /// Returns its slot.
    #[inline]
    pub(crate) fn slot_index(self) -> u16 {
        self.0 as u16
    }

    /// Returns the generation that distinguishes it from earlier and later requests of the slot; never 0.
    #[inline]
    pub(crate) fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// The requests of one comm, and their counters.
#[derive(Debug)]
pub(crate) struct RequestTable {
    slots: Box<[RequestSlot]>,
    /// Sizes after the first, of each slot; allocated for the first receive with several buffers, because most comms never have
    /// one.
    more: OnceLock<Box<[ExtraSizes]>>,
    pub(crate) row: CommStatusRow,
}

#[derive(Debug)]
struct RequestSlot {
    /// Bits 0-1: phase; 4-7: number of sizes; 16-31: generation, never 0. Written by the lock holder.
    state: AtomicU32,
    /// The generation whose outcome was returned, or was discarded. Written by the tester; by the lock holder only while no
    /// ticket of it exists.
    taken: AtomicU32,
    size: AtomicU64,
}

type ExtraSizes = [AtomicU64; RECV_BUFFERS_MAX - 1];

impl RequestTable {
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(row: CommStatusRow) -> Result<Self, OutOfMemory> {
        Self::with_slots(SENDS_MAX, row)
    }

    /// [`RequestTable::new`], with another number of slots.
    pub(crate) fn with_slots(slots: usize, row: CommStatusRow) -> Result<Self, OutOfMemory> {
        let slot =
            || RequestSlot { state: AtomicU32::new(FREE), taken: AtomicU32::new(0), size: AtomicU64::new(0) };
        Ok(Self { slots: try_filled_with(slots, slot)?, more: OnceLock::new(), row })
    }

    /// Creates the table of a closed comm, on which no caller tests. Out of memory, it is empty, because a close must not fail
    /// for lack of memory.
    pub(crate) fn of_closed_comm(row: impl Fn() -> CommStatusRow) -> Self {
        let none = |_| Self { slots: Box::default(), more: OnceLock::new(), row: row() };
        Self::new(row()).unwrap_or_else(none)
    }

    /// Reserves a free slot, searching from `cursor`. Only by the lock holder.
    #[inline]
    pub(crate) fn reserve_slot(&self, cursor: &mut u16) -> Option<RequestTicket> {
        for _ in 0..self.slots.len() {
            let at = usize::from(*cursor);
            *cursor = if at + 1 < self.slots.len() { *cursor + 1 } else { 0 };
            let slot = self.slots.get(at)?;
            let generation = slot.state.load(Ordering::Relaxed) >> GENERATION;
            // Relaxed: only the lock holder writes `state`.
            // Acquire: the tester that took the last outcome has read its sizes before they are overwritten.
            if slot.taken.load(Ordering::Acquire) == generation {
                let generation = (generation as u16).checked_add(1).unwrap_or(1);
                // Generation 0 is never used: a ticket is never 0, and an unused slot has
                // generation 0.
                slot.state.store(u32::from(generation) << GENERATION | PENDING, Ordering::Relaxed);
                return Some(RequestTicket::new(at as u16, generation));
            }
        }
        None
    }

    /// Completes a send successfully.
    #[inline]
    pub(crate) fn complete_send(&self, slot: u16, len: u64) {
        self.row.count_sent(len);
        self.complete_request(slot, &[len]);
    }

    /// Completes a receive successfully, with a size for each of its buffers.
    #[inline]
    pub(crate) fn complete_recv(&self, slot: u16, sizes: &[u64]) {
        self.row.count_received(sizes);
        self.complete_request(slot, sizes);
    }

    /// Completes a request successfully, with these sizes.
    #[inline]
    pub(crate) fn complete_request(&self, slot: u16, sizes: &[u64]) {
        let Some(request) = self.slots.get(slot as usize) else { return };
        if let Some((&first, rest)) = sizes.split_first() {
            // Sizes before the state, because the release store publishes them.
            request.size.store(first, Ordering::Relaxed);
            if !rest.is_empty() {
                self.store_extra_sizes(slot, rest);
            }
        }
        let generation = request.state.load(Ordering::Relaxed) >> GENERATION << GENERATION;
        // Release, so that a tester that sees the outcome also sees the sizes.
        request.state.store(generation | (sizes.len() as u32) << COUNT | DONE, Ordering::Release);
    }

    /// Stores the sizes after the first.
    #[inline(never)]
    fn store_extra_sizes(&self, slot: u16, sizes: &[u64]) {
        let none = || -> ExtraSizes { std::array::from_fn(|_| AtomicU64::new(0)) };
        let more = self.more.get_or_init(|| self.slots.iter().map(|_| none()).collect());
        for (to, &size) in more[usize::from(slot)].iter().zip(sizes) {
            to.store(size, Ordering::Relaxed);
        }
    }

    /// Loads the sizes after the first.
    #[inline(never)]
    fn load_extra_sizes(&self, slot: u16, sizes: &mut [u64]) {
        let more = self.more.get().and_then(|more| more.get(usize::from(slot)));
        for (to, size) in sizes.iter_mut().zip(more.into_iter().flatten()) {
            *to = size.load(Ordering::Relaxed);
        }
    }

    /// Cancels a pending request: the call that made it returns "not yet".
    pub(crate) fn cancel_request(&self, slot: u16) {
        if let Some(request) = self.slots.get(slot as usize) {
            request.discard_request();
        }
    }

    /// Fails every pending request; returns how many.
    pub(crate) fn fail_all(&self) -> usize {
        let mut failed = 0;
        for request in &self.slots {
            let state = request.state.load(Ordering::Relaxed);
            if state & PHASE == PENDING {
                request.state.store(state >> GENERATION << GENERATION | FAILED, Ordering::Release);
                failed += 1;
            }
        }
        self.row.give_up();
        failed
    }

    /// Discards all requests when the comm is closed, and invalidates their names.
    pub(crate) fn clear(&self) {
        self.row.give_up();
        for request in &self.slots {
            request.discard_request();
        }
    }

    /// Returns the outcome of a request, and frees its slot if it has ended.
    #[inline]
    pub(crate) fn take_outcome(
        &self,
        ticket: RequestTicket,
        sizes: &mut [u64; RECV_BUFFERS_MAX],
    ) -> RequestOutcome {
        let slot = ticket.slot_index();
        let generation = ticket.generation();
        let Some(request) = self.slots.get(slot as usize) else { return RequestOutcome::Unknown };
        // Acquire: pairs with the release store of the outcome, so the sizes below are visible.
        let state = request.state.load(Ordering::Acquire);
        if state >> GENERATION != u32::from(generation) {
            return RequestOutcome::Unknown;
        }
        let outcome = match state & PHASE {
            PENDING => return RequestOutcome::Pending,
            // This outcome was returned before; a second test must not return it again.
            _ if request.taken.load(Ordering::Relaxed) == u32::from(generation) => {
                return RequestOutcome::Unknown;
            }
            DONE => {
                let count = (state >> COUNT & 0xf) as usize;
                if count > 0 {
                    sizes[0] = request.size.load(Ordering::Relaxed);
                }
                if count > 1 {
                    self.load_extra_sizes(slot, &mut sizes[1..count.min(RECV_BUFFERS_MAX)]);
                }
                RequestOutcome::Done(count)
            }
            FAILED => RequestOutcome::Failed,
            _ => return RequestOutcome::Unknown,
        };
        // Release: after the sizes were read, the slot may be reused.
        request.taken.store(u32::from(generation), Ordering::Release);
        outcome
    }

    /// Returns whether this is a request whose outcome was not returned yet.
    #[inline]
    pub(crate) fn is_outstanding(&self, ticket: RequestTicket) -> bool {
        self.slots.get(usize::from(ticket.slot_index())).is_some_and(|request| {
            let generation = u32::from(ticket.generation());
            request.state.load(Ordering::Relaxed) >> GENERATION == generation
                && request.taken.load(Ordering::Relaxed) != generation
        })
    }

    /// Returns whether any request has not ended.
    pub(crate) fn has_pending(&self) -> bool {
        self.slots.iter().any(|slot| slot.state.load(Ordering::Relaxed) & PHASE == PENDING)
    }
}

impl RequestSlot {
    /// Frees the slot of a request without an outcome.
    fn discard_request(&self) {
        let generation = self.state.load(Ordering::Relaxed) >> GENERATION;
        self.state.store(generation << GENERATION | FREE, Ordering::Relaxed);
        // Marked as returned, so that the slot can be reserved again.
        self.taken.store(generation, Ordering::Release);
    }
}
