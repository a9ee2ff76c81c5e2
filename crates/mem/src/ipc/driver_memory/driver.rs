//! What differs between the drivers of GPUs, behind what is common to them.
//!
//! Which thread makes which calls, by whether a driver may wait there for a kernel that runs (CUDA's names; HIP's and Level Zero's equivalents are made in the same places):
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

/// Which of the two places of a copy are of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyDirection {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// Both are of devices.
    Across,
}

/// A copy by raw addresses, each of which is of the host or of a device.
#[derive(Clone, Copy, Debug)]
pub struct RawCopy {
    /// The address of the first byte that is written.
    pub to: usize,
    /// The address of the first byte that is read.
    pub from: usize,
    /// How many bytes are copied.
    pub len: usize,
}

/// A driver, which has begun, and the device that memory of others is mapped for. It keeps no table of what is open.
pub trait IpcDriver: CopyStreams + fmt::Debug + Send + Sized + Sync {
    /// What it must know of a mapping to end it.
    type Opened: fmt::Debug + Send + Sync;

    /// Numbers of its kinds of handle, the usual one first.
    const KINDS: &'static [u8];

    /// Whether [`IpcDriver::unexport_handle`] may wait for a kernel that runs.
    const UNEXPORT_MAY_WAIT: bool = false;

    /// Begins, with memory of others to be mapped for that device by default.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn open_for_device(device: u32) -> Result<Self, NoMemory>;

    /// What it does and does not, of the kinds of memory that it has.
    fn caps(&self) -> IpcCaps;

    /// The allocation around an address, if it is memory of a device of this process.
    ///
    /// # Errors
    /// The driver does not answer.
    fn find_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, CallFailure>;

    /// Makes a handle of an allocation: fills in what is the driver's own, and tells what goes along.
    ///
    /// # Errors
    /// [`ExportError`]. The caller gives back a handle that was filled in.
    fn export_handle(
        &self,
        of: &IpcAllocation,
        how: HandlePassing,
        sealed: &mut SealedHandle,
    ) -> Result<Option<OwnedFd>, ExportError>;

    /// A handle that it made is over.
    ///
    /// # Errors
    /// [`CloseError`].
    fn unexport_handle(&self, _sealed: &SealedHandle) -> Result<(), CloseError> {
        Ok(())
    }

    /// Whether a handle of that kind is refused while something is open that has addresses of its owner in common with it.
    fn refuses_overlap(&self, kind: u8) -> bool;

    /// The device that memory of others is mapped for, if it is to be copied from or to memory of that device, or of the host. `None`: one
    /// mapping is for all of them.
    fn device_for(&self, own: Option<u32>) -> Option<u32>;

    /// Maps what a handle is of, for that device of [`IpcDriver::device_for`]; where. How many bytes are there is asked then.
    ///
    /// # Errors
    /// [`HandleOpenError`].
    fn open_handle(
        &self,
        sealed: &SealedHandle,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, Self::Opened), HandleOpenError>;

    /// Whether so many bytes from an address on are mapped as one.
    ///
    /// # Errors
    /// The driver does not answer.
    fn maps_contiguously(&self, addr: usize, len: usize) -> Result<bool, CallFailure> {
        let found = self.find_allocation(addr)?;
        Ok(found.is_some_and(|found| found.offset_of(addr).is_some_and(|offset| found.len - offset >= len)))
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// What the driver says; then it is still there.
    fn unmap_import(&self, addr: usize, opened: &Self::Opened) -> Result<(), CallFailure>;

    /// Has that device of [`IpcDriver::device_for`] copy bytes, which are in one allocation at each end, and waits until they are there.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// A place of the host can be read, or written, for that many bytes, and nobody has a reference to what is written. Of places
    /// of a device the driver knows what is there.
    unsafe fn transfer(
        &self,
        copy: RawCopy,
        direction: CopyDirection,
        device: Option<u32>,
    ) -> Result<(), CallFailure>;

    /// Pins memory of the host for copies of all devices; whether it does that at all.
    ///
    /// # Errors
    /// What the driver says.
    fn pin_host(&self, _addr: usize, _len: usize) -> Result<bool, CallFailure> {
        Ok(false)
    }

    /// Does no more, of memory that it has pinned.
    fn unpin_host(&self, _addr: usize) {}

    /// Its slots, each for a batch of copies that waits for no other.
    fn copy_slots(&self) -> &CopySlots<Self>;

    /// Begins a copy as [`IpcDriver::transfer`] makes it, behind all others of a slot, and does not wait for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`IpcDriver::transfer`], until [`IpcDriver::is_over`] or [`IpcDriver::wait_for`] say that the slot has ended.
    unsafe fn begin_transfer(
        &self,
        slot: usize,
        copy: RawCopy,
        _direction: CopyDirection,
        device: Option<u32>,
    ) -> Result<(), CallFailure> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.copy_slots().begin_copy(self, slot, copy, device) }?)
    }

    /// Puts a mark behind all copies of a slot, of that device. The one before has been reached.
    ///
    /// # Errors
    /// What the driver says.
    fn mark_slot(&self, slot: usize, device: Option<u32>) -> Result<(), CallFailure> {
        Ok(self.copy_slots().mark_slot(self, slot, device)?)
    }

    /// Whether all before the mark has ended.
    ///
    /// # Errors
    /// What the driver says.
    fn is_over(&self, slot: usize, device: Option<u32>) -> Result<bool, CallFailure> {
        Ok(self.copy_slots().is_over(self, slot, device)?)
    }

    /// Waits until all of a slot has ended.
    ///
    /// # Errors
    /// What the driver says.
    fn wait_for(&self, slot: usize, device: Option<u32>) -> Result<(), CallFailure> {
        Ok(self.copy_slots().wait_for(self, slot, device)?)
    }

    /// Memory of the device, not zeroed; where.
    ///
    /// # Errors
    /// What the driver says.
    fn alloc(&self, len: usize) -> Result<usize, CallFailure>;

    /// Frees it.
    ///
    /// # Errors
    /// What the driver says.
    fn free(&self, addr: usize) -> Result<(), CallFailure>;
}
