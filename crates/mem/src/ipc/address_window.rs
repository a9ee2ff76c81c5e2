//! Addresses for the allocations of a kind of memory: always the lowest free range. A freed address is therefore soon allocated again, as
//! drivers do and as tests need it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::error::CallFailure;
use super::fork_guard::ForkGuard;
use super::mapping::FileMapping;

/// Bytes of addresses reserved at the start; they use no memory.
const LEN: usize = 1 << 36;

/// All allocations are rounded up to multiples of this, in bytes.
pub(super) const GRANULE: usize = 64 << 10;

/// The reserved addresses, and the ranges in use.
#[derive(Debug)]
pub(super) struct AddressWindow {
    range: FileMapping,
    /// Ranges in use, by offset, with their lengths in bytes.
    taken: BTreeMap<usize, usize>,
}

impl AddressWindow {
    /// # Errors
    /// The system's error.
    pub(super) fn new() -> Result<Self, CallFailure> {
        Ok(Self {
            range: FileMapping::reserve_addresses(Arc::new(ForkGuard::new()?), LEN)?,
            taken: BTreeMap::new(),
        })
    }

    /// Returns the fork guard of the process that reserved the addresses.
    pub(super) fn fork_guard(&self) -> &Arc<ForkGuard> {
        self.range.fork_guard()
    }

    /// Maps bytes of a file at the lowest free address and returns it. `len` is a multiple of [`GRANULE`].
    ///
    /// # Errors
    /// The system's error; `ENOMEM` if no range is large enough.
    pub(super) fn map_lowest(
        &mut self,
        len: usize,
        file: &impl AsFd,
        offset: u64,
    ) -> Result<usize, CallFailure> {
        let mut at = 0;
        for (start, taken) in &self.taken {
            if start - at >= len {
                break;
            }
            at = start + taken;
        }
        if at.checked_add(len).is_none_or(|end| end > self.range.len()) {
            return Err(CallFailure::System { call: "mmap", code: libc::ENOMEM });
        }
        self.range.map_at(at, len, file, offset)?;
        self.taken.insert(at, len);
        Ok(self.range.addr() + at)
    }

    /// Unmaps the allocation at an address.
    ///
    /// # Errors
    /// The system's error; the range stays mapped.
    pub(super) fn clear(&mut self, addr: usize) -> Result<(), CallFailure> {
        let at = addr.wrapping_sub(self.range.addr());
        let Some(len) = self.taken.get(&at) else { return Ok(()) };
        self.range.clear(at, *len)?;
        self.taken.remove(&at);
        Ok(())
    }
}

/// Rounds a length up to an allocation size; `None` for 0 and for more bytes than the window has.
pub(super) fn round_to_granules(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(GRANULE).filter(|len| (1..=LEN).contains(len))
}
