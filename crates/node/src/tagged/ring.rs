//! The two ends of a ring of cells in memory that two processes share: docs/wire.md, "Tagged messages inside a node".
//! Neither end trusts a word that the other can write.

use trunkline_mem::MemoryRange;
use trunkline_proto::wire::tagged::{CELL_BYTES, EAGER_AT, WORDS};

use crate::ipc::StageOffset;

/// The location of a ring in an inbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLayout {
    /// The offset of its first cell.
    pub(super) at: u64,
    /// The number of cells; a power of two.
    pub(super) cells: u64,
    /// The offset of the word with the consumed count.
    pub(super) consumed_at: u64,
}

impl RingLayout {
    #[inline]
    const fn cell_offset(&self, position: u64) -> u64 {
        self.at + (position & (self.cells - 1)) * CELL_BYTES
    }

    /// Locates the bytes of an eager message whose frame is at `position`: their offset, and how many of them precede
    /// the ring's end.
    #[inline]
    const fn payload_range(&self, position: u64, len: u64) -> (u64, u64) {
        let begin = self.cell_offset(position) + EAGER_AT;
        let room = self.at + self.cells * CELL_BYTES - begin;
        (begin, if len < room { len } else { room })
    }
}

/// The reader's consumed count is impossible: lower than before, or above the writer's head.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct InvalidConsumedCount;

/// The writing end.
#[derive(Debug)]
pub(super) struct RingWriter {
    memory: MemoryRange,
    place: RingLayout,
    head: u64,
    freed: u64,
    /// From the head up to here the first words of cells are 0.
    clean: u64,
}

impl RingWriter {
    pub(super) const fn new(memory: MemoryRange, place: RingLayout) -> Self {
        Self { memory, place, head: 0, freed: 0, clean: 0 }
    }

    /// Whether a frame of that many cells can be written, with a free cell left behind it.
    #[inline]
    pub(super) fn has_room(&mut self, cells: u64) -> Result<bool, InvalidConsumedCount> {
        let free = |one: &Self| one.place.cells - (one.head - one.freed);
        if free(self) > cells {
            return Ok(true);
        }
        let consumed = self.memory.load(self.place.consumed_at).unwrap_or(0);
        if consumed < self.freed || consumed > self.head {
            return Err(InvalidConsumedCount);
        }
        self.freed = consumed;
        Ok(free(self) > cells)
    }

    /// Writes a frame of one cell. The caller has checked the room.
    #[inline]
    pub(super) fn push(&mut self, words: &[u64; WORDS]) {
        let at = self.place.cell_offset(self.head);
        for (word, offset) in words.iter().zip((at..).step_by(8)).skip(1) {
            // All cells are inside the memory.
            let _ = self.memory.store(offset, *word);
        }
        self.publish_frame(words[0], 1);
    }

    /// Writes an eager frame with these first two words. `fill` copies `len` bytes of the message, from an offset of
    /// it on, to an offset of the memory. The caller has checked the room.
    ///
    /// # Errors
    /// The error of `fill`; then nothing was published.
    #[inline]
    pub(super) fn push_eager<E>(
        &mut self,
        words: &[u64; WORDS],
        len: u64,
        cells: u64,
        fill: impl FnMut(u64, StageOffset<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        self.fill_eager(len, fill)?;
        self.publish_eager(words, cells);
        Ok(())
    }

    /// Calls `fill` to copy the bytes of the next frame, as [`RingWriter::push_eager`] does. Until
    /// [`RingWriter::publish_eager`] publishes the frame, or [`RingWriter::mark_unpublished`] drops it, nothing else
    /// may be written.
    ///
    /// # Errors
    /// The error of `fill`.
    #[inline]
    pub(super) fn fill_eager<E>(
        &self,
        len: u64,
        mut fill: impl FnMut(u64, StageOffset<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (begin, first) = self.place.payload_range(self.head, len);
        if len > 0 {
            fill(0, StageOffset { memory: &self.memory, at: begin }, first)?;
        }
        if first < len {
            fill(first, StageOffset { memory: &self.memory, at: self.place.at }, len - first)?;
        }
        Ok(())
    }

    /// Publishes the eager frame whose bytes are in place.
    #[inline]
    pub(super) fn publish_eager(&mut self, words: &[u64; WORDS], cells: u64) {
        let _ = self.memory.store(self.place.cell_offset(self.head) + 8, words[1]);
        self.publish_frame(words[0], cells);
    }

    /// Drops the next frame without publishing it. The first words of cells behind its first one may contain some of
    /// its bytes, and are not zero any more.
    pub(super) fn mark_unpublished(&mut self) {
        self.clean = self.clean.min(self.head + 1);
    }

    #[inline]
    fn publish_frame(&mut self, first: u64, cells: u64) {
        let next = self.head + cells;
        if self.clean <= next {
            let _ = self.memory.store(self.place.cell_offset(next), 0);
        }
        let _ = self.memory.store(self.place.cell_offset(self.head), first);
        self.head = next;
        // Clearing one cell ahead saves the next frame a wait for that cache line.
        if self.place.cells - (next - self.freed) > 1 {
            let _ = self.memory.store(self.place.cell_offset(next + 1), 0);
            self.clean = next + 2;
        }
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct RingReader {
    memory: MemoryRange,
    place: RingLayout,
    next: u64,
    published: u64,
    /// Cells from here on are still being read, although later frames may be consumed.
    kept: Option<u64>,
}

impl RingReader {
    pub(super) const fn new(memory: MemoryRange, place: RingLayout) -> Self {
        Self { memory, place, next: 0, published: 0, kept: None }
    }

    /// Returns the first cell of the next frame, if there is one.
    #[inline]
    pub(super) fn next(&self) -> Option<[u64; WORDS]> {
        let at = self.place.cell_offset(self.next);
        if self.memory.load(at).unwrap_or(0) == 0 {
            return None;
        }
        self.memory.load_row(at).ok()
    }

    /// Returns the position of the next frame.
    #[inline]
    pub(super) const fn next_position(&self) -> u64 {
        self.next
    }

    /// Passes the bytes of the next eager message to `take`, in one part or two: the offset in the message, the
    /// place, and the length.
    ///
    /// # Errors
    /// The error of `take`.
    #[inline]
    pub(super) fn visit_payload<E>(
        &self,
        len: u64,
        take: impl FnMut(u64, StageOffset<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bytes_at(self.next, len, take)
    }

    /// Passes the bytes of the eager message at `position` to `take`, as [`RingReader::visit_payload`]. The cells
    /// must be kept ([`RingReader::keep_from`]).
    ///
    /// # Errors
    /// The error of `take`.
    #[inline]
    pub(super) fn bytes_at<E>(
        &self,
        position: u64,
        len: u64,
        mut take: impl FnMut(u64, StageOffset<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (begin, first) = self.place.payload_range(position, len);
        if len > 0 {
            take(0, StageOffset { memory: &self.memory, at: begin }, first)?;
        }
        if first < len {
            take(first, StageOffset { memory: &self.memory, at: self.place.at }, len - first)?;
        }
        Ok(())
    }

    /// Consumes a frame of that many cells. The count is published to the writer once per eighth of the ring.
    #[inline]
    pub(super) fn consume_frame(&mut self, cells: u64) {
        self.next += cells;
        self.publish_consumed();
    }

    /// Keeps the cells from the frame at that position on, even consumed ones. `None`: keeps none.
    pub(super) fn keep_from(&mut self, position: Option<u64>) {
        self.kept = position;
        self.publish_consumed();
    }

    #[inline]
    fn publish_consumed(&mut self) {
        let done = self.kept.unwrap_or(self.next);
        if done - self.published >= self.place.cells / 8 {
            let _ = self.memory.store(self.place.consumed_at, done);
            self.published = done;
        }
    }

    /// The number of cells of the ring, which no valid frame reaches.
    #[inline]
    pub(super) const fn cell_count(&self) -> u64 {
        self.place.cells
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::wire::tagged::{RINGS_AT, TaggedMessage};

    use super::*;

    const PLACE: RingLayout = RingLayout { at: RINGS_AT, cells: 64, consumed_at: 0 };

    fn ring() -> (RingWriter, RingReader) {
        let memory = MemoryRange::heap(RINGS_AT as usize + 64 * 64);
        (RingWriter::new(memory.clone(), PLACE), RingReader::new(memory, PLACE))
    }

    fn eager(writer: &mut RingWriter, bytes: &[u8]) {
        let message = TaggedMessage::Eager { tag: bytes.len() as u64, len: bytes.len() as u32 };
        let words = message.to_words();
        let len = bytes.len() as u64;
        assert_eq!(writer.has_room(message.cell_count()), Ok(true));
        let fill = |offset: u64, to: StageOffset<'_>, len: u64| {
            to.memory.write(to.at, &bytes[offset as usize..][..len as usize])
        };
        writer.push_eager(&words, len, message.cell_count(), fill).unwrap();
    }

    fn take(reader: &mut RingReader) -> Option<Vec<u8>> {
        let message = TaggedMessage::from_words(&reader.next()?).unwrap();
        let TaggedMessage::Eager { len, .. } = message else { panic!("{message:?}") };
        let mut bytes = vec![0; len as usize];
        let take = |offset: u64, from: StageOffset<'_>, len: u64| {
            from.memory.read(from.at, &mut bytes[offset as usize..][..len as usize])
        };
        reader.visit_payload(len.into(), take).unwrap();
        reader.consume_frame(message.cell_count());
        Some(bytes)
    }

    /// Bytes that resemble the first words of frames everywhere.
    fn lookalike(len: usize) -> Vec<u8> {
        [1, 0, 0, 0, 1, 0, 0, 0].into_iter().cycle().take(len).collect()
    }

    #[test]
    fn frames_are_read_as_written_over_many_laps() {
        let (mut writer, mut reader) = ring();
        assert_eq!(take(&mut reader), None);
        for round in 0..2000_usize {
            let lens = [round % 300, (round * 7) % 1000, 0];
            lens.iter().for_each(|len| eager(&mut writer, &lookalike(*len)));
            for len in lens {
                assert_eq!(take(&mut reader), Some(lookalike(len)), "round {round}");
            }
            assert_eq!(take(&mut reader), None, "bytes of an older frame must not be read as a frame");
        }
    }

    #[test]
    fn one_cell_stays_free() {
        let (mut writer, mut reader) = ring();
        let words = TaggedMessage::Eager { tag: 3, len: 0 }.to_words();
        for _ in 0..63 {
            assert_eq!(writer.has_room(1), Ok(true));
            writer.push(&words);
        }
        assert_eq!([writer.has_room(1), writer.has_room(0)], [Ok(false), Ok(true)]);
        for _ in 0..63 {
            assert_eq!(reader.next(), Some(words));
            reader.consume_frame(1);
        }
        assert_eq!(
            (reader.next(), writer.has_room(55)),
            (None, Ok(true)),
            "the consumed count is published at least every eighth of the ring"
        );
    }

    #[test]
    fn kept_frames_are_released_after_their_copies() {
        let (mut writer, mut reader) = ring();
        (0..16).for_each(|_| writer.push(&TaggedMessage::Eager { tag: 3, len: 0 }.to_words()));
        reader.consume_frame(1);
        let kept = reader.next_position();
        reader.keep_from(Some(kept));
        (1..16).for_each(|_| reader.consume_frame(1));
        assert_eq!(writer.has_room(48), Ok(false), "the second frame is still being read");
        reader.keep_from(None);
        assert_eq!(writer.has_room(48), Ok(true));
    }

    #[test]
    fn unpublished_bytes_are_not_read_as_a_frame() {
        let (mut writer, mut reader) = ring();
        let fill = |_: u64, to: StageOffset<'_>, len: u64| {
            to.memory.write(to.at, &vec![1; len as usize]).map_err(|_| ())
        };
        for _ in 0..200 {
            eager(&mut writer, &lookalike(300));
            assert_eq!(take(&mut reader), Some(lookalike(300)));
            writer.fill_eager(200, fill).unwrap();
            writer.mark_unpublished();
            assert_eq!(take(&mut reader), None);
            eager(&mut writer, &[]);
            assert_eq!(take(&mut reader), Some(Vec::new()));
            assert_eq!(take(&mut reader), None, "an unpublished frame must not be read");
        }
    }

    #[test]
    fn invalid_consumed_count_is_detected() {
        let (mut writer, reader) = ring();
        for consumed in [64, 5, u64::MAX] {
            for _ in 0..4 {
                writer.push(&TaggedMessage::Eager { tag: 0, len: 0 }.to_words());
            }
            reader.memory.store(0, consumed).unwrap();
            assert_eq!(writer.has_room(63), Err(InvalidConsumedCount));
            writer.head = 0;
        }
    }
}
