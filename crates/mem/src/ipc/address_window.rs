//! Addresses that a kind puts its allocations at: the lowest that are free. So what is freed is soon allocated again at the same
//! address, as drivers do and as tests need it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::error::CallFailure;
use super::fork_guard::ForkGuard;
use super::mapping::FileMapping;

/// Bytes of addresses that are taken at the start; nothing but numbers.
const LEN: usize = 1 << 36;

/// What all allocations are rounded up to, in bytes.
pub(super) const GRANULE: usize = 64 << 10;

/// The addresses, and which are in use.
#[derive(Debug)]
pub(super) struct AddressWindow {
    range: FileMapping,
    /// Offset and bytes of each.
    taken: BTreeMap<usize, usize>,
}

impl AddressWindow {
    /// # Errors
    /// What the system says.
    pub(super) fn new() -> Result<Self, CallFailure> {
        Ok(Self {
            range: FileMapping::reserve_addresses(Arc::new(ForkGuard::new()?), LEN)?,
            taken: BTreeMap::new(),
        })
    }

    /// Whose addresses they are.
    pub(super) fn fork_guard(&self) -> &Arc<ForkGuard> {
        self.range.fork_guard()
    }

    /// Maps bytes of a file at the lowest address that is free; where. `len` is a multiple of [`GRANULE`].
    ///
    /// # Errors
    /// What the system says; also when there is no room.
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

    /// Unmaps what was put at an address.
    ///
    /// # Errors
    /// What the system says; then it is still there.
    pub(super) fn clear(&mut self, addr: usize) -> Result<(), CallFailure> {
        let at = addr.wrapping_sub(self.range.addr());
        let Some(len) = self.taken.get(&at) else { return Ok(()) };
        self.range.clear(at, *len)?;
        self.taken.remove(&at);
        Ok(())
    }
}

/// Bytes rounded up to what is allocated; `None` for none and for more than there are addresses.
pub(super) fn round_to_granules(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(GRANULE).filter(|len| (1..=LEN).contains(len))
}
