//! Requests that have been posted and not yet submitted to the device: built in one place for all links of a rail, chained by
//! queue, and submitted with one call per queue. The rail calls it; it tracks no completion.

use std::ffi::c_int;

use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_sys::verbs::{RecvWr, SEND_INLINE, SEND_SIGNALED, SendWr, SendWrTarget, Sge};

use crate::qp::{PostMethod, VerbsQp, WrBuilder};

/// Most requests that are staged; before a further one all of them are submitted.
pub(crate) const ROOM: usize = 64;
/// Most bytes that are copied into one request.
pub(crate) const COPIED_MAX: usize = 256;
/// No request.
const NONE: u16 = u16::MAX;

/// Staged requests of one queue, by their places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RequestChain {
    first: u16,
    last: u16,
    count: u16,
}

impl RequestChain {
    /// A chain without requests.
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, count: 0 };

    /// Whether the chain has no requests.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of requests.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.count.into()
    }
}

/// A request without its bytes.
#[derive(Clone, Copy)]
pub(crate) struct StagedRequest {
    /// Returned with its completion.
    pub(crate) id: u64,
    /// `enum ibv_wr_opcode`.
    pub(crate) opcode: u32,
    /// The immediate, if the opcode has one.
    pub(crate) imm: u32,
    /// The peer's memory.
    pub(crate) target: SendWrTarget,
    /// Whether it completes when it succeeds.
    pub(crate) signalled: bool,
}

/// The source or destination of a request's bytes.
#[derive(Clone, Copy)]
pub(crate) enum RequestBytes<'a> {
    /// Copied, one after the other; at most [`COPIED_MAX`] together.
    Copied(&'a [u8], &'a [u8]),
    /// Registered.
    Placed(Sge),
    /// Registered, one after the other.
    Both(Sge, Sge),
}

/// All staged requests of one rail.
pub(crate) struct RequestStage {
    sends: Box<[SendWr; ROOM]>,
    lists: Box<[[Sge; 2]; ROOM]>,
    bytes: Box<[[u8; COPIED_MAX]; ROOM]>,
    next: Box<[u16; ROOM]>,
    used: usize,
    receives: Box<[RecvWr; ROOM]>,
    places: Box<[Sge; ROOM]>,
    next_receive: Box<[u16; ROOM]>,
    used_receives: usize,
}

// SAFETY: the pointers inside lead into the other boxes, whose bytes stay where they are when the stage is moved. Each pointer is derived again from its
// box before its request is passed to the device's library, and none is followed at another time or by another thread.
unsafe impl Send for RequestStage {}

impl RequestStage {
    /// Creates an empty stage.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        Ok(Self {
            sends: try_room(SendWr::ZERO)?,
            lists: try_room([Sge::ZERO; 2])?,
            bytes: try_room([0; COPIED_MAX])?,
            next: try_room(NONE)?,
            used: 0,
            receives: try_room(RecvWr::ZERO)?,
            places: try_room(Sge::ZERO)?,
            next_receive: try_room(NONE)?,
            used_receives: 0,
        })
    }

    /// Whether there is no room for one more send, or for one more receive.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used == ROOM || self.used_receives == ROOM
    }

    /// Whether there is room for `sends` more sends and a receive.
    #[inline]
    pub(crate) fn has_room(&self, sends: usize) -> bool {
        self.used + sends <= ROOM && self.used_receives < ROOM
    }

    /// Frees all places, after all chains were submitted.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.used, self.used_receives) = (0, 0);
    }

    /// Adds a request to a chain. There must be room.
    #[inline]
    pub(crate) fn add_request(
        &mut self,
        chain: &mut RequestChain,
        work: &StagedRequest,
        bytes: RequestBytes<'_>,
    ) {
        let at = self.used;
        self.used += 1;
        let flags = if work.signalled { SEND_SIGNALED } else { 0 };
        let (num_sge, inline) = self.fill_bytes(at, bytes);
        let wr = &mut self.sends[at];
        wr.wr_id = work.id;
        wr.opcode = work.opcode;
        // The immediate is in network byte order (ibv_post_send(3)).
        wr.imm_data = work.imm.to_be();
        wr.wr = work.target;
        wr.num_sge = num_sge;
        wr.send_flags = flags | if inline { SEND_INLINE } else { 0 };
        append_to_chain(&mut self.next[..], chain, at);
    }

    /// Copies or names the bytes of a request; returns the number of entries of its list, and whether the bytes are copied.
    #[inline]
    fn fill_bytes(&mut self, at: usize, bytes: RequestBytes<'_>) -> (c_int, bool) {
        let list = &mut self.lists[at];
        match bytes {
            RequestBytes::Copied(one, two) => {
                let all = one.len() + two.len();
                let copy = &mut self.bytes[at];
                copy[..one.len()].copy_from_slice(one);
                copy[one.len()..all].copy_from_slice(two);
                list[0] = Sge { addr: copy.as_ptr().expose_provenance() as u64, length: all as u32, lkey: 0 };
                (c_int::from(all > 0), all > 0)
            }
            RequestBytes::Placed(sge) => {
                list[0] = sge;
                // No entry for an empty payload, because some devices read a length of 0 as 2^31.
                (c_int::from(sge.length > 0), false)
            }
            RequestBytes::Both(one, two) => {
                *list = [one, two];
                (2, false)
            }
        }
    }

    /// Adds a receive to a chain. There must be room.
    #[inline]
    pub(crate) fn add_receive(&mut self, chain: &mut RequestChain, id: u64, into: Sge) {
        let at = self.used_receives;
        self.used_receives += 1;
        self.places[at] = into;
        self.receives[at].wr_id = id;
        self.receives[at].num_sge = c_int::from(into.length > 0);
        append_to_chain(&mut self.next_receive[..], chain, at);
    }

    /// Submits a chain of sends to its queue pair.
    ///
    /// # Errors
    /// The system's number, and how many of the last requests were refused.
    pub(crate) fn submit_chain(&mut self, qp: &VerbsQp, chain: RequestChain) -> Result<(), (i32, u32)> {
        let PostMethod::Built(builder) = qp.post_method() else { return self.submit_list(qp, chain) };
        let mut at = chain.first;
        let mut left = chain.count;
        while left > 0 {
            // Soft-RoCE sends the first of two ranges twice if the request is built in place, so such requests are submitted as lists.
            let listed = self.has_ranges(at);
            let (run, next) = self.uniform_run(at, left, listed);
            left -= run.count;
            let rung = if listed { self.submit_list(qp, run) } else { self.build(builder, run) };
            rung.map_err(|(error, untaken)| (error, untaken + u32::from(left)))?;
            at = next;
        }
        Ok(())
    }

    fn has_ranges(&self, at: u16) -> bool {
        self.sends[usize::from(at)].num_sge > 1
    }

    /// Returns the requests from `first` on, at most `most`, that are submitted in the same way, and the place of the request behind them.
    fn uniform_run(&self, first: u16, most: u16, listed: bool) -> (RequestChain, u16) {
        let mut run = RequestChain { first, last: first, count: 0 };
        let mut at = first;
        while run.count < most && self.has_ranges(at) == listed {
            run.last = at;
            run.count += 1;
            at = self.next[usize::from(at)];
        }
        (run, at)
    }

    fn submit_list(&mut self, qp: &VerbsQp, chain: RequestChain) -> Result<(), (i32, u32)> {
        let mut left = u32::from(chain.count);
        let mut at = chain.first;
        // Until the library has the chain, its requests are only accessed through this pointer: any access through the box would invalidate the
        // pointers that were derived from it before.
        let base = self.sends.as_mut_ptr();
        let mut first = NONE;
        while left > 0 {
            let index = usize::from(at);
            let next = self.next[usize::from(at)];
            let following = match next {
                _ if left == 1 => std::ptr::null_mut(),
                next => base.wrapping_add(usize::from(next)),
            };
            let list = self.lists[index].as_mut_ptr();
            let request = base.wrapping_add(index);
            // SAFETY: `index` is a place of the box, as the access to `lists` has just checked, and no reference to the entry exists.
            unsafe { (*request).sg_list = list };
            // SAFETY: as for `sg_list`.
            unsafe { (*request).next = following };
            if first == NONE {
                first = at;
            }
            (at, left) = (next, left - 1);
        }
        if first == NONE {
            return Ok(());
        }
        qp.post_send(base.wrapping_add(usize::from(first))).map_err(|(error, bad)| {
            // `bad` is the first refused request; all requests behind it were refused, too (ibv_post_send(3)).
            let mut at = chain.first;
            let mut taken = 0;
            while taken < chain.count && base.wrapping_add(usize::from(at)) != bad {
                (at, taken) = (self.next[usize::from(at)], taken + 1);
            }
            (error, u32::from(chain.count - taken))
        })
    }

    fn build(&mut self, builder: &WrBuilder, chain: RequestChain) -> Result<(), (i32, u32)> {
        builder.start_list();
        let mut at = chain.first;
        for _ in 0..chain.count {
            let wr = &self.sends[usize::from(at)];
            let list = &self.lists[usize::from(at)];
            builder.begin_request(wr);
            if wr.send_flags & SEND_INLINE != 0 {
                builder.set_inline_bytes(&list[0]);
            } else {
                builder.set_sge_list(&list[..wr.num_sge as usize]);
            }
            at = self.next[usize::from(at)];
        }
        // ibv_wr_complete(3) accepts all requests of a list or none.
        builder.submit_list().map_err(|error| (error, chain.count.into()))
    }

    /// Submits a chain of receives to its queue pair.
    ///
    /// # Errors
    /// The system's number, and the first receive that was refused, for [`RequestStage::receives_from`].
    pub(crate) fn ring_receives(&mut self, qp: &VerbsQp, chain: RequestChain) -> Result<(), (i32, u16)> {
        // As in `submit_list`, the only access to the requests until the library has them.
        let base = self.receives.as_mut_ptr();
        let mut at = chain.first;
        while at != NONE {
            let index = usize::from(at);
            let next = self.next_receive[usize::from(at)];
            let following = match next {
                NONE => std::ptr::null_mut(),
                next => base.wrapping_add(usize::from(next)),
            };
            let place = &raw mut self.places[index];
            let request = base.wrapping_add(index);
            // SAFETY: `index` is a place of the box, as the access to `places` has just checked, and no reference to the entry exists.
            unsafe { (*request).sg_list = place };
            // SAFETY: as for `sg_list`.
            unsafe { (*request).next = following };
            at = next;
        }
        let posted = qp.post_recv(base.wrapping_add(usize::from(chain.first)));
        posted.map_err(|(error, bad)| {
            let mut at = chain.first;
            while at != NONE && base.wrapping_add(usize::from(at)) != bad {
                at = self.next_receive[usize::from(at)];
            }
            (error, at)
        })
    }

    /// Returns the numbers of the receives of a chain.
    pub(crate) fn receives_of(&self, chain: RequestChain) -> impl Iterator<Item = u64> {
        self.receives_from(chain.first)
    }

    /// Returns the numbers of the receives of a chain from `first` on.
    pub(crate) fn receives_from(&self, first: u16) -> impl Iterator<Item = u64> {
        let place = |at: u16| (at != NONE).then_some(at);
        let next = move |at: &u16| place(self.next_receive[usize::from(*at)]);
        std::iter::successors(place(first), next).map(|at| self.receives[usize::from(at)].wr_id)
    }
}

/// Allocates a value for each place.
fn try_room<T: Clone>(value: T) -> Result<Box<[T; ROOM]>, OutOfMemory> {
    // Cannot fail: the slice has exactly `ROOM` values.
    try_filled(value, ROOM)?.try_into().map_err(|_| OutOfMemory { bytes: ROOM * size_of::<T>() })
}

#[inline]
fn append_to_chain(next: &mut [u16], chain: &mut RequestChain, at: usize) {
    next[at] = NONE;
    // Fits, because fewer than 65536 requests are staged.
    let place = at as u16;
    match chain.last {
        NONE => chain.first = place,
        last => next[usize::from(last)] = place,
    }
    chain.last = place;
    chain.count += 1;
}
