//! The device as a kind of memory.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use super::{DeviceSlot, MemfdDevice, MemfdError};
use crate::MemoryRange;
use crate::ipc::error::{
    CallFailure, CopyError, ExportError, FindAllocationError, HandleOpenError, NotClosed,
};
use crate::ipc::mapping::FileMapping;
use crate::ipc::table::AllocationTable;
use crate::ipc::{
    CopyPlace, CopyTarget, ExportedHandle, HandlePassing, IpcAllocation, IpcAllocationId, IpcCaps, IpcHandle,
    IpcHandleError, IpcMemory, OpenedHandle,
};

impl MemfdDevice {
    fn open_inside(
        &self,
        table: &mut AllocationTable<DeviceSlot>,
        words: [u64; 6],
        descriptor: Option<OwnedFd>,
    ) -> Result<OpenedHandle, HandleOpenError> {
        let [nonce, process, id, slot, base, len] = words;
        if nonce != self.nonce {
            return Err(IpcHandleError::Foreign.into());
        }
        if process == self.process {
            return Err(HandleOpenError::Own);
        }
        if descriptor.as_ref().is_some_and(|fd| !self.ledger.is_file_of(fd)) {
            return Err(HandleOpenError::Descriptor("the descriptor does not refer to this device"));
        }
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < super::SLOTS);
        let slot = slot.ok_or(IpcHandleError::Value("slot"))?;
        let ledger = self.ledger.lock_table().map_err(to_open_error)?;
        let record = ledger.read_record(slot).map_err(to_open_error)?.ok_or(HandleOpenError::Gone)?;
        let is_it = record.id == id && record.process == process;
        if !is_it {
            return Err(HandleOpenError::Gone);
        }
        if (record.base, record.len) != (base, len) {
            return Err(IpcHandleError::Value("range").into());
        }
        // A descriptor holds its range; without one, the memory exists only while its owner holds it.
        if descriptor.is_none() && !ledger.is_owned(slot).map_err(to_open_error)? {
            return Err(HandleOpenError::Gone);
        }
        let len = usize::try_from(record.len).map_err(|_| IpcHandleError::Value("length"))?;
        let other = table.in_the_way(process, base, len).map(|other| other.id);
        if let Some(stale) = other {
            let wanted = IpcAllocationId(id);
            let is_same = stale == wanted;
            return Err(if is_same {
                HandleOpenError::AlreadyMapped
            } else {
                HandleOpenError::Overlap { stale, wanted }
            });
        }
        let hold = self.ledger.hold_range(record.range).map_err(to_open_error)?;
        let mapping = FileMapping::map_file(table.window.fork_guard(), &hold, record.range.start, len)
            .map_err(open_error)?;
        Ok(table.add_import(process, IpcAllocationId(id), base, len, mapping))
    }
}

impl IpcMemory for MemfdDevice {
    fn caps(&self) -> IpcCaps {
        IpcCaps {
            maps: true,
            by_bytes: true,
            by_descriptor: true,
            opens_once: true,
            refuses_overlap: true,
            outlives_free: true,
            tells_descriptors: true,
        }
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).find_around(addr).map(|own| own.allocation)
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let own = table.find_own(of.base).filter(|own| own.allocation == *of);
        let slot = own.ok_or(ExportError::Gone(of.id))?.more.slot;
        let words = [self.nonce, self.process, of.id.0, slot as u64, of.base as u64, of.len as u64];
        let descriptor = match how {
            HandlePassing::Bytes | HandlePassing::Either => None,
            HandlePassing::Descriptor => {
                let ledger = self.ledger.lock_table().map_err(to_export_error)?;
                let record =
                    ledger.read_record(slot).map_err(to_export_error)?.ok_or(ExportError::Gone(of.id))?;
                Some(self.ledger.hold_range(record.range).map_err(to_export_error)?)
            }
        };
        Ok(ExportedHandle { handle: IpcHandle::of_words(IpcHandle::DEVICE, words), descriptor })
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        let words = handle.parse_words(IpcHandle::DEVICE)?;
        self.open_inside(&mut self.table_mut(), words, descriptor)
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        self.table_mut().close_import(mapped)?;
        // The import is closed. If this fails, the next process that takes the table's lock reclaims the memory.
        let _ = self.ledger.lock_table().and_then(|ledger| ledger.reclaim_unheld());
        Ok(())
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).read(from, out)
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).copy(from, to, len)
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).write(to, bytes)
    }

    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).fill_from(to, from, offset, len)
    }
}

/// Converts a device's failure into the error of the code that opens a handle.
fn to_open_error(error: MemfdError) -> HandleOpenError {
    open_error(to_cause(error))
}

fn to_export_error(error: MemfdError) -> ExportError {
    to_cause(error).into()
}

fn to_cause(error: MemfdError) -> CallFailure {
    match error {
        MemfdError::System(cause) => cause,
        MemfdError::Busy => {
            CallFailure::System { call: "waiting for the device's table", code: libc::ETIMEDOUT }
        }
        MemfdError::Child => CallFailure::System { call: "a call in a forked child", code: libc::EPERM },
        MemfdError::Worn => {
            CallFailure::System { call: "allocating a place on the device", code: libc::ENOSPC }
        }
        MemfdError::Foreign | MemfdError::Version(_) | MemfdError::Broken => {
            CallFailure::System { call: "reading the device's table", code: libc::EBADMSG }
        }
    }
}

fn open_error(cause: CallFailure) -> HandleOpenError {
    HandleOpenError::from_cause(
        cause,
        "the process must be allowed to open the device's file again through /proc",
    )
}
