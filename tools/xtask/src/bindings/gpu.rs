//! The C facts behind `trunkline-sys`'s tables of CUDA and HIP, for a comparison with the vendors' headers.
//!
//! Only `bindings` calls this.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use syn::{ReturnType, Type};
use trunkline_sys::{cuda, cuda_ipc, cuda_run, hip, hip_ipc, ze};

use super::{HeaderFacts, as_fact, prototypes};
use crate::source::SourceFile;

/// A vendor's interface.
pub(super) struct VendorInterface {
    /// A header of the vendor whose presence means that it is installed.
    pub(super) known_by: &'static str,
    /// Our header that includes all necessary ones.
    pub(super) header: &'static str,
    /// The package that contains it.
    pub(super) package: &'static str,
    /// Sources of its tables, each with the symbols of its fields.
    tables: &'static [(&'static str, &'static [&'static std::ffi::CStr])],
    /// Functions that some headers in use lack, each with the version that has it.
    pub(super) young: &'static [(&'static str, &'static str)],
    numbers: fn() -> Vec<(&'static str, i64)>,
}

/// NVIDIA's.
pub(super) const CUDA: VendorInterface = VendorInterface {
    known_by: "cuda.h",
    header: "tools/xtask/bindings/probe_cuda.h",
    package: "CUDA toolkit; or set CPATH",
    tables: &[
        ("src/cuda.rs", &cuda::SYMBOLS),
        ("src/cuda_ipc.rs", &cuda_ipc::SYMBOLS),
        ("src/cuda_run.rs", &cuda_run::SYMBOLS),
    ],
    young: &[("cuCtxSetFlags", "CUDA 12.1 and later")],
    numbers: of_cuda,
};

/// AMD's.
pub(super) const HIP: VendorInterface = VendorInterface {
    known_by: "hip/hip_runtime_api.h",
    header: "tools/xtask/bindings/probe_hip.h",
    package: "ROCm packages hip-dev and hsa-rocr-dev; or set CPATH",
    tables: &[("src/hip.rs", &hip::SYMBOLS), ("src/hip_ipc.rs", &hip_ipc::SYMBOLS)],
    young: &[],
    numbers: of_hip,
};

/// Intel's.
pub(super) const ZE: VendorInterface = VendorInterface {
    known_by: "level_zero/ze_api.h",
    header: "tools/xtask/bindings/probe_ze.h",
    package: "Debian package libze-dev; or set CPATH",
    tables: &[("src/ze.rs", &ze::SYMBOLS)],
    young: &[("zeMemPutIpcHandle", "Level Zero 1.6 and later")],
    numbers: of_ze,
};

/// The facts of an interface according to Rust.
///
/// # Errors
/// The source cannot be read, or contains a type that has no C name here.
pub(super) fn interface_facts(interface: &VendorInterface, sys: &Path) -> Result<HeaderFacts> {
    let mut facts: HeaderFacts =
        (interface.numbers)().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (table, symbols) in interface.tables {
        add_prototypes(&sys.join(table), symbols, &mut facts)?;
    }
    Ok(facts)
}

/// The prototypes of a table's functions.
fn add_prototypes(table: &Path, symbols: &[&std::ffi::CStr], facts: &mut HeaderFacts) -> Result<()> {
    let source = SourceFile::read(table)?;
    let aliases = prototypes::function_aliases(&source);
    let found = source.product.items.iter().find_map(|item| match item {
        syn::Item::Struct(found) if found.ident == "Calls" => Some(found),
        _ => None,
    });
    let fields = &found.context("no table")?.fields;
    if fields.len() != symbols.len() {
        bail!("{}: {} functions, {} symbols", table.display(), fields.len(), symbols.len());
    }
    for (field, symbol) in fields.iter().zip(symbols) {
        let Type::Path(path) = prototypes::inside_option(&field.ty).unwrap_or(&field.ty) else {
            bail!("no alias")
        };
        let name = path.path.segments.last().context("an empty path")?.ident.to_string();
        let (_, signature) = aliases.get(&name).with_context(|| format!("{name} is no alias"))?;
        let arguments = signature
            .inputs
            .iter()
            .map(|input| render_c_type(&input.ty))
            .collect::<Result<Vec<_>>>()?
            .join(", ");
        let ReturnType::Type(_, result) = &signature.output else { bail!("{name} returns nothing") };
        let symbol = symbol.to_str()?;
        let result = render_c_type(result)?;
        let check = format!("__builtin_types_compatible_p(__typeof__(&{symbol}), {result} (*)({arguments}))");
        facts.insert(check, 1);
    }
    Ok(())
}

fn render_c_type(ty: &Type) -> Result<String> {
    if let Type::Ptr(pointer) = ty {
        // A `const` behind one pointer is to the left of the type, which is enough here.
        let constant = if pointer.const_token.is_some() { "const " } else { "" };
        return Ok(format!("{constant}{}*", render_c_type(&pointer.elem)?));
    }
    let Type::Path(path) = ty else { bail!("a type without a C name") };
    let name = path.path.segments.last().context("an empty path")?.ident.to_string();
    Ok(match name.as_str() {
        "c_int" | "Device" => "int",
        "c_uint" | "Status" => "unsigned int",
        "c_ulonglong" | "DevicePtr" | "AllocationHandle" => "unsigned long long",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_void" => "void",
        "usize" => "size_t",
        "u64" => "uint64_t",
        "Context" => "struct CUctx_st",
        "u32" => "uint32_t",
        "Stream" => "struct CUstream_st",
        "Module" => "struct CUmod_st",
        "Function" => "struct CUfunc_st",
        "Event" => "struct CUevent_st",
        "CudaIpcMemHandle" => "CUipcMemHandle",
        "MemAccessDesc" => "CUmemAccessDesc",
        "HipStream" => "struct ihipStream_t",
        "HipEvent" => "struct ihipEvent_t",
        "HipIpcMemHandle" => "hipIpcMemHandle_t",
        "ZeDriver" => "struct _ze_driver_handle_t",
        "ZeDevice" => "struct _ze_device_handle_t",
        "ZeContext" => "struct _ze_context_handle_t",
        "ZeCommandList" => "struct _ze_command_list_handle_t",
        "ZeEvent" => "struct _ze_event_handle_t",
        "ZeIpcMemHandle" => "ze_ipc_mem_handle_t",
        "ZeContextDesc" => "ze_context_desc_t",
        "ZeEventPool" => "struct _ze_event_pool_handle_t",
        "ZeEventPoolDesc" => "ze_event_pool_desc_t",
        "ZeEventDesc" => "ze_event_desc_t",
        "ZeCommandQueueDesc" => "ze_command_queue_desc_t",
        "ZeDeviceMemAllocDesc" => "ze_device_mem_alloc_desc_t",
        "ZeMemoryAllocationProperties" => "ze_memory_allocation_properties_t",
        "PointerAttributes" => "hipPointerAttribute_t",
        other => bail!("{other} has no C name"),
    }
    .to_owned())
}

fn of_cuda() -> Vec<(&'static str, i64)> {
    use cuda::{memory_type, pointer_attribute, status};
    vec![
        ("CUDA_SUCCESS", status::SUCCESS.into()),
        ("CUDA_ERROR_INVALID_VALUE", status::INVALID_VALUE.into()),
        ("CUDA_ERROR_OUT_OF_MEMORY", status::OUT_OF_MEMORY.into()),
        ("CUDA_ERROR_NOT_INITIALIZED", status::NOT_INITIALIZED.into()),
        ("CUDA_ERROR_DEINITIALIZED", status::DEINITIALIZED.into()),
        ("CUDA_ERROR_STUB_LIBRARY", status::STUB_LIBRARY.into()),
        ("CUDA_ERROR_NO_DEVICE", status::NO_DEVICE.into()),
        ("CUDA_ERROR_INVALID_DEVICE", status::INVALID_DEVICE.into()),
        ("CUDA_ERROR_INVALID_CONTEXT", status::INVALID_CONTEXT.into()),
        ("CUDA_ERROR_ALREADY_MAPPED", status::ALREADY_MAPPED.into()),
        ("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", status::PEER_ACCESS_UNSUPPORTED.into()),
        ("CUDA_ERROR_INVALID_HANDLE", status::INVALID_HANDLE.into()),
        ("CUDA_ERROR_NOT_FOUND", status::NOT_FOUND.into()),
        ("CUDA_ERROR_TOO_MANY_PEERS", status::TOO_MANY_PEERS.into()),
        ("CUDA_ERROR_NOT_PERMITTED", status::NOT_PERMITTED.into()),
        ("CUDA_ERROR_NOT_SUPPORTED", status::NOT_SUPPORTED.into()),
        ("CUDA_ERROR_SYSTEM_NOT_READY", status::SYSTEM_NOT_READY.into()),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", status::SYSTEM_DRIVER_MISMATCH.into()),
        ("CUDA_ERROR_UNKNOWN", status::UNKNOWN.into()),
        ("CU_POINTER_ATTRIBUTE_MEMORY_TYPE", pointer_attribute::MEMORY_TYPE.into()),
        ("CU_POINTER_ATTRIBUTE_SYNC_MEMOPS", pointer_attribute::SYNC_MEMOPS.into()),
        ("CU_POINTER_ATTRIBUTE_BUFFER_ID", pointer_attribute::BUFFER_ID.into()),
        (
            "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE",
            pointer_attribute::IS_LEGACY_CUDA_IPC_CAPABLE.into(),
        ),
        ("CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES", pointer_attribute::ALLOWED_HANDLE_TYPES.into()),
        ("CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE", pointer_attribute::MEMPOOL_HANDLE.into()),
        ("CU_STREAM_NON_BLOCKING", cuda::STREAM_NON_BLOCKING.into()),
        ("CUDA_ERROR_NOT_READY", cuda_run::NOT_READY.into()),
        ("CU_MEMHOSTALLOC_PORTABLE", cuda_run::HOST_ALLOC_PORTABLE.into()),
        ("CU_MEMHOSTALLOC_DEVICEMAP", cuda_run::HOST_ALLOC_DEVICEMAP.into()),
        ("CU_EVENT_DISABLE_TIMING", cuda_run::EVENT_DISABLE_TIMING.into()),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", cuda_run::COMPUTE_CAPABILITY_MAJOR.into()),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", cuda_run::COMPUTE_CAPABILITY_MINOR.into()),
        ("CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", cuda_ipc::IPC_MEM_LAZY_ENABLE_PEER_ACCESS.into()),
        ("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", cuda_ipc::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.into()),
        ("CU_MEMHOSTREGISTER_PORTABLE", cuda_ipc::MEM_HOST_REGISTER_PORTABLE.into()),
        ("CU_MEM_LOCATION_TYPE_DEVICE", cuda_ipc::MEM_LOCATION_TYPE_DEVICE.into()),
        ("CU_MEM_ACCESS_FLAGS_PROT_READWRITE", cuda_ipc::MEM_ACCESS_FLAGS_PROT_READWRITE.into()),
        ("sizeof(CUipcMemHandle)", as_fact(size_of::<cuda_ipc::CudaIpcMemHandle>())),
        ("sizeof(CUmemAccessDesc)", as_fact(size_of::<cuda_ipc::MemAccessDesc>())),
        (
            "offsetof(CUmemAccessDesc, location.type)",
            as_fact(std::mem::offset_of!(cuda_ipc::MemAccessDesc, location_type)),
        ),
        (
            "offsetof(CUmemAccessDesc, location.id)",
            as_fact(std::mem::offset_of!(cuda_ipc::MemAccessDesc, location_id)),
        ),
        ("offsetof(CUmemAccessDesc, flags)", as_fact(std::mem::offset_of!(cuda_ipc::MemAccessDesc, flags))),
        ("CU_POINTER_ATTRIBUTE_IS_MANAGED", pointer_attribute::IS_MANAGED.into()),
        ("CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL", pointer_attribute::DEVICE_ORDINAL.into()),
        ("CU_POINTER_ATTRIBUTE_RANGE_START_ADDR", pointer_attribute::RANGE_START_ADDR.into()),
        ("CU_POINTER_ATTRIBUTE_RANGE_SIZE", pointer_attribute::RANGE_SIZE.into()),
        ("CU_MEMORYTYPE_HOST", memory_type::HOST.into()),
        ("CU_MEMORYTYPE_DEVICE", memory_type::DEVICE.into()),
        ("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED", cuda::DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.into()),
        ("CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD", cuda::MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.into()),
        (
            "CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE",
            cuda::MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE as i64,
        ),
    ]
}

fn of_hip() -> Vec<(&'static str, i64)> {
    use std::mem::offset_of;

    use hip::{PointerAttributes, memory_type, status};
    vec![
        ("hipSuccess", status::SUCCESS.into()),
        ("HSA_STATUS_SUCCESS", status::SUCCESS.into()),
        ("hipErrorInvalidValue", status::INVALID_VALUE.into()),
        ("hipErrorOutOfMemory", status::OUT_OF_MEMORY.into()),
        ("hipErrorInvalidDevice", status::INVALID_DEVICE.into()),
        ("hipErrorMapFailed", status::MAP_FAILED.into()),
        ("hipErrorAlreadyMapped", status::ALREADY_MAPPED.into()),
        ("hipErrorPeerAccessUnsupported", status::PEER_ACCESS_UNSUPPORTED.into()),
        ("hipErrorInvalidHandle", status::INVALID_HANDLE.into()),
        ("hipErrorNotSupported", status::NOT_SUPPORTED.into()),
        ("hipIpcMemLazyEnablePeerAccess", hip_ipc::IPC_MEM_LAZY_ENABLE_PEER_ACCESS.into()),
        ("HIP_POINTER_ATTRIBUTE_BUFFER_ID", hip_ipc::POINTER_ATTRIBUTE_BUFFER_ID.into()),
        ("hipStreamNonBlocking", hip_ipc::STREAM_NON_BLOCKING.into()),
        ("hipMemcpyDefault", hip_ipc::MEMCPY_DEFAULT.into()),
        ("hipEventDisableTiming", hip_ipc::EVENT_DISABLE_TIMING.into()),
        ("hipErrorNotReady", hip_ipc::NOT_READY.into()),
        ("hipHostRegisterPortable", hip_ipc::HOST_REGISTER_PORTABLE.into()),
        ("sizeof(hipIpcMemHandle_t)", as_fact(size_of::<hip_ipc::HipIpcMemHandle>())),
        ("hipErrorNotInitialized", status::NOT_INITIALIZED.into()),
        ("hipErrorInsufficientDriver", status::INSUFFICIENT_DRIVER.into()),
        ("hipErrorNoDevice", status::NO_DEVICE.into()),
        ("HSA_STATUS_ERROR", status::HSA_ERROR.into()),
        ("HSA_STATUS_ERROR_INVALID_ALLOCATION", status::HSA_INVALID_ALLOCATION.into()),
        ("HSA_STATUS_ERROR_INVALID_AGENT", status::HSA_INVALID_AGENT.into()),
        ("HSA_STATUS_ERROR_OUT_OF_RESOURCES", status::HSA_OUT_OF_RESOURCES.into()),
        ("hipMemoryTypeUnregistered", memory_type::UNREGISTERED.into()),
        ("hipMemoryTypeHost", memory_type::HOST.into()),
        ("hipMemoryTypeDevice", memory_type::DEVICE.into()),
        ("hipMemoryTypeManaged", memory_type::MANAGED.into()),
        ("sizeof(hipPointerAttribute_t)", as_fact(size_of::<PointerAttributes>())),
        ("offsetof(hipPointerAttribute_t, type)", as_fact(offset_of!(PointerAttributes, kind))),
        ("offsetof(hipPointerAttribute_t, device)", as_fact(offset_of!(PointerAttributes, device))),
        (
            "offsetof(hipPointerAttribute_t, devicePointer)",
            as_fact(offset_of!(PointerAttributes, device_pointer)),
        ),
        (
            "offsetof(hipPointerAttribute_t, hostPointer)",
            as_fact(offset_of!(PointerAttributes, host_pointer)),
        ),
        ("offsetof(hipPointerAttribute_t, isManaged)", as_fact(offset_of!(PointerAttributes, is_managed))),
        (
            "offsetof(hipPointerAttribute_t, allocationFlags)",
            as_fact(offset_of!(PointerAttributes, allocation_flags)),
        ),
    ]
}

fn of_ze() -> Vec<(&'static str, i64)> {
    use std::mem::offset_of;

    use ze::{memory_type, status};
    vec![
        ("ZE_RESULT_SUCCESS", status::SUCCESS.into()),
        ("ZE_RESULT_NOT_READY", status::NOT_READY.into()),
        ("ZE_STRUCTURE_TYPE_EVENT_POOL_DESC", ze::STRUCTURE_TYPE_EVENT_POOL_DESC.into()),
        ("ZE_STRUCTURE_TYPE_EVENT_DESC", ze::STRUCTURE_TYPE_EVENT_DESC.into()),
        ("ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS", ze::COMMAND_QUEUE_MODE_ASYNCHRONOUS.into()),
        ("ZE_EVENT_POOL_FLAG_HOST_VISIBLE", ze::EVENT_POOL_FLAG_HOST_VISIBLE.into()),
        ("ZE_EVENT_SCOPE_FLAG_HOST", ze::EVENT_SCOPE_FLAG_HOST.into()),
        ("sizeof(ze_event_pool_desc_t)", as_fact(size_of::<ze::ZeEventPoolDesc>())),
        ("offsetof(ze_event_pool_desc_t, count)", as_fact(offset_of!(ze::ZeEventPoolDesc, count))),
        ("sizeof(ze_event_desc_t)", as_fact(size_of::<ze::ZeEventDesc>())),
        ("offsetof(ze_event_desc_t, signal)", as_fact(offset_of!(ze::ZeEventDesc, signal))),
        ("ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY", status::OUT_OF_HOST_MEMORY.into()),
        ("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", status::OUT_OF_DEVICE_MEMORY.into()),
        ("ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS", status::INSUFFICIENT_PERMISSIONS.into()),
        ("ZE_RESULT_ERROR_UNINITIALIZED", status::UNINITIALIZED.into()),
        ("ZE_RESULT_ERROR_UNSUPPORTED_FEATURE", status::UNSUPPORTED_FEATURE.into()),
        ("ZE_RESULT_ERROR_INVALID_ARGUMENT", status::INVALID_ARGUMENT.into()),
        ("ZE_MEMORY_TYPE_DEVICE", memory_type::DEVICE.into()),
        ("ZE_STRUCTURE_TYPE_CONTEXT_DESC", ze::STRUCTURE_TYPE_CONTEXT_DESC.into()),
        ("ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC", ze::STRUCTURE_TYPE_COMMAND_QUEUE_DESC.into()),
        ("ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC", ze::STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC.into()),
        (
            "ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES",
            ze::STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES.into(),
        ),
        ("ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS", ze::COMMAND_QUEUE_MODE_SYNCHRONOUS.into()),
        ("ZE_INIT_FLAG_GPU_ONLY", ze::INIT_FLAG_GPU_ONLY.into()),
        ("sizeof(ze_ipc_mem_handle_t)", as_fact(size_of::<ze::ZeIpcMemHandle>())),
        ("sizeof(ze_context_desc_t)", as_fact(size_of::<ze::ZeContextDesc>())),
        ("offsetof(ze_context_desc_t, flags)", as_fact(offset_of!(ze::ZeContextDesc, flags))),
        ("sizeof(ze_command_queue_desc_t)", as_fact(size_of::<ze::ZeCommandQueueDesc>())),
        ("offsetof(ze_command_queue_desc_t, mode)", as_fact(offset_of!(ze::ZeCommandQueueDesc, mode))),
        ("sizeof(ze_device_mem_alloc_desc_t)", as_fact(size_of::<ze::ZeDeviceMemAllocDesc>())),
        (
            "offsetof(ze_device_mem_alloc_desc_t, ordinal)",
            as_fact(offset_of!(ze::ZeDeviceMemAllocDesc, ordinal)),
        ),
        ("sizeof(ze_memory_allocation_properties_t)", as_fact(size_of::<ze::ZeMemoryAllocationProperties>())),
        (
            "offsetof(ze_memory_allocation_properties_t, type)",
            as_fact(offset_of!(ze::ZeMemoryAllocationProperties, kind)),
        ),
        (
            "offsetof(ze_memory_allocation_properties_t, id)",
            as_fact(offset_of!(ze::ZeMemoryAllocationProperties, id)),
        ),
    ]
}
