//! The payload that an entry of a device queue carries itself.

/// Longest payload that a WRITE may carry itself, in bytes.
pub const INLINE_BYTES_MAX: usize = 24;

/// The payload of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InlineBytes {
    bytes: [u8; INLINE_BYTES_MAX],
    len: u8,
}

impl InlineBytes {
    /// Creates a payload; `None` if it is longer than [`INLINE_BYTES_MAX`].
    #[must_use]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, len: from.len() as u8 })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    pub(super) fn to_words(self) -> [u64; 3] {
        let at =
            |n: usize| self.bytes.iter().skip(8 * n).take(8).rev().fold(0, |w, b| w << 8 | u64::from(*b));
        [at(0), at(1), at(2)]
    }

    /// Parses a payload; `None` if it is too long, or bytes after it are not zero.
    pub(super) fn from_words(words: [u64; 3], len: u64) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES_MAX];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        let len = u8::try_from(len).ok()?;
        let rest = bytes.get(usize::from(len)..)?;
        rest.iter().all(|byte| *byte == 0).then_some(Self { bytes, len })
    }
}
