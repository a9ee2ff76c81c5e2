//! The bytes of a handle. Made by a kind, carried by whoever talks to the peer, parsed by the same kind there; hostile until then.
//! The bytes of our own kinds are in docs/wire.md.

/// What a peer opens an allocation by: at most [`IpcHandle::BYTES_MAX`] bytes of a kind that both processes know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpcHandle {
    kind: u8,
    len: u8,
    bytes: [u8; Self::BYTES_MAX],
}

/// Bytes that are no handle of the kind that was to open them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IpcHandleError {
    /// It is of another kind of memory.
    #[error("the handle is of kind {found}, and {expected} was to open it")]
    Kind {
        /// The kind's number.
        found: u8,
        /// Of the kind that was asked.
        expected: u8,
    },
    /// It is as long as no handle of that kind.
    #[error("the handle has {found} bytes instead of {expected}")]
    Length {
        /// Bytes.
        found: usize,
        /// What it should have.
        expected: usize,
    },
    /// It is of another version.
    #[error("the handle is of version {0}, which is not known here")]
    Version(u8),
    /// It names memory of another device, or none that there ever was.
    #[error("the handle names no memory of this device")]
    Foreign,
    /// What it says of the allocation cannot be.
    #[error("the handle's {0} cannot be")]
    Value(&'static str),
}

impl IpcHandle {
    /// As many bytes as the message takes that carries it.
    pub const BYTES_MAX: usize = 192;
    /// The number of [`Host`](super::HostMemory).
    pub const HOST: u8 = 1;
    /// The number of [`Device`](super::MemfdDevice).
    pub const DEVICE: u8 = 2;
    /// The number of [`Private`](super::PrivateMemory).
    pub const PRIVATE: u8 = 3;
    /// The number of [`Xpmem`](super::XpmemMemory).
    pub const XPMEM: u8 = 4;

    /// The number of a legacy handle of [`Cuda`](super::CudaMemory).
    pub const CUDA: u8 = 16;
    /// The number of a segment of [`Cuda`](super::CudaMemory) that goes by its descriptor.
    pub const CUDA_SEGMENT: u8 = 17;
    /// The number of [`Hip`](super::HipMemory).
    pub const HIP: u8 = 18;
    /// The number of [`LevelZero`](super::LevelZero).
    pub const LEVEL_ZERO: u8 = 19;

    /// A kind's bytes; `None` if they are more than [`IpcHandle::BYTES_MAX`].
    #[must_use]
    pub fn new(kind: u8, bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut all = [0; Self::BYTES_MAX];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { kind, len, bytes: all })
    }

    /// The number of the kind that made it.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The same, of the process with that number, whatever number it says: of kinds that reach a process by its number. For whoever has it
    /// from a stream that knows whose the other end is; 0 for one that has no number here, which is reached by no number then.
    #[must_use]
    pub fn of_process(mut self, number: u32) -> Self {
        if let (Self::PRIVATE | Self::XPMEM, Some(place)) = (self.kind, self.bytes.get_mut(8..16)) {
            place.copy_from_slice(&u64::from(number).to_le_bytes());
        }
        self
    }

    /// One of version 1 that is words, little-endian, after the version's own.
    pub(super) fn of_words<const N: usize>(kind: u8, words: [u64; N]) -> Self {
        let mut bytes = [0; Self::BYTES_MAX];
        let all = std::iter::once(u64::from(VERSION)).chain(words);
        for (to, word) in bytes.chunks_exact_mut(8).zip(all) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self { kind, len: (8 + 8 * N) as u8, bytes }
    }

    /// The words of such a one.
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

/// Of the handles of our own kinds.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_whom_the_stream_has_it_for() {
        for kind in [IpcHandle::PRIVATE, IpcHandle::XPMEM] {
            let handle = IpcHandle::of_words(kind, [7, 8, 9]).of_process(5);
            assert_eq!(handle.parse_words::<3>(kind), Ok([5, 8, 9]));
        }
        let handle = IpcHandle::of_words(IpcHandle::HOST, [7, 8, 9]);
        assert_eq!(handle.of_process(5), handle);
    }

    #[test]
    fn words_come_back_and_nothing_else_passes() {
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
