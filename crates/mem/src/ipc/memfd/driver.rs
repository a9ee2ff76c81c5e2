//! The device as a kind of memory.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use super::{Device, DeviceError, Place};
use crate::Memory;
use crate::ipc::error::{Cause, CopyError, ExportError, FindError, NotClosed, OpenError};
use crate::ipc::mapping::Mapping;
use crate::ipc::table::Table;
use crate::ipc::{
    Allocation, AllocationId, At, Caps, Export, Handle, HandleError, IpcMemory, Mapped, Passing, To, planted,
};

impl Device {
    fn open_inside(
        &self,
        table: &mut Table<Place>,
        words: [u64; 6],
        descriptor: Option<OwnedFd>,
    ) -> Result<Mapped, OpenError> {
        let [nonce, process, id, slot, base, len] = words;
        if nonce != self.nonce {
            return Err(HandleError::Foreign.into());
        }
        if process == self.process {
            return Err(OpenError::Own);
        }
        if descriptor.as_ref().is_some_and(|fd| !self.ledger.is_file_of(fd)) {
            return Err(OpenError::Descriptor("the descriptor is not of this device"));
        }
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < super::SLOTS);
        let slot = slot.ok_or(HandleError::Value("slot"))?;
        let ledger = self.ledger.enter().map_err(fault)?;
        let record = ledger.record(slot).map_err(fault)?.ok_or(OpenError::Gone)?;
        let is_it = record.id == id && record.process == process;
        if !is_it && !planted("mem-ipc-ignores-ids") {
            return Err(OpenError::Gone);
        }
        if (record.base, record.len) != (base, len) && !planted("mem-ipc-ignores-ids") {
            return Err(HandleError::Value("range").into());
        }
        // A descriptor holds what it is of; without one there is only the owner's word.
        if descriptor.is_none() && !ledger.is_owned(slot).map_err(fault)? {
            return Err(OpenError::Gone);
        }
        let len = usize::try_from(record.len).map_err(|_| HandleError::Value("length"))?;
        let other = table.in_the_way(process, base, len).map(|other| other.id);
        if let Some(stale) = other.filter(|_| !planted("mem-ipc-maps-over-stale")) {
            let wanted = AllocationId(id);
            let is_same = stale == wanted;
            return Err(if is_same {
                OpenError::AlreadyMapped
            } else {
                OpenError::Overlap { stale, wanted }
            });
        }
        let hold = self.ledger.hold(record.range).map_err(fault)?;
        let mapping = Mapping::of(table.window.here(), &hold, record.range.start, len).map_err(cause)?;
        if planted("mem-ipc-keeps-holds") {
            std::mem::forget(hold);
        }
        Ok(table.import(process, AllocationId(id), base, len, mapping))
    }
}

impl IpcMemory for Device {
    fn caps(&self) -> Caps {
        Caps {
            maps: true,
            by_bytes: true,
            by_descriptor: true,
            opens_once: true,
            refuses_overlap: true,
            outlives_free: true,
            tells_descriptors: true,
        }
    }

    fn allocation_of(&self, addr: usize) -> Result<Allocation, FindError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).find(addr).map(|own| own.allocation)
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let own = table.own(of.base).filter(|own| own.allocation == *of);
        let slot = own.ok_or(ExportError::Gone(of.id))?.more.slot;
        let words = [self.nonce, self.process, of.id.0, slot as u64, of.base as u64, of.len as u64];
        let descriptor = match how {
            Passing::Bytes | Passing::Either => None,
            Passing::Descriptor => {
                let ledger = self.ledger.enter().map_err(told)?;
                let record = ledger.record(slot).map_err(told)?.ok_or(ExportError::Gone(of.id))?;
                Some(self.ledger.hold(record.range).map_err(told)?)
            }
        };
        Ok(Export { handle: Handle::of_words(Handle::DEVICE, words), descriptor })
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        let words = handle.words(Handle::DEVICE)?;
        self.open_inside(&mut self.table_mut(), words, descriptor)
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
        self.table_mut().close(mapped)?;
        // It is closed. Whether it was the last one is seen by whoever looks next, if not now.
        let _ = self.ledger.enter().and_then(|ledger| ledger.reap());
        Ok(())
    }

    fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).read(from, out)
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).copy(from, to, len)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).write(to, bytes)
    }

    fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).fill(to, from, offset, len)
    }
}

/// What a device's failure means for who opens.
fn fault(error: DeviceError) -> OpenError {
    cause(system(error))
}

fn told(error: DeviceError) -> ExportError {
    system(error).into()
}

fn system(error: DeviceError) -> Cause {
    match error {
        DeviceError::System(cause) => cause,
        DeviceError::Busy => Cause::System { call: "waiting for the device's table", code: libc::ETIMEDOUT },
        DeviceError::Child => Cause::System { call: "a child of a fork", code: libc::EPERM },
        DeviceError::Worn => Cause::System { call: "a place on the device", code: libc::ENOSPC },
        DeviceError::Foreign | DeviceError::Version(_) | DeviceError::Broken => {
            Cause::System { call: "the device's table", code: libc::EBADMSG }
        }
    }
}

fn cause(cause: Cause) -> OpenError {
    OpenError::of(cause, "the process must be allowed to open the device's file again through /proc")
}
