//! A device that behaves as a GPU's driver does, between real processes and without a GPU. For tests, benches and machines that have
//! none; made once, joined by its descriptor.
//!
//! - Memory of a capacity. Allocations have ids that never come again, though their addresses do, as soon as they can.
//! - What is freed is overwritten at once ([`poison_word`]), so that who reads on can tell; but as long as any process has it open, or
//!   holds its descriptor, it is there and counts.
//! - An allocation is opened once a process, and never over one of the same owner that is stale.
//! - Any process may be killed at any time; what it held is free when the next one looks.
//!
//! A child of a fork has nothing of its parent's, and does nothing to it: what it asks for is refused ([`MemfdError::Child`]), what it drops stays. It holds
//! no memory but what its parent had exported by descriptors at the fork, until it ends or becomes another program. Processes trust each other's table,
//! as they would a driver.

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

/// A device, as this process has it. What it allocated is freed with it.
#[derive(Debug)]
pub struct MemfdDevice {
    ledger: DeviceLedger,
    number: u32,
    nonce: u64,
    /// This process's number among those of the device.
    process: u64,
    table: RwLock<AllocationTable<DeviceSlot>>,
}

/// Where an own allocation is.
#[derive(Clone, Copy, Debug)]
struct DeviceSlot {
    slot: usize,
}

/// What of a device is in use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceUsage {
    /// Bytes that it has.
    pub capacity: u64,
    /// Bytes that are allocated, or freed and still open.
    pub used: u64,
    /// Of them those that were freed or whose owner is dead.
    pub freed: u64,
    /// As many allocations.
    pub allocations: usize,
}

/// What memory is full of that was freed under that id: this word, little-endian, again and again.
#[must_use]
pub fn poison_word(id: IpcAllocationId) -> u64 {
    0xdead_0000_0000_0000 ^ id.0
}

impl MemfdDevice {
    /// A new device of so many bytes, with the number that its allocations will say.
    ///
    /// # Errors
    /// [`MemfdError`].
    pub fn create(number: u32, capacity: u64) -> Result<Self, MemfdError> {
        Self::from_ledger(number, DeviceLedger::create(capacity, random_number()?)?)
    }

    /// The device that a descriptor is of.
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

    /// What other processes join by.
    ///
    /// # Errors
    /// [`MemfdError`].
    pub fn descriptor(&self) -> Result<OwnedFd, MemfdError> {
        self.ledger.reopen_file()
    }

    /// What is in use now.
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

    /// New zeroed memory, charged in steps of 64 KiB; its address.
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

    /// Frees the allocation that begins there. It is overwritten at once, also for those who have it open; it counts until nobody has.
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

/// Fills an allocation with its poison.
fn overwrite_freed(table: &AllocationTable<DeviceSlot>, allocation: &IpcAllocation) {
    let words = poison_word(allocation.id).to_le_bytes().repeat(GRANULE / 8);
    for at in (0..allocation.len).step_by(GRANULE) {
        let part = words.get(..GRANULE.min(allocation.len - at)).unwrap_or(&words);
        // All of it is inside.
        let _ = table.write(CopyPlace::Own(allocation.base + at), part);
    }
}
