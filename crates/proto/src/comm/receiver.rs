//! The receiving side of a comm: pairs arrivals with the buffers of outstanding receives. The engine calls it in irecv and when
//! completions arrive; it never accesses memory of a message.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::comm::MessageFault;
use crate::comm::ring::CtsRing;
use crate::comm::table::{self, BufferTable};
use crate::limits::{MAILBOX_SLOTS, RANGE_RECVS, RECV_BUFFERS_MAX, RECVS_MAX, STRIPES_MAX};
use crate::wire::cts::RecordLines;
use crate::wire::delivery_report::{DeliveryReport, WaitingBuffer};
use crate::wire::eager::EagerHeader;
use crate::wire::fin::FinRecord;
use crate::wire::imm::{BufferToken, WriteImmediate};

/// Window of eager messages: those that have arrived without a buffer, and those that they may have overtaken.
const WINDOW: usize = MAILBOX_SLOTS;

/// One outstanding receive, by its place: its number modulo the most receives that may be outstanding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvId(pub usize);

/// The effect of an arrival.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArrivalOutcome {
    /// The message of its buffer is not complete.
    Partial,
    /// Its buffer is full; other buffers of the receive are not.
    Filled,
    /// All buffers of this receive are full.
    Done(RecvId),
    /// It named a buffer that does not wait; it was dropped.
    Stale,
}

/// An eager message and its buffer: copy the message, then call [`MessageReceiver::complete_delivery`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EagerDelivery {
    /// The bounce buffer that contains it.
    pub bounce: u32,
    /// The token of its receive buffer.
    pub token: BufferToken,
    /// Payload bytes.
    pub len: u32,
}

/// The state of a comm's receiving side.
#[derive(Debug)]
pub struct MessageReceiver {
    /// The number the next receive gets.
    next: u32,
    receives: [OutstandingReceive; RECVS_MAX],
    buffers: BufferTable<ReceiveBuffer>,
    parked: [Option<ParkedEager>; WINDOW],
    /// The first eager number that has not arrived.
    frontier: u32,
    /// No eager message below this number waits for a buffer.
    lowest: u32,
    waiting: u32,
    /// Buffers for which nothing has arrived.
    empty: u32,
    /// Receives that may be outstanding: a power of two, at most [`RECVS_MAX`].
    recvs: usize,
    /// The first generation of each token.
    generation: u16,
    /// For a member of a group: the places of its clear-to-send records.
    ring: Option<Box<CtsRing>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct OutstandingReceive {
    number: u32,
    count: u8,
    /// Buffers that are not full; 0: the receive is done or its place is free.
    missing: u8,
    outstanding: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReceiveBuffer {
    token: BufferToken,
    tag: u32,
    /// Its room; the length of its message once the length is known.
    len: u64,
    state: BufferPhase,
}

impl ReceiveBuffer {
    fn new_idle(slot: usize, generation: u16) -> Self {
        Self { token: BufferToken::new(slot as u16, generation), tag: 0, len: 0, state: BufferPhase::Idle }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BufferPhase {
    /// The buffer waits for nothing.
    Idle,
    /// Nothing has arrived.
    Empty,
    /// Assigned to an eager message that is being copied.
    Taken,
    /// Some stripes have arrived, by bitmap; `fin` is their number once it is known.
    Striped { bitmap: u16, fin: Option<u8> },
    /// Full.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct ParkedEager {
    header: EagerHeader,
    bounce: u32,
    matched: bool,
}

impl Default for MessageReceiver {
    fn default() -> Self {
        Self::new()
    }
}

impl MessageReceiver {
    /// Returns the receiving side of a new comm.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(1)
    }

    /// Like [`MessageReceiver::new`], with counters that start near their wrap; for tests.
    #[must_use]
    pub fn starting_at(number: u32) -> Self {
        Self {
            next: number,
            receives: [OutstandingReceive::default(); RECVS_MAX],
            buffers: BufferTable::new(|slot| ReceiveBuffer::new_idle(slot, 0)),
            parked: [None; WINDOW],
            frontier: number.wrapping_sub(1),
            lowest: number.wrapping_sub(1),
            waiting: 0,
            empty: 0,
            recvs: RECVS_MAX,
            generation: 0,
            ring: None,
        }
    }

    /// Makes this the receiving side of a member of a group: with fewer receives, with records of `lines` lines each, and with tokens that
    /// start at `generation`.
    #[must_use]
    pub fn in_range(self, generation: u16, lines: RecordLines) -> Self {
        let buffers = BufferTable::new(|slot| ReceiveBuffer::new_idle(slot, generation));
        let ring = Some(Box::new(CtsRing::new(self.next, lines)));
        Self { recvs: RANGE_RECVS, generation, buffers, ring, ..self }
    }

    /// Starts a receive of 1 to 8 buffers, given as tag and length. Returns `None` if the number of buffers is out of range,
    /// or if the receive has to wait. It waits while its slot is in use, or while a member's sender may still read the slots
    /// of its records.
    #[inline(always)]
    pub fn on_irecv(&mut self, buffers: impl ExactSizeIterator<Item = (u32, u64)>) -> Option<RecvId> {
        let id = RecvId(self.next as usize & (self.recvs - 1));
        let count = buffers.len();
        if self.receives[id.0].outstanding || count == 0 || count > RECV_BUFFERS_MAX {
            return None;
        }
        if self.ring.is_some() && !self.reserve_places(count) {
            return None;
        }
        let generation = self.generation;
        self.buffers.make_room(count, |slot| ReceiveBuffer::new_idle(slot, generation));
        let count = count as u8;
        self.receives[id.0] =
            OutstandingReceive { number: self.next, count, missing: count, outstanding: true };
        let mut slot = table::slot_of_buffer(id.0, 0);
        for (tag, len) in buffers {
            let buffer = &mut self.buffers[slot];
            (buffer.tag, buffer.len, buffer.state) = (tag, len, BufferPhase::Empty);
            slot += table::STEP;
        }
        self.empty += u32::from(count);
        self.next = self.next.wrapping_add(1);
        Some(id)
    }

    /// Reserves the places for the records of a member's next receive. Returns whether there was room.
    #[inline]
    fn reserve_places(&mut self, count: usize) -> bool {
        let of = |number: u32| &self.receives[number as usize % RANGE_RECVS];
        let outstanding = |number: u32| of(number).outstanding && of(number).number == number;
        self.ring.as_mut().is_none_or(|ring| ring.reserve_places(self.next, count, outstanding))
    }

    /// The fields of a receive's clear-to-send record: the receive's number, the token of buffer `index`, and the number of buffers.
    #[inline]
    #[must_use]
    pub fn cts_fields(&self, id: RecvId, index: usize) -> (u32, BufferToken, u8) {
        let receive = &self.receives[id.0];
        (receive.number, self.buffers[table::slot_of_buffer(id.0, index)].token, receive.count)
    }

    /// For a member of a group: the places of its clear-to-send records.
    #[inline]
    #[must_use]
    pub fn cts_ring(&self) -> Option<&CtsRing> {
        self.ring.as_deref()
    }

    /// The tag and the room of a slot's buffer; once the length of its message is known, the length in place of the room.
    #[inline]
    #[must_use]
    pub fn tag_and_room(&self, slot: usize) -> (u32, u64) {
        let ReceiveBuffer { tag, len, .. } = self.buffers[slot];
        (tag, len)
    }

    /// Records the arrival of an eager message in bounce buffer `bounce`.
    ///
    /// # Errors
    /// [`MessageFault::EagerNumber`] if its number is outside the window or arrived before.
    pub fn on_eager(&mut self, header: EagerHeader, bounce: u32) -> Result<(), MessageFault> {
        let ahead = header.number.wrapping_sub(self.lowest) as usize;
        let place = &mut self.parked[header.number as usize % WINDOW];
        if ahead >= WINDOW || place.is_some() {
            return Err(MessageFault::EagerNumber(header.number));
        }
        *place = Some(ParkedEager { header, bounce, matched: false });
        self.waiting += 1;
        while self.parked[self.frontier as usize % WINDOW].is_some_and(|p| p.header.number == self.frontier) {
            self.frontier = self.frontier.wrapping_add(1);
            if self.frontier.wrapping_sub(self.lowest) as usize >= WINDOW {
                break;
            }
        }
        Ok(())
    }

    /// The bounce buffers of eager messages without a receive buffer.
    pub fn bounces_held(&self) -> impl Iterator<Item = u32> {
        self.parked.iter().flatten().map(|parked| parked.bounce)
    }

    /// Whether eager messages without a receive buffer have arrived.
    #[inline]
    #[must_use]
    pub fn holds_eager(&self) -> bool {
        self.waiting > 0
    }

    /// Returns the next eager message whose buffer is known. Call it until `None` after each irecv and each eager arrival.
    ///
    /// # Errors
    /// [`MessageFault::TooLong`] if the message does not fit.
    #[inline]
    pub fn next_delivery(&mut self) -> Result<Option<EagerDelivery>, MessageFault> {
        if self.waiting == 0 || self.empty == 0 { Ok(None) } else { self.find_delivery() }
    }

    fn find_delivery(&mut self) -> Result<Option<EagerDelivery>, MessageFault> {
        let span = self.frontier.wrapping_sub(self.lowest);
        for ahead in 0..span {
            let number = self.lowest.wrapping_add(ahead);
            let Some(parked) = self.parked[number as usize % WINDOW] else { continue };
            if parked.matched {
                continue;
            }
            let Some(slot) = self.buffer_for(&parked.header) else { continue };
            let buffer = &mut self.buffers[slot];
            let len = parked.header.len;
            if u64::from(len) > buffer.len {
                return Err(MessageFault::TooLong { len: u64::from(len), room: buffer.len });
            }
            buffer.state = BufferPhase::Taken;
            self.empty -= 1;
            self.parked[number as usize % WINDOW] = None;
            self.waiting -= 1;
            self.advance_lowest();
            return Ok(Some(EagerDelivery { bounce: parked.bounce, token: self.buffers[slot].token, len }));
        }
        Ok(None)
    }

    fn advance_lowest(&mut self) {
        while self.lowest != self.frontier && self.parked[self.lowest as usize % WINDOW].is_none() {
            self.lowest = self.lowest.wrapping_add(1);
        }
    }

    /// Returns the buffer of an eager message: the first empty one that has its tag and belongs to receive `base` or later.
    fn buffer_for(&self, header: &EagerHeader) -> Option<usize> {
        let outstanding = self.next.wrapping_sub(header.base);
        let span = if outstanding > u32::MAX / 2 { 0 } else { outstanding.min(self.recvs as u32) };
        let first = self.next.wrapping_sub(span);
        for ahead in 0..span {
            let number = first.wrapping_add(ahead);
            let place = number as usize & (self.recvs - 1);
            let receive = &self.receives[place];
            if !receive.outstanding || receive.number != number {
                continue;
            }
            for slot in (0..usize::from(receive.count)).map(|index| table::slot_of_buffer(place, index)) {
                let buffer = &self.buffers[slot];
                if buffer.tag == header.tag && buffer.state == BufferPhase::Empty {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Records that an eager message was copied into its buffer.
    pub fn complete_delivery(&mut self, delivery: &EagerDelivery) -> ArrivalOutcome {
        self.fill_buffer(delivery.token.slot(), u64::from(delivery.len))
    }

    /// Handles an immediate that arrived with a write of `len` bytes; `len` is used only for [`WriteImmediate::Whole`].
    ///
    /// # Errors
    /// [`MessageFault`] if it contradicts an earlier arrival. [`WriteImmediate::Fin`] must be passed to [`MessageReceiver::on_fin`] instead.
    #[inline]
    pub fn on_imm(&mut self, imm: WriteImmediate, len: u64) -> Result<ArrivalOutcome, MessageFault> {
        let Some(slot) = self.current_slot(imm.buffer_token()) else { return Ok(ArrivalOutcome::Stale) };
        let buffer = &mut self.buffers[slot];
        match (imm, buffer.state) {
            (WriteImmediate::Full(_), BufferPhase::Empty) => {
                buffer.state = BufferPhase::Full;
                self.empty -= 1;
                Ok(self.count_filled(slot))
            }
            (WriteImmediate::Whole(_), BufferPhase::Empty) if len <= buffer.len => {
                Ok(self.fill_buffer(slot, len))
            }
            (WriteImmediate::Whole(_), BufferPhase::Empty) => {
                Err(MessageFault::TooLong { len, room: buffer.len })
            }
            (WriteImmediate::Stripe(_, index), BufferPhase::Empty) => {
                buffer.state = BufferPhase::Striped { bitmap: 1 << index, fin: None };
                self.empty -= 1;
                Ok(ArrivalOutcome::Partial)
            }
            (WriteImmediate::Stripe(_, index), BufferPhase::Striped { bitmap, fin }) => {
                let bit = 1_u16 << index;
                if bitmap & bit != 0 {
                    return Err(MessageFault::Twice);
                }
                buffer.state = BufferPhase::Striped { bitmap: bitmap | bit, fin };
                Ok(self.check_stripes(slot))
            }
            (_, BufferPhase::Idle | BufferPhase::Taken | BufferPhase::Full) => Ok(ArrivalOutcome::Stale),
            (WriteImmediate::Full(_) | WriteImmediate::Whole(_) | WriteImmediate::Fin(_), _) => {
                Err(MessageFault::Twice)
            }
        }
    }

    /// Handles a fin record that arrived with an immediate; `token` is the token of the record's place.
    ///
    /// # Errors
    /// [`MessageFault`] if it contradicts an earlier arrival.
    pub fn on_fin(&mut self, token: BufferToken, fin: FinRecord) -> Result<ArrivalOutcome, MessageFault> {
        let Some(slot) = self.current_slot(token) else { return Ok(ArrivalOutcome::Stale) };
        let buffer = &mut self.buffers[slot];
        if fin.token != token {
            return Err(MessageFault::Twice);
        }
        if fin.len > buffer.len {
            return Err(MessageFault::TooLong { len: fin.len, room: buffer.len });
        }
        let bitmap = match buffer.state {
            BufferPhase::Empty => {
                self.empty -= 1;
                0
            }
            BufferPhase::Striped { bitmap, fin: None } => bitmap,
            BufferPhase::Striped { .. } => return Err(MessageFault::Twice),
            BufferPhase::Idle | BufferPhase::Taken | BufferPhase::Full => return Ok(ArrivalOutcome::Stale),
        };
        buffer.len = fin.len;
        buffer.state = BufferPhase::Striped { bitmap, fin: Some(fin.stripes) };
        Ok(self.check_stripes(slot))
    }

    fn check_stripes(&mut self, slot: usize) -> ArrivalOutcome {
        let ReceiveBuffer { len, state: BufferPhase::Striped { bitmap, fin: Some(stripes) }, .. } =
            self.buffers[slot]
        else {
            return ArrivalOutcome::Partial;
        };
        debug_assert!(usize::from(stripes) <= STRIPES_MAX);
        if bitmap.count_ones() as usize >= usize::from(stripes) {
            self.fill_buffer(slot, len)
        } else {
            ArrivalOutcome::Partial
        }
    }

    /// Returns the report of all arrivals so far, for a sender that lost a link.
    #[must_use]
    pub fn delivery_report(&self) -> DeliveryReport {
        let mut waiting = Vec::new();
        for buffer in self.buffers.iter() {
            match buffer.state {
                BufferPhase::Empty => {
                    waiting.push(WaitingBuffer { token: buffer.token, stripes: 0, fin: false })
                }
                BufferPhase::Striped { bitmap, fin } => {
                    waiting.push(WaitingBuffer { token: buffer.token, stripes: bitmap, fin: fin.is_some() });
                }
                BufferPhase::Idle | BufferPhase::Taken | BufferPhase::Full => {}
            }
        }
        let mut ahead = 0;
        for bit in 0..WINDOW as u32 {
            let number = self.frontier.wrapping_add(bit);
            let parked = self.parked[number as usize % WINDOW];
            ahead |= u128::from(parked.is_some_and(|parked| parked.header.number == number)) << bit;
        }
        DeliveryReport { next: self.next, frontier: self.frontier, ahead, waiting }
    }

    /// The number of the next receive.
    #[inline]
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.next
    }

    /// The receive with that number, if it is not done.
    #[inline]
    #[must_use]
    pub fn outstanding_receive(&self, number: u32) -> Option<RecvId> {
        let id = RecvId(number as usize & (self.recvs - 1));
        let receive = &self.receives[id.0];
        (receive.outstanding && receive.number == number).then_some(id)
    }

    #[inline]
    fn current_slot(&self, token: BufferToken) -> Option<usize> {
        let slot = token.slot();
        (self.buffers.get(slot)?.token == token).then_some(slot)
    }

    #[inline]
    fn fill_buffer(&mut self, slot: usize, len: u64) -> ArrivalOutcome {
        let buffer = &mut self.buffers[slot];
        let before = core::mem::replace(&mut buffer.state, BufferPhase::Full);
        buffer.len = len;
        self.empty -= u32::from(before == BufferPhase::Empty);
        self.count_filled(slot)
    }

    /// Counts a buffer as full.
    #[inline(always)]
    fn count_filled(&mut self, slot: usize) -> ArrivalOutcome {
        let id = RecvId(table::receive_of_slot(slot));
        let receive = &mut self.receives[id.0];
        receive.missing -= 1;
        if receive.missing == 0 { ArrivalOutcome::Done(id) } else { ArrivalOutcome::Filled }
    }

    /// Ends a receive of one buffer, which is full, and frees its place. Returns the length of its message, or `None` if the receive has
    /// several buffers.
    #[inline]
    pub fn finish_one(&mut self, id: RecvId) -> Option<u64> {
        if self.receives[id.0].count != 1 {
            return None;
        }
        self.receives[id.0].outstanding = false;
        Some(self.empty_buffer(table::slot_of_buffer(id.0, 0)))
    }

    /// Ends a full buffer, which waits for nothing afterwards. Returns the length of its message.
    #[inline]
    fn empty_buffer(&mut self, slot: usize) -> u64 {
        let buffer = &mut self.buffers[slot];
        buffer.state = BufferPhase::Idle;
        buffer.token = buffer.token.next();
        buffer.len
    }

    /// Ends a receive whose buffers are all full: calls `each` with the length of every buffer, and frees its place.
    #[inline]
    pub fn finish_receive(&mut self, id: RecvId, mut each: impl FnMut(usize, u64)) {
        for index in 0..usize::from(self.receives[id.0].count) {
            each(index, self.empty_buffer(table::slot_of_buffer(id.0, index)));
        }
        self.receives[id.0].outstanding = false;
    }
}

#[cfg(test)]
mod tests;
