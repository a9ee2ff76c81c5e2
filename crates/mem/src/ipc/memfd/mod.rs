//! A simulated device that behaves like a GPU's driver, between real processes and without a GPU. For tests, benchmarks and machines without a
//! GPU; created once, and joined by its descriptor.
//!
//! - It has memory of a limited capacity. Allocation ids are never reused; addresses are reused as soon as possible.
//! - Freed memory is overwritten at once ([`poison_word`]), so that a stale reader can detect it. It exists and counts
//!   against the capacity until no process has it open or holds its descriptor.
//! - A process opens an allocation once, and never while a stale import of the same owner overlaps it.
//! - Any process may be killed at any time; its memory is reclaimed by the next process that locks the table.
//!
//! A forked child has none of its parent's allocations and cannot affect them: its calls fail ([`MemfdError::Child`]), and dropped objects free
//! nothing. It holds only memory that its parent had exported by descriptors before the fork, until it ends or calls exec. Processes trust each
//! other's table as they would trust a driver.

mod driver;
mod error;
mod ledger;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

pub use error::{AllocError, FreeError, MemfdError};

use self::ledger::{AllocationRecord, DeviceLedger, LedgerGuard, SLOTS};
use super::address_window::{AddressWindow, GRANULE, round_to_granules};
use super::host::random_number;
use super::table::AllocationTable;
use super::{CopyPlace, IpcAllocation, IpcAllocationId};

/// A device, as joined by this process. Dropping it frees its allocations.
#[derive(Debug)]
pub struct MemfdDevice {
    ledger: DeviceLedger,
    number: u32,
    nonce: u64,
    /// This process's number on the device.
    process: u64,
    table: RwLock<AllocationTable<DeviceSlot>>,
}

/// The slot of an allocation of this process.
#[derive(Clone, Copy, Debug)]
struct DeviceSlot {
    slot: usize,
}

/// Usage of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceUsage {
    /// Capacity, in bytes.
    pub capacity: u64,
    /// Bytes allocated, or freed and still open in a process.
    pub used: u64,
    /// Bytes of `used` that were freed or whose owner is dead.
    pub freed: u64,
    /// Number of allocations that `used` counts.
    pub allocations: usize,
}

/// Returns the word, little-endian, that fills the memory freed under an allocation id.
#[must_use]
pub fn poison_word(id: IpcAllocationId) -> u64 {
    0xdead_0000_0000_0000 ^ id.0
}

impl MemfdDevice {
    /// Creates a device of `capacity` bytes. Its allocations report `number` as their device.
    ///
    /// # Errors
    /// [`MemfdError`].
    pub fn create(number: u32, capacity: u64) -> Result<Self, MemfdError> {
        Self::from_ledger(number, DeviceLedger::create(capacity, random_number()?)?)
    }

    /// Joins the device of a descriptor.
    ///
    /// # Errors
    /// [`MemfdError`].
    pub fn join(number: u32, descriptor: &impl AsFd) -> Result<Self, MemfdError> {
        Self::from_ledger(number, DeviceLedger::join(descriptor)?)
    }

    fn from_ledger(number: u32, ledger: DeviceLedger) -> Result<Self, MemfdError> {
        let process = ledger.lock_table()?.next_process()?;
        let nonce = ledger.device_nonce()?;
        let table = RwLock::new(AllocationTable::new(AddressWindow::new()?));
        Ok(Self { ledger, number, nonce, process, table })
    }

    /// Returns a descriptor by which other processes join.
    ///
    /// # Errors
    /// [`MemfdError`].
    pub fn descriptor(&self) -> Result<OwnedFd, MemfdError> {
        self.ledger.reopen_file()
    }

    /// Returns the current usage.
    ///
    /// # Errors
    /// [`MemfdError`].
    pub fn usage(&self) -> Result<DeviceUsage, MemfdError> {
        let table = self.table_mut();
        self.usage_of(&self.ledger.lock_table()?, &table)
    }

    fn usage_of(
        &self,
        ledger: &LedgerGuard<'_>,
        table: &AllocationTable<DeviceSlot>,
    ) -> Result<DeviceUsage, MemfdError> {
        ledger.reclaim_unheld()?;
        let mut usage = DeviceUsage { capacity: ledger.capacity()?, used: 0, freed: 0, allocations: 0 };
        for slot in 0..SLOTS {
            let Some(record) = ledger.read_record(slot)? else { continue };
            usage.used += record.range.len;
            usage.allocations += 1;
            let is_own = record.process == self.process
                && table.find_own(record.base as usize).is_some_and(|own| own.allocation.id.0 == record.id);
            if !is_own && !ledger.is_owned(slot)? {
                usage.freed += record.range.len;
            }
        }
        Ok(usage)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, AllocationTable<DeviceSlot>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates zeroed memory, charged in units of 64 KiB; returns its address.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<usize, AllocError> {
        let size = round_to_granules(len).ok_or(AllocError::Size(len))?;
        let mut table = self.table_mut();
        let ledger = self.ledger.lock_table()?;
        let usage = self.usage_of(&ledger, &table)?;
        let wanted = size as u64;
        if usage.used.checked_add(wanted).is_none_or(|used| used > usage.capacity) {
            return Err(AllocError::Exhausted { wanted, usage });
        }
        let slot = ledger.find_vacant()?.ok_or(AllocError::Slots(SLOTS))?;
        let range = ledger.next_range(wanted)?;
        let hold = self.ledger.hold_range(range)?;
        let id = ledger.next_id()?;
        let base = table.window.map_lowest(size, &hold, range.start).map_err(MemfdError::from)?;
        let record =
            AllocationRecord { id, process: self.process, base: base as u64, len: len as u64, range };
        if let Err(error) = ledger.set_owner(slot, true).and_then(|()| ledger.write_record(slot, &record)) {
            let _ = (table.window.clear(base), ledger.set_owner(slot, false));
            return Err(error.into());
        }
        let allocation = IpcAllocation { base, len, id: IpcAllocationId(id), device: self.number };
        table.add_own(allocation, DeviceSlot { slot });
        Ok(base)
    }

    /// Frees the allocation that begins at `base`. The memory is overwritten at once, also for processes that have it open, and counts against the
    /// capacity until all of them have closed it.
    ///
    /// # Errors
    /// [`FreeError`].
    pub fn free(&self, base: usize) -> Result<(), FreeError> {
        let mut table = self.table_mut();
        let own = table.find_own(base).ok_or(FreeError::Unknown { addr: base })?;
        let allocation = own.allocation;
        let slot = own.more.slot;
        let ledger = self.ledger.lock_table()?;
        overwrite_freed(&table, &allocation);
        table.window.clear(base).map_err(MemfdError::from)?;
        table.remove(base);
        ledger.set_owner(slot, false)?;
        ledger.reclaim_unheld()?;
        Ok(())
    }
}

/// Fills an allocation with its poison word.
fn overwrite_freed(table: &AllocationTable<DeviceSlot>, allocation: &IpcAllocation) {
    let words = poison_word(allocation.id).to_le_bytes().repeat(GRANULE / 8);
    for at in (0..allocation.len).step_by(GRANULE) {
        let part = words.get(..GRANULE.min(allocation.len - at)).unwrap_or(&words);
        // Cannot fail: the range lies inside the allocation.
        let _ = table.write(CopyPlace::Own(allocation.base + at), part);
    }
}
