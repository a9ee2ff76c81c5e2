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

use crate::ipc::error::{Cause, CloseError, ExportError, NoMemory, OpenError};
use crate::ipc::{Allocation, Caps, Passing};

use super::{CopySlots, CopyStreams, Sealed};

/// Which of the two places of a copy are of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// Both are of devices.
    Across,
}

/// A driver, which has begun, and the device that memory of others is mapped for. It keeps no table of what is open.
pub trait Driver: CopyStreams + fmt::Debug + Send + Sized + Sync {
    /// What it must know of a mapping to end it.
    type Opened: fmt::Debug + Send + Sync;

    /// Numbers of its kinds of handle, the usual one first.
    const KINDS: &'static [u8];

    /// Whether [`Driver::unexport`] may wait for a kernel that runs.
    const UNEXPORT_MAY_WAIT: bool = false;

    /// Begins, with memory of others to be mapped for that device by default.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn begin(device: u32) -> Result<Self, NoMemory>;

    /// What it does and does not, of the kinds of memory that it has.
    fn caps(&self) -> Caps;

    /// The allocation around an address, if it is memory of a device of this process.
    ///
    /// # Errors
    /// The driver does not answer.
    fn find(&self, addr: usize) -> Result<Option<Allocation>, Cause>;

    /// Makes a handle of an allocation: fills in what is the driver's own, and tells what goes along.
    ///
    /// # Errors
    /// [`ExportError`]. The caller gives back a handle that was filled in.
    fn export(
        &self,
        of: &Allocation,
        how: Passing,
        sealed: &mut Sealed,
    ) -> Result<Option<OwnedFd>, ExportError>;

    /// A handle that it made is over.
    ///
    /// # Errors
    /// [`CloseError`].
    fn unexport(&self, _sealed: &Sealed) -> Result<(), CloseError> {
        Ok(())
    }

    /// Whether a handle of that kind is refused while something is open that has addresses of its owner in common with it.
    fn conflicts(&self, kind: u8) -> bool;

    /// The device that memory of others is mapped for, if it is to be copied from or to memory of that device, or of the host. `None`: one
    /// mapping is for all of them.
    fn device_for(&self, own: Option<u32>) -> Option<u32>;

    /// Maps what a handle is of, for that device of [`Driver::device_for`]; where. How many bytes are there is asked then.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(
        &self,
        sealed: &Sealed,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, Self::Opened), OpenError>;

    /// Whether so many bytes from an address on are mapped as one.
    ///
    /// # Errors
    /// The driver does not answer.
    fn maps(&self, addr: usize, len: usize) -> Result<bool, Cause> {
        let found = self.find(addr)?;
        Ok(found.is_some_and(|found| found.offset_of(addr).is_some_and(|offset| found.len - offset >= len)))
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// What the driver says; then it is still there.
    fn close(&self, addr: usize, opened: &Self::Opened) -> Result<(), Cause>;

    /// Has that device of [`Driver::device_for`] copy bytes, which are in one allocation at each end, and waits until they are there.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// A place of the host can be read, or written, for that many bytes, and nobody has a reference to what is written. Of places
    /// of a device the driver knows what is there.
    unsafe fn transfer(
        &self,
        to: usize,
        from: usize,
        len: usize,
        how: (Way, Option<u32>),
    ) -> Result<(), Cause>;

    /// Pins memory of the host for copies of all devices; whether it does that at all.
    ///
    /// # Errors
    /// What the driver says.
    fn pin(&self, _addr: usize, _len: usize) -> Result<bool, Cause> {
        Ok(false)
    }

    /// Does no more, of memory that it has pinned.
    fn unpin(&self, _addr: usize) {}

    /// Its slots, each for a batch of copies that waits for no other.
    fn slots(&self) -> &CopySlots<Self>;

    /// Begins a copy as [`Driver::transfer`] makes it, behind all others of a slot, and does not wait for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Driver::transfer`], until [`Driver::is_over`] or [`Driver::wait_for`] say that the slot has ended.
    unsafe fn begin_transfer(
        &self,
        slot: usize,
        to: usize,
        from: usize,
        len: usize,
        (_way, device): (Way, Option<u32>),
    ) -> Result<(), Cause> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.slots().begin(self, slot, (to, from, len), device) }?)
    }

    /// Puts a mark behind all copies of a slot, of that device. The one before has been reached.
    ///
    /// # Errors
    /// What the driver says.
    fn mark(&self, slot: usize, device: Option<u32>) -> Result<(), Cause> {
        Ok(self.slots().mark(self, slot, device)?)
    }

    /// Whether all before the mark has ended.
    ///
    /// # Errors
    /// What the driver says.
    fn is_over(&self, slot: usize, device: Option<u32>) -> Result<bool, Cause> {
        Ok(self.slots().is_over(self, slot, device)?)
    }

    /// Waits until all of a slot has ended.
    ///
    /// # Errors
    /// What the driver says.
    fn wait_for(&self, slot: usize, device: Option<u32>) -> Result<(), Cause> {
        Ok(self.slots().wait_for(self, slot, device)?)
    }

    /// Memory of the device, not zeroed; where.
    ///
    /// # Errors
    /// What the driver says.
    fn alloc(&self, len: usize) -> Result<usize, Cause>;

    /// Frees it.
    ///
    /// # Errors
    /// What the driver says.
    fn free(&self, addr: usize) -> Result<(), Cause>;
}
