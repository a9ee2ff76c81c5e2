//! The calls that differ between the drivers of GPUs; [`DriverMemory`](super::DriverMemory) contains the common part.
//!
//! The following table states which thread makes which calls, and whether a driver may wait in them for a running kernel. The names are CUDA's;
//! the equivalents of HIP and Level Zero are called in the same places.
//!
//! | thread | calls | may wait |
//! | --- | --- | --- |
//! | mapping thread | `cuIpcOpenMemHandle`, `cuIpcCloseMemHandle`; `cuMemImportFromShareableHandle`, `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`, `cuMemUnmap`, `cuMemAddressFree`, `cuMemRelease` of an import; `cuStreamCreate`, `cuEventCreate` and the context of a further device; `cuMemHostRegister`, `cuMemHostUnregister`; `zeMemPutIpcHandle` | yes |
//! | the caller that opens or drops a kind, or pins dropped after it | `cuInit`, streams and events of the kind's device, their end, and all of the above that is left | yes |
//! | the caller of `alloc`, `free`, `read`, `write`, `copy` and `fill` | `cuMemAlloc`, `cuMemFree`; `cuMemcpyAsync` with `cuStreamSynchronize`, a list of Level Zero that waits | yes |
//! | progress thread | `cuPointerGetAttributes`, `cuMemGetAddressRange`; `cuIpcGetMemHandle`, `cuMemRetainAllocationHandle`, `cuMemExportToShareableHandle`, `cuMemRelease` of that reference, `cuPointerSetAttribute`, `cuCtxSetFlags`; `cuMemcpyAsync`, `cuEventRecord`, `cuEventQuery` | not as documented; `cuMemRelease` where the user frees a segment while it is exported |

use std::fmt;
use std::os::fd::OwnedFd;

use crate::ipc::error::{CallFailure, CloseError, ExportError, HandleOpenError, NoMemory};
use crate::ipc::{HandlePassing, IpcAllocation, IpcCaps};

use super::{CopySlots, CopyStreams, SealedHandle};

/// Which end of a copy is memory of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyDirection {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// Neither end: both are memory of devices.
    Across,
}

/// A copy by raw addresses, each of the host or of a device.
#[derive(Clone, Copy, Debug)]
pub struct RawCopy {
    /// The address of the first byte that is written.
    pub to: usize,
    /// The address of the first byte that is read.
    pub from: usize,
    /// Length, in bytes.
    pub len: usize,
}

/// An initialised driver, and the device for which imported memory is mapped. It holds no table of open imports.
pub trait IpcDriver: CopyStreams + fmt::Debug + Send + Sized + Sync {
    /// The data needed to unmap an import.
    type Opened: fmt::Debug + Send + Sync;

    /// Numbers of its kinds of handle, the most common one first.
    const KINDS: &'static [u8];

    /// Whether [`IpcDriver::unexport_handle`] may wait for a running kernel.
    const UNEXPORT_MAY_WAIT: bool = false;

    /// Initialises the driver; imported memory is mapped for `device` by default.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn open_for_device(device: u32) -> Result<Self, NoMemory>;

    /// Returns the driver's capabilities, for all kinds of memory that it shares.
    fn caps(&self) -> IpcCaps;

    /// Returns the allocation around an address, if it is memory of a device of this process.
    ///
    /// # Errors
    /// The driver's error.
    fn find_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, CallFailure>;

    /// Creates a handle of an allocation: fills in the driver's words, and returns the descriptor to pass with it, if any.
    ///
    /// # Errors
    /// [`ExportError`]. If the driver's words are filled in, the caller must unexport the handle.
    fn export_handle(
        &self,
        of: &IpcAllocation,
        how: HandlePassing,
        sealed: &mut SealedHandle,
    ) -> Result<Option<OwnedFd>, ExportError>;

    /// Releases a handle made by [`IpcDriver::export_handle`].
    ///
    /// # Errors
    /// [`CloseError`].
    fn unexport_handle(&self, _sealed: &SealedHandle) -> Result<(), CloseError> {
        Ok(())
    }

    /// Returns whether a handle of that kind is rejected while an import of the same owner overlaps its addresses.
    fn refuses_overlap(&self, kind: u8) -> bool;

    /// Returns the device for which imported memory is mapped, if it is copied from or to memory of device `own`, or of the host for `None`.
    /// Returns `None` if one mapping serves all devices.
    fn device_for(&self, own: Option<u32>) -> Option<u32>;

    /// Maps the memory of a handle for a device returned by [`IpcDriver::device_for`]; returns its address. The caller checks the mapped length
    /// afterwards.
    ///
    /// # Errors
    /// [`HandleOpenError`].
    fn open_handle(
        &self,
        sealed: &SealedHandle,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, Self::Opened), HandleOpenError>;

    /// Returns whether `len` bytes from an address on are one contiguous mapping.
    ///
    /// # Errors
    /// The driver's error.
    fn maps_contiguously(&self, addr: usize, len: usize) -> Result<bool, CallFailure> {
        let found = self.find_allocation(addr)?;
        Ok(found.is_some_and(|found| found.offset_of(addr).is_some_and(|offset| found.len - offset >= len)))
    }

    /// Unmaps an import.
    ///
    /// # Errors
    /// The driver's error; the memory stays mapped.
    fn unmap_import(&self, addr: usize, opened: &Self::Opened) -> Result<(), CallFailure>;

    /// Copies bytes by a device returned by [`IpcDriver::device_for`] and waits until the copy completes. The bytes lie in one allocation at each
    /// end.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// An end of the host is readable, or writable, for that many bytes, and no reference to the written bytes exists. The driver checks the ends
    /// of devices.
    unsafe fn transfer(
        &self,
        copy: RawCopy,
        direction: CopyDirection,
        device: Option<u32>,
    ) -> Result<(), CallFailure>;

    /// Pins memory of the host for copies of all devices. Returns whether the driver supports that.
    ///
    /// # Errors
    /// The driver's error.
    fn pin_host(&self, _addr: usize, _len: usize) -> Result<bool, CallFailure> {
        Ok(false)
    }

    /// Unpins memory of [`IpcDriver::pin_host`].
    fn unpin_host(&self, _addr: usize) {}

    /// Returns the driver's slots, each for one independent batch of copies.
    fn copy_slots(&self) -> &CopySlots<Self>;

    /// Enqueues a copy as [`IpcDriver::transfer`] makes it, behind all others of a slot, and does not wait.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// As [`IpcDriver::transfer`], until [`IpcDriver::is_over`] or [`IpcDriver::wait_for`] report that the slot's copies have completed.
    unsafe fn begin_transfer(
        &self,
        slot: usize,
        copy: RawCopy,
        _direction: CopyDirection,
        device: Option<u32>,
    ) -> Result<(), CallFailure> {
        // SAFETY: the caller guarantees the conditions above.
        Ok(unsafe { self.copy_slots().begin_copy(self, slot, copy, device) }?)
    }

    /// Records a mark behind all copies of a slot by that device. The mark before has been reached.
    ///
    /// # Errors
    /// The driver's error.
    fn mark_slot(&self, slot: usize, device: Option<u32>) -> Result<(), CallFailure> {
        Ok(self.copy_slots().mark_slot(self, slot, device)?)
    }

    /// Returns whether all copies before the mark have completed.
    ///
    /// # Errors
    /// The driver's error.
    fn is_over(&self, slot: usize, device: Option<u32>) -> Result<bool, CallFailure> {
        Ok(self.copy_slots().is_over(self, slot, device)?)
    }

    /// Waits until all copies of a slot have completed.
    ///
    /// # Errors
    /// The driver's error.
    fn wait_for(&self, slot: usize, device: Option<u32>) -> Result<(), CallFailure> {
        Ok(self.copy_slots().wait_for(self, slot, device)?)
    }

    /// Allocates memory of the device, not zeroed; returns its address.
    ///
    /// # Errors
    /// The driver's error.
    fn alloc(&self, len: usize) -> Result<usize, CallFailure>;

    /// Frees memory of [`IpcDriver::alloc`].
    ///
    /// # Errors
    /// The driver's error.
    fn free(&self, addr: usize) -> Result<(), CallFailure>;
}
