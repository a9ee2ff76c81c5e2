//! Entries as operations of a network: splits an entry into pieces, begins them when there is room, and reports the outcome of the entry.
//! Called by the executor's drain, in the order in which entries may begin; it never orders anything itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_device_queue::{JobExecutor, JobOutcome, QueueJob};
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::limits::{DEVICE_PIECE_BYTES, DEVICE_PIECES_MAX};
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::table_capacity::{try_hold, try_hold_queue};
use trunkline_proto::wire::device_queue::{
    AtomicChange, CounterUpdate, EntryStatus, PeerAddress, QueueEntry,
};

use crate::network::{BeginOutcome, EntryFailure, MemberNetwork, NetworkCompletion};
use crate::region::{DeviceCopier, EntryRegions, RoomTaken};
use crate::remaining_work::{EntryPlan, RemainingWork};
use trunkline_engine::rma::{self, HeapAddress, MemberRank, PutSource};

mod plan;
mod signal_words;

/// Status of entries whose operation no network here supports: NOTIFY, and a WRITE with an immediate.
pub const UNSUPPORTED: EntryStatus = EntryStatus::Other(256);

/// Time for a link to deliver an error word before the control stream delivers it too.
const POISON_TIME: Duration = Duration::from_millis(20);

/// An operation in progress, or a free place for one.
#[derive(Clone, Debug)]
struct EntryOp {
    /// Counts the uses of this place.
    generation: u32,
    /// Whether it has begun and not ended.
    is_out: bool,
    /// The receiver of its outcome.
    of: OpOwner,
    /// The room that stages its bytes on their way out.
    room: Option<RoomTaken>,
    rest: RemainingWork,
    /// Work that begins when all of `rest` has succeeded: a device's bytes reach the network, and arrive from it, by way of host memory.
    then: RemainingWork,
    /// Pieces in progress.
    under_way: u32,
    /// Whether it is listed in [`EntryOps::waits`].
    waits: bool,
    failed: Option<EntryFailure>,
    value: u64,
    /// An atomic of several steps: its word, its change, and the value that the last compare and swap expected.
    steps: Option<(HeapAddress, AtomicChange, Option<u64>)>,
    /// The error word that it sets, or that is set if it fails.
    poison: Option<(HeapAddress, u64)>,
}

/// The receiver of an operation's outcome.
#[derive(Clone, Copy, Debug)]
enum OpOwner {
    /// None.
    Nobody,
    /// An entry, by queue and index.
    Entry(u32, u64),
    /// A piece of an entry, by the entry's place and the use of that place.
    Piece(u32, u32),
}

/// An operation that has begun: its place, and the generation of that place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BegunOp(u32, u32);

/// All entries in progress.
#[derive(Debug)]
pub struct EntryOps<N> {
    network: N,
    /// Memory that entries name.
    pub regions: EntryRegions,
    me: MemberRank,
    flights: Vec<EntryOp>,
    free: Vec<u32>,
    /// Operations that found no room, oldest first.
    waits: VecDeque<u32>,
    /// Operations that set error words, and when they began.
    poisons: Vec<(u32, u32, Instant)>,
    /// Copiers with copies in progress, and their number.
    copiers: Vec<(Arc<dyn DeviceCopier>, u32)>,
    ended: Vec<NetworkCompletion>,
    copied: Vec<(u64, Result<(), u32>)>,
    /// Outcomes of entries that the executor has not taken yet.
    over: Vec<(u32, u64, JobOutcome)>,
}

impl<N: MemberNetwork> EntryOps<N> {
    /// Creates an empty table.
    pub fn new(network: N) -> Self {
        Self {
            me: network.own_rank(),
            network,
            regions: EntryRegions::new(),
            flights: Vec::new(),
            free: Vec::new(),
            waits: VecDeque::new(),
            poisons: Vec::new(),
            copiers: Vec::new(),
            ended: Vec::new(),
            copied: Vec::new(),
            over: Vec::new(),
        }
    }

    /// Reserves memory for `more` entries, so that none of them allocates.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the capacity is unchanged then.
    pub fn grow_capacity(&mut self, more: u32) -> Result<(), OutOfMemory> {
        let first = self.flights.len() as u32;
        let room = (first + more) as usize;
        try_grow(&mut self.flights, more as usize)?;
        try_hold(&mut self.free, room)?;
        try_hold_queue(&mut self.waits, room)?;
        try_hold(&mut self.over, room)?;
        try_hold(&mut self.ended, room)?;
        try_hold(&mut self.poisons, room)?;
        self.flights.resize(room, EntryOp::NONE);
        self.free.extend((first..first + more).rev());
        Ok(())
    }

    /// Returns the rank of this process.
    #[must_use]
    pub const fn own_rank(&self) -> MemberRank {
        self.me
    }

    /// Returns the network, for uses that belong to no entry.
    pub const fn network_mut(&mut self) -> &mut N {
        &mut self.network
    }

    /// Returns whether no operation is in progress.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len()
    }

    /// Returns all operations in progress.
    #[must_use]
    pub fn begun_ops(&self) -> Vec<BegunOp> {
        let out = (0..).zip(&self.flights).filter(|(_, flight)| flight.is_out);
        out.map(|(at, flight)| BegunOp(at, flight.generation)).collect()
    }

    /// Returns whether this operation is still in progress.
    #[must_use]
    pub fn is_begun(&self, BegunOp(at, generation): BegunOp) -> bool {
        let flight = self.flights.get(at as usize);
        flight.is_some_and(|flight| flight.is_out && flight.generation == generation)
    }

    /// Returns the number of copiers with copies in progress.
    #[must_use]
    pub const fn copier_count(&self) -> usize {
        self.copiers.len()
    }

    /// Progresses all operations. Returns whether anything advanced.
    pub fn make_progress(&mut self) -> bool {
        // The vector is taken out and put back, so that its capacity is reused.
        let mut ended = std::mem::take(&mut self.ended);
        let mut moved = self.network.make_progress(&mut ended);
        for one in ended.drain(..) {
            self.on_ended(one.cookie, one.how.map(Some));
        }
        self.ended = ended;
        moved |= self.poll_copies();
        // The queue's length is read once: an operation that is still without room is queued again, and must not be tried twice in one
        // pass.
        for _ in 0..self.waits.len() {
            let Some(at) = self.waits.pop_front() else { break };
            if let Some(flight) = self.flights.get_mut(at as usize) {
                flight.waits = false;
            }
            self.advance_op(at);
        }
        if !self.poisons.is_empty() {
            self.resend_late_error_words();
        }
        moved | !self.over.is_empty()
    }

    /// Returns the queue, index and outcome of an entry that has ended, if there is one.
    pub fn take_ended(&mut self) -> Option<(u32, u64, JobOutcome)> {
        self.over.pop()
    }

    fn poll_copies(&mut self) -> bool {
        let mut copied = std::mem::take(&mut self.copied);
        for (copies, under_way) in self.copiers.iter_mut().filter(|(_, under_way)| *under_way > 0) {
            let before = copied.len();
            copies.take_ended(&mut copied);
            *under_way -= (copied.len() - before).min(*under_way as usize) as u32;
        }
        // Idle copiers are released, so that a removed region can free its stream.
        self.copiers.retain(|(_, under_way)| *under_way > 0);
        let moved = !copied.is_empty();
        for (cookie, how) in copied.drain(..) {
            let failed = |reason| EntryFailure { status: EntryStatus::Network, reason };
            self.on_ended(cookie, how.map(|()| None).map_err(failed));
        }
        self.copied = copied;
        moved
    }

    /// Allocates a place for an operation.
    fn allocate_op(&mut self, of: OpOwner, rest: RemainingWork) -> Option<u32> {
        if self.free.is_empty() {
            // Each entry has a place already, but operations that set error words may need more.
            self.grow_capacity(64).ok()?;
        }
        let at = self.free.pop()?;
        let flight = self.flights.get_mut(at as usize)?;
        let generation = flight.generation.wrapping_add(1);
        *flight = EntryOp { generation, of, rest, is_out: true, ..EntryOp::NONE };
        Some(at)
    }

    /// Begins all pieces of an operation for which there is room.
    fn advance_op(&mut self, at: u32) {
        loop {
            let (staged, piece) = self.launch_piece(at);
            let Some(flight) = self.flights.get_mut(at as usize) else { return };
            // The generation distinguishes the completions of successive uses of the place.
            let cookie = u64::from(flight.generation) << 32 | u64::from(at);
            let carried = match &flight.rest {
                RemainingWork::Nothing => break,
                RemainingWork::Staged { .. } | RemainingWork::Landed { .. } => staged,
                RemainingWork::Put { to, from } => self.network.put(cookie, *to, PutSource::Heap(*from)),
                RemainingWork::Inline { to, bytes } => {
                    self.network.put(cookie, *to, PutSource::Bytes(bytes.as_bytes()))
                }
                RemainingWork::Get { from, into } => self.network.get(cookie, *from, *into),
                RemainingWork::Copy { copies, from, to, len } => {
                    let from = MemoryLocation { memory: &from.0, offset: from.1 };
                    let to = MemoryLocation { memory: &to.0, offset: to.1 };
                    if copies.begin_copy(cookie, from, to, *len) {
                        note_copier(&mut self.copiers, copies);
                        BeginOutcome::Begun(*len)
                    } else {
                        BeginOutcome::Busy
                    }
                }
                RemainingWork::Atomic { at, action, fetches } => {
                    self.network.post_atomic(cookie, *at, *action, *fetches)
                }
            };
            match carried {
                BeginOutcome::Begun(bytes) => {
                    flight.under_way += 1;
                    flight.rest.consume_bytes(bytes);
                    if let Some(piece) = piece {
                        let whole = BegunOp(at, flight.generation);
                        self.advance_op(piece);
                        // The piece may have failed at once, and the whole operation with it.
                        if !self.is_begun(whole) {
                            return;
                        }
                    }
                }
                BeginOutcome::Busy => {
                    // An operation is listed once: two listings would try it twice per pass.
                    if !flight.waits {
                        flight.waits = true;
                        self.waits.push_back(at);
                    }
                    return;
                }
                BeginOutcome::Failed(failure) => {
                    // No further piece begins. The operation ends once the pieces in progress have ended, as they still use its memory.
                    flight.failed = flight.failed.or(Some(failure));
                    (flight.rest, flight.then) = (RemainingWork::Nothing, RemainingWork::Nothing);
                }
            }
        }
        self.finish_op(at);
    }

    /// Creates the operation of the next piece of bytes that pass through host memory, if that is the operation's next work. Returns its
    /// length and its place.
    fn launch_piece(&mut self, at: u32) -> (BeginOutcome, Option<u32>) {
        match self.flights.get(at as usize).map(|flight| &flight.rest) {
            Some(RemainingWork::Staged { .. }) => self.launch_staged(at),
            Some(RemainingWork::Landed { .. }) => self.launch_landed(at),
            _ => (BeginOutcome::Busy, None),
        }
    }

    /// Creates the next piece of a device's bytes: a copy to a free room, then a put.
    fn launch_staged(&mut self, at: u32) -> (BeginOutcome, Option<u32>) {
        const BUSY: (BeginOutcome, Option<u32>) = (BeginOutcome::Busy, None);
        let Some(flight) = self.flights.get(at as usize) else { return BUSY };
        let RemainingWork::Staged { to, copies, memory, words, from } = &flight.rest else { return BUSY };
        let to = *to;
        let from = *from;
        let of = OpOwner::Piece(at, flight.generation);
        let copies = Arc::clone(copies);
        let memory = memory.clone();
        let words = words.clone();
        let Some((room, beside, most)) = self.regions.take_room(self.me, from.heap) else {
            // A full set of rooms is only a matter of time. A region without rooms never gets one, so waiting would not end.
            let has_none = !self.regions.has_rooms(from.heap);
            return if has_none {
                (BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Access)), None)
            } else {
                BUSY
            };
        };
        let len = from.len.min(most);
        let copy = RemainingWork::Copy { copies, from: (memory, from.offset), to: (words, beside), len };
        let put = RemainingWork::Put { to, from: rma::HeapRange { offset: beside, len, ..from } };
        let Some(piece) = self.allocate_op(of, copy) else { return BUSY };
        if let Some(flight) = self.flights.get_mut(piece as usize) {
            flight.then = put;
            flight.room = Some(room);
        }
        (BeginOutcome::Begun(len), Some(piece))
    }

    /// Creates the next piece of bytes for a device: a get into the host memory beside it, then a copy.
    fn launch_landed(&mut self, at: u32) -> (BeginOutcome, Option<u32>) {
        const BUSY: (BeginOutcome, Option<u32>) = (BeginOutcome::Busy, None);
        let Some(flight) = self.flights.get(at as usize) else { return BUSY };
        let RemainingWork::Landed { from, copies, memory, words, into } = &flight.rest else { return BUSY };
        // Bounds the places and the copies that one long get occupies.
        if flight.under_way >= DEVICE_PIECES_MAX {
            return BUSY;
        }
        let len = into.len.min(DEVICE_PIECE_BYTES);
        let [beside, device] = [words, memory].map(|memory| (memory.clone(), into.offset));
        let copy = RemainingWork::Copy { copies: Arc::clone(copies), from: beside, to: device, len };
        let get = RemainingWork::Get { from: *from, into: rma::HeapRange { len, ..*into } };
        let Some(piece) = self.allocate_op(OpOwner::Piece(at, flight.generation), get) else { return BUSY };
        if let Some(flight) = self.flights.get_mut(piece as usize) {
            flight.then = copy;
        }
        (BeginOutcome::Begun(len), Some(piece))
    }

    /// Handles the end of a piece, and its value if it has one.
    fn on_ended(&mut self, cookie: u64, how: Result<Option<u64>, EntryFailure>) {
        let at = cookie as u32;
        let Some(flight) = self.flights.get_mut(at as usize) else { return };
        // The operation may have been abandoned, and its place reused, while the network still had the piece.
        if flight.generation != (cookie >> 32) as u32 || flight.under_way == 0 {
            return;
        }
        flight.under_way -= 1;
        match how {
            Err(failure) => {
                flight.failed = flight.failed.or(Some(failure));
                (flight.rest, flight.then) = (RemainingWork::Nothing, RemainingWork::Nothing);
            }
            Ok(value) => {
                flight.value = value.unwrap_or(flight.value);
                flight.advance_atomic();
            }
        }
        let is_first_over = flight.under_way == 0 && matches!(flight.rest, RemainingWork::Nothing);
        if is_first_over {
            flight.rest = std::mem::replace(&mut flight.then, RemainingWork::Nothing);
        }
        if matches!(flight.rest, RemainingWork::Nothing) {
            self.finish_op(at);
        } else if !flight.waits {
            self.advance_op(at);
        }
    }

    /// Reports the outcome of an operation, once all of its pieces have ended: until then its source may still be read.
    fn finish_op(&mut self, at: u32) {
        let Some(flight) = self.flights.get_mut(at as usize) else { return };
        if flight.under_way > 0 {
            return;
        }
        let poison = flight.poison.take();
        let failed = flight.failed;
        let of = flight.of;
        let room = flight.room.take();
        if let OpOwner::Entry(queue, index) = of {
            let outcome = match failed {
                None => JobOutcome::Done(flight.value),
                Some(EntryFailure { status, reason }) => JobOutcome::Failed { status, reason },
            };
            self.over.push((queue, index, outcome));
        }
        if flight.waits {
            flight.waits = false;
            self.waits.retain(|&waits| waits != at);
        }
        // The new generation makes late completions of this use of the place harmless.
        flight.generation = flight.generation.wrapping_add(1);
        (flight.is_out, flight.under_way, flight.rest, flight.steps) =
            (false, 0, RemainingWork::Nothing, None);
        flight.then = RemainingWork::Nothing;
        self.free.push(at);
        if let Some((place, word)) = poison
            && failed.is_some()
        {
            self.send_error_word(place, word);
        }
        // Freed only now: until the put has ended, the network reads the room.
        room.into_iter().for_each(|room| self.regions.give_room(room));
        if let OpOwner::Piece(whole, generation) = of {
            let cookie = u64::from(generation) << 32 | u64::from(whole);
            self.on_ended(cookie, failed.map_or(Ok(None), Err));
        }
    }

    /// Fails all operations in progress, whether or not they still take effect. Their entries get an error, and pending error words are set
    /// by the control stream.
    pub fn abandon_all(&mut self) {
        self.waits.clear();
        for at in 0..self.flights.len() as u32 {
            let Some(flight) = self.flights.get_mut(at as usize).filter(|flight| flight.is_out) else {
                continue;
            };
            flight.failed = flight.failed.or(Some(EntryFailure::from_status(EntryStatus::Abandoned)));
            (flight.under_way, flight.waits) = (0, false);
            self.finish_op(at);
        }
        self.poisons.clear();
    }

    /// As [`abandon_all`](Self::abandon_all), and releases the network: nothing can begin any more.
    pub fn detach_job(&mut self) {
        self.abandon_all();
        self.network.detach_job();
    }

    fn send_error_word(&mut self, place: HeapAddress, word: u64) {
        if place.member == self.me {
            return self.set_own_error_word(place.heap, place.offset, word);
        }
        // The result is ignored: a dead member has no waiters.
        let _said = self.network.send_error_word(place, word);
    }

    /// Sends error words by the control stream if their link was too slow. A link whose other end is stopped, or that is about to fail,
    /// then delays no waiter.
    fn resend_late_error_words(&mut self) {
        let mut late = Vec::new();
        let flights = &mut self.flights;
        self.poisons.retain(|&(at, generation, since)| {
            let Some(flight) = flights.get_mut(at as usize) else { return false };
            if flight.generation != generation {
                return false;
            }
            let is_late = since.elapsed() > POISON_TIME;
            if is_late {
                late.extend(flight.poison);
            }
            !is_late
        });
        for (place, word) in late {
            self.send_error_word(place, word);
        }
    }
}

impl<N: MemberNetwork> JobExecutor for EntryOps<N> {
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome> {
        match job {
            QueueJob::Execute(entry) => return self.execute_entry(queue, index, entry),
            QueueJob::Count { at, value, poisoned } => self.raise_word(queue, *at, *value, *poisoned),
            // The outcome is not awaited: waiters in this process must see the failure at once, wherever the word is.
            QueueJob::Poison { at, poisoned, poison } => self.set_error_word(*at, *poisoned, *poison),
        }
        Some(JobOutcome::Done(0))
    }

    #[inline]
    fn raise_counter(&mut self, queue: u32, _: u64, at: PeerAddress, count: CounterUpdate) {
        if self.add_here(at, count.value.into(), count.poisoned).is_none() {
            self.raise_word(queue, at, count.value, count.poisoned);
        }
    }

    #[inline]
    fn try_add(&mut self, at: PeerAddress, value: u64, poisoned: bool) -> Option<u64> {
        self.add_here(at, value, poisoned)
    }

    #[inline]
    fn execute_entry(&mut self, queue: u32, index: u64, entry: &QueueEntry) -> Option<JobOutcome> {
        match self.plan_entry(entry) {
            Ok(EntryPlan::Done(value)) => Some(JobOutcome::Done(value)),
            Err(status) => Some(JobOutcome::Failed { status, reason: 0 }),
            Ok(EntryPlan::Changed(rest, value)) => {
                let at = self.allocate_op(OpOwner::Entry(queue, index), rest)?;
                if let Some(flight) = self.flights.get_mut(at as usize) {
                    flight.value = value;
                }
                self.advance_op(at);
                None
            }
            Ok(EntryPlan::Later(rest, steps)) => {
                let at = self.allocate_op(OpOwner::Entry(queue, index), rest)?;
                if let Some(flight) = self.flights.get_mut(at as usize) {
                    flight.steps = steps;
                }
                self.advance_op(at);
                None
            }
        }
    }
}

impl EntryOp {
    /// A free place.
    const NONE: Self = Self {
        generation: 0,
        is_out: false,
        of: OpOwner::Nobody,
        room: None,
        rest: RemainingWork::Nothing,
        then: RemainingWork::Nothing,
        under_way: 0,
        waits: false,
        failed: None,
        value: 0,
        steps: None,
        poison: None,
    };

    /// Sets the next step of an atomic that takes several, if one is needed; `value` is the current value of the word.
    fn advance_atomic(&mut self) {
        let Some((at, change, expected)) = self.steps else { return };
        let found = self.value;
        let new = change.apply_to(found);
        // The compare and swap succeeded, or the value that was read already equals the result of the change.
        if expected == Some(found) || (expected.is_none() && new == found) {
            self.steps = None;
            self.value = if change.is_fetching() { found } else { 0 };
            return;
        }
        self.steps = Some((at, change, Some(found)));
        self.rest = RemainingWork::Atomic {
            at,
            action: AtomicAction::CompareSwap { expect: found, swap: new },
            fetches: true,
        };
    }
}

fn note_copier(copiers: &mut Vec<(Arc<dyn DeviceCopier>, u32)>, copies: &Arc<dyn DeviceCopier>) {
    match copiers.iter_mut().find(|(known, _)| Arc::ptr_eq(known, copies)) {
        Some((_, under_way)) => *under_way += 1,
        None => copiers.push((Arc::clone(copies), 1)),
    }
}
