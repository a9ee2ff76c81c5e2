//! Memory of a device, and memory of the host that the device can access: pinned, mapped, and cached, because the host reads results of kernels
//! there.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use trunkline_sys::cuda_run::{HOST_ALLOC_DEVICEMAP, HOST_ALLOC_PORTABLE};

use super::{DeviceContext, GpuDevice};
use crate::gpu::{DmaBufError, DmaBufExport, DmaBufMapping, DriverCallError, PointerKind};
use crate::{MemoryKind, MemoryRange, OutOfBounds};

/// Memory of the host, and its address on the device. A clone refers to the same bytes.
#[derive(Clone, Debug)]
pub struct PinnedMemory {
    memory: MemoryRange,
    at: u64,
}

impl PinnedMemory {
    /// Returns the memory range for accesses by the host.
    #[must_use]
    pub const fn memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// Returns the address of the first byte for kernels of the device.
    #[must_use]
    pub const fn device_address(&self) -> u64 {
        self.at
    }
}

/// Why bytes of a device cannot be read or written.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The bytes exceed the range, or the range is memory of another device.
    #[error(transparent)]
    Range(#[from] OutOfBounds),
    /// A driver call failed.
    #[error(transparent)]
    Call(#[from] DriverCallError),
}

/// Frees an allocation when dropped.
struct AllocationGuard {
    device: Arc<DeviceContext>,
    addr: usize,
    is_host: bool,
}

impl Drop for AllocationGuard {
    fn drop(&mut self) {
        let calls = &self.device.calls;
        // Memory that cannot be freed stays with the driver until the process ends.
        let _ = if self.is_host {
            self.device.give_back("cuMemFreeHost", || {
                // SAFETY: `allocate_pinned` allocated the memory, and the last range that refers to it has been dropped.
                unsafe { (calls.mem_free_host)(ptr::with_exposed_provenance_mut::<c_void>(self.addr)) }
            })
        } else {
            let cuda = &self.device.cuda;
            if self.device.check_process("cuMemFree").is_err() {
                return;
            }
            let free = || cuda.free(self.device.ordinal, self.addr, false);
            let first = cuda.with_context(self.device.context, free);
            first.or_else(|_| cuda.with_context(self.device.context, free)).and_then(|freed| freed)
        };
    }
}

impl fmt::Debug for AllocationGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocated({:#x}, host: {})", self.addr, self.is_host)
    }
}

impl GpuDevice {
    /// Allocates `len` zeroed bytes of the host that the device can access. They are not write-combined, because the host reads them.
    ///
    /// # Errors
    /// [`DriverCallError`].
    pub fn allocate_pinned(&self, len: usize) -> Result<PinnedMemory, DriverCallError> {
        let inner = &self.inner;
        let len = len.max(1).next_multiple_of(8);
        let mut start = ptr::null_mut();
        let mut at = 0;
        inner.call_driver("cuMemHostAlloc", || {
            let flags = HOST_ALLOC_PORTABLE | HOST_ALLOC_DEVICEMAP;
            // SAFETY: the call writes an address to a local variable.
            unsafe { (inner.calls.mem_host_alloc)(&raw mut start, len, flags) }
        })?;
        let owner =
            AllocationGuard { device: Arc::clone(inner), addr: start.expose_provenance(), is_host: true };
        inner.call_driver("cuMemHostGetDevicePointer", || {
            // SAFETY: the call writes an address to a local variable; `start` was allocated with `HOST_ALLOC_DEVICEMAP`.
            unsafe { (inner.calls.mem_host_get_device_pointer)(&raw mut at, start, 0) }
        })?;
        // SAFETY: `len` bytes were just allocated at `start`, and no other code has the address yet.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, len) };
        // SAFETY: the memory stays mapped readable and writable while `owner` lives, and no code makes references to
        // the bytes.
        let memory = unsafe { MemoryRange::with_owner(owner.addr, len, MemoryKind::Host, Arc::new(owner)) };
        Ok(PinnedMemory { memory, at })
    }

    /// Allocates `len` zeroed bytes of the device. The CPU must not access them.
    ///
    /// # Errors
    /// [`DriverCallError`].
    pub fn allocate(&self, len: usize) -> Result<MemoryRange, DriverCallError> {
        let inner = &self.inner;
        let len = len.max(1).next_multiple_of(8);
        inner.check_process("cuMemAlloc")?;
        let addr = inner.cuda.with_context(inner.context, || inner.cuda.allocate(len))??.0;
        let owner = AllocationGuard { device: Arc::clone(inner), addr, is_host: false };
        // SAFETY: the CPU accesses no byte of a range of kind `Device`, and `owner` keeps the memory allocated.
        let memory =
            unsafe { MemoryRange::with_owner(addr, len, MemoryKind::Device(inner.ordinal), Arc::new(owner)) };
        inner.call_driver("cuMemsetD8Async", || {
            // SAFETY: `len` bytes were just allocated at `addr`; they are not freed before the wait below.
            unsafe { (inner.calls.memset_d8_async)(addr as u64, 0, len, inner.stream) }
        })?;
        inner.wait_for(inner.stream)?;
        Ok(memory)
    }

    /// Exports memory of the device as a dma-buf, for registration with a NIC.
    ///
    /// # Errors
    /// [`DmaBufError`]. A driver that does not support exports returns [`DmaBufExport::Refused`], which is not an error.
    pub fn export_dmabuf(&self, memory: &MemoryRange) -> Result<DmaBufExport, DmaBufError> {
        let inner = &self.inner;
        let addr = memory.addr();
        match memory.kind() {
            MemoryKind::Device(ordinal) if ordinal == inner.ordinal && !memory.is_empty() => {
                let page = rustix::param::page_size();
                inner.cuda.export_dmabuf(ordinal, addr, memory.len(), page, DmaBufMapping::Any)
            }
            _ => Err(DmaBufError::Kind { addr, kind: PointerKind::Host }),
        }
    }

    /// Copies bytes to memory of the device and waits until the copy completes.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn copy_to_device(&self, memory: &MemoryRange, offset: u64, bytes: &[u8]) -> Result<(), RangeError> {
        let to = self.inner.own_address(memory, offset, bytes.len())?;
        Ok(self.inner.upload(to, bytes)?)
    }

    /// Copies bytes from memory of the device and waits until the copy completes.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn copy_from_device(
        &self,
        memory: &MemoryRange,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RangeError> {
        let from = self.inner.own_address(memory, offset, out.len())?;
        // SAFETY: `from` lies in the device's memory, and `out` is borrowed exclusively until the wait below; docs/unsafe.md states the assumption for
        // a wait that fails.
        unsafe {
            self.inner.enqueue_copy(out.as_mut_ptr().expose_provenance(), from, out.len(), self.inner.stream)
        }?;
        Ok(self.inner.wait_for(self.inner.stream)?)
    }
}

impl DeviceContext {
    /// Returns the address of bytes in memory of this device.
    pub(super) fn own_address(
        &self,
        memory: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<usize, OutOfBounds> {
        let at = memory.checked_address(offset, len as u64)?;
        match memory.kind() {
            MemoryKind::Device(ordinal) if ordinal == self.ordinal => Ok(at),
            _ => Err(OutOfBounds { offset, len: len as u64, size: 0 }),
        }
    }

    /// Copies bytes to an address of the device's memory that has room for them, and waits until the copy completes.
    fn upload(&self, to: usize, bytes: &[u8]) -> Result<(), DriverCallError> {
        // SAFETY: `to` lies in the device's memory, and `bytes` is borrowed until the wait below.
        unsafe { self.enqueue_copy(to, bytes.as_ptr().expose_provenance(), bytes.len(), self.stream) }?;
        self.wait_for(self.stream)
    }
}
