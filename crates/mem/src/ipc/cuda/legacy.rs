//! Legacy handles: 64 bytes of an allocation of `cudaMalloc`. A handle maps all of the block that the allocation is in, at an address of the
//! driver's choice; one process maps it once for each of its devices, and nothing of the same owner that has addresses there in common with it.

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
            // SAFETY: writes 64 bytes to a place of ours; the address is only looked up.
            unsafe { (self.calls.ipc_get_mem_handle)(&raw mut handle, of.base as u64) }
        });
        got.map_err(|error| ExportError::Other(error.into()))?;
        sealed.set_bytes(handle.reserved.map(i8::cast_unsigned));
        Ok(())
    }

    /// Maps the memory for a device; where.
    pub(super) fn open_legacy(&self, sealed: &SealedHandle, device: u32) -> Result<usize, HandleOpenError> {
        let handle = CudaIpcMemHandle { reserved: sealed.driver_bytes().map(u8::cast_signed) };
        let mut at = 0;
        let opened = self.call_driver(device, "cuIpcOpenMemHandle", || {
            // SAFETY: writes an address to a place of ours; the driver looks at the bytes of the handle.
            unsafe { (self.calls.ipc_open_mem_handle)(&raw mut at, handle, IPC_MEM_LAZY_ENABLE_PEER_ACCESS) }
        });
        opened.map_err(|error| match error.code {
            // What a driver (580) says of a handle at whose address the owner has another allocation by now.
            status::NOT_PERMITTED => HandleOpenError::Gone,
            _ => open_error(error),
        })?;
        Ok(at as usize)
    }

    /// Unmaps it, in the context that it was mapped in.
    pub(super) fn close_legacy(&self, addr: usize, device: u32) -> Result<(), DriverCallError> {
        let close = || {
            // SAFETY: the driver knows what it has mapped, and refuses the rest.
            unsafe { (self.calls.ipc_close_mem_handle)(addr as u64) }
        };
        self.call_driver(device, "cuIpcCloseMemHandle", close)
    }
}
