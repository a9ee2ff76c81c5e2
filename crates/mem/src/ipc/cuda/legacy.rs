//! Legacy handles: 64 bytes for an allocation of `cudaMalloc`. A handle maps the whole block that contains the allocation, at an address of the
//! driver's choice. A process maps a block once per device of its own, and cannot map two overlapping blocks of the same owner.

use trunkline_sys::cuda::status;
use trunkline_sys::cuda_ipc::{CudaIpcMemHandle, IPC_MEM_LAZY_ENABLE_PEER_ACCESS};

use super::CudaDriver;
use super::calls::open_error;
use crate::gpu::DriverCallError;
use crate::ipc::IpcAllocation;
use crate::ipc::driver_memory::SealedHandle;
use crate::ipc::error::{ExportError, HandleOpenError};

impl CudaDriver {
    pub(super) fn export_legacy(
        &self,
        of: &IpcAllocation,
        sealed: &mut SealedHandle,
    ) -> Result<(), ExportError> {
        let mut handle = CudaIpcMemHandle { reserved: [0; 64] };
        let got = self.call_driver(self.device, "cuIpcGetMemHandle", || {
            // SAFETY: the call writes 64 bytes to a local variable; it does not access the address.
            unsafe { (self.calls.ipc_get_mem_handle)(&raw mut handle, of.base as u64) }
        });
        got.map_err(|error| ExportError::Other(error.into()))?;
        sealed.set_bytes(handle.reserved.map(i8::cast_unsigned));
        Ok(())
    }

    /// Maps the memory for a device; returns the address.
    pub(super) fn open_legacy(&self, sealed: &SealedHandle, device: u32) -> Result<usize, HandleOpenError> {
        let handle = CudaIpcMemHandle { reserved: sealed.driver_bytes().map(u8::cast_signed) };
        let mut at = 0;
        let opened = self.call_driver(device, "cuIpcOpenMemHandle", || {
            // SAFETY: the call writes an address to a local variable; the driver validates the handle.
            unsafe { (self.calls.ipc_open_mem_handle)(&raw mut at, handle, IPC_MEM_LAZY_ENABLE_PEER_ACCESS) }
        });
        opened.map_err(|error| match error.code {
            // Driver 580 returns this for a handle at whose address the owner has another allocation by now.
            status::NOT_PERMITTED => HandleOpenError::Gone,
            _ => open_error(error),
        })?;
        Ok(at as usize)
    }

    /// Unmaps the memory, in the context in which it was mapped.
    pub(super) fn close_legacy(&self, addr: usize, device: u32) -> Result<(), DriverCallError> {
        let close = || {
            // SAFETY: the driver rejects addresses that it has not mapped.
            unsafe { (self.calls.ipc_close_mem_handle)(addr as u64) }
        };
        self.call_driver(device, "cuIpcCloseMemHandle", close)
    }
}
