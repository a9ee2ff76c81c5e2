//! Tagged messages between two processes of a node, as frames in rings of 64-byte cells: docs/wire.md, "Tagged messages inside a node". The driver of
//! [`crate::tagged`] encodes and parses them. This module never reads the payload of an eager message.

use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::tagged::StridedRows;
use crate::wire::ipc::{CopyOutcome, ExportName, ExportReference, IpcError};

/// Size of a cell in bytes.
pub const CELL_BYTES: u64 = 64;

/// Words of 8 bytes per cell.
pub const WORDS: usize = 8;

/// Offset of the payload of an eager message in its first cell, in bytes.
pub const EAGER_AT: u64 = 16;

/// Longest eager message, in bytes.
pub const EAGER_MAX: u32 = 8192;

/// Offset in an inbox of the number of consumed cells of the ring of messages (8 bytes, written by the reader).
pub const MESSAGES_AT: u64 = 0;
/// Offset of the number of consumed cells of the ring of answers (8 bytes, written by the reader).
pub const ANSWERS_AT: u64 = 64;
/// Offset of the position up to which the stage was consumed (8 bytes, written by the reader).
pub const STAGE_AT: u64 = 128;
/// Offset of the number of frames that the writer has sent on the control stream (8 bytes, written by the writer).
pub const SAID_AT: u64 = 192;
/// Offset of the ring of messages. The ring of answers and the stage come after it.
pub const RINGS_AT: u64 = 4096;

/// The sizes of an inbox, each a power of two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InboxSizes {
    messages: u32,
    answers: u32,
    stage: u32,
}

/// A frame in the ring of messages. Byte 0 is its kind, byte 1 the preferred copy method, bytes 4-7 the length of an eager message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaggedMessage {
    /// Kind 1: a whole message; its payload follows from word 2 on.
    Eager {
        /// The tag (word 1).
        tag: u64,
        /// The payload in bytes, at most [`EAGER_MAX`].
        len: u32,
    },
    /// Kind 2: announces a message that stays with its sender.
    Ready {
        /// The tag (word 1).
        tag: u64,
        /// The sender's request (word 2).
        request: SlotId,
        /// The length in bytes, not 0 (word 3).
        len: u64,
        /// The sender's preferred copy method: true for pieces, even if the receiver's memory can be mapped.
        pieces: bool,
    },
    /// Kind 3: announces a message in memory that the receiver may map.
    Refer {
        /// The tag (word 1).
        tag: u64,
        /// The sender's request (word 2).
        request: SlotId,
        /// The memory from the first byte of the message to the last (words 3 to 5).
        reference: ExportReference,
        /// The rows of the message in that memory (words 6 and 7).
        rows: StridedRows,
        /// The sender's preferred copy method: true if the sender copies into the receiver's memory, provided that this can be mapped.
        offer: bool,
    },
}

/// A frame in the ring of answers. Byte 0 is its kind, bytes 4-7 the length of a piece.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaggedAnswer {
    /// Kind 16: requests pieces from the sender.
    Clear {
        /// The sender's request (word 1).
        request: SlotId,
        /// The receiver's request (word 2).
        receive: SlotId,
        /// Number of bytes wanted, from the first on; not 0 (word 3).
        len: u64,
        /// Whether a single copy was intended and failed: a reference could not be mapped, or memory that was to be offered could not be exported
        /// (word 4).
        unmapped: bool,
    },
    /// Kind 17: requests that the sender copies into memory of the receiver.
    Offer {
        /// The sender's request (word 1).
        request: SlotId,
        /// The receiver's request (word 2).
        receive: SlotId,
        /// The destination from the first byte to the last (words 3 to 5).
        reference: ExportReference,
        /// The rows of the message in that memory (words 6 and 7).
        rows: StridedRows,
    },
    /// Kind 18: a piece is in the stage.
    Piece {
        /// The receiver's request (word 1).
        receive: SlotId,
        /// Its position in the stage (word 2).
        position: u64,
        /// Its length in bytes, at least 1.
        len: u32,
    },
    /// Kind 19: a request of the receiver of this frame has ended.
    Done {
        /// The request (word 1).
        request: SlotId,
        /// The outcome (word 2).
        outcome: CopyOutcome,
    },
}

/// Why a cell is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TaggedError {
    /// Its ring has no frames of that kind.
    #[error("that ring has no frames of kind {0}")]
    Kind(u8),
    /// The preferred copy method is neither 0 nor 1.
    #[error("copy method {0} is invalid")]
    Wish(u8),
    /// Bits that must be zero are set.
    #[error("reserved bits are set")]
    Reserved,
    /// The length is invalid for its kind.
    #[error("the length {0} is invalid for its kind of frame")]
    Length(u64),
    /// The rows overlap, or do not end where the reference ends.
    #[error("the rows overlap, or do not end with the reference")]
    Rows,
    /// The request has generation 0, which is reserved.
    #[error("request id 0 is reserved")]
    Request,
    /// A size is not a power of two, or is out of range.
    #[error("the size {0} of an inbox is not a power of two, or is out of range")]
    Size(u32),
    /// The reference or the outcome is invalid.
    #[error(transparent)]
    Ipc(#[from] IpcError),
}

impl InboxSizes {
    /// Fewest and most cells of a ring.
    pub const CELLS: [u32; 2] = [64, 1 << 16];
    /// Smallest and largest stage, in bytes.
    pub const STAGE: [u32; 2] = [1 << 16, 1 << 30];

    /// Creates the sizes of an inbox: cells for messages, cells for answers, and bytes of the stage.
    ///
    /// # Errors
    /// [`TaggedError::Size`].
    pub const fn new(messages: u32, answers: u32, stage: u32) -> Result<Self, TaggedError> {
        let [cells, bytes] = [Self::CELLS, Self::STAGE];
        let sizes = [(messages, cells), (answers, cells), (stage, bytes)];
        let mut sizes = sizes.as_slice();
        while let [(size, [least, most]), rest @ ..] = sizes {
            if !size.is_power_of_two() || *size < *least || *size > *most {
                return Err(TaggedError::Size(*size));
            }
            sizes = rest;
        }
        Ok(Self { messages, answers, stage })
    }

    /// Returns the number of cells of the ring of messages.
    #[must_use]
    pub const fn message_cells(self) -> u64 {
        self.messages as u64
    }

    /// Returns the number of cells of the ring of answers.
    #[must_use]
    pub const fn answer_cells(self) -> u64 {
        self.answers as u64
    }

    /// Returns the size of the stage in bytes.
    #[must_use]
    pub const fn stage_bytes(self) -> u64 {
        self.stage as u64
    }

    /// Returns the offset of the ring of answers.
    #[must_use]
    pub const fn answers_at(self) -> u64 {
        RINGS_AT + self.message_cells() * CELL_BYTES
    }

    /// Returns the offset of the stage.
    #[must_use]
    pub const fn stage_at(self) -> u64 {
        self.answers_at() + self.answer_cells() * CELL_BYTES
    }

    /// Returns the size of the inbox's file in bytes.
    #[must_use]
    pub const fn file_bytes(self) -> u64 {
        self.stage_at() + self.stage_bytes()
    }

    /// Returns the sizes as an INBOX frame carries them.
    #[must_use]
    pub const fn to_words(self) -> [u32; 3] {
        [self.messages, self.answers, self.stage]
    }
}

/// Returns the first word of a frame.
const fn head_word(kind: u8, len: u32) -> u64 {
    kind as u64 | (len as u64) << 32
}

/// Returns the first word of a frame with a preferred copy method.
const fn head_with_wish(kind: u8, wish: bool) -> u64 {
    head_word(kind, 0) | (wish as u64) << 8
}

/// Parses the first word: kind, preferred copy method and length.
fn parse_head(head: u64) -> Result<(u8, u8, u32), TaggedError> {
    let [kind, wish, reserved @ .., _, _, _, _] = head.to_le_bytes();
    if reserved != [0; 2] {
        return Err(TaggedError::Reserved);
    }
    Ok((kind, wish, (head >> 32) as u32))
}

fn parse_wish(wish: u8) -> Result<bool, TaggedError> {
    match wish {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(TaggedError::Wish(other)),
    }
}

fn parse_request(bits: u64) -> Result<SlotId, TaggedError> {
    let id = SlotId::from_bits(bits);
    if id.generation == 0 { Err(TaggedError::Request) } else { Ok(id) }
}

fn parse_reference([name, start, len]: [u64; 3]) -> Result<ExportReference, TaggedError> {
    let id = SlotId::from_bits(name);
    let name = ExportName::new(id).ok_or(IpcError::Name(id.slot, id.generation))?;
    let part = ByteSpan::new(start, len).ok_or(IpcError::Span { start, len })?;
    Ok(ExportReference { name, part })
}

/// Parses a reference and its rows, of which the last is whole.
fn parse_placed(place: [u64; 3], rows: [u64; 2]) -> Result<(ExportReference, StridedRows), TaggedError> {
    let reference = parse_reference(place)?;
    let rows = StridedRows::of_words(rows).filter(|rows| rows.packed_bytes(reference.part.len()).is_some());
    rows.map(|rows| (reference, rows)).ok_or(TaggedError::Rows)
}

fn words_of(reference: &ExportReference) -> [u64; 3] {
    [reference.name.slot_id().to_bits(), reference.part.start(), reference.part.len()]
}

fn without_length(len: u32) -> Result<(), TaggedError> {
    if len == 0 { Ok(()) } else { Err(TaggedError::Length(len.into())) }
}

impl TaggedMessage {
    /// Returns the first cell; for an eager message, without the payload.
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        match *self {
            Self::Eager { tag, len } => [head_word(1, len), tag, 0, 0, 0, 0, 0, 0],
            Self::Ready { tag, request, len, pieces } => {
                [head_with_wish(2, pieces), tag, request.to_bits(), len, 0, 0, 0, 0]
            }
            Self::Refer { tag, request, reference, rows, offer } => {
                let ([name, start, len], [block, stride]) = (words_of(&reference), rows.to_words());
                [head_with_wish(3, offer), tag, request.to_bits(), name, start, len, block, stride]
            }
        }
    }

    /// Parses a first cell.
    ///
    /// # Errors
    /// [`TaggedError`] names the invalid field.
    #[inline]
    pub fn from_words(words: &[u64; WORDS]) -> Result<Self, TaggedError> {
        let [first, tag, two, three, four, five, six, seven] = *words;
        let (kind, wished, len) = parse_head(first)?;
        match kind {
            1 if wished != 0 => Err(TaggedError::Reserved),
            1 if len <= EAGER_MAX => Ok(Self::Eager { tag, len }),
            1 => Err(TaggedError::Length(len.into())),
            2 => {
                without_length(len)?;
                if three == 0 {
                    return Err(TaggedError::Length(0));
                }
                Ok(Self::Ready { tag, request: parse_request(two)?, len: three, pieces: parse_wish(wished)? })
            }
            3 => {
                without_length(len)?;
                let (reference, rows) = parse_placed([three, four, five], [six, seven])?;
                Ok(Self::Refer {
                    tag,
                    request: parse_request(two)?,
                    reference,
                    rows,
                    offer: parse_wish(wished)?,
                })
            }
            other => Err(TaggedError::Kind(other)),
        }
    }

    /// Returns how many cells the frame occupies.
    #[inline]
    #[must_use]
    pub const fn cell_count(&self) -> u64 {
        match self {
            Self::Eager { len, .. } => (EAGER_AT + *len as u64).div_ceil(CELL_BYTES),
            Self::Ready { .. } | Self::Refer { .. } => 1,
        }
    }
}

impl TaggedAnswer {
    /// Returns the cell.
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        match *self {
            Self::Clear { request, receive, len, unmapped } => {
                [head_word(16, 0), request.to_bits(), receive.to_bits(), len, unmapped.into(), 0, 0, 0]
            }
            Self::Offer { request, receive, reference, rows } => {
                let ([name, start, len], [block, stride]) = (words_of(&reference), rows.to_words());
                [head_word(17, 0), request.to_bits(), receive.to_bits(), name, start, len, block, stride]
            }
            Self::Piece { receive, position, len } => {
                [head_word(18, len), receive.to_bits(), position, 0, 0, 0, 0, 0]
            }
            Self::Done { request, outcome } => {
                [head_word(19, 0), request.to_bits(), outcome.to_code().into(), 0, 0, 0, 0, 0]
            }
        }
    }

    /// Parses a cell.
    ///
    /// # Errors
    /// [`TaggedError`] names the invalid field.
    #[inline]
    pub fn from_words(words: &[u64; WORDS]) -> Result<Self, TaggedError> {
        let [first, one, two, three, four, five, six, seven] = *words;
        let (kind, wished, len) = parse_head(first)?;
        if wished != 0 {
            return Err(TaggedError::Reserved);
        }
        if kind != 18 {
            without_length(len)?;
        }
        match kind {
            16 if three == 0 => Err(TaggedError::Length(0)),
            16 if four > 1 => Err(TaggedError::Reserved),
            16 => {
                let request = parse_request(one)?;
                let receive = parse_request(two)?;
                Ok(Self::Clear { request, receive, len: three, unmapped: four == 1 })
            }
            17 => {
                let (reference, rows) = parse_placed([three, four, five], [six, seven])?;
                Ok(Self::Offer {
                    request: parse_request(one)?,
                    receive: parse_request(two)?,
                    reference,
                    rows,
                })
            }
            18 if len == 0 => Err(TaggedError::Length(0)),
            18 => Ok(Self::Piece { receive: parse_request(one)?, position: two, len }),
            19 => {
                let outcome = u8::try_from(two).map_err(|_| TaggedError::Reserved)?;
                Ok(Self::Done { request: parse_request(one)?, outcome: CopyOutcome::of_code(outcome)? })
            }
            other => Err(TaggedError::Kind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(slot: u32, generation: u32) -> SlotId {
        SlotId { slot, generation }
    }

    fn place() -> ExportReference {
        ExportReference {
            name: ExportName::new(id(7, 9)).unwrap(),
            part: ByteSpan::new(0x100, 0x2000).unwrap(),
        }
    }

    fn refer(offer: bool) -> TaggedMessage {
        TaggedMessage::Refer {
            tag: 0,
            request: id(u32::MAX, 1),
            reference: place(),
            rows: StridedRows::WHOLE,
            offer,
        }
    }

    fn messages() -> [TaggedMessage; 6] {
        [
            TaggedMessage::Eager { tag: 0x0102_0304_0506_0708, len: 0 },
            TaggedMessage::Eager { tag: u64::MAX, len: EAGER_MAX },
            TaggedMessage::Ready { tag: 1, request: id(2, 3), len: 1 << 40, pieces: false },
            refer(false),
            TaggedMessage::Ready { tag: 1, request: id(2, 3), len: 9, pieces: true },
            refer(true),
        ]
    }

    fn answers() -> [TaggedAnswer; 5] {
        let request = id(1, 2);
        let receive = id(3, 4);
        [
            TaggedAnswer::Clear { request, receive, len: 5, unmapped: true },
            TaggedAnswer::Clear { request, receive, len: u64::MAX, unmapped: false },
            TaggedAnswer::Offer {
                request,
                receive,
                reference: place(),
                rows: StridedRows::new(0x1000, 0x1000).unwrap(),
            },
            TaggedAnswer::Piece { receive, position: 1 << 50, len: 16384 },
            TaggedAnswer::Done { request, outcome: CopyOutcome::Ended },
        ]
    }

    #[test]
    fn frames_are_as_documented() {
        let [eager, _, ready, refer, pieces, offer] = messages().map(|message| message.to_words());
        assert_eq!(eager, [1, 0x0102_0304_0506_0708, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ready, [2, 1, 2 | 3 << 32, 1 << 40, 0, 0, 0, 0]);
        assert_eq!(refer[2..], [u64::from(u32::MAX) | 1 << 32, 7 | 9 << 32, 0x100, 0x2000, 0, 0]);
        assert_eq!((pieces[0], offer[0]), (2 | 1 << 8, 3 | 1 << 8));
        assert_eq!(offer[1..], refer[1..]);
        let [clear, _, offer, piece, done] = answers().map(|answer| answer.to_words());
        assert_eq!(clear, [16, 1 | 2 << 32, 3 | 4 << 32, 5, 1, 0, 0, 0]);
        assert_eq!(offer, [17, 1 | 2 << 32, 3 | 4 << 32, 7 | 9 << 32, 0x100, 0x2000, 0x1000, 0x1000]);
        assert_eq!(piece, [18 | 16384 << 32, 3 | 4 << 32, 1 << 50, 0, 0, 0, 0, 0]);
        assert_eq!(done, [19, 1 | 2 << 32, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn frames_round_trip() {
        for message in messages() {
            assert_eq!(TaggedMessage::from_words(&message.to_words()), Ok(message));
        }
        for answer in answers() {
            assert_eq!(TaggedAnswer::from_words(&answer.to_words()), Ok(answer));
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        let message = |words: [u64; 6]| {
            let [a, b, c, d, e, f] = words;
            TaggedMessage::from_words(&[a, b, c, d, e, f, 0, 0])
        };
        assert_eq!(message([head_word(1, EAGER_MAX + 1), 0, 0, 0, 0, 0]), Err(TaggedError::Length(8193)));
        assert_eq!(message([1 | 1 << 8, 0, 0, 0, 0, 0]), Err(TaggedError::Reserved));
        assert_eq!(message([1 | 1 << 31, 0, 0, 0, 0, 0]), Err(TaggedError::Reserved));
        assert_eq!(message([2 | 2 << 8, 0, 1 << 32, 5, 0, 0]), Err(TaggedError::Wish(2)));
        assert_eq!(message([3 | 255 << 8, 0, 1 << 32, 1 << 32, 0, 1]), Err(TaggedError::Wish(255)));
        assert_eq!(message([2 | 1 << 16, 0, 1 << 32, 5, 0, 0]), Err(TaggedError::Reserved));
        assert_eq!(message([2, 0, 1 << 32, 0, 0, 0]), Err(TaggedError::Length(0)));
        assert_eq!(message([head_word(2, 1), 0, 1 << 32, 1, 0, 0]), Err(TaggedError::Length(1)));
        assert_eq!(message([2, 0, 5, 1, 0, 0]), Err(TaggedError::Request));
        assert_eq!(message([3, 0, 1 << 32, 5, 0, 1]), Err(IpcError::Name(5, 0).into()));
        let none = IpcError::Span { start: 9, len: 0 };
        assert_eq!(message([3, 0, 1 << 32, 1 << 32, 9, 0]), Err(none.into()));
        assert_eq!(message([4, 0, 0, 0, 0, 0]), Err(TaggedError::Kind(4)));
        assert_eq!(message([16, 1 << 32, 1 << 32, 1, 0, 0]), Err(TaggedError::Kind(16)));
        let rows =
            |rows: [u64; 2]| TaggedMessage::from_words(&[3, 0, 1 << 32, 1 << 32, 9, 100, rows[0], rows[1]]);
        for wrong in [[1, 0], [0, 1], [9, 8], [10, 100], [101, 200], [5, u64::MAX]] {
            assert_eq!(rows(wrong), Err(TaggedError::Rows), "{wrong:?}");
        }
        assert!(rows([10, 90]).is_ok() && rows([100, 700]).is_ok());
        let answer = |words: [u64; 5]| {
            let [a, b, c, d, e] = words;
            TaggedAnswer::from_words(&[a, b, c, d, e, 0, 0, 0])
        };
        let one = 1 << 32;
        assert_eq!(answer([16, one, one, 0, 0]), Err(TaggedError::Length(0)));
        assert_eq!(answer([16, one, one, 1, 2]), Err(TaggedError::Reserved));
        assert_eq!(answer([16, one, 0, 1, 0]), Err(TaggedError::Request));
        assert_eq!(answer([16 | 1 << 8, one, one, 1, 0]), Err(TaggedError::Reserved));
        assert_eq!(answer([18, one, 0, 0, 0]), Err(TaggedError::Length(0)));
        assert_eq!(answer([19, one, 3, 0, 0]), Err(IpcError::Outcome(3).into()));
        assert_eq!(answer([19, one, 256, 0, 0]), Err(TaggedError::Reserved));
        assert_eq!(answer([head_word(19, 1), one, 0, 0, 0]), Err(TaggedError::Length(1)));
        assert_eq!(answer([1, 0, 0, 0, 0]), Err(TaggedError::Kind(1)));
    }

    #[test]
    fn inbox_sizes_are_validated() {
        let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
        assert_eq!([inbox.answers_at(), inbox.stage_at()], [4096 + 65536, 4096 + 65536 + 32768]);
        assert_eq!((inbox.file_bytes(), inbox.to_words()), (364_544, [1024, 512, 1 << 18]));
        for (sizes, wrong) in [
            ([32, 64, 1 << 16], 32),
            ([64, 1 << 17, 1 << 16], 1 << 17),
            ([64, 64, 1 << 15], 1 << 15),
            ([64, 64, 1 << 31], 1 << 31),
            ([65, 64, 1 << 16], 65),
            ([64, 0, 1 << 16], 0),
        ] {
            assert_eq!(InboxSizes::new(sizes[0], sizes[1], sizes[2]), Err(TaggedError::Size(wrong)));
        }
    }

    #[test]
    fn eager_messages_use_the_cells_of_their_length() {
        for (len, cells) in [(0, 1), (48, 1), (49, 2), (112, 2), (113, 3), (EAGER_MAX, 129)] {
            assert_eq!(TaggedMessage::Eager { tag: 0, len }.cell_count(), cells);
        }
    }

    proptest! {
        #[test]
        fn any_words_are_a_frame_or_an_error(words: [u64; WORDS], kind in 0u64..24) {
            for words in [words, [kind | words[0] << 32, words[1], words[2], words[3], words[4], words[5], 0, 0]] {
                if let Ok(message) = TaggedMessage::from_words(&words) {
                    prop_assert_eq!(TaggedMessage::from_words(&message.to_words()), Ok(message));
                }
                if let Ok(answer) = TaggedAnswer::from_words(&words) {
                    prop_assert_eq!(TaggedAnswer::from_words(&answer.to_words()), Ok(answer));
                }
            }
        }
    }
}
