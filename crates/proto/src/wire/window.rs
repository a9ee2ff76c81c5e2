//! What ranks of a host say to each other of a window: docs/wire.md, "Windows inside a node". Carried by tagged messages of the Rust API, which makes
//! and reads them; whom they come from is known by what carries them.

use crate::tagged::StridedRows;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::ipc::{ExportReference, IpcError, REFERENCE_BYTES};

/// Bytes of a [`PartCard`].
pub const CARD_BYTES: usize = 16 + REFERENCE_BYTES;

/// Bytes of an [`WindowAccess`].
pub const ACCESS_BYTES: usize = 56;

const VERSION: u8 = 1;

/// What a rank gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowPart {
    /// Nothing, and nobody is to have the window: it was asked for what cannot be.
    Refused,
    /// Bytes that others reach by messages alone.
    Asked,
    /// Bytes that others may map.
    Mapped(ExportReference),
}

/// What a rank tells each other one of its part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartCard {
    /// Its bytes.
    pub len: u64,
    /// How they are reached.
    pub part: WindowPart,
}

/// What is done to a part that is reached by messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessKind {
    /// Bytes come, and are placed.
    Put,
    /// Bytes are asked for.
    Get,
}

/// A rank asks the owner of a part for something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowAccess {
    /// What.
    pub deed: AccessKind,
    /// Which window: the number of the call that made it, the same at all ranks.
    pub window: u64,
    /// The asking rank's number of it: its bytes, and how it ended, come with that.
    pub number: u64,
    /// The first byte in the part.
    pub at: u64,
    /// Bytes, without what is between rows; at least one.
    pub len: u64,
    /// How they stand in the part.
    pub rows: StridedRows,
}

/// Bytes that say nothing of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// Fewer bytes, or more.
    #[error("cut short, or too long")]
    Length,
    /// Another version made it.
    #[error("version {0}, and this is {VERSION}: all ranks need the same library")]
    Version(u8),
    /// It says something else than this version knows.
    #[error("of kind {0}")]
    Kind(u8),
    /// Bits that must be zero are not.
    #[error("reserved bits are set")]
    Reserved,
    /// Rows that lie over each other, or reach beyond the last address.
    #[error("rows that no bytes stand in")]
    Rows,
    /// A reference that cannot be.
    #[error(transparent)]
    Reference(#[from] IpcError),
    /// It refers to fewer bytes than it says, or to more.
    #[error("{len} bytes that are {found}")]
    Span {
        /// What it says.
        len: u64,
        /// What it refers to.
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
    /// Its bytes.
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

    /// Reads one.
    ///
    /// # Errors
    /// [`WindowError`] says what is wrong.
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
    /// Its bytes.
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

    /// Reads one. That its bytes are in the part is for the owner to see.
    ///
    /// # Errors
    /// [`WindowError`] says what is wrong.
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

    /// Where its last byte ends in the part; `None` if no address space is that large.
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
    fn cards_come_back_and_nothing_else_passes() {
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
        assert!(matches!(changed(20, 0), Err(WindowError::Reference(_))), "a name of no generation");
    }

    proptest! {
        #[test]
        fn accesses_come_back(
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
        fn what_is_read_is_written_the_same(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(card) = PartCard::from_bytes(&bytes) {
                prop_assert_eq!(&card.to_bytes()[..], &bytes[..]);
            }
            if let Ok(access) = WindowAccess::from_bytes(&bytes) {
                prop_assert_eq!(&access.to_bytes()[..], &bytes[..]);
            }
        }
    }
}
