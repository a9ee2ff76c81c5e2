//! NVIDIA's functions for sharing memory, and the meaning of their errors.

use trunkline_sys::cuda::{self, status};
use trunkline_sys::cuda_ipc::{self as calls, Calls};

use crate::gpu::library::{DynamicLibrary, table};
use crate::gpu::{DriverCallError, GpuUnavailable};
use crate::ipc::error::{CallFailure, HandleOpenError};

/// Loads the functions of the library that is installed with NVIDIA's kernel driver.
pub(super) fn load_calls() -> Result<Calls, GpuUnavailable> {
    let library = DynamicLibrary::open(&[cuda::LIBRARY], "NVIDIA's driver (Debian: package libcuda1)")?;
    Ok(table!(library, calls;
        ipc_get_mem_handle IpcGetMemHandle c"cuIpcGetMemHandle"
        ipc_open_mem_handle IpcOpenMemHandle c"cuIpcOpenMemHandle_v2"
        ipc_close_mem_handle IpcCloseMemHandle c"cuIpcCloseMemHandle"
        mem_get_address_range MemGetAddressRange c"cuMemGetAddressRange_v2"
        mem_retain_allocation_handle MemRetainAllocationHandle c"cuMemRetainAllocationHandle"
        mem_release MemRelease c"cuMemRelease"
        mem_export_to_shareable_handle MemExportToShareableHandle c"cuMemExportToShareableHandle"
        mem_import_from_shareable_handle MemImportFromShareableHandle c"cuMemImportFromShareableHandle"
        mem_address_reserve MemAddressReserve c"cuMemAddressReserve"
        mem_address_free MemAddressFree c"cuMemAddressFree"
        mem_map MemMap c"cuMemMap"
        mem_unmap MemUnmap c"cuMemUnmap"
        mem_set_access MemSetAccess c"cuMemSetAccess"
        stream_create StreamCreate c"cuStreamCreate"
        stream_destroy StreamDestroy c"cuStreamDestroy_v2"
        stream_synchronize StreamSynchronize c"cuStreamSynchronize"
        memcpy_async MemcpyAsync c"cuMemcpyAsync"
        event_create EventCreate c"cuEventCreate"
        event_destroy EventDestroy c"cuEventDestroy_v2"
        event_record EventRecord c"cuEventRecord"
        event_query EventQuery c"cuEventQuery"
        mem_host_register MemHostRegister c"cuMemHostRegister_v2"
        mem_host_unregister MemHostUnregister c"cuMemHostUnregister"
    ))
}

/// Converts a failed call into the error of the code that opens a handle.
pub(super) fn open_error(error: DriverCallError) -> HandleOpenError {
    let code = error.code;
    let cause = CallFailure::Driver(error);
    match code {
        status::ALREADY_MAPPED => HandleOpenError::AlreadyMapped,
        status::INVALID_VALUE | status::INVALID_HANDLE => HandleOpenError::Gone,
        status::OUT_OF_MEMORY | status::TOO_MANY_PEERS => HandleOpenError::Exhausted(cause),
        status::PEER_ACCESS_UNSUPPORTED
        | status::NOT_SUPPORTED
        | status::INVALID_DEVICE
        | status::NOT_PERMITTED => HandleOpenError::Refused {
            cause,
            remedy: "the two GPUs must reach each other (nvidia-smi topo -p2p r), and both processes see them (CUDA_VISIBLE_DEVICES)",
        },
        _ => HandleOpenError::Other(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::library::assert_loads;

    #[test]
    fn every_field_has_its_symbol() {
        assert_loads::<Calls>(include_str!("calls.rs"), "cu", &calls::SYMBOLS);
    }

    #[test]
    fn driver_codes_map_to_remedies() {
        let of = |code| {
            open_error(DriverCallError { call: "cuIpcOpenMemHandle", code, name: "?".to_owned(), remedy: "" })
        };
        assert_eq!(of(208), HandleOpenError::AlreadyMapped);
        assert_eq!((of(1), of(400)), (HandleOpenError::Gone, HandleOpenError::Gone));
        assert!(matches!(of(2), HandleOpenError::Exhausted(_)));
        assert!(of(217).to_string().contains("nvidia-smi topo -p2p r"));
        assert!(matches!(of(4711), HandleOpenError::Other(_)));
    }
}
