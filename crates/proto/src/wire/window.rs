//! Messages of the ranks of a host about a window: docs/wire.md, "Windows inside a node". The Rust API encodes and parses them, and sends them as
//! tagged messages, which identify the sender. This module never checks that an access is inside its part.

use crate::tagged::StridedRows;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::ipc::{ExportReference, IpcError, REFERENCE_BYTES};

/// Size of a [`PartCard`] in bytes.
pub const CARD_BYTES: usize = 16 + REFERENCE_BYTES;

/// Size of a [`WindowAccess`] in bytes.
pub const ACCESS_BYTES: usize = 56;

const VERSION: u8 = 1;

/// How a rank provides its part (1 byte at offset 1 of its card).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowPart {
    /// 0: the window was requested with invalid arguments, and no rank gets it.
    Refused,
    /// 1: memory that other ranks reach by messages only.
    Asked,
    /// 2: memory that other ranks may map.
    Mapped(ExportReference),
}

/// The card that a rank sends to each other rank (40 bytes): version at offset 0 (1 byte), [`WindowPart`] at 1, 6 zero bytes, then the length and a
/// reference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartCard {
    /// Offset 8, 8 bytes: length of the part in bytes.
    pub len: u64,
    /// How the part is reached. The reference, at offset 16 (24 bytes), is zero unless the memory may be mapped.
    pub part: WindowPart,
}

/// The operation on a part that is reached by messages (1 byte at offset 1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessKind {
    /// 1: the owner receives bytes and stores them.
    Put,
    /// 2: the owner sends bytes.
    Get,
}

/// A request to the owner of a part (56 bytes): version at offset 0 (1 byte), [`AccessKind`] at 1, 6 zero bytes, then the fields in this order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowAccess {
    /// The operation.
    pub deed: AccessKind,
    /// Offset 8, 8 bytes: the window, as the number of the call that created it, the same at all ranks.
    pub window: u64,
    /// Offset 16, 8 bytes: the requesting rank's number of the access. The tags of its data and its result contain it.
    pub number: u64,
    /// Offset 24, 8 bytes: offset of the first byte in the part.
    pub at: u64,
    /// Offset 32, 8 bytes: length in bytes, at least 1, without the gaps between rows.
    pub len: u64,
    /// Offset 40, 16 bytes: the rows of the access in the part.
    pub rows: StridedRows,
}

/// Why the bytes are not a message about a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The length is wrong, or a request has 0 bytes.
    #[error("the message about a window has a wrong length")]
    Length,
    /// The version is not that of this code.
    #[error(
        "the message about a window has version {0}, this library {VERSION}; run all ranks with the same library"
    )]
    Version(u8),
    /// The kind is unknown.
    #[error("the message about a window has the unknown kind {0}")]
    Kind(u8),
    /// Bits that must be zero are set.
    #[error("reserved bits are set")]
    Reserved,
    /// The rows overlap, or reach beyond the last address.
    #[error("the rows overlap, or exceed the address range")]
    Rows,
    /// The reference is invalid.
    #[error(transparent)]
    Reference(#[from] IpcError),
    /// The reference does not have the length of the part.
    #[error("a part of {len} bytes has a reference of {found} bytes")]
    Span {
        /// The length of the part.
        len: u64,
        /// The length of the reference.
        found: u64,
    },
}

impl From<ShortInput> for WindowError {
    fn from(_: ShortInput) -> Self {
        Self::Length
    }
}

const fn head_word(kind: u8) -> u64 {
    VERSION as u64 | (kind as u64) << 8
}

fn read_kind(reader: &mut FieldReader<'_>) -> Result<u8, WindowError> {
    let [version, kind, reserved @ ..] = reader.array::<8>()?;
    match (version, reserved) {
        (VERSION, [0, 0, 0, 0, 0, 0]) => Ok(kind),
        (VERSION, _) => Err(WindowError::Reserved),
        (other, _) => Err(WindowError::Version(other)),
    }
}

fn check_end(reader: FieldReader<'_>) -> Result<(), WindowError> {
    if reader.0.is_empty() { Ok(()) } else { Err(WindowError::Length) }
}

impl PartCard {
    /// Returns the card's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CARD_BYTES] {
        let (kind, reference) = match self.part {
            WindowPart::Refused => (0, [0; REFERENCE_BYTES]),
            WindowPart::Asked => (1, [0; REFERENCE_BYTES]),
            WindowPart::Mapped(reference) => (2, reference.to_bytes()),
        };
        let mut out = [0; CARD_BYTES];
        out[..8].copy_from_slice(&head_word(kind).to_le_bytes());
        out[8..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..].copy_from_slice(&reference);
        out
    }

    /// Parses a card.
    ///
    /// # Errors
    /// [`WindowError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WindowError> {
        let mut reader = FieldReader(bytes);
        let kind = read_kind(&mut reader)?;
        let len = reader.u64()?;
        let reference = reader.array::<REFERENCE_BYTES>()?;
        check_end(reader)?;
        let part = match kind {
            0 | 1 if reference != [0; REFERENCE_BYTES] => return Err(WindowError::Reserved),
            0 => WindowPart::Refused,
            1 => WindowPart::Asked,
            2 => WindowPart::Mapped(ExportReference::from_bytes(&reference)?),
            other => return Err(WindowError::Kind(other)),
        };
        match part {
            WindowPart::Refused if len != 0 => Err(WindowError::Reserved),
            WindowPart::Mapped(reference) if reference.part.len() != len => {
                Err(WindowError::Span { len, found: reference.part.len() })
            }
            part => Ok(Self { len, part }),
        }
    }
}

impl WindowAccess {
    /// Returns the request's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ACCESS_BYTES] {
        let [block, stride] = self.rows.to_words();
        let kind = match self.deed {
            AccessKind::Put => 1,
            AccessKind::Get => 2,
        };
        let words = [head_word(kind), self.window, self.number, self.at, self.len, block, stride];
        let mut out = [0; ACCESS_BYTES];
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Parses a request. The owner has to check that its bytes are inside the part.
    ///
    /// # Errors
    /// [`WindowError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WindowError> {
        let mut reader = FieldReader(bytes);
        let deed = match read_kind(&mut reader)? {
            1 => AccessKind::Put,
            2 => AccessKind::Get,
            other => return Err(WindowError::Kind(other)),
        };
        let window = reader.u64()?;
        let number = reader.u64()?;
        let at = reader.u64()?;
        let len = reader.u64()?;
        let rows = StridedRows::of_words([reader.u64()?, reader.u64()?]).ok_or(WindowError::Rows)?;
        check_end(reader)?;
        if len == 0 {
            return Err(WindowError::Length);
        }
        let access = Self { deed, window, number, at, len, rows };
        access.end_offset().map(|_| access).ok_or(WindowError::Rows)
    }

    /// Returns the offset after its last byte in the part; `None` if it exceeds 64 bits.
    #[must_use]
    pub const fn end_offset(&self) -> Option<u64> {
        match self.rows.spanned_bytes(self.len) {
            Some(span) => self.at.checked_add(span),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::intervals::ByteSpan;
    use crate::slots::SlotId;
    use crate::wire::ipc::ExportName;

    fn mapped(len: u64) -> PartCard {
        let name = ExportName::new(SlotId { slot: 3, generation: 7 }).unwrap();
        PartCard {
            len,
            part: WindowPart::Mapped(ExportReference { name, part: ByteSpan::new(4096, len).unwrap() }),
        }
    }

    #[test]
    fn cards_round_trip_and_other_bytes_are_rejected() {
        for card in [
            mapped(100),
            PartCard { len: 9, part: WindowPart::Asked },
            PartCard { len: 0, part: WindowPart::Refused },
        ] {
            let bytes = card.to_bytes();
            assert_eq!(PartCard::from_bytes(&bytes), Ok(card));
            assert_eq!(PartCard::from_bytes(&bytes[..CARD_BYTES - 1]), Err(WindowError::Length));
            assert_eq!(PartCard::from_bytes(&[&bytes[..], &[0]].concat()), Err(WindowError::Length));
        }
        let changed = |at: usize, to: u8| {
            let mut bytes = mapped(100).to_bytes();
            bytes[at] = to;
            PartCard::from_bytes(&bytes)
        };
        assert_eq!(changed(0, 2), Err(WindowError::Version(2)));
        assert_eq!((changed(1, 3), changed(1, 1)), (Err(WindowError::Kind(3)), Err(WindowError::Reserved)));
        assert_eq!(changed(7, 1), Err(WindowError::Reserved));
        assert_eq!(changed(8, 99), Err(WindowError::Span { len: 99, found: 100 }));
        assert!(
            matches!(changed(20, 0), Err(WindowError::Reference(_))),
            "a reference with generation 0 was accepted"
        );
    }

    proptest! {
        #[test]
        fn accesses_round_trip(
            put: bool, words: [u64; 3], len in 1u64..1 << 40, rows in prop::option::of((1u64..99, 0u64..99))
        ) {
            let rows = rows.map_or(StridedRows::WHOLE, |(block, gap)| StridedRows::new(block, block + gap).unwrap());
            let deed = if put { AccessKind::Put } else { AccessKind::Get };
            let [window, number, at] = words;
            let access = WindowAccess { deed, window, number, at, len, rows };
            let read = WindowAccess::from_bytes(&access.to_bytes());
            let expected = if access.end_offset().is_some() { Ok(access) } else { Err(WindowError::Rows) };
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn parsed_accesses_encode_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(card) = PartCard::from_bytes(&bytes) {
                prop_assert_eq!(&card.to_bytes()[..], &bytes[..]);
            }
            if let Ok(access) = WindowAccess::from_bytes(&bytes) {
                prop_assert_eq!(&access.to_bytes()[..], &bytes[..]);
            }
        }
    }
}
