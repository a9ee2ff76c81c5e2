//! Direct copies between the two processes of a link, without the ring: the target pulls out of the initiator's memory,
//! and for a shared record the initiator pushes the other part into the target's. Called by the responder and by `poll`,
//! inside the rail's guard; every call is bounded by one record.

use std::io;
use std::sync::Arc;

use crate::copy_claim::{self, CopyPortion, PullOutcome};
use crate::error::NakReason;
use crate::job::JobKind;
use crate::nic::SharedFabric;
use crate::pin_registry::LinkPins;
use crate::qp::RailContext;
use crate::qp_state::QueuePairState;
use crate::queue::GrowingQueue;
use crate::receive::{RecordProgress, RecordRefusal};
use crate::record::{RecordPayload, RecordVerb, RingRecord};
use crate::register::{CheckedPlace, PIECE, right};
use crate::ring::{RingConsumer, RingProducer};

/// Most shared records that one side may have open.
const PUSHES: u32 = 64;
/// Most records behind the current one that the target opens ahead.
const AHEAD: u64 = 4;
/// Least bytes for which copying by both sides is worthwhile.
const SHARED_LEAST: u64 = 64 << 10;

/// A record whose bytes this side may push.
#[derive(Clone, Copy)]
pub(crate) struct PushRecord {
    position: u64,
    key: u64,
    offset: u64,
    len: u64,
}

/// A record whose bytes this side may pull.
#[derive(Clone, Copy)]
struct PullRecord {
    position: u64,
    place: CheckedPlace,
    addr: u64,
    len: u64,
}

/// The state of a link's direct copies; it exists only if both the configuration and the peer's address allow them.
pub(crate) struct DirectCopier {
    /// Pins of this link.
    pins: Arc<LinkPins>,
    shared: Arc<SharedFabric>,
    nic: usize,
    /// This side has shown that it reaches the peer's memory.
    reaches: bool,
    /// Position after the last record that was granted.
    granted: u64,
    /// Shared records executed; the peer numbers them alike.
    executed: u64,
    pushes: GrowingQueue<PushRecord>,
    /// Longest wait for a peer that is inside a copy when the link ends.
    limit: std::time::Duration,
    /// Time since when such a peer is waited for.
    ending: Option<std::time::Instant>,
}

impl DirectCopier {
    /// Creates it for a link whose first incoming record has position `start`.
    pub(crate) fn new(
        shared: &Arc<SharedFabric>,
        nic: usize,
        pins: Arc<LinkPins>,
        reaches: bool,
        start: u64,
        limit: std::time::Duration,
    ) -> Self {
        shared.nics[nic].book.add_link(&pins);
        let pushes = GrowingQueue::new(PUSHES, 0);
        let shared = Arc::clone(shared);
        Self { pins, shared, nic, reaches, granted: start, executed: 0, pushes, limit, ending: None }
    }

    /// Records an offer about to be published, of region `key`; returns whether both sides will copy it.
    pub(crate) fn offer_record(
        &mut self,
        position: u64,
        key: u64,
        offset: u64,
        len: u64,
        share: bool,
    ) -> bool {
        self.pins.add_offer(key, position);
        share && self.pushes.push(PushRecord { position, key, offset, len })
    }

    /// Copies the bytes of a record that the peer has not claimed to their destination.
    fn pull_record(
        &self,
        rx: &RingConsumer,
        incoming: PullRecord,
        portion: CopyPortion,
    ) -> Result<(), RecordRefusal> {
        let PullRecord { position, place, addr, len } = incoming;
        let claim = rx.segment().claim_at(position);
        while let Some(part) = claim.take_front(len, portion) {
            // SAFETY: `take_front` returns only parts of the `len` bytes of the record.
            let to = CheckedPlace { at: unsafe { place.at.add(part.start as usize) }, ..place };
            let bytes = (part.end - part.start) as usize;
            // SAFETY: the caller checked `place` for `len` bytes, inside the guard.
            let read = unsafe { self.read_to(to, addr.wrapping_add(part.start), bytes) };
            // Published even after an error, because a deregistration may wait for the claim to end.
            claim.pulled_all();
            if let Err(error) = read {
                let dead = error.raw_os_error() == Some(libc::ESRCH) || self.pins.peer_process().is_dead();
                return Err(if dead { RecordRefusal::Dead } else { NakReason::Source.into() });
            }
        }
        Ok(())
    }

    /// Reads bytes at an address of the peer to a place. The kernel cannot write to write-combined mappings: their bytes are copied from a buffer.
    ///
    /// # Safety
    /// The place was checked for `len` bytes, inside a guard.
    unsafe fn read_to(&self, place: CheckedPlace, from: u64, len: usize) -> io::Result<()> {
        if place.rights & right::MAPPED == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.pins.peer_memory().read_bytes(place.at, from, len) };
        }
        let mut buffer = [0; PIECE];
        for at in (0..len).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(len - at)];
            // SAFETY: a slice of that length.
            unsafe {
                self.pins.peer_memory().read_bytes(
                    piece.as_mut_ptr(),
                    from.wrapping_add(at as u64),
                    piece.len(),
                )
            }?;
            // SAFETY: `at < len`, so it is inside the caller's place.
            let to = CheckedPlace { at: unsafe { place.at.add(at) }, ..place };
            // SAFETY: `piece` is readable, and the place was checked for `len >= at + piece.len()` bytes.
            unsafe { self.shared.nics[self.nic].table.copy_in(to, piece.as_ptr(), piece.len(), false) };
        }
        Ok(())
    }

    /// Writes the bytes of a record that the target has not claimed from `place` to address `to`.
    fn push_record(
        &self,
        tx: &RingProducer,
        push: PushRecord,
        place: CheckedPlace,
        to: u64,
        portion: CopyPortion,
    ) {
        let claim = tx.segment().claim_at(push.position);
        while let Some(part) = claim.take_back(push.len, portion) {
            // SAFETY: `take_back` returns only parts of the `push.len` bytes of the record.
            let from = unsafe { place.at.add(part.start as usize) };
            let bytes = (part.end - part.start) as usize;
            // SAFETY: the caller checked `place` for the record's bytes, inside the guard.
            let wrote =
                unsafe { self.pins.peer_memory().write_bytes(to.wrapping_add(part.start), from, bytes) };
            claim.pushed_all(wrote.is_ok());
            if wrote.is_err() {
                return;
            }
        }
    }

    /// Opens the shared records behind the current one that have arrived and whose targets are registered, so that the peer
    /// has work while this side copies; returns how many are open.
    fn grant_ahead(&mut self, rx: &RingConsumer, env: &RailContext<'_>) -> u64 {
        for ahead in 1..=AHEAD {
            let position = rx.next().wrapping_add(ahead);
            if position.wrapping_sub(self.granted).cast_signed() < 0 {
                continue;
            }
            let Some((incoming, key)) = ahead_of(rx, env, position) else { return ahead - 1 };
            self.grant_record(env, key, position, incoming.place);
        }
        AHEAD
    }

    /// Copies the next unclaimed record behind the current one; `own` leaves out those that are the peer's to begin.
    /// Returns whether there was one.
    fn copy_ahead(&self, rx: &RingConsumer, env: &RailContext<'_>, own: bool) -> Result<bool, RecordRefusal> {
        for ahead in 1..=AHEAD {
            let position = rx.next().wrapping_add(ahead);
            if position.wrapping_sub(self.granted).cast_signed() >= 0 {
                return Ok(false);
            }
            if own && initiators_turn(self.executed.wrapping_add(ahead)) {
                continue;
            }
            // A record whose target is no longer registered is refused when it becomes the current one.
            let Some((incoming, _)) = ahead_of(rx, env, position) else { return Ok(false) };
            if rx.segment().claim_at(position).has_left(incoming.len) {
                self.pull_record(rx, incoming, CopyPortion::All)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens a record to the peer, once, if its region is still registered and system calls of other processes reach it.
    fn grant_record(&mut self, env: &RailContext<'_>, key: u64, position: u64, place: CheckedPlace) {
        let Some(region) = env.region_table().local_key(key).filter(|_| place.rights & right::DIRECT != 0)
        else {
            return;
        };
        if position.wrapping_sub(self.granted).cast_signed() >= 0 {
            self.pins.grant_write(region, position, place.at.expose_provenance() as u64);
            self.granted = position.wrapping_add(1);
        }
    }

    /// Copies this side's part of the current record of `rx` to `place`, in region `key` if it is a write. `state` is that of the queue pair.
    pub(crate) fn pull_current(
        &mut self,
        rx: &RingConsumer,
        env: &RailContext<'_>,
        place: CheckedPlace,
        payload: RecordPayload,
        key: Option<u64>,
        state: QueuePairState,
    ) -> Result<RecordProgress, RecordRefusal> {
        let RecordPayload::Pulled { addr, len, shared } = payload else {
            return Err(NakReason::Garbled.into());
        };
        let position = rx.next();
        if !self.reaches || len > copy_claim::BYTES_MAX {
            return Err(NakReason::Protocol.into());
        }
        let mut portion = CopyPortion::All;
        if shared && let Some(key) = key {
            self.grant_record(env, key, position, place);
            if self.grant_ahead(rx, env) == 0 {
                portion = CopyPortion::Share;
            } else if initiators_turn(self.executed)
                && rx.segment().claim_at(position).has_left(len)
                && self.copy_ahead(rx, env, true)?
            {
                return Ok(RecordProgress::Waits);
            }
        }
        let incoming = PullRecord { position, place, addr, len };
        self.pull_record(rx, incoming, portion)?;
        match rx.segment().claim_at(position).pull_outcome(len) {
            // The process number of a dead peer may have been reused, so bytes read under it are not valid.
            PullOutcome::Here if !self.pins.peer_process().is_alive() => Err(RecordRefusal::Dead),
            PullOutcome::Here => {
                if shared {
                    self.end_shared(position);
                }
                Ok(RecordProgress::Done)
            }
            PullOutcome::Coming if state == QueuePairState::Drain && self.pins.peer_process().is_dead() => {
                Err(RecordRefusal::Dead)
            }
            PullOutcome::Coming => {
                self.copy_ahead(rx, env, false)?;
                Ok(RecordProgress::Waits)
            }
            PullOutcome::Gone => Err(NakReason::Source.into()),
        }
    }

    /// Ends the shared record at a position: the peer may no longer write to its destination.
    #[inline]
    pub(crate) fn end_shared(&mut self, position: u64) {
        self.pins.strike_grants(position.wrapping_add(1));
        self.executed = self.executed.wrapping_add(1);
    }

    /// Whether this side may push a part of the bytes of a job, if the peer can pull the rest.
    #[inline]
    pub(crate) fn can_push(&self, kind: JobKind, bytes: u64) -> bool {
        let may_push = self.reaches && self.pins.peer_process().is_watched();
        let writes = matches!(kind, JobKind::Write { .. });
        may_push && writes && bytes >= SHARED_LEAST
    }

    /// Pushes this side's part of the oldest record that has one left.
    pub(crate) fn push_oldest(&mut self, tx: &RingProducer, env: &RailContext<'_>) {
        let open = |push: &PushRecord| tx.segment().claim_at(push.position).push_address();
        let over = |push: &PushRecord| {
            tx.acked_position().wrapping_sub(push.position).cast_signed() > 0
                || !tx.segment().claim_at(push.position).has_left(push.len)
        };
        while self.pushes.front().is_some_and(over) {
            self.pushes.pop();
        }
        let mut best = None;
        let mut count = 0;
        for index in 0..=AHEAD {
            let Some(&push) = self.pushes.item_at(index) else { break };
            let Some(to) = open(&push) else { break };
            if over(&push) {
                continue;
            }
            count += 1;
            best = Some((push, to));
            if initiators_turn(self.pushes.first_number().wrapping_add(index)) {
                count += 1;
                break;
            }
        }
        let Some((push, to)) = best else { return };
        // With several open records each side copies whole ones; only the last one is divided.
        let portion = if count > 1 { CopyPortion::All } else { CopyPortion::Share };
        // Skipped if the region was deregistered since, or if the peer has died: its number may soon be reused.
        if let Some(place) = env.region_table().find_local(push.key, push.offset, push.len)
            && self.pins.peer_process().is_alive()
        {
            self.push_record(tx, push, place, to, portion);
        }
    }

    /// Whether this side has records to push.
    #[inline]
    pub(crate) fn has_pushes(&self) -> bool {
        !self.pushes.is_empty()
    }

    /// In error: forbids the peer further copies, and returns whether it is still inside one from or to memory of this side. The owner of that memory
    /// is notified of the error only after that, as with a NIC, so that it can reuse the memory.
    pub(crate) fn end_copies(&mut self) -> bool {
        if !self.pins.close_all() {
            return false;
        }
        let since = *self.ending.get_or_insert_with(std::time::Instant::now);
        since.elapsed() < self.limit
    }
}

/// Whether the initiator copies shared record `number` first. The two sides alternate, so that with buffers used in turn each side keeps to its own
/// and finds them in its cache. A side without records of its own copies those of the other.
fn initiators_turn(number: u64) -> bool {
    number % 2 == 1
}

/// Returns the shared record at a position behind the current one, with its key, if it has arrived and can be executed.
fn ahead_of(rx: &RingConsumer, env: &RailContext<'_>, position: u64) -> Option<(PullRecord, u64)> {
    if !rx.ready_at(position) {
        return None;
    }
    let record = RingRecord::parse(&rx.take_at(position))?;
    let RecordVerb::Write { key, addr: to } = record.verb else { return None };
    let RecordPayload::Pulled { addr, len, shared: true } = record.payload else { return None };
    if len > copy_claim::BYTES_MAX {
        return None;
    }
    let place = env.region_table().find_remote(key, to, len, right::WRITE)?;
    Some((PullRecord { position, place, addr, len }, key))
}

impl Drop for DirectCopier {
    fn drop(&mut self) {
        self.shared.nics[self.nic].book.end_link(&self.pins, self.limit);
    }
}
