//! AMD's runtime, called by [`VendorDriver`](super::VendorDriver) and the modules of this crate only. Memory is exported by the HSA runtime
//! below HIP, which `hipInit` initialises.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::{self, NonNull};

use trunkline_sys::hip::{self as calls, Calls, PointerAttributes, Status, memory_type, status};

use super::dmabuf::PageWindow;
use super::library::DynamicLibrary;
use super::{
    AddressAttributes, DeviceAllocation, DmaBuf, DmaBufError, DmaBufExport, DriverCallError, ExportRefusal,
    GpuUnavailable, GpuVendor, LookError, PointerKind,
};

/// The oldest supported runtime version, as it counts: before 6.0 the memory types had other numbers.
const LEAST: c_int = 60_000_000;
/// The name of the export function.
const EXPORT: &str = "hsa_amd_portable_export_dmabuf";

/// The initialised runtime, with at least one device.
#[derive(Clone)]
pub(crate) struct HipLibrary {
    calls: Calls,
    version: c_int,
    devices: u32,
}

/// The functions of ROCm's libraries.
pub(crate) fn load_calls() -> Result<Calls, GpuUnavailable> {
    let package = "ROCm's runtime (package hip-runtime-amd)";
    let hip = DynamicLibrary::open(&calls::LIBRARIES, package)?;
    let hsa = DynamicLibrary::open(&[calls::HSA_LIBRARY], package);
    let export = hsa.and_then(|hsa| hsa.find(c"hsa_amd_portable_export_dmabuf")).ok();
    macro_rules! load {
        ($($field:ident $kind:ident $symbol:literal)*) => { Calls {
            // SAFETY: the symbol of this name is a function of the field's type, which `cargo xtask bindings` compares
            // with the runtime's header.
            $($field: unsafe { transmute::<NonNull<c_void>, calls::$kind>(hip.find($symbol)?) },)*
            // SAFETY: as above.
            export_dmabuf: export.map(|at| unsafe { transmute::<NonNull<c_void>, calls::ExportDmabuf>(at) }),
        } };
    }
    Ok(load!(
        init Init c"hipInit"
        runtime_get_version RuntimeGetVersion c"hipRuntimeGetVersion"
        get_device_count GetDeviceCount c"hipGetDeviceCount"
        pointer_get_attributes PointerGetAttributes c"hipPointerGetAttributes"
        mem_get_address_range MemGetAddressRange c"hipMemGetAddressRange"
        malloc Malloc c"hipMalloc"
        free Free c"hipFree"
        get_error_name GetErrorName c"hipGetErrorName"
    ))
}

impl HipLibrary {
    /// Initialises the runtime.
    pub(crate) fn new(calls: Calls) -> Result<Self, GpuUnavailable> {
        let mut this = Self { calls, version: 0, devices: 0 };
        let mut count = 0;
        // SAFETY: 0 is the only defined flag; `hipInit` may be called repeatedly, also by other code of the process.
        let code = unsafe { (this.calls.init)(0) };
        let begun = this.check_status("hipInit", code);
        if code != status::NO_DEVICE {
            begun?;
        }
        // SAFETY: the call writes a number to a local variable.
        let told = unsafe { (this.calls.runtime_get_version)(&raw mut this.version) };
        if code != status::NO_DEVICE {
            this.check_status("hipRuntimeGetVersion", told)?;
        }
        if told == status::SUCCESS && this.version < LEAST {
            let [found, least] = [this.version, LEAST].map(|v| format!("HIP {}", format_version(v)));
            return Err(GpuUnavailable::TooOld { vendor: GpuVendor::Amd, found, least });
        }
        // SAFETY: the call writes a number to a local variable.
        let code = unsafe { (this.calls.get_device_count)(&raw mut count) };
        if code != status::NO_DEVICE {
            this.check_status("hipGetDeviceCount", code)?;
            this.devices = u32::try_from(count).unwrap_or(0);
        }
        if this.devices == 0 {
            return Err(GpuUnavailable::Devices { vendor: GpuVendor::Amd });
        }
        Ok(this)
    }

    pub(super) fn version_text(&self) -> String {
        format!("HIP {}", format_version(self.version))
    }

    pub(crate) fn device_count(&self) -> u32 {
        self.devices
    }

    /// Returns whether the runtime has the export function. Whether the kernel supports exports is known only when memory is exported.
    pub(super) fn exports_memory(&self) -> bool {
        self.calls.export_dmabuf.is_some()
    }

    /// Classifies an address, and for memory of a device returns the allocation around it.
    pub(crate) fn query_pointer(&self, addr: usize) -> Result<AddressAttributes, LookError> {
        let null = ptr::null_mut();
        let mut found = PointerAttributes {
            kind: 0,
            device: 0,
            device_pointer: null,
            host_pointer: null,
            is_managed: 0,
            allocation_flags: 0,
        };
        let at = ptr::with_exposed_provenance_mut::<c_void>(addr);
        // SAFETY: the call writes the attributes to a local variable; it does not access the address.
        let code = unsafe { (self.calls.pointer_get_attributes)(&raw mut found, at) };
        self.check_status("hipPointerGetAttributes", code)?;
        let managed = found.is_managed != 0 || found.kind == memory_type::MANAGED;
        if managed {
            let kind = PointerKind::Managed { vendor: GpuVendor::Amd };
            return Ok(AddressAttributes { kind, allocation: None, sync_copies: true });
        }
        match found.kind {
            memory_type::UNREGISTERED | memory_type::HOST => return Ok(AddressAttributes::HOST),
            memory_type::DEVICE | memory_type::MANAGED => {}
            value => return Err(LookError::Unfamiliar { call: "hipPointerGetAttributes", addr, value }),
        }
        let mut base = null;
        let mut len = 0;
        // SAFETY: the call writes an address and a size to local variables.
        let code = unsafe { (self.calls.mem_get_address_range)(&raw mut base, &raw mut len, at) };
        self.check_status("hipMemGetAddressRange", code)?;
        Ok(AddressAttributes {
            kind: PointerKind::Device { vendor: GpuVendor::Amd, device: found.device as u32 },
            allocation: Some(DeviceAllocation { base: base.expose_provenance(), len }),
            sync_copies: true,
        })
    }

    /// Exports whole pages around bytes that the caller has checked to lie in an allocation, clipped to that allocation: this runtime rejects bytes
    /// outside.
    pub(super) fn export_dmabuf(
        &self,
        addr: usize,
        len: usize,
        allocation: DeviceAllocation,
        page: usize,
    ) -> Result<DmaBufExport, DmaBufError> {
        let Some(export) = self.calls.export_dmabuf else {
            return Ok(DmaBufExport::Refused(ExportRefusal::Function { symbol: EXPORT }));
        };
        let DeviceAllocation { base, len: size } = allocation;
        let Some(pages) = PageWindow::around(addr, len, page) else {
            return Err(DmaBufError::Beyond { addr, len, base, size });
        };
        let start = pages.start.max(base);
        let end = (pages.start + pages.len).min(base.saturating_add(size));
        let window = PageWindow { start, len: end - start, inset: addr - start };
        let mut fd: c_int = -1;
        let mut offset: u64 = 0;
        let at = ptr::with_exposed_provenance::<c_void>(window.start);
        // SAFETY: the range lies in one allocation; the call writes a descriptor and an offset to local variables.
        let code = unsafe { export(at, window.len, &raw mut fd, &raw mut offset) };
        let refused = [status::HSA_ERROR, status::HSA_INVALID_AGENT, status::HSA_INVALID_ALLOCATION];
        match self.check_status(EXPORT, code) {
            Ok(()) => {
                // SAFETY: the runtime has just created the descriptor for this call; no other code owns it.
                unsafe { DmaBuf::from_driver(EXPORT, fd, offset, window, len) }.map(DmaBufExport::Given)
            }
            Err(error) if refused.contains(&code) => Ok(DmaBufExport::Refused(ExportRefusal::Memory(error))),
            Err(error) => Err(error.into()),
        }
    }

    /// Allocates memory on the thread's current device.
    pub(crate) fn allocate(&self, len: usize) -> Result<usize, DriverCallError> {
        let mut at = ptr::null_mut();
        // SAFETY: the call writes an address to a local variable.
        let code = unsafe { (self.calls.malloc)(&raw mut at, len) };
        self.check_status("hipMalloc", code)?;
        Ok(at.expose_provenance())
    }

    /// Frees memory of [`HipLibrary::allocate`].
    pub(crate) fn free(&self, addr: usize) -> Result<(), DriverCallError> {
        // SAFETY: the memory was allocated by `allocate`, and its last user has been dropped.
        let code = unsafe { (self.calls.free)(ptr::with_exposed_provenance_mut(addr)) };
        self.check_status("hipFree", code)
    }

    pub(crate) fn check_status(&self, call: &'static str, code: Status) -> Result<(), DriverCallError> {
        if code == status::SUCCESS {
            return Ok(());
        }
        Err(DriverCallError { call, code, name: self.error_name(call, code), remedy: error_remedy(code) })
    }

    /// Returns the name of a code.
    fn error_name(&self, call: &'static str, code: Status) -> String {
        if call == EXPORT {
            let name = match code {
                status::HSA_ERROR => "HSA_STATUS_ERROR",
                status::HSA_INVALID_ALLOCATION => "HSA_STATUS_ERROR_INVALID_ALLOCATION",
                status::HSA_INVALID_AGENT => "HSA_STATUS_ERROR_INVALID_AGENT",
                status::HSA_OUT_OF_RESOURCES => "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
                _ => "a status of HSA",
            };
            return name.to_owned();
        }
        // SAFETY: the call accepts any number.
        let name = unsafe { (self.calls.get_error_name)(code) };
        if name.is_null() {
            return "an error without a name".to_owned();
        }
        // SAFETY: the runtime returned a zero-terminated string that it never frees.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// Formats 60,241,133 as `6.2`.
fn format_version(counted: c_int) -> String {
    format!("{}.{}", counted / 10_000_000, counted % 10_000_000 / 100_000)
}

fn error_remedy(code: Status) -> &'static str {
    match code {
        status::INVALID_VALUE => {
            "the memory may have been freed, or is of a kind that this call does not support"
        }
        status::NOT_INITIALIZED => {
            "the process is ending, or was forked after HIP was initialised; initialise it in the child"
        }
        status::INSUFFICIENT_DRIVER => "load the kernel module amdgpu, or a newer one",
        status::HSA_ERROR => "the kernel may be too old to export memory of devices; see dmesg",
        status::HSA_OUT_OF_RESOURCES => "raise the limit of open files (ulimit -n), or see dmesg",
        status::HSA_INVALID_ALLOCATION | status::HSA_INVALID_AGENT => {
            "only memory that a device has allocated can be exported"
        }
        _ => "see rocminfo, whether the user may open /dev/kfd, and dmesg",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_symbol() {
        // Every field of the table is a pointer.
        assert_eq!(size_of::<Calls>() / size_of::<usize>(), calls::SYMBOLS.len());
        let lines = include_str!("hip.rs").lines().map(str::split_whitespace).map(Vec::from_iter);
        let mut loaded = 0;
        for line in lines {
            let [field, kind, symbol] = line[..] else { continue };
            let Some(symbol) = symbol.trim_end_matches(';').strip_prefix("c\"hip") else { continue };
            let symbol = symbol.trim_end_matches('"');
            assert_eq!(kind, symbol.trim_end_matches("_v2"));
            assert_eq!(field.replace('_', ""), kind.to_lowercase());
            assert_eq!(calls::SYMBOLS[loaded].to_str(), Ok(&*format!("hip{symbol}")));
            loaded += 1;
        }
        assert_eq!(loaded, calls::SYMBOLS.len() - 1);
    }

    #[test]
    fn versions_are_formatted_as_major_and_minor() {
        assert_eq!([format_version(60_241_133), format_version(70_100_000)], ["6.2", "7.1"]);
    }
}
