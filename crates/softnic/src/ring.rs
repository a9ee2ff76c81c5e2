//! The two ends of a descriptor ring. The producer writes records and payload into the peer's segment; the consumer
//! polls the stamp of the next slot of its own. Neither trusts a word that the other side can write.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_mem::copy_shared;
use trunkline_proto::reserve::{OutOfMemory, try_filled};

use crate::pin_registry::LinkPins;
use crate::record::{INLINE, INLINE_AT, RingRecord, WORDS};
use crate::segment::{RingSegment, SLOT, reader, writer};

/// Alignment of staged payload.
const LINE: u64 = 64;

/// Payload bytes after which the writer checks whether the ring is empty, so that it can restart at its beginning. Successive
/// messages then stay in these few pages, which stay in the cache.
const TOGETHER: u64 = 32 << 10;

/// The same after a check that found the ring in use, so that a long message does not check for each of its pieces.
const BUSY: u64 = 4 * TOGETHER;

/// Records whose slots are worth releasing: two pages of them.
const MANY: u64 = 64;

/// The position whose stamp is 0.
const ZERO_AT: u64 = u64::MAX;

/// A published state of one side.
pub(crate) mod side {
    /// In use.
    pub(crate) const OPEN: u64 = 0;
    /// Ended in order.
    pub(crate) const CLOSED: u64 = 1;
    /// In error.
    pub(crate) const ERROR: u64 = 2;
}

/// The peer published a position that it cannot have reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct InvalidPosition;

/// The writing end.
pub(crate) struct RingProducer {
    segment: Arc<RingSegment>,
    /// Pins of records that name memory of this side, and whether the next record does.
    pins: Option<Arc<LinkPins>>,
    pinned: bool,
    head: u64,
    acked: u64,
    staged: u64,
    freed: u64,
    /// Payload bytes to be staged before the next check whether the ring is empty.
    unlooked: u64,
    /// Farthest offset of payload in its ring, as seen at those checks, and the head position when the ring's pages were released last.
    farthest: u64,
    emptied: u64,
    ends: Box<[u64]>,
}

impl RingProducer {
    /// Creates a producer for the peer's segment, whose next record has position `start`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(segment: RingSegment, start: u64) -> Result<Self, OutOfMemory> {
        let slots = segment.geometry().slot_count() as usize;
        let ends = try_filled(start & !(LINE - 1), slots)?;
        Ok(Self {
            segment: Arc::new(segment),
            pins: None,
            pinned: false,
            head: start,
            acked: start,
            // Like the positions, near the wrap if a test sets that.
            staged: start & !(LINE - 1),
            freed: start & !(LINE - 1),
            unlooked: TOGETHER,
            farthest: 0,
            emptied: start,
            ends,
        })
    }

    /// Position of the next record.
    #[inline]
    pub(crate) fn head_position(&self) -> u64 {
        self.head
    }

    /// Position up to which the peer has executed, as last seen.
    #[inline]
    pub(crate) fn acked_position(&self) -> u64 {
        self.acked
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        position as usize & (self.ends.len() - 1)
    }

    /// Reads the peer's position; returns whether it changed.
    #[inline]
    pub(crate) fn refresh_acked(&mut self) -> Result<bool, InvalidPosition> {
        let consumed = u64::from_le(self.segment.shared_word(reader::CONSUMED).load(Ordering::Acquire));
        if consumed == self.acked {
            return Ok(false);
        }
        // The peer can write any value, so a position outside the published records is rejected.
        if consumed.wrapping_sub(self.acked) > self.head.wrapping_sub(self.acked) {
            return Err(InvalidPosition);
        }
        // Records are executed in order, so the payload up to the end of the last executed one is free.
        self.freed = self.ends[self.index(consumed.wrapping_sub(1))];
        self.acked = consumed;
        // Releasing pins takes a lock, so it is skipped while no record names memory of this side.
        if self.pinned
            && let Some(pins) = &self.pins
        {
            pins.strike_offers(consumed);
            self.pinned = consumed != self.head;
        }
        Ok(true)
    }

    /// Returns the segment, to be shared with the pins of its records.
    #[inline]
    pub(crate) fn segment(&self) -> &Arc<RingSegment> {
        &self.segment
    }

    /// Allows records to name memory of this side.
    pub(crate) fn set_pins(&mut self, pins: Arc<LinkPins>) {
        self.pins = Some(pins);
    }

    /// Marks the next record as one that names memory of this side.
    #[inline]
    pub(crate) fn pin_next(&mut self) {
        self.pinned = true;
    }

    /// Whether the peer has shown that it can read this side's memory.
    #[inline]
    pub(crate) fn peer_reaches(&self) -> bool {
        u64::from_le(self.segment.shared_word(reader::REACHES).load(Ordering::Relaxed)) == 1
    }

    /// Whether a record can be written. Reads the peer's word only if the last known position leaves no room, because that word is in a
    /// cache line that the peer writes.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        let slots = self.ends.len() as u64;
        self.head.wrapping_sub(self.acked) < slots
            || (self.refresh_acked() == Ok(true) && self.head.wrapping_sub(self.acked) < slots)
    }

    /// Finds room in the payload ring for up to `want` contiguous bytes: offset and length, or `None` for now.
    #[inline]
    pub(crate) fn stage_payload(&mut self, want: u32) -> Option<(u32, u32)> {
        if self.unlooked == 0 {
            self.begin_again();
        }
        let size = u64::from(self.segment.geometry().payload_bytes());
        let offset = self.staged & (size - 1);
        // At most half of the ring, so that one piece can be written while the peer copies another.
        let len = u64::from(want).min(size - offset).min(size / 2);
        // Whole lines, so that two pieces never share a cache line.
        let padded = len.next_multiple_of(LINE);
        let fits = |one: &Self| one.staged.wrapping_sub(one.freed) + padded <= size;
        let room = fits(self) || (self.refresh_acked() == Ok(true) && fits(self));
        if !room {
            return None;
        }
        // Both are below the 32-bit size of the ring.
        Some((offset as u32, len as u32))
    }

    /// Restarts at the beginning of the payload ring if everything in it was executed. Each record contains the offset of its payload, so
    /// the reader need not know.
    #[inline(never)]
    fn begin_again(&mut self) {
        // An invalid position is ignored: the next caller that reads the peer's position gets the error.
        let _ = self.refresh_acked();
        let size = u64::from(self.segment.geometry().payload_bytes());
        self.farthest = self.farthest.max(self.staged & (size - 1));
        // Records that were not executed still need their payload, so their bytes must not be overwritten.
        if self.acked != self.head {
            self.unlooked = BUSY;
            return;
        }
        self.unlooked = TOGETHER;
        // Round up to the ring's size, which is a power of two, so that positions may wrap.
        self.staged = self.staged.wrapping_add(size - 1) & !(size - 1);
        self.freed = self.staged;
    }

    /// Releases the pages of the ring, if all records in it were executed and there are enough of them.
    pub(crate) fn trim_idle_memory(&mut self) {
        let _ = self.refresh_acked();
        let slots = self.ends.len() as u64;
        let payload = u64::from(self.segment.geometry().payload_bytes());
        let farthest = self.farthest.max(self.staged & (payload - 1));
        let many = farthest > TOGETHER || self.head.wrapping_sub(self.emptied) > MANY;
        let full = self.acked != self.head;
        // Released slots read as zero. In this lap zero is a valid stamp, so they would count as records.
        let zero = ZERO_AT.wrapping_sub(self.head) < slots;
        // A pinned record has its claim words in its slot, so the pages must stay.
        if !many || full || zero || self.pinned {
            return;
        }
        self.segment.empty_rings();
        (self.farthest, self.emptied) = (0, self.head);
    }

    /// Calls `copy` to put `len` bytes into the room that [`RingProducer::stage_payload`] found.
    #[inline]
    pub(crate) fn fill_by(&mut self, offset: u32, len: u32, copy: impl FnOnce(*mut u8)) {
        if let Some(to) = self.segment.payload_range(offset, len) {
            copy(to.as_ptr());
        }
        let padded = u64::from(len).next_multiple_of(LINE);
        self.staged = self.staged.wrapping_add(padded);
        self.unlooked = self.unlooked.saturating_sub(padded);
    }

    /// Writes a record whose bytes, if any, are elsewhere. There must be room.
    #[inline]
    pub(crate) fn push(&mut self, record: &RingRecord) {
        // SAFETY: nothing is read from the pointer when there are no bytes.
        unsafe { self.push_inline(record, ptr::null(), 0) };
    }

    /// Writes a record and `len <= INLINE` bytes into it. There must be room.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline(always)]
    pub(crate) unsafe fn push_inline(&mut self, record: &RingRecord, from: *const u8, len: usize) {
        let slot = self.segment.slot_at(self.head).as_ptr();
        let stamp = self.segment.stamp_at(self.head);
        let next = self.head.wrapping_add(1);
        let words = record.to_words();
        // Inline payload begins at word 4, so only the words before it are written.
        let count = if len == 0 { 7 } else { 3 };
        for (index, word) in words.iter().enumerate().take(count) {
            // SAFETY: `count` is at most 7, so this is one of words 1 to 7 of the slot, which is 16 words long.
            let at = unsafe { slot.cast::<u64>().add(index + 1) };
            // SAFETY: aligned and inside the mapping; the consumer reads it as an atomic word.
            unsafe { AtomicU64::from_ptr(at) }.store(word.to_le(), Ordering::Relaxed);
        }
        if len > 0 {
            // SAFETY: the inline area is inside the slot (`INLINE_AT + INLINE <= SLOT`).
            let to = unsafe { slot.add(INLINE_AT) };
            // SAFETY: at most INLINE bytes fit there, which the peer may change meanwhile; the caller vouches for the source.
            unsafe { copy_shared(from, to, len) };
        }
        let index = self.index(self.head);
        self.ends[index] = self.staged;
        // The stamp is written last with release, so that a consumer that sees it sees the whole record.
        stamp.store(next.to_le(), Ordering::Release);
        self.head = next;
    }

    /// Receives the peer has posted so far.
    #[inline]
    pub(crate) fn peer_posted(&self) -> u64 {
        u64::from_le(self.segment.shared_word(reader::POSTED).load(Ordering::Acquire))
    }

    /// Returns why and where the peer refused a record, if it did.
    #[inline]
    pub(crate) fn peer_nak(&self) -> Option<(u64, u64)> {
        let code = u64::from_le(self.segment.shared_word(reader::NAK).load(Ordering::Acquire));
        (code != 0)
            .then(|| (code, u64::from_le(self.segment.shared_word(reader::NAK_AT).load(Ordering::Relaxed))))
    }

    /// Returns the state of the peer's reading side.
    #[inline]
    pub(crate) fn peer_state(&self) -> u64 {
        u64::from_le(self.segment.shared_word(reader::STATE).load(Ordering::Acquire))
    }

    /// Publishes that this side has mapped the segment, so that the peer may close the memory file.
    pub(crate) fn publish_mapped(&self) {
        self.segment.shared_word(writer::MAPPED).store(1u64.to_le(), Ordering::Release);
    }

    /// Publishes the state of this writing side.
    pub(crate) fn publish_state(&self, state: u64) {
        self.segment.shared_word(writer::STATE).store(state.to_le(), Ordering::Release);
    }
}

/// The reading end.
pub(crate) struct RingConsumer {
    segment: Arc<RingSegment>,
    /// The memory file, until the writer has mapped it.
    file: Option<OwnedFd>,
    next: u64,
    published: u64,
}

impl RingConsumer {
    /// Creates the reader of its own new segment, which is all zero, and of its memory file; the first record has position
    /// `start`.
    pub(crate) fn new(segment: RingSegment, file: Option<OwnedFd>, start: u64) -> Self {
        // Zero is the stamp of one position. If that position is in the first lap, its zeroed slot would count as written, so it gets the
        // stamp of the position after it. The other slots are not touched: untouched pages of a memory file take no memory.
        if ZERO_AT.wrapping_sub(start) < u64::from(segment.geometry().slot_count()) {
            segment.stamp_at(ZERO_AT).store(ZERO_AT.to_le(), Ordering::Relaxed);
        }
        segment.shared_word(reader::CONSUMED).store(start.to_le(), Ordering::Release);
        Self { segment: Arc::new(segment), file, next: start, published: start }
    }

    /// Returns the memory file while the writer may need it.
    pub(crate) fn memory_file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// Closes the memory file if the writer has mapped it.
    pub(crate) fn forget_file(&mut self) {
        if u64::from_le(self.segment.shared_word(writer::MAPPED).load(Ordering::Acquire)) == 1 {
            self.file = None;
        }
    }

    /// Returns the segment, to share with the peer.
    pub(crate) fn segment(&self) -> &Arc<RingSegment> {
        &self.segment
    }

    /// Position of the next record.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a record waits.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready_at(self.next)
    }

    /// Whether the record at a position, this one or one of the next, has arrived.
    #[inline]
    pub(crate) fn ready_at(&self, position: u64) -> bool {
        u64::from_le(self.segment.stamp_at(position).load(Ordering::Acquire)) == position.wrapping_add(1)
    }

    /// Copies the words of the waiting record once, so that later writes of the peer cannot change them after they were checked.
    #[inline]
    pub(crate) fn read_record(&self) -> [u64; WORDS] {
        self.take_at(self.next)
    }

    /// Returns the inline payload of the waiting record: [`INLINE`] bytes, which the peer may still change.
    #[inline]
    pub(crate) fn inline_payload(&self) -> *const u8 {
        const { assert!(INLINE_AT + INLINE <= SLOT) };
        // SAFETY: `INLINE_AT < SLOT`, so this is inside the slot.
        unsafe { self.segment.slot_at(self.next).add(INLINE_AT) }.as_ptr()
    }

    /// Copies the words of the record at a position that has arrived.
    #[inline]
    pub(crate) fn take_at(&self, position: u64) -> [u64; WORDS] {
        let slot = self.segment.slot_at(position).as_ptr().cast::<u64>();
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: `index < WORDS`, which is less than the 16 words of a slot.
            let at = unsafe { slot.add(index) };
            // SAFETY: aligned, mapped, and accessed as an atomic word.
            *word = u64::from_le(unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed));
        }
        words
    }

    /// Moves on to the next record.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Records executed but not yet published.
    #[inline]
    pub(crate) fn unpublished_records(&self) -> u64 {
        self.next.wrapping_sub(self.published)
    }

    /// Publishes this side's position to the producer.
    #[inline]
    pub(crate) fn publish_consumed(&mut self) {
        self.segment.shared_word(reader::CONSUMED).store(self.next.to_le(), Ordering::Release);
        self.published = self.next;
    }

    /// Publishes the number of receives posted so far to the producer.
    #[inline]
    pub(crate) fn publish_posted(&self, posted: u64) {
        self.segment.shared_word(reader::POSTED).store(posted.to_le(), Ordering::Release);
    }

    /// Refuses the record at a position; nothing after it will be executed.
    pub(crate) fn publish_nak(&mut self, code: u64, at: u64) {
        // The position first, because the peer reads it once it sees the code.
        self.segment.shared_word(reader::NAK_AT).store(at.to_le(), Ordering::Relaxed);
        self.segment.shared_word(reader::NAK).store(code.to_le(), Ordering::Release);
        // Records before the refused one count as executed, so that they complete as successful at the peer.
        self.publish_consumed();
    }

    /// Publishes the state of this reading side.
    pub(crate) fn publish_state(&self, state: u64) {
        self.segment.shared_word(reader::STATE).store(state.to_le(), Ordering::Release);
    }

    /// Publishes that this side can read the producer's memory.
    pub(crate) fn publish_reach(&self) {
        self.segment.shared_word(reader::REACHES).store(1u64.to_le(), Ordering::Release);
    }

    /// The state of the peer's writing side.
    #[inline]
    pub(crate) fn peer_state(&self) -> u64 {
        u64::from_le(self.segment.shared_word(writer::STATE).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::OwnedFd;

    use trunkline_mem::copy_shared;

    use super::{RingConsumer, RingProducer, TOGETHER};
    use crate::record::{RecordPayload, RecordVerb, RingRecord};
    use crate::segment::{RingSegment, SegmentGeometry};

    /// Both ends of a ring, its memory file, and the pieces that have not been taken.
    struct Ring {
        tx: RingProducer,
        rx: RingConsumer,
        file: OwnedFd,
        sent: VecDeque<(u32, Vec<u8>)>,
    }

    impl Ring {
        fn new(payload: u32, start: u64) -> Self {
            let geometry = SegmentGeometry::new(16, payload).unwrap();
            let (mine, fd) = RingSegment::create_shared(geometry).unwrap();
            let file = fd.try_clone().unwrap();
            let theirs = RingSegment::map_peer(fd, geometry).unwrap().unwrap();
            let tx = RingProducer::new(theirs, start).unwrap();
            let rx = RingConsumer::new(mine, None, start);
            Self { tx, rx, file, sent: VecDeque::new() }
        }

        /// Returns the bytes of memory that it occupies.
        fn taken(&self) -> i64 {
            rustix::fs::fstat(&self.file).unwrap().st_blocks * 512
        }

        /// Stages a piece of at most `want` bytes, all of one value; returns its end, if there was room.
        fn send(&mut self, want: u32, value: u8) -> Option<u64> {
            if !self.tx.has_room() {
                return None;
            }
            let (offset, len) = self.tx.stage_payload(want)?;
            let bytes = vec![value; len as usize];
            // SAFETY: that many bytes.
            self.tx.fill_by(offset, len, |to| unsafe { copy_shared(bytes.as_ptr(), to, len as usize) });
            let verb = RecordVerb::Send { offset: 0 };
            let payload = RecordPayload::Staged { offset, len };
            self.tx.push(&RingRecord { verb, payload, last: true, awaited: false, imm: None });
            self.sent.push_back((offset, bytes));
            Some(u64::from(offset) + u64::from(len))
        }

        /// Takes the oldest piece, which must hold the bytes that were sent.
        fn take(&mut self) {
            let Some((offset, bytes)) = self.sent.pop_front() else { return };
            assert!(self.rx.is_ready());
            let at = self.rx.segment().payload_range(offset, bytes.len() as u32).unwrap();
            // SAFETY: `payload_range` checked that the bytes are inside the segment, and this test, its only writer, does not write meanwhile.
            let found = unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes.len()) };
            assert_eq!(found, bytes, "overwritten at {offset}");
            self.rx.advance();
            self.rx.publish_consumed();
        }
    }

    #[test]
    fn unexecuted_payload_is_not_overwritten() {
        for (payload, start) in [(4096, 0), (64 << 10, u64::MAX - 70), (512 << 10, 3)] {
            let mut ring = Ring::new(payload, start);
            let mut random = 1u64;
            for round in 0..20_000u32 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let want = 97 + (random >> 33) as u32 % 12_000;
                let waves = if round / 500 % 2 == 0 { 1 } else { 12 };
                if ring.sent.len() < waves && ring.send(want, round as u8).is_some() {
                    continue;
                }
                ring.take();
            }
            while !ring.sent.is_empty() {
                ring.take();
            }
        }
    }

    #[test]
    fn idle_ring_frees_its_memory_and_still_works() {
        for start in [0, u64::MAX - 400] {
            let mut ring = Ring::new(512 << 10, start);
            for round in 0..4 {
                assert!((0..10).all(|value| ring.send(16 << 10, value).is_some()));
                let busy = ring.taken();
                // The pages of records that were not taken stay.
                ring.tx.trim_idle_memory();
                (0..5).for_each(|_| ring.take());
                ring.tx.trim_idle_memory();
                (0..5).for_each(|_| ring.take());
                assert_eq!(ring.taken(), busy);
                ring.tx.trim_idle_memory();
                let rests = ring.taken();
                assert!(busy >= 128 << 10 && rests <= 4096, "round {round}: {busy} bytes, then {rests}");
            }
        }
    }

    #[test]
    fn idle_ring_near_the_wrap_holds_no_record() {
        // Zero is the stamp of the last position before the wrap.
        for start in (0..40).map(|back| u64::MAX - back) {
            let mut ring = Ring::new(64 << 10, start);
            (0..4).for_each(|value| assert!(ring.send(16 << 10, value).is_some()));
            (0..4).for_each(|_| ring.take());
            ring.tx.trim_idle_memory();
            for ahead in 0..16 {
                assert!(
                    !ring.rx.ready_at(ring.tx.head_position().wrapping_add(ahead)),
                    "{start:#x}, {ahead} ahead"
                );
            }
            for value in 0..40 {
                assert!(ring.send(100, value).is_some());
                ring.take();
                assert!(!ring.rx.is_ready());
            }
        }
    }

    #[test]
    fn successive_pieces_stay_in_few_pages() {
        for start in [0, u64::MAX - 1000] {
            let mut ring = Ring::new(512 << 10, start);
            // Several at once, far into the ring.
            let deep = (0..10).filter_map(|_| ring.send(16 << 10, 1)).max();
            assert!(deep > Some(4 * TOGETHER));
            (0..10).for_each(|_| ring.take());
            let mut ends = Vec::new();
            for value in 0..200 {
                ends.push(ring.send(4112, value).unwrap());
                ring.take();
            }
            let most = ends[50..].iter().max().unwrap();
            assert!(*most <= TOGETHER + 4160, "{most}");
        }
    }
}
