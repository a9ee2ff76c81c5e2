//! The operations of the successor's API, as entries: one put with optional actions, channels of several lanes, and tickets.
//!
//! Signals and counters are slots of 16 bytes with a poison word. The signal of a put follows its bytes without a fence. A counter waits
//! for the last WRITE, so its value means that the source can be reused.

use core::sync::atomic::Ordering::Relaxed;

use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryFence, EntryWork, InlineBytes, LENGTH_MAX, LocalAddress, PeerAddress, QueueEntry,
};

use crate::budget::WaitBudget;
use crate::channel::TicketRecord as Recorded;
use crate::error::WaitError;
use crate::lane::{CompanionDirectory, OpError, PutBytes, QueueLane, WordAddition, WriteExtras};
use crate::memory::WordMemory;
use crate::queue::EntryTicket;

/// Bytes between the signals of two lanes, where each lane has its own.
pub const LANE_STRIDE: u64 = 128;

/// The actions of a put.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PutActions {
    /// The peer's signal to raise.
    pub signal: Option<WordAddition>,
    /// The local counter to raise.
    pub counter: Option<WordAddition>,
    /// Each lane raises a signal of its own, [`LANE_STRIDE`] bytes apart: two NICs must not add to one word.
    pub signal_per_lane: bool,
    /// The counter waits for the signal, as in the original, instead of the bytes.
    pub counter_after_signal: bool,
    /// The last WRITE's own entry raises the counter, without a companion. The executor must be software, as this project's engine is. A
    /// counter that does not fit the entry, or that waits for the signal, still uses the companion.
    pub counter_in_entry: bool,
}

/// A posted put.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostedPut {
    /// The number of its lane.
    pub lane: u32,
    /// The last WRITE.
    pub write: EntryTicket,
    /// The signal, or the last WRITE if the put has no signal.
    pub last: EntryTicket,
}

/// Slots of 16 bytes, by the address of the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlotArray {
    /// The address of the first slot.
    pub at: PeerAddress,
}

impl SlotArray {
    /// Returns an addition to the slot number `id`.
    #[must_use]
    pub const fn add_to_slot(&self, id: u32, value: u64) -> WordAddition {
        WordAddition {
            at: PeerAddress { addr: self.at.addr + id as u64 * 16, ..self.at },
            value,
            poisoned: true,
        }
    }
}

/// A channel: its lanes, their recorded tickets, and the counter that selects the next lane.
#[derive(Debug)]
pub struct LaneChannel<'a, M, D> {
    lanes: &'a [QueueLane<M, D>],
    recorded: Recorded<M>,
    memory: M,
    cursor_at: u64,
}

impl<'a, M: WordMemory, D: CompanionDirectory<M>> LaneChannel<'a, M, D> {
    /// Creates a channel of lanes. The word of `memory` at the offset `cursor_at` is shared by all users of the channel, and counts their
    /// puts. Returns `None` if there are no lanes.
    #[must_use]
    pub fn new(
        lanes: &'a [QueueLane<M, D>],
        recorded: Recorded<M>,
        memory: M,
        cursor_at: u64,
    ) -> Option<Self> {
        (!lanes.is_empty()).then_some(Self { lanes, recorded, memory, cursor_at })
    }

    /// Returns the next lane, and its number. Concurrent callers get different turns.
    fn next_lane(&self) -> (u32, &QueueLane<M, D>) {
        // Relaxed is enough: the counter only spreads puts over lanes and orders no other access.
        let turn = self.memory.fetch_add(self.cursor_at, 1, Relaxed) % self.lanes.len() as u64;
        (turn as u32, &self.lanes[turn as usize])
    }

    /// Writes bytes on the next lane, with the given actions.
    ///
    /// # Errors
    /// [`OpError`]. If the bytes need more entries than the queue is deep, the first ones may have been posted. If the companion returns
    /// [`OpError::Refused`], bytes and signal have been posted.
    pub fn put(
        &self,
        bytes: &PutBytes,
        with: &PutActions,
        budget: &mut impl WaitBudget,
    ) -> Result<PostedPut, OpError> {
        self.put_by(bytes, with, 0, budget, |lane, beside, budget, part| {
            lane.publish_write(bytes, beside, budget, part)
        })
    }

    /// As [`put`](Self::put), one share per thread of a group.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_cooperative(
        &self,
        bytes: &PutBytes,
        threads: u32,
        with: &PutActions,
        budget: &mut impl WaitBudget,
    ) -> Result<PostedPut, OpError> {
        self.put_by(bytes, with, threads, budget, |lane, beside, budget, _| {
            lane.publish_shares(bytes, threads, beside, budget)
        })
    }

    fn put_by<B: WaitBudget>(
        &self,
        bytes: &PutBytes,
        with: &PutActions,
        threads: u32,
        budget: &mut B,
        publish: impl FnOnce(
            &QueueLane<M, D>,
            &WriteExtras,
            &mut B,
            &mut Option<EntryTicket>,
        ) -> Result<[EntryTicket; 2], OpError>,
    ) -> Result<PostedPut, OpError> {
        if bytes.len == 0 {
            return Err(OpError::Empty);
        }
        let (number, lane) = self.next_lane();
        let may_be = with.counter_in_entry && !with.counter_after_signal;
        let in_entry = with.counter.filter(|counter| may_be && counter.fits_last_write(bytes, threads));
        // The companion is requested before the put is published, so a refused companion leaves nothing posted.
        let companion = match with.counter.filter(|_| in_entry.is_none()) {
            Some(counter) => Some((lane.companion_queue(budget)?, counter)),
            None => None,
        };
        let signal = with.signal.map(|signal| self.of_lane(signal, with, number).to_entry());
        let mut part = None;
        let published = publish(lane, &WriteExtras { behind: signal, counter: in_entry }, budget, &mut part);
        // Entries submitted before the failure still read their source, so a later flush must wait for them.
        let Ok([write, last]) = published else {
            if let Some(part) = part {
                let _ = self.recorded.record_ticket(number, part);
            }
            return published.map(|[write, last]| PostedPut { lane: number, write, last });
        };
        let _ = self.recorded.record_ticket(number, last);
        match companion {
            Some((companion, counter)) => {
                let of = if with.counter_after_signal { last } else { write };
                lane.submit_and_count(last, companion, of, &counter, budget)?;
            }
            None => _ = lane.main.submit(last.index.wrapping_add(1)),
        }
        Ok(PostedPut { lane: number, write, last })
    }

    fn of_lane(&self, signal: WordAddition, with: &PutActions, lane: u32) -> WordAddition {
        if !with.signal_per_lane {
            return signal;
        }
        let addr = signal.at.addr.wrapping_add(u64::from(lane) * LANE_STRIDE);
        WordAddition { at: PeerAddress { addr, ..signal.at }, ..signal }
    }

    /// Writes bytes that are copied into the entry, on the next lane.
    ///
    /// # Errors
    /// [`OpError::Empty`] for no bytes, [`OpError::Range`] for more than an entry holds, and [`OpError`].
    pub fn put_inline(
        &self,
        bytes: &[u8],
        to: PeerAddress,
        budget: &mut impl WaitBudget,
    ) -> Result<PostedPut, OpError> {
        let len = bytes.len() as u64;
        if bytes.is_empty() {
            return Err(OpError::Empty);
        }
        let range = OpError::Range { addr: to.addr, len };
        let bytes = InlineBytes::new(bytes).filter(|_| to.addr.checked_add(len).is_some()).ok_or(range)?;
        self.post_next(&QueueEntry::new(EntryWork::WriteInline { bytes, to }), budget)
    }

    /// Reads at most [`LENGTH_MAX`] bytes on the next lane. They have arrived when the ticket is done.
    ///
    /// # Errors
    /// [`OpError::Empty`] for no bytes, [`OpError::Range`] for too many, and [`OpError`].
    pub fn get(
        &self,
        into: LocalAddress,
        from: PeerAddress,
        len: u64,
        budget: &mut impl WaitBudget,
    ) -> Result<PostedPut, OpError> {
        if len == 0 {
            return Err(OpError::Empty);
        }
        for addr in [into.addr, from.addr] {
            if len > LENGTH_MAX || addr.checked_add(len).is_none() {
                return Err(OpError::Range { addr, len });
            }
        }
        self.post_next(&QueueEntry::new(EntryWork::Read { into, from, len }), budget)
    }

    fn post_next(&self, entry: &QueueEntry, budget: &mut impl WaitBudget) -> Result<PostedPut, OpError> {
        let (number, lane) = self.next_lane();
        let ticket = lane.post_entry(entry, budget)?;
        let _ = self.recorded.record_ticket(number, ticket);
        Ok(PostedPut { lane: number, write: ticket, last: ticket })
    }

    /// Changes a word of the peer on the first lane, behind the lane's reads and atomics; with `is_strong` behind all its earlier entries.
    /// The completion contains the old value, if the change returns one.
    ///
    /// # Errors
    /// [`OpError::Range`] for an unaligned word, and [`OpError`].
    pub fn change_word(
        &self,
        at: PeerAddress,
        change: AtomicChange,
        poisoned: bool,
        is_strong: bool,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        let Some(lane) = self.lanes.first() else { return Err(OpError::Empty) };
        if !at.addr.is_multiple_of(8) {
            return Err(OpError::Range { addr: at.addr, len: 8 });
        }
        let fence = if is_strong { EntryFence::All } else { EntryFence::ReadsAndAtomics };
        let entry = QueueEntry::new(EntryWork::Atomic { at, change, poisoned }).with_fence(fence);
        let ticket = lane.post_entry(&entry, budget)?;
        let _ = self.recorded.record_ticket(0, ticket);
        Ok(ticket)
    }

    /// Raises a signal on the first lane, behind the lane's reads and atomics. It implies nothing about other lanes: flush them first.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn signal(
        &self,
        signal: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        let Some(lane) = self.lanes.first() else { return Err(OpError::Empty) };
        let ticket = lane.post_addition(signal, EntryFence::ReadsAndAtomics, budget)?;
        let _ = self.recorded.record_ticket(0, ticket);
        Ok(ticket)
    }

    /// Raises a signal, and raises a local counter once the signal's entry has completed. The original API has this operation; the
    /// successor dropped it.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn signal_counter(
        &self,
        signal: &WordAddition,
        counter: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        let Some(lane) = self.lanes.first() else { return Err(OpError::Empty) };
        let companion = lane.companion_queue(budget)?;
        let ticket = self.signal(signal, budget)?;
        lane.count_completion(companion, ticket, counter, budget)?;
        Ok(ticket)
    }

    /// Waits until a put's last WRITE has completed: its source can be reused.
    ///
    /// # Errors
    /// As [`DeviceQueue::wait`](crate::DeviceQueue::wait); [`WaitError::Stale`] if the put belongs to no lane of this channel.
    pub fn wait_local(&self, put: &PostedPut, budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        let lane = self.lanes.get(put.lane as usize).ok_or(WaitError::Stale)?;
        lane.main.wait(put.write, budget)
    }

    /// Waits until all puts and signals of the channel have completed. It does not wait for counters.
    ///
    /// # Errors
    /// As [`TicketRecord::flush`](crate::channel::TicketRecord::flush).
    pub fn flush(&self, budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        self.recorded.flush_all(self.lanes.iter().map(|lane| &lane.main), budget)
    }

    /// Returns the lanes that a flush would wait for, one bit each.
    #[must_use]
    pub fn pending_lanes(&self) -> u64 {
        self.recorded.pending_lanes()
    }
}
