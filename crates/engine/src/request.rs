//! Outstanding requests of one comm. Whoever holds the lane ends them with one release store; whoever tests reads
//! them without the lane.

use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_proto::limits::{RECV_BUFFERS_MAX, SENDS_MAX};

use crate::status::Row;

const PHASE: u64 = 0x3;
const FREE: u64 = 0;
const PENDING: u64 = 1;
const DONE: u64 = 2;
const FAILED: u64 = 3;

/// How a request stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// Not yet.
    Pending,
    /// Done; the request is gone. So many sizes were filled in.
    Done(usize),
    /// It failed; the request is gone.
    Failed,
    /// There is no such request.
    Unknown,
}

/// Names a request of one comm. One word, because it goes through memory on its way to the caller, and a pair of
/// halves that is read back as a whole stalls the processor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ticket(u32);

impl Ticket {
    #[inline]
    fn new(slot: u16, generation: u16) -> Self {
        Self(u32::from(slot) | u32::from(generation) << 16)
    }

    /// Its place.
    #[inline]
    pub(crate) fn slot(self) -> u16 {
        self.0 as u16
    }

    /// Tells it from others in the same place, before and after; never 0.
    #[inline]
    pub(crate) fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// The requests of one comm, and what is counted of them.
#[derive(Debug)]
pub(crate) struct Requests {
    slots: Box<[Slot]>,
    pub(crate) row: Row,
}

/// Bits 0-1: phase; 4-7: number of sizes; 16-31: generation, never 0.
#[derive(Debug)]
struct Slot {
    state: AtomicU64,
    sizes: [AtomicU64; RECV_BUFFERS_MAX],
}

impl Requests {
    pub(crate) fn new(row: Row) -> Self {
        let slot = || Slot { state: AtomicU64::new(FREE), sizes: std::array::from_fn(|_| AtomicU64::new(0)) };
        Self { slots: (0..SENDS_MAX).map(|_| slot()).collect(), row }
    }

    /// Takes a free slot, looking from `cursor` on. Only by the lane's holder.
    #[inline]
    pub(crate) fn reserve(&self, cursor: &mut u16) -> Option<Ticket> {
        for _ in 0..self.slots.len() {
            let at = *cursor as usize % self.slots.len();
            *cursor = (at + 1) as u16;
            let state = self.slots[at].state.load(Ordering::Relaxed);
            if state & PHASE == FREE {
                let generation = ((state >> 16) as u16).checked_add(1).unwrap_or(1);
                self.slots[at].state.store(u64::from(generation) << 16 | PENDING, Ordering::Relaxed);
                return Some(Ticket::new(at as u16, generation));
            }
        }
        None
    }

    /// Ends a send well.
    #[inline]
    pub(crate) fn complete_send(&self, slot: u16, len: u64) {
        self.row.sent(len);
        self.complete(slot, &[len]);
    }

    /// Ends a receive well, with a size for each of its buffers.
    #[inline]
    pub(crate) fn complete_recv(&self, slot: u16, sizes: &[u64]) {
        self.row.received(sizes);
        self.complete(slot, sizes);
    }

    /// Ends a request well, with these sizes.
    #[inline]
    pub(crate) fn complete(&self, slot: u16, sizes: &[u64]) {
        let Some(request) = self.slots.get(slot as usize) else { return };
        for (to, &size) in request.sizes.iter().zip(sizes) {
            to.store(size, Ordering::Relaxed);
        }
        let generation = request.state.load(Ordering::Relaxed) & 0xffff_0000;
        request.state.store(generation | (sizes.len() as u64) << 4 | DONE, Ordering::Release);
    }

    /// Gives a pending request up: the call that made it returns "not yet".
    pub(crate) fn cancel(&self, slot: u16) {
        if let Some(request) = self.slots.get(slot as usize) {
            let generation = request.state.load(Ordering::Relaxed) & 0xffff_0000;
            request.state.store(generation | FREE, Ordering::Release);
        }
    }

    /// Ends every pending request badly; returns how many.
    pub(crate) fn fail_all(&self) -> usize {
        let mut failed = 0;
        for request in &self.slots {
            let state = request.state.load(Ordering::Relaxed);
            if state & PHASE == PENDING {
                request.state.store(state & 0xffff_0000 | FAILED, Ordering::Release);
                failed += 1;
            }
        }
        self.row.give_up();
        failed
    }

    /// Forgets all requests, when the comm is closed; their names mean nothing from then on.
    pub(crate) fn clear(&self) {
        self.row.give_up();
        for request in &self.slots {
            let generation = request.state.load(Ordering::Relaxed) & 0xffff_0000;
            request.state.store(generation | FREE, Ordering::Release);
        }
    }

    /// Looks at a request; a finished one is freed.
    #[inline]
    pub(crate) fn take(&self, slot: u16, generation: u16, sizes: &mut [u64; RECV_BUFFERS_MAX]) -> Outcome {
        let Some(request) = self.slots.get(slot as usize) else { return Outcome::Unknown };
        let state = request.state.load(Ordering::Acquire);
        if (state >> 16) as u16 != generation {
            return Outcome::Unknown;
        }
        let outcome = match state & PHASE {
            PENDING => return Outcome::Pending,
            DONE => {
                let count = (state >> 4 & 0xf) as usize;
                for (to, size) in sizes.iter_mut().zip(&request.sizes).take(count) {
                    *to = size.load(Ordering::Relaxed);
                }
                Outcome::Done(count)
            }
            FAILED => Outcome::Failed,
            _ => return Outcome::Unknown,
        };
        request.state.store(state & 0xffff_0000 | FREE, Ordering::Release);
        outcome
    }

    /// Whether any request has not ended.
    pub(crate) fn pending(&self) -> bool {
        self.slots.iter().any(|slot| slot.state.load(Ordering::Relaxed) & PHASE == PENDING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_once() {
        let requests = Requests::new(Row::unseen());
        let mut cursor = 0;
        let ticket = requests.reserve(&mut cursor).unwrap();
        let (slot, generation) = (ticket.slot(), ticket.generation());
        let mut sizes = [0; 8];
        assert_eq!(requests.take(slot, generation, &mut sizes), Outcome::Pending);
        requests.complete(slot, &[5, 6]);
        assert_eq!(requests.take(slot, generation, &mut sizes), Outcome::Done(2));
        assert_eq!(sizes[..2], [5, 6]);
        assert_eq!(requests.take(slot, generation, &mut sizes), Outcome::Unknown);
        assert_eq!(requests.take(9999, generation, &mut sizes), Outcome::Unknown);
    }

    #[test]
    fn all_slots_in_use_means_not_yet_and_generations_skip_zero() {
        let requests = Requests::new(Row::unseen());
        let mut cursor = 0;
        for _ in 0..SENDS_MAX {
            assert!(requests.reserve(&mut cursor).is_some());
        }
        assert_eq!(requests.reserve(&mut cursor), None);
        assert_eq!(requests.fail_all(), SENDS_MAX);
        let mut sizes = [0; 8];
        assert_eq!(requests.take(3, 1, &mut sizes), Outcome::Failed);
        requests.slots[3].state.store(0xffff << 16 | FREE, Ordering::Relaxed);
        assert_eq!(requests.reserve(&mut cursor), Some(Ticket::new(3, 1)));
    }
}
