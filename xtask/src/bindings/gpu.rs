//! The C facts behind `trunkline-sys`'s tables of CUDA and HIP, for a comparison with the vendors' headers.
//!
//! Only `bindings` calls this.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use syn::{ReturnType, Type};
use trunkline_sys::{cuda, hip};

use super::{Facts, as_fact, prototypes};
use crate::source::Source;

/// A vendor's interface.
pub(super) struct Interface {
    /// A header of the vendor, by which it is known to be installed.
    pub(super) known_by: &'static str,
    /// Our header that includes all that is needed.
    pub(super) header: &'static str,
    /// Where people get it.
    pub(super) package: &'static str,
    /// Source of the table.
    table: &'static str,
    symbols: &'static [&'static std::ffi::CStr],
    numbers: fn() -> Vec<(&'static str, i64)>,
}

/// NVIDIA's.
pub(super) const CUDA: Interface = Interface {
    known_by: "cuda.h",
    header: "xtask/bindings/probe_cuda.h",
    package: "CUDA toolkit; or set CPATH",
    table: "src/cuda.rs",
    symbols: &cuda::SYMBOLS,
    numbers: of_cuda,
};

/// AMD's.
pub(super) const HIP: Interface = Interface {
    known_by: "hip/hip_runtime_api.h",
    header: "xtask/bindings/probe_hip.h",
    package: "ROCm packages hip-dev and hsa-rocr-dev; or set CPATH",
    table: "src/hip.rs",
    symbols: &hip::SYMBOLS,
    numbers: of_hip,
};

/// What Rust says of an interface.
///
/// # Errors
/// When the source cannot be read, or holds a type that has no C name here.
pub(super) fn facts(interface: &Interface, sys: &Path) -> Result<Facts> {
    let mut facts: Facts =
        (interface.numbers)().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let source = Source::read(&sys.join(interface.table))?;
    let aliases = prototypes::aliases(&source);
    let table = source.product.items.iter().find_map(|item| match item {
        syn::Item::Struct(found) if found.ident == "Calls" => Some(found),
        _ => None,
    });
    let fields = &table.context("no table")?.fields;
    if fields.len() != interface.symbols.len() {
        bail!("{}: {} functions, {} symbols", interface.table, fields.len(), interface.symbols.len());
    }
    for (field, symbol) in fields.iter().zip(interface.symbols) {
        let Type::Path(path) = prototypes::inside_option(&field.ty).unwrap_or(&field.ty) else {
            bail!("no alias")
        };
        let name = path.path.segments.last().context("an empty path")?.ident.to_string();
        let (_, signature) = aliases.get(&name).with_context(|| format!("{name} is no alias"))?;
        let arguments =
            signature.inputs.iter().map(|input| c_type(&input.ty)).collect::<Result<Vec<_>>>()?.join(", ");
        let ReturnType::Type(_, result) = &signature.output else { bail!("{name} returns nothing") };
        let (symbol, result) = (symbol.to_str()?, c_type(result)?);
        let check = format!("__builtin_types_compatible_p(__typeof__(&{symbol}), {result} (*)({arguments}))");
        facts.insert(check, 1);
    }
    Ok(facts)
}

fn c_type(ty: &Type) -> Result<String> {
    if let Type::Ptr(pointer) = ty {
        // A `const` behind one pointer is to the left of the type, which is enough here.
        let constant = if pointer.const_token.is_some() { "const " } else { "" };
        return Ok(format!("{constant}{}*", c_type(&pointer.elem)?));
    }
    let Type::Path(path) = ty else { bail!("a type without a C name") };
    let name = path.path.segments.last().context("an empty path")?.ident.to_string();
    Ok(match name.as_str() {
        "c_int" | "Device" => "int",
        "c_uint" | "Status" => "unsigned int",
        "c_ulonglong" | "DevicePtr" => "unsigned long long",
        "c_char" => "char",
        "c_void" => "void",
        "usize" => "size_t",
        "u64" => "uint64_t",
        "Context" => "struct CUctx_st",
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
        ("CUDA_ERROR_INVALID_CONTEXT", status::INVALID_CONTEXT.into()),
        ("CUDA_ERROR_NOT_SUPPORTED", status::NOT_SUPPORTED.into()),
        ("CUDA_ERROR_SYSTEM_NOT_READY", status::SYSTEM_NOT_READY.into()),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", status::SYSTEM_DRIVER_MISMATCH.into()),
        ("CU_POINTER_ATTRIBUTE_MEMORY_TYPE", pointer_attribute::MEMORY_TYPE.into()),
        ("CU_POINTER_ATTRIBUTE_SYNC_MEMOPS", pointer_attribute::SYNC_MEMOPS.into()),
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
