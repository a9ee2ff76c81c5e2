//! The free bytes of a stage, as its writer sees them. Positions only increase, so they identify bytes uniquely and count all bytes that were ever
//! staged. Copies nothing itself.

/// Alignment of a piece, so that copies begin at whole lines.
const ALIGN: u64 = 64;

/// The writer's view of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageWriter {
    size: u64,
    head: u64,
    freed: u64,
}

/// Bytes of the stage that the writer may fill.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StagePiece {
    /// Position of the first byte.
    pub position: u64,
    /// Number of bytes.
    pub len: u32,
}

/// A reader reported a position that is not in the filled part of the stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the peer consumed {0} bytes of the stage that were not written")]
pub struct UnstagedPosition(pub u64);

impl StageWriter {
    /// Returns an empty stage of `size` bytes, a power of two.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self { size, head: 0, freed: 0 }
    }

    /// Returns the offset of a position in a stage of `size` bytes.
    #[must_use]
    pub const fn offset_of(size: u64, position: u64) -> u64 {
        position & (size - 1)
    }

    /// Takes a piece of at least one and at most `want` contiguous bytes. `None` while less than half of `want` is free, unless the piece ends at the
    /// end of the stage.
    pub const fn take_piece(&mut self, want: u32) -> Option<StagePiece> {
        let place = Self::offset_of(self.size, self.head);
        let to_end = self.size - place;
        let free = self.size - (self.head - self.freed);
        let most = if to_end < free { to_end } else { free };
        let len = if (want as u64) < most { want as u64 } else { most };
        if len == 0 || len < want as u64 / 2 && len < to_end {
            return None;
        }
        let piece = StagePiece { position: self.head, len: len as u32 };
        // Positions and sizes are multiples of whole lines, so the rest of the last line is free too.
        self.head += len.next_multiple_of(ALIGN);
        Some(piece)
    }

    /// Returns the offset of a piece that a writer has named, or `None` if the piece is invalid for a stage of that size. A
    /// piece is invalid if it is empty, longer than half of the stage, across its end, or beyond the largest position.
    #[inline]
    #[must_use]
    pub const fn locate_piece(size: u64, piece: StagePiece) -> Option<u64> {
        let place = Self::offset_of(size, piece.position);
        let len = piece.len as u64;
        let is_there = len > 0 && len <= size / 2 && place + len <= size;
        if is_there && piece.position.checked_add(len.next_multiple_of(ALIGN)).is_some() {
            Some(place)
        } else {
            None
        }
    }

    /// The position of a reader that has consumed that piece.
    #[must_use]
    pub const fn end_position(piece: StagePiece) -> u64 {
        piece.position.wrapping_add((piece.len as u64).next_multiple_of(ALIGN))
    }

    /// Records that the reader has consumed all bytes before that position.
    ///
    /// # Errors
    /// `UnstagedPosition` if the position lies before the last report or beyond the filled bytes.
    pub const fn free_until(&mut self, position: u64) -> Result<(), UnstagedPosition> {
        if position < self.freed || position > self.head {
            return Err(UnstagedPosition(position));
        }
        self.freed = position;
        Ok(())
    }

    /// The position up to which the stage was filled.
    #[must_use]
    pub const fn head_position(&self) -> u64 {
        self.head
    }

    /// Whether the reader has consumed all bytes before that position.
    #[must_use]
    pub const fn is_behind(&self, position: u64) -> bool {
        self.freed >= position
    }

    /// Whether the reader has consumed all bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.head == self.freed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_stage_has_no_room_until_it_is_consumed() {
        let mut stage = StageWriter::new(1 << 16);
        let first = stage.take_piece(1 << 15).unwrap();
        let second = stage.take_piece(1 << 15).unwrap();
        assert_eq!((second, stage.take_piece(1)), (StagePiece { position: 1 << 15, len: 1 << 15 }, None));
        stage.free_until(StageWriter::end_position(first)).unwrap();
        assert_eq!(stage.take_piece(100), Some(StagePiece { position: 1 << 16, len: 100 }));
        assert_eq!(stage.free_until((1 << 16) + 129), Err(UnstagedPosition((1 << 16) + 129)));
        assert_eq!(stage.free_until(0), Err(UnstagedPosition(0)));
        stage.free_until((1 << 16) + 128).unwrap();
        assert!(stage.is_empty());
    }

    #[test]
    fn locate_piece_rejects_invalid_pieces() {
        const SIZE: u64 = 1 << 16;
        let hold = |position, len| StageWriter::locate_piece(SIZE, StagePiece { position, len });
        assert_eq!([hold(0, 1 << 15), hold(5 * SIZE + 64, 9)], [Some(0), Some(64)]);
        assert_eq!(hold(SIZE - 64, 64), Some(SIZE - 64));
        for (position, len) in
            [(0, 0), (0, (1 << 15) + 1), (SIZE - 64, 65), (0, u32::MAX), (u64::MAX, 1), (u64::MAX - 63, 1)]
        {
            assert_eq!(hold(position, len), None, "{position:#x} {len:#x}");
        }
        assert_eq!(
            StageWriter::end_position(StagePiece { position: u64::MAX, len: 1 }),
            63,
            "a position at the limit wraps without an overflow"
        );
    }

    proptest! {
        #[test]
        fn no_byte_is_in_two_pieces(asks in prop::collection::vec((1u32..40_000, any::<bool>()), 1..300)) {
            const SIZE: u64 = 1 << 16;
            let mut stage = StageWriter::new(SIZE);
            let mut used = vec![false; SIZE as usize];
            let mut pieces = VecDeque::new();
            let range = |piece: StagePiece| {
                let start = StageWriter::offset_of(SIZE, piece.position) as usize;
                start..start + piece.len as usize
            };
            for (want, take) in asks {
                if take {
                    let Some(piece) = stage.take_piece(want) else {
                        prop_assert!(!pieces.is_empty(), "an empty stage has no room");
                        continue;
                    };
                    let held = piece.len > 1 << 15 || StageWriter::locate_piece(SIZE, piece).is_some();
                    prop_assert!(held && piece.len <= want && range(piece).end <= used.len());
                    prop_assert!(used[range(piece)].iter().all(|used| !used));
                    used[range(piece)].fill(true);
                    pieces.push_back(piece);
                } else if let Some(piece) = pieces.pop_front() {
                    used[range(piece)].fill(false);
                    stage.free_until(StageWriter::end_position(piece)).unwrap();
                }
            }
        }
    }
}
