//! Level Zero's functions for sharing memory, and the meaning of their errors.

use trunkline_sys::ze::{self as calls, Calls, Status, status};

use crate::gpu::library::{DynamicLibrary, table};
use crate::gpu::{DriverCallError, GpuUnavailable};
use crate::ipc::error::{CallFailure, HandleOpenError};

/// The functions of the loader.
pub(super) fn load_calls() -> Result<Calls, GpuUnavailable> {
    let library = DynamicLibrary::open(
        &[calls::LIBRARY],
        "Level Zero's loader (Debian: package libze1) and Intel's driver for it (libze-intel-gpu1)",
    )?;
    Ok(table!(library, calls;
        init Init c"zeInit"
        driver_get DriverGet c"zeDriverGet"
        device_get DeviceGet c"zeDeviceGet"
        device_get_sub_devices DeviceGetSubDevices c"zeDeviceGetSubDevices"
        context_create ContextCreate c"zeContextCreate"
        context_destroy ContextDestroy c"zeContextDestroy"
        mem_alloc_device MemAllocDevice c"zeMemAllocDevice"
        mem_free MemFree c"zeMemFree"
        mem_get_alloc_properties MemGetAllocProperties c"zeMemGetAllocProperties"
        mem_get_address_range MemGetAddressRange c"zeMemGetAddressRange"
        mem_get_ipc_handle MemGetIpcHandle c"zeMemGetIpcHandle"
        mem_put_ipc_handle MemPutIpcHandle c"zeMemPutIpcHandle"
        mem_open_ipc_handle MemOpenIpcHandle c"zeMemOpenIpcHandle"
        mem_close_ipc_handle MemCloseIpcHandle c"zeMemCloseIpcHandle"
        command_list_create_immediate CommandListCreateImmediate c"zeCommandListCreateImmediate"
        command_list_destroy CommandListDestroy c"zeCommandListDestroy"
        command_list_append_memory_copy CommandListAppendMemoryCopy c"zeCommandListAppendMemoryCopy"
        command_list_append_barrier CommandListAppendBarrier c"zeCommandListAppendBarrier"
        event_pool_create EventPoolCreate c"zeEventPoolCreate"
        event_pool_destroy EventPoolDestroy c"zeEventPoolDestroy"
        event_create EventCreate c"zeEventCreate"
        event_destroy EventDestroy c"zeEventDestroy"
        event_host_reset EventHostReset c"zeEventHostReset"
        event_query_status EventQueryStatus c"zeEventQueryStatus"
        event_host_synchronize EventHostSynchronize c"zeEventHostSynchronize"
    ))
}

pub(super) fn check_status(call: &'static str, code: Status) -> Result<(), DriverCallError> {
    if code == status::SUCCESS { Ok(()) } else { Err(to_call_error(call, code)) }
}

/// Describes the failure of a call.
pub(super) fn to_call_error(call: &'static str, code: Status) -> DriverCallError {
    let (name, remedy) = match code {
        status::OUT_OF_HOST_MEMORY => ("ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY", "free memory of the host"),
        status::OUT_OF_DEVICE_MEMORY => {
            ("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "free memory on the device, or use another one")
        }
        status::INSUFFICIENT_PERMISSIONS => {
            ("ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS", "the user must be allowed to open /dev/dri/render*")
        }
        status::UNINITIALIZED => (
            "ZE_RESULT_ERROR_UNINITIALIZED",
            "install Intel's driver, and check that the user may open /dev/dri/render*",
        ),
        status::UNSUPPORTED_FEATURE => ("ZE_RESULT_ERROR_UNSUPPORTED_FEATURE", "use a newer driver"),
        status::INVALID_ARGUMENT => ("ZE_RESULT_ERROR_INVALID_ARGUMENT", "the memory may have been freed"),
        _ => ("a result of Level Zero", "see ze_api.h, and the kernel's log (dmesg)"),
    };
    DriverCallError { call, code, name: name.to_owned(), remedy }
}

/// Converts a failed call into the error of the code that opens a handle.
pub(super) fn open_error(error: DriverCallError) -> HandleOpenError {
    let code = error.code;
    let cause = CallFailure::Driver(error);
    match code {
        status::INVALID_ARGUMENT => {
            HandleOpenError::Descriptor("the driver knows no memory by that descriptor")
        }
        status::OUT_OF_HOST_MEMORY | status::OUT_OF_DEVICE_MEMORY => HandleOpenError::Exhausted(cause),
        status::INSUFFICIENT_PERMISSIONS | status::UNSUPPORTED_FEATURE => HandleOpenError::Refused {
            cause,
            remedy: "both processes must see the device (ZE_AFFINITY_MASK)",
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
        assert_loads::<Calls>(include_str!("calls.rs"), "ze", &calls::SYMBOLS);
    }
}
