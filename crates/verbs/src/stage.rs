//! Requests that have been posted and not yet given to the device: built in one place for all links of a rail, chained by
//! queue, and given away with one call a queue.

use std::ffi::c_int;

use trunkline_sys::verbs::{RecvWr, SEND_INLINE, SEND_SIGNALED, SendWr, SendWrTarget, Sge};

use crate::error::Planted;
use crate::qp::{Builder, Qp, Ring};

/// Most requests that wait; the next one has all of them given away first.
pub(crate) const ROOM: usize = 64;
/// Most bytes that are copied into one request.
pub(crate) const COPIED_MAX: usize = 256;
/// No request.
const NONE: u16 = u16::MAX;

/// Requests of one queue that wait, by their places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Chain {
    first: u16,
    last: u16,
    count: u16,
}

impl Chain {
    /// None.
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, count: 0 };

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.count.into()
    }
}

/// What a request is, apart from its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Comes back with its completion.
    pub(crate) id: u64,
    /// `enum ibv_wr_opcode`.
    pub(crate) opcode: u32,
    /// The immediate, if the opcode has one.
    pub(crate) imm: u32,
    /// The peer's memory.
    pub(crate) target: SendWrTarget,
    /// Whether it completes when it is well.
    pub(crate) signalled: bool,
}

/// Where the bytes of a request come from, or go.
#[derive(Clone, Copy)]
pub(crate) enum Bytes<'a> {
    /// Copied, one after the other; at most [`COPIED_MAX`] together.
    Copied(&'a [u8], &'a [u8]),
    /// Registered.
    Placed(Sge),
    /// Registered, one after the other.
    Both(Sge, Sge),
}

/// All that waits on one rail.
pub(crate) struct Stage {
    sends: Box<[SendWr; ROOM]>,
    lists: Box<[[Sge; 2]; ROOM]>,
    bytes: Box<[[u8; COPIED_MAX]; ROOM]>,
    next: Box<[u16; ROOM]>,
    used: usize,
    receives: Box<[RecvWr; ROOM]>,
    places: Box<[Sge; ROOM]>,
    next_receive: Box<[u16; ROOM]>,
    used_receives: usize,
    /// Receives without memory.
    spares: Box<[RecvWr; ROOM]>,
    one_by_one: Planted,
}

// SAFETY: the pointers inside lead to the other boxes, and are written anew before each use.
unsafe impl Send for Stage {}

impl Stage {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            sends: Box::new([SendWr::ZERO; ROOM]),
            lists: Box::new([[Sge::ZERO; 2]; ROOM]),
            bytes: Box::new([[0; COPIED_MAX]; ROOM]),
            next: Box::new([NONE; ROOM]),
            used: 0,
            receives: Box::new([RecvWr::ZERO; ROOM]),
            places: Box::new([Sge::ZERO; ROOM]),
            next_receive: Box::new([NONE; ROOM]),
            used_receives: 0,
            spares: Box::new([RecvWr::ZERO; ROOM]),
            one_by_one: Planted::named("verbs-rings-for-each"),
        }
    }

    /// Whether the next send, or receive, finds no room.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used == ROOM || self.used_receives == ROOM
    }

    /// All chains were given away.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.used, self.used_receives) = (0, 0);
    }

    /// Adds a request to a chain. There must be room.
    #[inline]
    pub(crate) fn add(&mut self, chain: &mut Chain, work: &Work, bytes: Bytes<'_>) {
        let at = self.used;
        self.used += 1;
        let flags = if work.signalled { SEND_SIGNALED } else { 0 };
        let (num_sge, inline) = self.fill(at, bytes);
        let wr = &mut self.sends[at];
        wr.wr_id = work.id;
        wr.opcode = work.opcode;
        wr.imm_data = work.imm.to_be();
        wr.wr = work.target;
        wr.num_sge = num_sge;
        wr.send_flags = flags | if inline { SEND_INLINE } else { 0 };
        append(&mut self.next[..], chain, at);
    }

    /// Copies or names the bytes of a request; the entries of its list, and whether they are copied.
    #[inline]
    fn fill(&mut self, at: usize, bytes: Bytes<'_>) -> (c_int, bool) {
        let list = &mut self.lists[at];
        match bytes {
            Bytes::Copied(one, two) => {
                let all = one.len() + two.len();
                let copy = &mut self.bytes[at];
                copy[..one.len()].copy_from_slice(one);
                copy[one.len()..all].copy_from_slice(two);
                list[0] = Sge { addr: copy.as_ptr().expose_provenance() as u64, length: all as u32, lkey: 0 };
                (c_int::from(all > 0), all > 0)
            }
            Bytes::Placed(sge) => {
                list[0] = sge;
                (c_int::from(sge.length > 0), false)
            }
            Bytes::Both(one, two) => {
                *list = [one, two];
                (2, false)
            }
        }
    }

    /// Adds a receive to a chain. There must be room.
    #[inline]
    pub(crate) fn add_receive(&mut self, chain: &mut Chain, id: u64, into: Sge) {
        let at = self.used_receives;
        self.used_receives += 1;
        self.places[at] = into;
        self.receives[at].wr_id = id;
        self.receives[at].num_sge = c_int::from(into.length > 0);
        append(&mut self.next_receive[..], chain, at);
    }

    /// Gives a chain of sends to its queue pair.
    ///
    /// # Errors
    /// The system's number, and how many of the last were not taken.
    pub(crate) fn ring(&mut self, qp: &Qp, chain: Chain) -> Result<(), (i32, u32)> {
        match qp.ring() {
            Ring::Listed => self.list(qp, chain),
            Ring::Built(builder) => self.build(builder, chain),
        }
    }

    fn list(&mut self, qp: &Qp, chain: Chain) -> Result<(), (i32, u32)> {
        let mut left = u32::from(chain.count);
        let mut at = chain.first;
        let base = self.sends.as_mut_ptr();
        let mut first = NONE;
        while left > 0 {
            let (index, next) = (usize::from(at), self.next[usize::from(at)]);
            let alone = self.one_by_one.is_on();
            self.sends[index].sg_list = self.lists[index].as_mut_ptr();
            self.sends[index].next = match next {
                NONE => std::ptr::null_mut(),
                _ if alone => std::ptr::null_mut(),
                next => base.wrapping_add(usize::from(next)),
            };
            if first == NONE {
                first = at;
            }
            if alone {
                qp.post_send(&raw mut self.sends[index]).map_err(|(error, _)| (error, left))?;
                first = NONE;
            }
            (at, left) = (next, left - 1);
        }
        if first == NONE {
            return Ok(());
        }
        qp.post_send(base.wrapping_add(usize::from(first))).map_err(|(error, bad)| {
            // From the one that is named on, none was taken.
            let (mut at, mut taken) = (chain.first, 0);
            while at != NONE && base.wrapping_add(usize::from(at)) != bad {
                (at, taken) = (self.next[usize::from(at)], taken + 1);
            }
            (error, u32::from(chain.count).saturating_sub(taken))
        })
    }

    fn build(&mut self, builder: &Builder, chain: Chain) -> Result<(), (i32, u32)> {
        builder.start();
        let mut at = chain.first;
        while at != NONE {
            let wr = &self.sends[usize::from(at)];
            let list = &self.lists[usize::from(at)];
            builder.begin(wr);
            if wr.send_flags & SEND_INLINE != 0 {
                builder.copy(&list[0]);
            } else {
                builder.place(&list[..wr.num_sge as usize]);
            }
            at = self.next[usize::from(at)];
        }
        // All or none of them.
        builder.complete().map_err(|error| (error, chain.count.into()))
    }

    /// Gives a chain of receives to its queue pair.
    ///
    /// # Errors
    /// As [`Stage::ring`].
    pub(crate) fn ring_receives(&mut self, qp: &Qp, chain: Chain) -> Result<(), (i32, u32)> {
        let base = self.receives.as_mut_ptr();
        let mut at = chain.first;
        while at != NONE {
            let (index, next) = (usize::from(at), self.next_receive[usize::from(at)]);
            self.receives[index].sg_list = &raw mut self.places[index];
            self.receives[index].next = match next {
                NONE => std::ptr::null_mut(),
                next => base.wrapping_add(usize::from(next)),
            };
            at = next;
        }
        let posted = qp.post_recv(base.wrapping_add(usize::from(chain.first)));
        posted.map_err(|(error, bad)| {
            let (mut at, mut taken) = (chain.first, 0);
            while at != NONE && base.wrapping_add(usize::from(at)) != bad {
                (at, taken) = (self.next_receive[usize::from(at)], taken + 1);
            }
            (error, u32::from(chain.count).saturating_sub(taken))
        })
    }

    /// Posts receives without memory, all with one number.
    ///
    /// # Errors
    /// How many were taken, if not all.
    pub(crate) fn post_spares(&mut self, qp: &Qp, id: u64, count: u32) -> Result<(), u32> {
        let base = self.spares.as_mut_ptr();
        let mut done = 0;
        while done < count {
            let now = (count - done).min(ROOM as u32) as usize;
            for at in 0..now {
                self.spares[at].wr_id = id;
                let last = at + 1 == now;
                self.spares[at].next = if last { std::ptr::null_mut() } else { base.wrapping_add(at + 1) };
            }
            qp.post_recv(base).map_err(|(_, bad)| {
                done + (0..now).take_while(|&at| base.wrapping_add(at) != bad).count() as u32
            })?;
            done += now as u32;
        }
        Ok(())
    }
}

#[inline]
fn append(next: &mut [u16], chain: &mut Chain, at: usize) {
    next[at] = NONE;
    // Fewer than 65536 are waiting.
    let place = at as u16;
    match chain.last {
        NONE => chain.first = place,
        last => next[usize::from(last)] = place,
    }
    chain.last = place;
    chain.count += 1;
}
