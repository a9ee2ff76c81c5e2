//! The handle of memory of a GPU: the driver's words, and the words that our own rules need. docs/wire.md specifies them.
//!
//! An importer has no table against which it could check the words. A check word detects corruption, and the length is checked with the driver.
//! Other wrong words harm only the process that trusts its peer's ids.

use crate::ipc::{IpcAllocation, IpcAllocationId, IpcHandle, IpcHandleError};

/// Number of the driver's words: 64 bytes.
pub(super) const DRIVERS: usize = 8;
const WORDS: usize = 5 + DRIVERS + 1;

/// The parsed content of a handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SealedHandle {
    /// Kind of handle.
    pub(in crate::ipc) kind: u8,
    /// Random number of its owner.
    pub(in crate::ipc) process: u64,
    /// The allocation's id in the owner.
    pub(in crate::ipc) id: IpcAllocationId,
    /// The allocation's address in the owner.
    pub(in crate::ipc) base: u64,
    /// Length, in bytes.
    pub(in crate::ipc) len: usize,
    /// The device's number in the owner.
    pub(in crate::ipc) device: u32,
    /// The driver's words.
    pub(in crate::ipc) driver: [u64; DRIVERS],
}

impl SealedHandle {
    /// Describes an allocation of this process; the driver's words are still zero.
    pub(in crate::ipc) fn for_allocation(allocation: &IpcAllocation, process: u64, kind: u8) -> Self {
        let IpcAllocation { base, len, id, device } = *allocation;
        Self { kind, process, id, base: base as u64, len, device, driver: [0; DRIVERS] }
    }

    /// Returns the driver's bytes.
    pub(in crate::ipc) fn driver_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.driver) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Sets the driver's bytes.
    pub(in crate::ipc) fn set_bytes(&mut self, bytes: [u8; 64]) {
        for (word, from) in self.driver.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = from.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        }
    }

    /// Returns whether the driver's words are set.
    pub(in crate::ipc) fn has_driver_words(&self) -> bool {
        self.driver.iter().any(|word| *word != 0)
    }

    /// Encodes the handle for a peer.
    pub(in crate::ipc) fn to_handle(self) -> IpcHandle {
        let mut words = [0; WORDS];
        let said = [self.process, self.id.0, self.base, self.len as u64, u64::from(self.device)];
        for (word, said) in words.iter_mut().zip(said.into_iter().chain(self.driver)) {
            *word = said;
        }
        words[WORDS - 1] = check_word(self.kind, &words);
        IpcHandle::of_words(self.kind, words)
    }

    /// Parses a handle of one of those kinds.
    ///
    /// # Errors
    /// [`IpcHandleError`].
    pub(in crate::ipc) fn parse(handle: &IpcHandle, kinds: &[u8]) -> Result<Self, IpcHandleError> {
        let kind = handle.kind();
        let expected = kinds.first().copied().unwrap_or(0);
        if !kinds.contains(&kind) {
            return Err(IpcHandleError::Kind { found: kind, expected });
        }
        let words: [u64; WORDS] = handle.parse_words(kind)?;
        let [process, id, base, len, device, driver @ .., told] = words;
        if told != check_word(kind, &words) {
            return Err(IpcHandleError::Value("check word"));
        }
        let len = usize::try_from(len).ok().filter(|len| *len > 0 && base.checked_add(*len as u64).is_some());
        let len = len.ok_or(IpcHandleError::Value("length"))?;
        let device = u32::try_from(device).map_err(|_| IpcHandleError::Value("device"))?;
        Ok(Self { kind, process, id: IpcAllocationId(id), base, len, device, driver })
    }
}

/// Returns the check word over all words before the last. Each step is a bijection, so that a change of any single word changes the result.
fn check_word(kind: u8, words: &[u64; WORDS]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(kind);
    words.iter().take(WORDS - 1).fold(start, |sum, word| {
        let sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^ sum >> 29
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_words_round_trip_and_detect_changes() {
        let allocation = IpcAllocation { base: 0x7000, len: 77, id: IpcAllocationId(5), device: 3 };
        let mut sealed = SealedHandle::for_allocation(&allocation, 9, 16);
        let bytes = std::array::from_fn(|at| at as u8);
        sealed.set_bytes(bytes);
        assert_eq!(sealed.driver_bytes(), bytes);
        let handle = sealed.to_handle();
        assert_eq!(SealedHandle::parse(&handle, &[17, 16]), Ok(sealed));
        let other = IpcHandleError::Kind { found: 16, expected: 17 };
        assert_eq!(SealedHandle::parse(&handle, &[17]), Err(other));
        let moved = IpcHandle::new(17, handle.bytes()).unwrap();
        assert_eq!(SealedHandle::parse(&moved, &[17, 16]), Err(IpcHandleError::Value("check word")));
        for bit in 64..8 * handle.bytes().len() {
            let mut bytes = handle.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let broken = IpcHandle::new(16, &bytes).unwrap();
            assert_eq!(
                SealedHandle::parse(&broken, &[16]),
                Err(IpcHandleError::Value("check word")),
                "bit {bit}"
            );
        }
        for (base, len) in [(0, 0), (u64::MAX, 2)] {
            let empty = SealedHandle { base, len, ..sealed }.to_handle();
            assert_eq!(SealedHandle::parse(&empty, &[16]), Err(IpcHandleError::Value("length")));
        }
    }
}
