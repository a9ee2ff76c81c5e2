//! Segments of virtual memory: physical memory that is exported as a descriptor and mapped at addresses of this
//! process's own choice. It exists until its last descriptor, handle or mapping ends, so that an early free by the
//! owner is no error. Its mappings conflict with no others.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use trunkline_sys::cuda::status;
use trunkline_sys::cuda_ipc::{
    AllocationHandle, MEM_ACCESS_FLAGS_PROT_READWRITE, MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    MEM_LOCATION_TYPE_DEVICE, MemAccessDesc,
};

use super::CudaDriver;
use super::calls::open_error;
use crate::gpu::DriverCallError;
use crate::ipc::driver_memory::SealedHandle;
use crate::ipc::error::{CallFailure, ExportError, HandleOpenError};
use crate::ipc::{IpcAllocation, IpcHandle};

impl CudaDriver {
    /// Returns a descriptor of the segment that is mapped at the allocation's base.
    pub(super) fn export_segment(
        &self,
        of: &IpcAllocation,
        sealed: &mut SealedHandle,
    ) -> Result<OwnedFd, ExportError> {
        sealed.kind = IpcHandle::CUDA_SEGMENT;
        let mut handle = 0;
        let retained = self.call_driver(self.device, "cuMemRetainAllocationHandle", || {
            let at = ptr::with_exposed_provenance_mut(of.base);
            // SAFETY: the call writes a handle to a local variable; it does not access the address.
            unsafe { (self.calls.mem_retain_allocation_handle)(&raw mut handle, at) }
        });
        retained.map_err(|error| ExportError::Other(error.into()))?;
        let mut fd: c_int = -1;
        let kind = MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let exported = self.call_driver(self.device, "cuMemExportToShareableHandle", || {
            // SAFETY: for this handle type the call writes a descriptor, to a local variable.
            unsafe { (self.calls.mem_export_to_shareable_handle)((&raw mut fd).cast(), handle, kind, 0) }
        });
        self.release_segment(handle);
        exported.map_err(|error| match error.code {
            status::OUT_OF_MEMORY => ExportError::Exhausted(error.into()),
            _ => ExportError::Other(error.into()),
        })?;
        if fd < 0 {
            let cause = CallFailure::System { call: "cuMemExportToShareableHandle", code: libc::EBADF };
            return Err(ExportError::Other(cause));
        }
        // SAFETY: the driver has just created the descriptor for this call; no other code owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Maps the segment of a descriptor for a device; returns the address.
    pub(super) fn open_segment(
        &self,
        fd: &OwnedFd,
        len: usize,
        device: u32,
    ) -> Result<usize, HandleOpenError> {
        let mut handle = 0;
        let imported = self.call_driver(self.device, "cuMemImportFromShareableHandle", || {
            let fd = ptr::without_provenance_mut(fd.as_raw_fd().unsigned_abs() as usize);
            // SAFETY: for this handle type the descriptor is passed in place of a pointer; the call writes a handle to a local variable.
            unsafe {
                (self.calls.mem_import_from_shareable_handle)(
                    &raw mut handle,
                    fd,
                    MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                )
            }
        });
        imported.map_err(|error| match error.code {
            // Driver 580 returns `UNKNOWN` for a descriptor that does not refer to memory of a device.
            status::INVALID_VALUE | status::INVALID_HANDLE | status::UNKNOWN => {
                HandleOpenError::Descriptor("the driver knows no memory by that descriptor")
            }
            _ => open_error(error),
        })?;
        let placed = self.place_segment(handle, len, device);
        // The mapping holds the segment from here on.
        self.release_segment(handle);
        placed.map_err(open_error)
    }

    fn place_segment(
        &self,
        handle: AllocationHandle,
        len: usize,
        device: u32,
    ) -> Result<usize, DriverCallError> {
        let mut at = 0;
        self.call_driver(self.device, "cuMemAddressReserve", || {
            // SAFETY: the call writes an address to a local variable.
            unsafe { (self.calls.mem_address_reserve)(&raw mut at, len, 0, 0, 0) }
        })?;
        let mapped = self.call_driver(self.device, "cuMemMap", || {
            // SAFETY: the addresses were reserved above, with the length of the segment; the driver rejects another length.
            unsafe { (self.calls.mem_map)(at, len, 0, handle, 0) }
        });
        if let Err(error) = mapped {
            self.free_addresses(at, len);
            return Err(error);
        }
        let access = MemAccessDesc {
            location_type: MEM_LOCATION_TYPE_DEVICE,
            location_id: device.cast_signed(),
            flags: MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let allowed = self.call_driver(self.device, "cuMemSetAccess", || {
            // SAFETY: the range was mapped above; one description is passed.
            unsafe { (self.calls.mem_set_access)(at, len, &raw const access, 1) }
        });
        if let Err(error) = allowed {
            let _ = self.close_segment(at as usize, len);
            return Err(error);
        }
        Ok(at as usize)
    }

    /// Unmaps a segment and frees its addresses.
    pub(super) fn close_segment(&self, addr: usize, len: usize) -> Result<(), DriverCallError> {
        self.call_driver(self.device, "cuMemUnmap", || {
            // SAFETY: `place_segment` mapped the range, and every copy that uses it has completed.
            unsafe { (self.calls.mem_unmap)(addr as u64, len) }
        })?;
        self.free_addresses(addr as u64, len);
        Ok(())
    }

    fn free_addresses(&self, at: u64, len: usize) {
        // The segment is unmapped already; the caller could not act on an error.
        let _ = self.call_driver(self.device, "cuMemAddressFree", || {
            // SAFETY: `place_segment` reserved the range with that length, and nothing is mapped in it.
            unsafe { (self.calls.mem_address_free)(at, len) }
        });
    }

    fn release_segment(&self, handle: AllocationHandle) {
        // The caller could not act on an error.
        let _ = self.call_driver(self.device, "cuMemRelease", || {
            // SAFETY: the caller owns one reference of this handle.
            unsafe { (self.calls.mem_release)(handle) }
        });
    }
}
