//! Segments of virtual memory: physical memory that is exported as a descriptor, and put at addresses of this process's own choice. It
//! is there as long as any descriptor, handle or mapping of it is, so freeing it early is no error; nothing of it is in the way of anything.

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
    /// A descriptor of the segment that is mapped there.
    pub(super) fn export_segment(
        &self,
        of: &IpcAllocation,
        sealed: &mut SealedHandle,
    ) -> Result<OwnedFd, ExportError> {
        sealed.kind = IpcHandle::CUDA_SEGMENT;
        let mut handle = 0;
        let retained = self.call_driver(self.device, "cuMemRetainAllocationHandle", || {
            let at = ptr::with_exposed_provenance_mut(of.base);
            // SAFETY: writes a handle to a place of ours; the address is only looked up.
            unsafe { (self.calls.mem_retain_allocation_handle)(&raw mut handle, at) }
        });
        retained.map_err(|error| ExportError::Other(error.into()))?;
        let mut fd: c_int = -1;
        let kind = MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let exported = self.call_driver(self.device, "cuMemExportToShareableHandle", || {
            // SAFETY: of this type a descriptor is written, to a place of ours.
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
        // SAFETY: the driver made it for us just now.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Maps the segment of a descriptor for a device; where.
    pub(super) fn open_segment(
        &self,
        fd: &OwnedFd,
        len: usize,
        device: u32,
    ) -> Result<usize, HandleOpenError> {
        let mut handle = 0;
        let imported = self.call_driver(self.device, "cuMemImportFromShareableHandle", || {
            let fd = ptr::without_provenance_mut(fd.as_raw_fd().unsigned_abs() as usize);
            // SAFETY: of this type a descriptor is passed as if it were a pointer; writes a handle to a place of ours.
            unsafe {
                (self.calls.mem_import_from_shareable_handle)(
                    &raw mut handle,
                    fd,
                    MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                )
            }
        });
        imported.map_err(|error| match error.code {
            // The last is what a driver (580) says of a descriptor that is of no memory of a device.
            status::INVALID_VALUE | status::INVALID_HANDLE | status::UNKNOWN => {
                HandleOpenError::Descriptor("the driver knows no memory by that descriptor")
            }
            _ => open_error(error),
        })?;
        let placed = self.place_segment(handle, len, device);
        // What is mapped holds it from here on.
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
            // SAFETY: writes an address to a place of ours.
            unsafe { (self.calls.mem_address_reserve)(&raw mut at, len, 0, 0, 0) }
        })?;
        let mapped = self.call_driver(self.device, "cuMemMap", || {
            // SAFETY: addresses that were reserved just now, and all of a segment; the driver refuses another length.
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
            // SAFETY: what was mapped just now, and one description.
            unsafe { (self.calls.mem_set_access)(at, len, &raw const access, 1) }
        });
        if let Err(error) = allowed {
            let _ = self.close_segment(at as usize, len);
            return Err(error);
        }
        Ok(at as usize)
    }

    /// Unmaps it, and gives the addresses back.
    pub(super) fn close_segment(&self, addr: usize, len: usize) -> Result<(), DriverCallError> {
        self.call_driver(self.device, "cuMemUnmap", || {
            // SAFETY: mapped here, and nobody copies any more.
            unsafe { (self.calls.mem_unmap)(addr as u64, len) }
        })?;
        self.free_addresses(addr as u64, len);
        Ok(())
    }

    fn free_addresses(&self, at: u64, len: usize) {
        // It is unmapped; what the driver says of the addresses changes nothing for the caller.
        let _ = self.call_driver(self.device, "cuMemAddressFree", || {
            // SAFETY: reserved here with that length, and nothing is mapped there.
            unsafe { (self.calls.mem_address_free)(at, len) }
        });
    }

    fn release_segment(&self, handle: AllocationHandle) {
        // As above.
        let _ = self.call_driver(self.device, "cuMemRelease", || {
            // SAFETY: one reference of ours.
            unsafe { (self.calls.mem_release)(handle) }
        });
    }
}
