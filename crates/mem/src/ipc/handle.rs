//! The bytes of a handle. Created by a kind, sent to the peer by its control stream, and parsed by the same kind there; untrusted until then.
//! docs/wire.md specifies the bytes of our own kinds.

/// The handle by which a peer opens an allocation: at most [`IpcHandle::BYTES_MAX`] bytes of a kind that both processes know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpcHandle {
    kind: u8,
    len: u8,
    bytes: [u8; Self::BYTES_MAX],
}

/// Why bytes are not a handle of the expected kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IpcHandleError {
    /// The handle is of another kind.
    #[error("cannot open a handle of kind {found}: kind {expected} was expected")]
    Kind {
        /// The handle's kind number.
        found: u8,
        /// The expected kind number.
        expected: u8,
    },
    /// The handle has a wrong length.
    #[error("the handle has {found} bytes instead of {expected}")]
    Length {
        /// Its length, in bytes.
        found: usize,
        /// The expected length, in bytes.
        expected: usize,
    },
    /// The handle has an unknown version.
    #[error("the handle has the unknown version {0}")]
    Version(u8),
    /// The handle names memory of another device, or unknown memory.
    #[error("the handle does not name memory of this device")]
    Foreign,
    /// A value of the handle is invalid.
    #[error("the handle has an invalid {0}")]
    Value(&'static str),
}

impl IpcHandle {
    /// The maximum length, in bytes, as limited by the message that carries a handle.
    pub const BYTES_MAX: usize = 192;
    /// The number of [`HostMemory`](super::HostMemory).
    pub const HOST: u8 = 1;
    /// The number of [`MemfdDevice`](super::MemfdDevice).
    pub const DEVICE: u8 = 2;
    /// The number of [`PrivateMemory`](super::PrivateMemory).
    pub const PRIVATE: u8 = 3;
    /// The number of [`XpmemMemory`](super::XpmemMemory).
    pub const XPMEM: u8 = 4;

    /// The number of a legacy handle of [`CudaMemory`](super::CudaMemory).
    pub const CUDA: u8 = 16;
    /// The number of a segment of [`CudaMemory`](super::CudaMemory), which is passed by descriptor.
    pub const CUDA_SEGMENT: u8 = 17;
    /// The number of [`HipMemory`](super::HipMemory).
    pub const HIP: u8 = 18;
    /// The number of [`LevelZero`](super::LevelZero).
    pub const LEVEL_ZERO: u8 = 19;

    /// Wraps a kind's bytes; `None` if there are more than [`IpcHandle::BYTES_MAX`].
    #[must_use]
    pub fn new(kind: u8, bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut all = [0; Self::BYTES_MAX];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { kind, len, bytes: all })
    }

    /// Returns the number of the kind that created the handle.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Replaces the process number in handles of kinds that access a process by its number. For receivers that know their peer's number from the
    /// connection, so that a forged number has no effect. Pass 0 for a peer that has no number in this PID namespace: it cannot be accessed.
    #[must_use]
    pub fn of_process(mut self, number: u32) -> Self {
        if let (Self::PRIVATE | Self::XPMEM, Some(place)) = (self.kind, self.bytes.get_mut(8..16)) {
            place.copy_from_slice(&u64::from(number).to_le_bytes());
        }
        self
    }

    /// Encodes a handle of version 1: the version's word, then `words`, little-endian.
    pub(super) fn of_words<const N: usize>(kind: u8, words: [u64; N]) -> Self {
        let mut bytes = [0; Self::BYTES_MAX];
        let all = std::iter::once(u64::from(VERSION)).chain(words);
        for (to, word) in bytes.chunks_exact_mut(8).zip(all) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self { kind, len: (8 + 8 * N) as u8, bytes }
    }

    /// Parses the words of a handle made by [`IpcHandle::of_words`].
    ///
    /// # Errors
    /// [`IpcHandleError`].
    pub(super) fn parse_words<const N: usize>(&self, kind: u8) -> Result<[u64; N], IpcHandleError> {
        if self.kind != kind {
            return Err(IpcHandleError::Kind { found: self.kind, expected: kind });
        }
        let found = self.bytes().len();
        let expected = 8 + 8 * N;
        if found != expected {
            return Err(IpcHandleError::Length { found, expected });
        }
        let (head, rest) = self.bytes().split_at(8);
        match head {
            [VERSION, 0, 0, 0, 0, 0, 0, 0] => {}
            [VERSION, ..] => return Err(IpcHandleError::Value("reserved bytes")),
            [other, ..] => return Err(IpcHandleError::Version(*other)),
            [] => return Err(IpcHandleError::Length { found, expected }),
        }
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks_exact(8)) {
            *word = bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
        }
        Ok(words)
    }
}

/// The version of our own kinds' handles.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_gets_the_process_of_the_stream() {
        for kind in [IpcHandle::PRIVATE, IpcHandle::XPMEM] {
            let handle = IpcHandle::of_words(kind, [7, 8, 9]).of_process(5);
            assert_eq!(handle.parse_words::<3>(kind), Ok([5, 8, 9]));
        }
        let handle = IpcHandle::of_words(IpcHandle::HOST, [7, 8, 9]);
        assert_eq!(handle.of_process(5), handle);
    }

    #[test]
    fn handle_words_round_trip_and_others_are_refused() {
        let handle = IpcHandle::of_words(7, [1, u64::MAX, 3]);
        assert_eq!(handle.parse_words::<3>(7), Ok([1, u64::MAX, 3]));
        assert_eq!(IpcHandle::new(7, handle.bytes()), Some(handle));
        assert_eq!(handle.parse_words::<3>(8), Err(IpcHandleError::Kind { found: 7, expected: 8 }));
        assert_eq!(handle.parse_words::<2>(7), Err(IpcHandleError::Length { found: 32, expected: 24 }));
        for len in (0..=IpcHandle::BYTES_MAX).filter(|len| *len != 32) {
            let other = IpcHandle::new(7, &vec![1; len]).unwrap();
            assert_eq!(other.parse_words::<3>(7), Err(IpcHandleError::Length { found: len, expected: 32 }));
        }
        for at in 0..8 {
            let mut bytes = handle.bytes().to_vec();
            bytes[at] ^= 2;
            let error = IpcHandle::new(7, &bytes).unwrap().parse_words::<3>(7).unwrap_err();
            let expected =
                if at == 0 { IpcHandleError::Version(3) } else { IpcHandleError::Value("reserved bytes") };
            assert_eq!(error, expected);
        }
        assert_eq!(IpcHandle::new(7, &[0; IpcHandle::BYTES_MAX + 1]), None);
        assert_eq!(IpcHandle::new(7, &[0; 256]), None);
    }
}
