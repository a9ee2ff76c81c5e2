//! The pending operations of a context, towards each peer and in total. An operation counts from its post to its completion, a signal from its post
//! to its acknowledgement; nothing else ends a quiet. The engine calls it for each operation and completion. A quiet of an idle context is one load,
//! whatever the number of peers; only while something is pending does it also check the streams
//! ([`OutgoingStream::quiet`](crate::rma::outgoing::OutgoingStream::quiet)). A quiet also waits for operations that other threads of its context
//! begin meanwhile.

use alloc::vec::Vec;

use crate::reserve::{OutOfMemory, try_grow};
use crate::rma::PathId;
use crate::rma::in_flight::InFlightTable;
use crate::slots::SlotId;

/// The pending operations towards one peer: the low half counts them; the high half is 1 more than the path of the first operation that failed, or 0.
#[derive(Clone, Copy, Debug, Default)]
struct PeerWindow(u64);

const PATH: u32 = 32;

impl PeerWindow {
    const fn pending_count(self) -> u32 {
        self.0 as u32
    }

    const fn failed_path(self) -> Option<PathId> {
        match (self.0 >> PATH) as u8 {
            0 => None,
            path => PathId::new(path - 1),
        }
    }
}

/// A pending operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LedgerOp<T> {
    /// The index of the peer.
    pub peer: u32,
    /// The path that it was last posted on.
    pub path: PathId,
    /// The caller's note, returned when the operation ends.
    pub note: T,
}

/// No operation can begin: the table of operations is full, or has no such peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LedgerFull;

/// The state of a quiet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuietProgress {
    /// All operations are complete.
    Done,
    /// At least one operation is pending.
    Pending,
}

/// All operations that a quiet waited for have ended, and at least one failed. Each failure is reported once.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an operation to peer {peer} failed on rail {}", path.index())]
pub struct QuietFailure {
    /// The index of the peer.
    pub peer: u32,
    /// The path of the first operation that failed.
    pub path: PathId,
}

/// A completion or an acknowledgement of an operation that is not pending.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnknownCompletion;

/// The ledger of one context.
#[derive(Debug)]
pub struct OperationLedger<T> {
    /// Low half: pending operations in total; high half: peers with a failure.
    total: u64,
    windows: Vec<PeerWindow>,
    flights: InFlightTable<LedgerOp<T>>,
    /// Operations and signals begun so far.
    issued: u64,
    /// Completions of operations that were not pending.
    unknown: u64,
}

impl<T: Copy> Default for OperationLedger<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> OperationLedger<T> {
    /// Creates the ledger of a context without peers and without room for operations.
    #[must_use]
    pub const fn new() -> Self {
        Self { total: 0, windows: Vec::new(), flights: InFlightTable::new(), issued: 0, unknown: 0 }
    }

    /// Makes room for peers below `peers` and for `more` operations. Allocates.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the room for operations is then unchanged.
    pub fn grow_capacity(&mut self, peers: u32, more: u32) -> Result<(), OutOfMemory> {
        if peers as usize > self.windows.len() {
            let more = peers as usize - self.windows.len();
            try_grow(&mut self.windows, more)?;
            self.windows.resize(peers as usize, PeerWindow(0));
        }
        self.flights.grow_capacity(more)
    }

    /// Records an operation that is about to be posted, and returns its id, which its completion has to carry.
    ///
    /// # Errors
    /// [`LedgerFull`] if there is no room for the operation, or none for that peer.
    #[inline]
    pub fn begin_operation(&mut self, peer: u32, path: PathId, note: T) -> Result<SlotId, LedgerFull> {
        let window = self.windows.get_mut(peer as usize).ok_or(LedgerFull)?;
        let id = self.flights.begin_operation(LedgerOp { peer, path, note }).map_err(|_| LedgerFull)?;
        window.0 += 1;
        self.total += 1;
        self.issued += 1;
        Ok(id)
    }

    /// Ends an operation that is complete at its target, and returns it.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not pending: it was reported twice, which is counted and ends no quiet.
    #[inline]
    pub fn complete_operation(&mut self, id: SlotId) -> Result<LedgerOp<T>, UnknownCompletion> {
        let Some(op) = self.flights.end_operation(id) else {
            self.unknown += 1;
            return Err(UnknownCompletion);
        };
        self.subtract_pending(op.peer, 1);
        Ok(op)
    }

    /// Ends an operation that has failed and will not be posted again, and returns it.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not pending, which is counted.
    pub fn fail_operation(&mut self, id: SlotId) -> Result<LedgerOp<T>, UnknownCompletion> {
        let op = self.complete_operation(id)?;
        self.record_failure(op.peer, op.path);
        Ok(op)
    }

    fn record_failure(&mut self, peer: u32, path: PathId) {
        let Some(window) = self.windows.get_mut(peer as usize) else { return };
        if window.failed_path().is_none() {
            window.0 |= (path.index() as u64 + 1) << PATH;
            self.total += 1 << PATH;
        }
    }

    /// Records that an operation is posted again, over another path.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not pending.
    pub fn move_operation(&mut self, id: SlotId, path: PathId) -> Result<(), UnknownCompletion> {
        self.flights.get_mut(id).map(|op| op.path = path).ok_or(UnknownCompletion)
    }

    /// Returns the note of a pending operation, to be changed when the operation is posted again.
    #[inline]
    pub fn note_mut(&mut self, id: SlotId) -> Option<&mut T> {
        self.flights.get_mut(id).map(|op| &mut op.note)
    }

    /// Returns whether an operation can begin.
    #[inline]
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.flights.has_room()
    }

    /// Iterates over the pending operations, in no order.
    pub fn pending_ops(&self) -> impl Iterator<Item = (SlotId, &LedgerOp<T>)> {
        self.flights.iter()
    }

    /// Records a signal that was sent and is to be acknowledged.
    ///
    /// # Errors
    /// [`LedgerFull`] if the peer is unknown.
    #[inline]
    pub fn begin_signal(&mut self, peer: u32) -> Result<(), LedgerFull> {
        self.windows.get_mut(peer as usize).ok_or(LedgerFull)?.0 += 1;
        self.total += 1;
        self.issued += 1;
        Ok(())
    }

    /// Ends `signals` signals, which were acknowledged.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if fewer operations are pending, which is counted and changes nothing else.
    #[inline]
    pub fn complete_signals(&mut self, peer: u32, signals: u32) -> Result<(), UnknownCompletion> {
        let pending = self.windows.get(peer as usize).map_or(0, |window| window.pending_count());
        if signals > pending {
            self.unknown += 1;
            return Err(UnknownCompletion);
        }
        self.subtract_pending(peer, signals);
        Ok(())
    }

    /// Subtracts `count` from the pending operations towards a peer.
    #[inline]
    fn subtract_pending(&mut self, peer: u32, count: u32) {
        if let Some(window) = self.windows.get_mut(peer as usize) {
            window.0 -= u64::from(count);
            self.total -= u64::from(count);
        }
    }

    /// Ends all operations towards a lost peer, calls `each` for them, and records one failure if any operation or signal was pending. The peer's
    /// links must have ended before, so that no NIC still reads or writes memory for these operations.
    pub fn lose_peer(&mut self, peer: u32, path: PathId, mut each: impl FnMut(&LedgerOp<T>)) {
        for slot in 0..self.flights.slot_count() {
            let id = self.flights.id_at(slot, |op| op.peer == peer);
            if let Some(op) = id.and_then(|id| self.flights.end_operation(id)) {
                each(&op);
            }
        }
        let pending = self.windows.get(peer as usize).map_or(0, |window| window.pending_count());
        self.subtract_pending(peer, pending);
        if pending > 0 {
            self.record_failure(peer, path);
        }
    }

    /// Returns the state of a quiet of one peer. One load while nothing is pending and nothing has failed.
    ///
    /// # Errors
    /// [`QuietFailure`] once all operations have ended, if one of them has failed since the last such error.
    #[inline]
    pub fn quiet_peer(&mut self, peer: u32) -> Result<QuietProgress, QuietFailure> {
        match self.windows.get(peer as usize) {
            Some(window) if window.0 != 0 => self.poll_window(peer),
            _ => Ok(QuietProgress::Done),
        }
    }

    #[cold]
    fn poll_window(&mut self, peer: u32) -> Result<QuietProgress, QuietFailure> {
        let Some(window) = self.windows.get_mut(peer as usize) else { return Ok(QuietProgress::Done) };
        if window.pending_count() > 0 {
            return Ok(QuietProgress::Pending);
        }
        let Some(path) = window.failed_path() else { return Ok(QuietProgress::Done) };
        *window = PeerWindow(0);
        self.total -= 1 << PATH;
        Err(QuietFailure { peer, path })
    }

    /// Returns the state of a quiet of the context. One load while nothing is pending and nothing has failed.
    ///
    /// # Errors
    /// [`QuietFailure`] once all operations have ended, for one peer with a failure; the next call reports the next such peer.
    #[inline]
    pub fn quiet(&mut self) -> Result<QuietProgress, QuietFailure> {
        if self.total == 0 { Ok(QuietProgress::Done) } else { self.all_ended() }
    }

    #[cold]
    fn all_ended(&mut self) -> Result<QuietProgress, QuietFailure> {
        if self.total as u32 > 0 {
            return Ok(QuietProgress::Pending);
        }
        match self.windows.iter().position(|window| window.failed_path().is_some()) {
            Some(peer) => self.poll_window(peer as u32),
            None => Ok(QuietProgress::Done),
        }
    }

    /// Returns whether no operation is pending.
    #[inline]
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.total as u32 == 0
    }

    /// Returns the number of pending operations and signals towards a peer.
    #[must_use]
    pub fn pending_towards(&self, peer: u32) -> u32 {
        self.windows.get(peer as usize).map_or(0, |window| window.pending_count())
    }

    /// Returns the number of operations and signals that began so far, and how many of them have ended.
    #[must_use]
    pub const fn operation_counts(&self) -> (u64, u64) {
        (self.issued, self.issued - self.total as u32 as u64)
    }

    /// Returns how many completions and acknowledgements were of operations that were not pending: anything but 0 is an error of a NIC or of
    /// Trunkline.
    #[must_use]
    pub const fn unknown_completions(&self) -> u64 {
        self.unknown
    }
}
