//! What a context has under way, towards each peer and in all. An operation counts from its post to its completion, a signal
//! from its post to its acknowledgement; nothing else ends a quiet, and an idle one is one load whatever the number of peers.
//! Called for each operation and completion, and by a quiet before it looks at anything else: only while something is under way
//! does it ask the streams what is to be sent ([`OutgoingStream::quiet`](crate::rma::outgoing::OutgoingStream::quiet)). A quiet waits for what
//! other threads of its context begin meanwhile, too.

use alloc::vec::Vec;

use crate::reserve::{OutOfMemory, try_grow};
use crate::rma::PathId;
use crate::rma::in_flight::InFlightTable;
use crate::slots::SlotId;

/// The window of a peer: the low half counts what is under way, the high half is 1 more than the path of an operation that
/// failed, or 0.
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

/// An operation under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LedgerOp<T> {
    /// Towards which peer, by its place.
    pub peer: u32,
    /// Over which path it was posted last.
    pub path: PathId,
    /// What its owner wants to know when it ends.
    pub note: T,
}

/// No operation can begin: so many are under way as there is room for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LedgerFull;

/// How a quiet stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuietProgress {
    /// All is complete.
    Done,
    /// Something is under way.
    Pending,
}

/// What a quiet waited for has ended, and not all of it well. Told once.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an operation towards peer {peer} failed on rail {}", path.index())]
pub struct QuietFailure {
    /// Towards which peer.
    pub peer: u32,
    /// Over which path the first operation went that failed.
    pub path: PathId,
}

/// A completion, or an acknowledgement, of what is not under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnknownCompletion;

/// The windows of a context.
#[derive(Debug)]
pub struct OperationLedger<T> {
    /// What is under way in all, and in the high half how many windows have a failure.
    total: u64,
    windows: Vec<PeerWindow>,
    flights: InFlightTable<LedgerOp<T>>,
    /// Operations and signals so far.
    issued: u64,
    /// Completions of what was not under way.
    unknown: u64,
}

impl<T: Copy> Default for OperationLedger<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> OperationLedger<T> {
    /// Of a context with no peers and no room.
    #[must_use]
    pub const fn new() -> Self {
        Self { total: 0, windows: Vec::new(), flights: InFlightTable::new(), issued: 0, unknown: 0 }
    }

    /// Makes room for peers below `peers` and for `more` operations. Allocates.
    ///
    /// # Errors
    /// [`OutOfMemory`]; there is as much room for operations as before.
    pub fn grow_capacity(&mut self, peers: u32, more: u32) -> Result<(), OutOfMemory> {
        if peers as usize > self.windows.len() {
            let more = peers as usize - self.windows.len();
            try_grow(&mut self.windows, more)?;
            self.windows.resize(peers as usize, PeerWindow(0));
        }
        self.flights.grow_capacity(more)
    }

    /// An operation is about to be posted. Its name is to come back with its completion.
    ///
    /// # Errors
    /// [`LedgerFull`] if there is no room, or none for such a peer.
    #[inline]
    pub fn begin_operation(&mut self, peer: u32, path: PathId, note: T) -> Result<SlotId, LedgerFull> {
        let window = self.windows.get_mut(peer as usize).ok_or(LedgerFull)?;
        let id = self.flights.begin_operation(LedgerOp { peer, path, note }).map_err(|_| LedgerFull)?;
        window.0 += 1;
        self.total += 1;
        self.issued += 1;
        Ok(id)
    }

    /// An operation is complete at its target. Gives what was known of it.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not under way: it was told twice, which is counted, and ends no quiet.
    #[inline]
    pub fn complete_operation(&mut self, id: SlotId) -> Result<LedgerOp<T>, UnknownCompletion> {
        let Some(op) = self.flights.end_operation(id) else {
            self.unknown += 1;
            return Err(UnknownCompletion);
        };
        self.subtract_pending(op.peer, 1);
        Ok(op)
    }

    /// An operation has failed, and will not be posted again. Gives what was known of it.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not under way, which is counted.
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

    /// An operation is posted again, over another path.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not under way.
    pub fn move_operation(&mut self, id: SlotId, path: PathId) -> Result<(), UnknownCompletion> {
        self.flights.get_mut(id).map(|op| op.path = path).ok_or(UnknownCompletion)
    }

    /// What is known of an operation under way, to be changed as it is posted again.
    #[inline]
    pub fn note_mut(&mut self, id: SlotId) -> Option<&mut T> {
        self.flights.get_mut(id).map(|op| &mut op.note)
    }

    /// Whether an operation can begin.
    #[inline]
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.flights.has_room()
    }

    /// What is under way, in no order.
    pub fn pending_ops(&self) -> impl Iterator<Item = (SlotId, &LedgerOp<T>)> {
        self.flights.iter()
    }

    /// A signal was sent that is to be acknowledged.
    ///
    /// # Errors
    /// [`LedgerFull`] if there is no such peer.
    #[inline]
    pub fn begin_signal(&mut self, peer: u32) -> Result<(), LedgerFull> {
        self.windows.get_mut(peer as usize).ok_or(LedgerFull)?.0 += 1;
        self.total += 1;
        self.issued += 1;
        Ok(())
    }

    /// So many signals were acknowledged.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if fewer are under way, which is counted and changes nothing else.
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

    /// `count` of what is under way towards a peer is not any more.
    #[inline]
    fn subtract_pending(&mut self, peer: u32, count: u32) {
        if let Some(window) = self.windows.get_mut(peer as usize) {
            window.0 -= u64::from(count);
            self.total -= u64::from(count);
        }
    }

    /// A peer is lost: nothing towards it is under way any more, and one failure is told. Its links have ended before, so that
    /// nothing reads or writes memory for it.
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

    /// How a quiet of one peer stands. One load while nothing is under way and nothing has failed.
    ///
    /// # Errors
    /// [`QuietFailure`] once all has ended, if some of it has failed since the last such error.
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

    /// How a quiet of the context stands. One load while nothing is under way and nothing has failed.
    ///
    /// # Errors
    /// [`QuietFailure`] once all has ended, for one of the peers towards which some of it has failed; the next call tells another.
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

    /// Whether nothing is under way towards anybody.
    #[inline]
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.total as u32 == 0
    }

    /// What is under way towards a peer.
    #[must_use]
    pub fn pending_towards(&self, peer: u32) -> u32 {
        self.windows.get(peer as usize).map_or(0, |window| window.pending_count())
    }

    /// Operations and signals that began so far, and of these how many have ended.
    #[must_use]
    pub const fn operation_counts(&self) -> (u64, u64) {
        (self.issued, self.issued - self.total as u32 as u64)
    }

    /// Completions and acknowledgements of what was not under way, so far: anything but 0 is an error of a NIC or of ours.
    #[must_use]
    pub const fn unknown_completions(&self) -> u64 {
        self.unknown
    }
}
