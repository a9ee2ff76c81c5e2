//! NVIDIA's functions for kernels and for memory that they share with the host.

use trunkline_sys::cuda;
use trunkline_sys::cuda_run::{self as calls, Calls};

use crate::gpu::GpuUnavailable;
use crate::gpu::library::{DynamicLibrary, table};

/// Loads the functions of the library that is installed with NVIDIA's kernel driver. A library that lacks any of them is too old.
pub(super) fn load_calls() -> Result<Calls, GpuUnavailable> {
    let library = DynamicLibrary::open(&[cuda::LIBRARY], "NVIDIA's driver (Debian: package libcuda1)")?;
    Ok(table!(library, calls;
        device_get_attribute DeviceGetAttribute c"cuDeviceGetAttribute"
        mem_host_alloc MemHostAlloc c"cuMemHostAlloc"
        mem_free_host MemFreeHost c"cuMemFreeHost"
        mem_host_get_device_pointer MemHostGetDevicePointer c"cuMemHostGetDevicePointer_v2"
        memcpy_async MemcpyAsync c"cuMemcpyAsync"
        memset_d8_async MemsetD8Async c"cuMemsetD8Async"
        module_load_data ModuleLoadData c"cuModuleLoadData"
        module_unload ModuleUnload c"cuModuleUnload"
        module_get_function ModuleGetFunction c"cuModuleGetFunction"
        launch_kernel LaunchKernel c"cuLaunchKernel"
        stream_create StreamCreate c"cuStreamCreate"
        stream_destroy StreamDestroy c"cuStreamDestroy_v2"
        stream_query StreamQuery c"cuStreamQuery"
        stream_synchronize StreamSynchronize c"cuStreamSynchronize"
        event_create EventCreate c"cuEventCreate"
        event_destroy EventDestroy c"cuEventDestroy_v2"
        event_record EventRecord c"cuEventRecord"
        event_query EventQuery c"cuEventQuery"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::library::assert_loads;

    #[test]
    fn every_field_has_its_symbol() {
        assert_loads::<Calls>(include_str!("calls.rs"), "cu", &calls::SYMBOLS);
    }
}
