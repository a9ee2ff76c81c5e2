//! The layout of a window: the offsets of its data, signals, counters, barriers and streams in the memory of each rank ("Windows" of docs/wire.md).
//! All ranks have the same layout.

use super::layout::LINE_BYTES;

/// Size in bytes of a signal, counter or flag: a value, then its poison word.
pub const SLOT_BYTES: u64 = 16;

/// Granule of a stream in bytes: positions advance by multiples of it.
pub const GRANULE: u64 = 16;

/// Most lanes of a stream.
pub const WINDOW_LANES_MAX: u32 = 64;

/// Largest window, in bytes.
pub const WINDOW_BYTES_MAX: u64 = 1 << 47;

/// The size of a window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WindowShape {
    /// Number of ranks.
    pub ranks: u32,
    /// Bytes of data.
    pub bytes: u64,
    /// Number of signals that each rank may raise here.
    pub signals: u32,
    /// Number of counters.
    pub counters: u32,
    /// Number of barriers.
    pub barriers: u32,
    /// Number of channels: streams with each rank that exist at the same time.
    pub channels: u32,
    /// Number of lanes of a channel.
    pub lanes: u32,
    /// Number of chunks of a stream that may be in flight.
    pub depth: u32,
    /// Size of a chunk in bytes, a multiple of [`GRANULE`].
    pub chunk: u64,
}

/// Why a shape is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WindowShapeError {
    /// It has no ranks.
    #[error("a window has no ranks")]
    Ranks,
    /// It is longer than [`WINDOW_BYTES_MAX`].
    #[error("a window exceeds {WINDOW_BYTES_MAX} bytes")]
    Long,
    /// Its streams have no lanes, chunks or bytes, too many lanes, or a chunk that is not a multiple of [`GRANULE`].
    #[error("streams of {lanes} lanes and {depth} chunks of {chunk} bytes are out of range")]
    Stream {
        /// Number of lanes.
        lanes: u32,
        /// Number of chunks.
        depth: u32,
        /// Size of a chunk in bytes.
        chunk: u64,
    },
}

/// The parts of a window, by their offset in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WindowLayout {
    shape: WindowShape,
    signals: u64,
    signal_bases: u64,
    counters: u64,
    counter_bases: u64,
    barriers: u64,
    epochs: u64,
    streams: u64,
    end: u64,
}

/// Offsets of words that only one end of a stream uses, so that the next kernel continues where the last one ended.
pub mod stream_at {
    /// Number of chunks that were sent, in the line of state.
    pub const SENT: u64 = 0;
    /// Number of chunks that were received, in the line of state.
    pub const RECEIVED: u64 = 8;
    /// Number of bytes that were received over a lane, in the line of the lane's flag.
    pub const EXPECTED: u64 = 16;
}

const fn round_to_lines(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(LINE_BYTES)
}

/// Places a part after the others, and returns its offset.
fn place_part(end: &mut u64, count: [u64; 3]) -> Option<u64> {
    let begin = *end;
    let bytes = count[0].checked_mul(count[1])?.checked_mul(count[2])?;
    *end = begin.checked_add(round_to_lines(bytes)?).filter(|end| *end <= WINDOW_BYTES_MAX)?;
    Some(begin)
}

impl WindowLayout {
    /// Returns the layout of a window.
    ///
    /// # Errors
    /// [`WindowShapeError`].
    pub fn new(shape: WindowShape) -> Result<Self, WindowShapeError> {
        let WindowShape { lanes, depth, chunk, .. } = shape;
        if shape.ranks == 0 {
            return Err(WindowShapeError::Ranks);
        }
        let flows = (1..=WINDOW_LANES_MAX).contains(&lanes) && depth > 0 && chunk > 0;
        if shape.channels > 0 && !(flows && chunk.is_multiple_of(GRANULE)) {
            return Err(WindowShapeError::Stream { lanes, depth, chunk });
        }
        Self::lay_out(shape).ok_or(WindowShapeError::Long)
    }

    fn lay_out(shape: WindowShape) -> Option<Self> {
        let ranks = u64::from(shape.ranks);
        let signals = shape.signals.into();
        let counters = shape.counters.into();
        let barriers = u64::from(shape.barriers);
        let mut end = 0;
        place_part(&mut end, [shape.bytes, 1, 1])?;
        let mut layout = Self { shape, ..Self::default() };
        layout.signals = place_part(&mut end, [ranks, signals, SLOT_BYTES])?;
        layout.signal_bases = place_part(&mut end, [ranks, signals, 8])?;
        layout.counters = place_part(&mut end, [counters, SLOT_BYTES, 1])?;
        layout.counter_bases = place_part(&mut end, [counters, 8, 1])?;
        layout.barriers = place_part(&mut end, [barriers, ranks, SLOT_BYTES])?;
        layout.epochs = place_part(&mut end, [barriers, 8, 1])?;
        layout.streams = place_part(&mut end, [ranks, shape.channels.into(), layout.stream_bytes()?])?;
        layout.end = end;
        Some(layout)
    }

    /// Returns the size of a stream in bytes. A stream consists of a line of state, a line for the flag of free room, and a line for the flag of each
    /// lane. The room to send from and the room to receive into follow.
    fn stream_bytes(&self) -> Option<u64> {
        let rooms = round_to_lines(self.shape.stream_room()?)?.checked_mul(2)?;
        (2 + u64::from(self.shape.lanes)).checked_mul(LINE_BYTES)?.checked_add(rooms)
    }

    /// Returns the shape.
    #[must_use]
    pub const fn shape(&self) -> &WindowShape {
        &self.shape
    }

    /// Returns the size of the window in bytes.
    #[must_use]
    pub const fn window_bytes(&self) -> u64 {
        self.end
    }

    /// Returns the offset at which the data end and the other parts begin: signals, counters, barriers and streams.
    #[must_use]
    pub const fn words_offset(&self) -> u64 {
        self.signals
    }

    /// Returns the slot of a signal that a rank raises; `None` if it does not exist.
    #[must_use]
    pub const fn signal_slot(&self, by: u32, id: u32) -> Option<u64> {
        let inside = by < self.shape.ranks && id < self.shape.signals;
        if inside { Some(self.signals + self.nth_signal(by, id) * SLOT_BYTES) } else { None }
    }

    /// Returns the offset of the base of such a signal: the value from which it counts.
    #[must_use]
    pub const fn signal_base(&self, by: u32, id: u32) -> Option<u64> {
        let inside = by < self.shape.ranks && id < self.shape.signals;
        if inside { Some(self.signal_bases + self.nth_signal(by, id) * 8) } else { None }
    }

    const fn nth_signal(&self, by: u32, id: u32) -> u64 {
        by as u64 * self.shape.signals as u64 + id as u64
    }

    /// Returns the slot of a counter; `None` if it does not exist.
    #[must_use]
    pub const fn counter_slot(&self, id: u32) -> Option<u64> {
        if id < self.shape.counters { Some(self.counters + id as u64 * SLOT_BYTES) } else { None }
    }

    /// Returns the offset of the base of a counter: the value from which it counts.
    #[must_use]
    pub const fn counter_base(&self, id: u32) -> Option<u64> {
        if id < self.shape.counters { Some(self.counter_bases + id as u64 * 8) } else { None }
    }

    /// Returns the slot of a barrier that a rank raises; `None` if it does not exist.
    #[must_use]
    pub const fn barrier_slot(&self, id: u32, by: u32) -> Option<u64> {
        let (ranks, inside) = (self.shape.ranks, id < self.shape.barriers && by < self.shape.ranks);
        let nth = id as u64 * ranks as u64 + by as u64;
        if inside { Some(self.barriers + nth * SLOT_BYTES) } else { None }
    }

    /// Returns the word that counts how often this rank has entered a barrier; `None` if it does not exist.
    #[must_use]
    pub const fn barrier_epoch(&self, id: u32) -> Option<u64> {
        if id < self.shape.barriers { Some(self.epochs + id as u64 * 8) } else { None }
    }

    /// Returns the stream of a channel with a rank; `None` if it does not exist.
    #[must_use]
    pub fn stream_layout(&self, with: u32, channel: u32) -> Option<StreamLayout> {
        let inside = with < self.shape.ranks && channel < self.shape.channels;
        let nth = u64::from(with) * u64::from(self.shape.channels) + u64::from(channel);
        let at = self.stream_bytes().filter(|_| inside)? * nth + self.streams;
        Some(StreamLayout { at, shape: self.shape })
    }
}

impl WindowShape {
    /// Returns how many bytes of a stream may be in flight.
    #[must_use]
    pub fn stream_room(&self) -> Option<u64> {
        u64::from(self.depth).checked_mul(self.chunk)
    }
}

/// The parts of a stream at one end, by their offset in the window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StreamLayout {
    at: u64,
    shape: WindowShape,
}

impl StreamLayout {
    /// Returns the offset of the line of state.
    #[must_use]
    pub const fn state_offset(&self) -> u64 {
        self.at
    }

    /// Returns the flag that counts the chunks which the other end has consumed; the other end raises it.
    #[must_use]
    pub const fn free_flag(&self) -> u64 {
        self.at + LINE_BYTES
    }

    /// Returns the flag that counts the bytes which have arrived over a lane; the other end raises it.
    #[must_use]
    pub const fn ready_flag(&self, lane: u32) -> u64 {
        self.at + (2 + (lane % self.shape.lanes) as u64) * LINE_BYTES
    }

    /// Returns the offset of chunk `nth` in the room to send from.
    #[must_use]
    pub const fn room_out(&self, nth: u64) -> u64 {
        self.at
            + (2 + self.shape.lanes as u64) * LINE_BYTES
            + (nth % self.shape.depth as u64) * self.shape.chunk
    }

    /// Returns the offset of chunk `nth` in the room to receive into.
    #[must_use]
    pub const fn room_in(&self, nth: u64) -> u64 {
        let room = (self.shape.depth as u64 * self.shape.chunk).next_multiple_of(LINE_BYTES);
        self.room_out(nth) + room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> WindowShape {
        let streams = WindowShape { channels: 2, lanes: 3, depth: 4, chunk: 48, ..WindowShape::default() };
        WindowShape { ranks: 3, bytes: 1000, signals: 5, counters: 2, barriers: 2, ..streams }
    }

    #[test]
    fn windows_are_laid_out_as_documented() {
        let layout = WindowLayout::new(shape()).unwrap();
        assert_eq!((layout.words_offset(), layout.signal_slot(0, 0)), (1024, Some(1024)));
        assert_eq!(layout.signal_slot(2, 4), Some(1024 + 14 * 16));
        assert_eq!(layout.signal_base(1, 0), Some(1280 + 5 * 8));
        assert_eq!(layout.counter_slot(1), Some(1408 + 16));
        assert_eq!(layout.counter_base(1), Some(1536 + 8));
        assert_eq!(layout.barrier_slot(1, 2), Some(1664 + 5 * 16));
        assert_eq!(layout.barrier_epoch(1), Some(1792 + 8));
        let stream = layout.stream_layout(1, 1).unwrap();
        // Five lines, and two rooms of 192 bytes in two lines each.
        let at = 1920 + 3 * (5 * 128 + 2 * 256);
        assert_eq!(
            (stream.state_offset(), stream.free_flag(), stream.ready_flag(2)),
            (at, at + 128, at + 4 * 128)
        );
        assert_eq!((stream.room_out(1), stream.room_in(5)), (at + 640 + 48, at + 640 + 256 + 48));
        assert_eq!(layout.window_bytes(), 1920 + 6 * (5 * 128 + 2 * 256));
    }

    #[test]
    fn missing_parts_have_no_layout() {
        let layout = WindowLayout::new(shape()).unwrap();
        assert_eq!(
            (layout.signal_slot(3, 0), layout.signal_slot(0, 5), layout.signal_base(0, 5)),
            (None, None, None)
        );
        assert_eq!(
            (layout.counter_slot(2), layout.counter_base(2), layout.barrier_epoch(2)),
            (None, None, None)
        );
        assert_eq!(
            (layout.barrier_slot(2, 0), layout.barrier_slot(0, 3), layout.stream_layout(0, 2)),
            (None, None, None)
        );
        assert_eq!(layout.stream_layout(3, 0), None);
        let error = |change: fn(&mut WindowShape)| {
            let mut shape = shape();
            change(&mut shape);
            WindowLayout::new(shape).unwrap_err()
        };
        assert_eq!(error(|shape| shape.ranks = 0), WindowShapeError::Ranks);
        assert_eq!(error(|shape| shape.bytes = u64::MAX), WindowShapeError::Long);
        assert_eq!(error(|shape| shape.chunk = u64::MAX - 15), WindowShapeError::Long);
        assert!(matches!(error(|shape| shape.chunk = 8), WindowShapeError::Stream { .. }));
        assert!(matches!(error(|shape| shape.lanes = 65), WindowShapeError::Stream { .. }));
        assert!(matches!(error(|shape| shape.depth = 0), WindowShapeError::Stream { .. }));
    }
}
