//! AMD's functions for sharing memory, and the meaning of their errors.

use trunkline_sys::hip::{self, status};
use trunkline_sys::hip_ipc::{self as calls, Calls};

use crate::gpu::library::{DynamicLibrary, table};
use crate::gpu::{DriverCallError, GpuUnavailable};
use crate::ipc::error::{CallFailure, HandleOpenError};

/// The functions of ROCm's library.
pub(super) fn load_calls() -> Result<Calls, GpuUnavailable> {
    let library = DynamicLibrary::open(&hip::LIBRARIES, "ROCm's runtime (package hip-runtime-amd)")?;
    Ok(table!(library, calls;
        ipc_get_mem_handle IpcGetMemHandle c"hipIpcGetMemHandle"
        ipc_open_mem_handle IpcOpenMemHandle c"hipIpcOpenMemHandle"
        ipc_close_mem_handle IpcCloseMemHandle c"hipIpcCloseMemHandle"
        pointer_get_attribute PointerGetAttribute c"hipPointerGetAttribute"
        get_device GetDevice c"hipGetDevice"
        set_device SetDevice c"hipSetDevice"
        stream_create_with_flags StreamCreateWithFlags c"hipStreamCreateWithFlags"
        stream_destroy StreamDestroy c"hipStreamDestroy"
        stream_synchronize StreamSynchronize c"hipStreamSynchronize"
        memcpy_async MemcpyAsync c"hipMemcpyAsync"
        event_create_with_flags EventCreateWithFlags c"hipEventCreateWithFlags"
        event_destroy EventDestroy c"hipEventDestroy"
        event_record EventRecord c"hipEventRecord"
        event_query EventQuery c"hipEventQuery"
        host_register HostRegister c"hipHostRegister"
        host_unregister HostUnregister c"hipHostUnregister"
    ))
}

/// Converts a failed call into the error of the code that opens a handle.
pub(super) fn open_error(error: DriverCallError) -> HandleOpenError {
    let code = error.code;
    let cause = CallFailure::Driver(error);
    match code {
        status::ALREADY_MAPPED => HandleOpenError::AlreadyMapped,
        status::INVALID_VALUE | status::INVALID_HANDLE => HandleOpenError::Gone,
        status::OUT_OF_MEMORY => HandleOpenError::Exhausted(cause),
        status::PEER_ACCESS_UNSUPPORTED | status::NOT_SUPPORTED | status::INVALID_DEVICE => {
            let remedy = "the two GPUs must reach each other (rocm-smi --showtopo), and both processes see them (HIP_VISIBLE_DEVICES)";
            HandleOpenError::Refused { cause, remedy }
        }
        _ => HandleOpenError::Other(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::library::assert_loads;

    #[test]
    fn every_field_has_its_symbol() {
        assert_loads::<Calls>(include_str!("calls.rs"), "hip", &calls::SYMBOLS);
    }
}
