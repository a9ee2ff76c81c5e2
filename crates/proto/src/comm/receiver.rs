//! The receiving side of a comm: pairs what arrives with the buffers of outstanding receives. Called by the engine
//! in irecv and when completions arrive; never touches memory itself.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::comm::Fault;
use crate::comm::ring::Ring;
use crate::comm::table::{self, Table};
use crate::limits::{MAILBOX_SLOTS, RANGE_RECVS, RECV_BUFFERS_MAX, RECVS_MAX, STRIPES_MAX};
use crate::mutant::Mutant;
use crate::wire::cts::Lines;
use crate::wire::eager::Eager;
use crate::wire::fin::Fin;
use crate::wire::imm::{Imm, Token};
use crate::wire::standing::{Standing, Waiting};

/// Eager messages that may have arrived and wait, or be overtaken by others.
const WINDOW: usize = MAILBOX_SLOTS;

/// One outstanding receive, by its place: its number modulo those there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvId(pub usize);

/// What an arrival did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// More must come for its buffer.
    Partial,
    /// Its buffer is full, others of the receive are not.
    Filled,
    /// All buffers of this receive are full.
    Done(RecvId),
    /// It named a buffer that is not waiting; dropped.
    Stale,
}

/// An eager message and its buffer: copy it, then tell [`Receiver::delivered`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Delivery {
    /// The bounce buffer it lies in.
    pub bounce: u32,
    /// Where it belongs.
    pub token: Token,
    /// Payload bytes.
    pub len: u32,
}

/// The state of a comm's receiving side.
#[derive(Debug)]
pub struct Receiver {
    /// The number the next receive gets.
    next: u32,
    receives: [Receive; RECVS_MAX],
    buffers: Table<Buffer>,
    parked: [Option<Parked>; WINDOW],
    /// The first eager number that has not arrived.
    frontier: u32,
    /// No eager message below this number waits for a buffer.
    lowest: u32,
    waiting: u32,
    /// Buffers for which nothing has come.
    empty: u32,
    /// Receives that may be outstanding: a power of two, at most [`RECVS_MAX`].
    recvs: usize,
    /// The first use of each token.
    generation: u16,
    /// Of a member of a group: where its records go.
    ring: Option<Box<Ring>>,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Receive {
    number: u32,
    count: u8,
    /// Buffers that are not full; 0: the place is free.
    missing: u8,
    outstanding: bool,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    token: Token,
    tag: u32,
    /// Its room; the length of its message once that is known.
    len: u64,
    state: State,
}

impl Buffer {
    fn idle(slot: usize, generation: u16) -> Self {
        Self { token: Token::new(slot as u16, generation), tag: 0, len: 0, state: State::Idle }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Not waiting for anything.
    Idle,
    /// Nothing has come.
    Empty,
    /// Given to an eager message that is being copied.
    Taken,
    /// Some stripes have come, by bitmap; `fin` once their number is known.
    Striped { bitmap: u16, fin: Option<u8> },
    /// Full.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Parked {
    header: Eager,
    bounce: u32,
    matched: bool,
}

impl Receiver {
    /// A new receiving side.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        Self::starting_at(1, mutant)
    }

    /// Like [`Receiver::new`], with counters that start near their wrap; for tests.
    #[must_use]
    pub fn starting_at(number: u32, mutant: Mutant) -> Self {
        Self {
            next: number,
            receives: [Receive::default(); RECVS_MAX],
            buffers: Table::new(|slot| Buffer::idle(slot, 0)),
            parked: [None; WINDOW],
            frontier: number.wrapping_sub(1),
            lowest: number.wrapping_sub(1),
            waiting: 0,
            empty: 0,
            recvs: RECVS_MAX,
            generation: 0,
            ring: None,
            mutant,
        }
    }

    /// The same for a member of a group: with fewer receives, which are announced in so many lines each, and tokens from
    /// that use on.
    #[must_use]
    pub fn in_range(self, generation: u16, lines: Lines) -> Self {
        let buffers = Table::new(|slot| Buffer::idle(slot, generation));
        let ring = Some(Box::new(Ring::new(self.next, lines, self.mutant)));
        Self { recvs: RANGE_RECVS, generation, buffers, ring, ..self }
    }

    /// Starts a receive of 1 to 8 buffers, given as tag and length; `None` while its place is in use, a member's sender may
    /// still read the places of its records, or the number of buffers is out of range.
    #[inline(always)]
    pub fn on_irecv(&mut self, buffers: impl ExactSizeIterator<Item = (u32, u64)>) -> Option<RecvId> {
        let id = RecvId(self.next as usize & (self.recvs - 1));
        let count = buffers.len();
        let taken = self.receives[id.0].outstanding && !self.mutant.is("receiver-takes-too-many");
        if taken || count == 0 || count > RECV_BUFFERS_MAX {
            return None;
        }
        if self.ring.is_some() && !self.takes_places(count) {
            return None;
        }
        let generation = self.generation;
        self.buffers.make_room(count, |slot| Buffer::idle(slot, generation));
        let count = count as u8;
        self.receives[id.0] = Receive { number: self.next, count, missing: count, outstanding: true };
        let mut slot = table::slot(id.0, 0);
        for (tag, len) in buffers {
            let buffer = &mut self.buffers[slot];
            (buffer.tag, buffer.len, buffer.state) = (tag, len, State::Empty);
            slot += table::STEP;
        }
        self.empty += u32::from(count);
        self.next = self.next.wrapping_add(1);
        Some(id)
    }

    /// Whether there is room for the records of a member's next receive, which they have then.
    #[inline]
    fn takes_places(&mut self, count: usize) -> bool {
        let of = |number: u32| &self.receives[number as usize % RANGE_RECVS];
        let outstanding = |number: u32| of(number).outstanding && of(number).number == number;
        self.ring.as_mut().is_none_or(|ring| ring.take(self.next, count, outstanding))
    }

    /// The number, the token of buffer `index`, and the number of buffers of a receive, for its clear-to-send record.
    #[inline]
    #[must_use]
    pub fn announcement(&self, id: RecvId, index: usize) -> (u32, Token, u8) {
        let receive = &self.receives[id.0];
        (receive.number, self.buffers[table::slot(id.0, index)].token, receive.count)
    }

    /// Of a member of a group: where its records go.
    #[inline]
    #[must_use]
    pub fn ring(&self) -> Option<&Ring> {
        self.ring.as_deref()
    }

    /// The tag of the buffer with a slot, and its room; once the length of its message is known, that instead.
    #[inline]
    #[must_use]
    pub fn tag_and_room(&self, slot: usize) -> (u32, u64) {
        let Buffer { tag, len, .. } = self.buffers[slot];
        (tag, len)
    }

    /// Takes note of an eager message that lies in bounce buffer `bounce`.
    ///
    /// # Errors
    /// [`Fault::EagerNumber`] if its number is outside the window or was seen.
    pub fn on_eager(&mut self, header: Eager, bounce: u32) -> Result<(), Fault> {
        let ahead = header.number.wrapping_sub(self.lowest) as usize;
        let place = &mut self.parked[header.number as usize % WINDOW];
        if (ahead >= WINDOW || place.is_some()) && !self.mutant.is("receiver-takes-any-number") {
            return Err(Fault::EagerNumber(header.number));
        }
        *place = Some(Parked { header, bounce, matched: false });
        self.waiting += 1;
        while self.parked[self.frontier as usize % WINDOW].is_some_and(|p| p.header.number == self.frontier) {
            self.frontier = self.frontier.wrapping_add(1);
            if self.frontier.wrapping_sub(self.lowest) as usize >= WINDOW {
                break;
            }
        }
        Ok(())
    }

    /// The bounce buffers of eager messages that have no buffer yet.
    pub fn bounces_held(&self) -> impl Iterator<Item = u32> {
        self.parked.iter().flatten().map(|parked| parked.bounce)
    }

    /// Whether eager messages are here that have no buffer yet.
    #[inline]
    #[must_use]
    pub fn holds_eager(&self) -> bool {
        self.waiting > 0
    }

    /// The next eager message whose buffer is known. Ask until `None` after each irecv and each eager arrival.
    ///
    /// # Errors
    /// [`Fault::TooLong`] if it does not fit.
    #[inline]
    pub fn next_delivery(&mut self) -> Result<Option<Delivery>, Fault> {
        if self.waiting == 0 || self.empty == 0 { Ok(None) } else { self.find_delivery() }
    }

    fn find_delivery(&mut self) -> Result<Option<Delivery>, Fault> {
        let span = self.frontier.wrapping_sub(self.lowest);
        let span = if self.mutant.is("receiver-ignores-eager-order") { WINDOW as u32 } else { span };
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
                return Err(Fault::TooLong { len: u64::from(len), room: buffer.len });
            }
            buffer.state = State::Taken;
            self.empty -= 1;
            self.parked[number as usize % WINDOW] = None;
            self.waiting -= 1;
            self.advance_lowest();
            return Ok(Some(Delivery { bounce: parked.bounce, token: self.buffers[slot].token, len }));
        }
        Ok(None)
    }

    fn advance_lowest(&mut self) {
        while self.lowest != self.frontier && self.parked[self.lowest as usize % WINDOW].is_none() {
            self.lowest = self.lowest.wrapping_add(1);
        }
    }

    /// The buffer of an eager message: the first that has its tag, belongs to receive `base` or later and is empty.
    fn buffer_for(&self, header: &Eager) -> Option<usize> {
        let outstanding = self.next.wrapping_sub(header.base);
        let span = if outstanding > u32::MAX / 2 { 0 } else { outstanding.min(self.recvs as u32) };
        let first = self.next.wrapping_sub(span);
        let first = if self.mutant.is("receiver-ignores-base") {
            self.next.wrapping_sub(RECVS_MAX as u32)
        } else {
            first
        };
        for ahead in 0..self.next.wrapping_sub(first) {
            let number = first.wrapping_add(ahead);
            let place = number as usize & (self.recvs - 1);
            let receive = &self.receives[place];
            if !receive.outstanding || receive.number != number {
                continue;
            }
            for slot in (0..usize::from(receive.count)).map(|index| table::slot(place, index)) {
                let buffer = &self.buffers[slot];
                if buffer.tag == header.tag && buffer.state == State::Empty {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// An eager message was copied into its buffer.
    pub fn delivered(&mut self, delivery: &Delivery) -> Arrival {
        self.fill(delivery.token.slot(), u64::from(delivery.len))
    }

    /// An immediate arrived with a write of `len` bytes (looked at only for [`Imm::Whole`]).
    ///
    /// # Errors
    /// [`Fault`] if it contradicts what is known. [`Imm::Fin`] is not for here.
    #[inline]
    pub fn on_imm(&mut self, imm: Imm, len: u64) -> Result<Arrival, Fault> {
        let Some(slot) = self.current(imm.token()) else { return Ok(Arrival::Stale) };
        let buffer = &mut self.buffers[slot];
        match (imm, buffer.state) {
            (Imm::Full(_), State::Empty) => {
                buffer.state = State::Full;
                self.empty -= 1;
                Ok(self.filled(slot))
            }
            (Imm::Whole(_), State::Empty) if len <= buffer.len || self.mutant.is("receiver-ignores-room") => {
                Ok(self.fill(slot, len))
            }
            (Imm::Whole(_), State::Empty) => Err(Fault::TooLong { len, room: buffer.len }),
            (Imm::Stripe(_, index), State::Empty) => {
                buffer.state = State::Striped { bitmap: 1 << index, fin: None };
                self.empty -= 1;
                Ok(Arrival::Partial)
            }
            (Imm::Stripe(_, index), State::Striped { bitmap, fin }) => {
                let bit = 1_u16 << index;
                if bitmap & bit != 0 && !self.mutant.is("receiver-counts-stripes-twice") {
                    return Err(Fault::Twice);
                }
                buffer.state = State::Striped { bitmap: bitmap | bit, fin };
                Ok(self.check_stripes(slot))
            }
            (_, State::Idle | State::Taken | State::Full) => Ok(Arrival::Stale),
            (Imm::Full(_) | Imm::Whole(_) | Imm::Fin(_), _) => Err(Fault::Twice),
        }
    }

    /// A fin record arrived with an immediate for the token it lies under.
    ///
    /// # Errors
    /// [`Fault`] if it contradicts what is known.
    pub fn on_fin(&mut self, token: Token, fin: Fin) -> Result<Arrival, Fault> {
        let Some(slot) = self.current(token) else { return Ok(Arrival::Stale) };
        let buffer = &mut self.buffers[slot];
        if fin.token != token {
            return Err(Fault::Twice);
        }
        if fin.len > buffer.len {
            return Err(Fault::TooLong { len: fin.len, room: buffer.len });
        }
        let bitmap = match buffer.state {
            State::Empty => {
                self.empty -= 1;
                0
            }
            State::Striped { bitmap, fin: None } => bitmap,
            State::Striped { .. } => return Err(Fault::Twice),
            State::Idle | State::Taken | State::Full => return Ok(Arrival::Stale),
        };
        buffer.len = fin.len;
        buffer.state = State::Striped { bitmap, fin: Some(fin.stripes) };
        Ok(self.check_stripes(slot))
    }

    fn check_stripes(&mut self, slot: usize) -> Arrival {
        let Buffer { len, state: State::Striped { bitmap, fin: Some(stripes) }, .. } = self.buffers[slot]
        else {
            return Arrival::Partial;
        };
        let short = usize::from(self.mutant.is("receiver-early-stripes"));
        debug_assert!(usize::from(stripes) <= STRIPES_MAX);
        if bitmap.count_ones() as usize + short >= usize::from(stripes) {
            self.fill(slot, len)
        } else {
            Arrival::Partial
        }
    }

    /// What has arrived so far, for a sender that lost a link.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let mut waiting = Vec::new();
        for buffer in self.buffers.iter() {
            match buffer.state {
                State::Empty => waiting.push(Waiting { token: buffer.token, stripes: 0, fin: false }),
                State::Striped { bitmap, fin } => {
                    waiting.push(Waiting { token: buffer.token, stripes: bitmap, fin: fin.is_some() });
                }
                State::Idle | State::Taken | State::Full => {}
            }
        }
        let mut ahead = 0;
        for bit in 0..WINDOW as u32 {
            let number = self.frontier.wrapping_add(bit);
            let parked = self.parked[number as usize % WINDOW];
            ahead |= u128::from(parked.is_some_and(|parked| parked.header.number == number)) << bit;
        }
        Standing { next: self.next, frontier: self.frontier, ahead, waiting }
    }

    /// The number the next receive will have.
    #[inline]
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.next
    }

    /// The receive of that number, if it is not done.
    #[inline]
    #[must_use]
    pub fn outstanding(&self, number: u32) -> Option<RecvId> {
        let id = RecvId(number as usize & (self.recvs - 1));
        let receive = &self.receives[id.0];
        (receive.outstanding && receive.number == number).then_some(id)
    }

    #[inline]
    fn current(&self, token: Token) -> Option<usize> {
        let slot = token.slot();
        let fresh = self.buffers.get(slot)?.token == token || self.mutant.is("receiver-ignores-generation");
        fresh.then_some(slot)
    }

    #[inline]
    fn fill(&mut self, slot: usize, len: u64) -> Arrival {
        let buffer = &mut self.buffers[slot];
        let before = core::mem::replace(&mut buffer.state, State::Full);
        buffer.len = len;
        self.empty -= u32::from(before == State::Empty);
        self.filled(slot)
    }

    /// A buffer is full.
    #[inline(always)]
    fn filled(&mut self, slot: usize) -> Arrival {
        let id = RecvId(table::receive(slot));
        let receive = &mut self.receives[id.0];
        receive.missing -= 1;
        if receive.missing == 0 { Arrival::Done(id) } else { Arrival::Filled }
    }

    /// Ends a receive of one buffer, which is full: the length of its message, and its place is free. `None` if it has
    /// several.
    #[inline]
    pub fn finish_one(&mut self, id: RecvId) -> Option<u64> {
        if self.receives[id.0].count != 1 {
            return None;
        }
        self.receives[id.0].outstanding = false;
        Some(self.empty_buffer(table::slot(id.0, 0)))
    }

    /// The length of the message in a full buffer, which waits for nothing from then on.
    #[inline]
    fn empty_buffer(&mut self, slot: usize) -> u64 {
        let buffer = &mut self.buffers[slot];
        buffer.state = State::Idle;
        if !self.mutant.is("receiver-keeps-generation") {
            buffer.token = buffer.token.next();
        }
        buffer.len
    }

    /// Ends a receive whose buffers are all full: calls `each` with the length of every buffer, and frees its place.
    #[inline]
    pub fn finish(&mut self, id: RecvId, mut each: impl FnMut(usize, u64)) {
        for index in 0..usize::from(self.receives[id.0].count) {
            each(index, self.empty_buffer(table::slot(id.0, index)));
        }
        self.receives[id.0].outstanding = false;
    }
}

#[cfg(test)]
mod tests;
