//! NVIDIA's driver, called by [`VendorDriver`](super::VendorDriver) and the modules of this crate only. It holds no context. Where a call turns
//! out to need one in a thread without, it borrows the device's primary context for that call, and creates it if the process uses the memory
//! through another context. It never does so for memory that belongs to no device.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::{self, NonNull};

use trunkline_sys::cuda::{self as calls, Calls, Status, memory_type, pointer_attribute, status};

use super::dmabuf::PageWindow;
use super::library::DynamicLibrary;
use super::{
    AddressAttributes, DeviceAllocation, DmaBuf, DmaBufError, DmaBufExport, DmaBufMapping, DriverCallError,
    ExportRefusal, GpuUnavailable, GpuVendor, LookError, PointerKind,
};

/// The oldest supported driver version, as the driver counts: CUDA 11.0.
const LEAST: c_int = 11_000;
/// The attributes queried for an address, in one call; the first [`PLAIN`] of them need no context.
const ASKED: [c_uint; 6] = [
    pointer_attribute::MEMORY_TYPE,
    pointer_attribute::IS_MANAGED,
    pointer_attribute::DEVICE_ORDINAL,
    pointer_attribute::RANGE_START_ADDR,
    pointer_attribute::RANGE_SIZE,
    pointer_attribute::SYNC_MEMOPS,
];
/// How many of [`ASKED`] the driver returns in any thread.
const PLAIN: usize = 3;
/// The name of the export function.
const EXPORT: &str = "cuMemGetHandleForAddressRange";

/// The initialised driver, with at least one device.
#[derive(Clone)]
pub(crate) struct CudaLibrary {
    calls: Calls,
    version: c_int,
    devices: u32,
}

/// Fills [`Calls`]: each function by its symbol; those after the semicolon are optional.
macro_rules! load {
    ($find:expr; $($field:ident $kind:ident $symbol:literal)*; $($may:ident $may_kind:ident $may_symbol:literal)*) => { Calls {
        // SAFETY: the symbol of this name is a function of the field's type, which `cargo xtask bindings` compares with
        // the driver's header.
        $($field: unsafe { transmute::<NonNull<c_void>, calls::$kind>($find($symbol)?) },)*
        // SAFETY: as above.
        $($may: $find($may_symbol).ok().map(|at| unsafe { transmute::<NonNull<c_void>, calls::$may_kind>(at) }),)*
    } };
}

/// Loads the functions of the library that is installed with NVIDIA's kernel driver.
pub(crate) fn load_calls() -> Result<Calls, GpuUnavailable> {
    let library = DynamicLibrary::open(&[calls::LIBRARY], "NVIDIA's driver (Debian: package libcuda1)")?;
    let find = |symbol: &CStr| library.find(symbol);
    Ok(load!(find;
        init Init c"cuInit"
        driver_get_version DriverGetVersion c"cuDriverGetVersion"
        device_get_count DeviceGetCount c"cuDeviceGetCount"
        device_get DeviceGet c"cuDeviceGet"
        device_get_attribute DeviceGetAttribute c"cuDeviceGetAttribute"
        device_primary_ctx_retain DevicePrimaryCtxRetain c"cuDevicePrimaryCtxRetain"
        device_primary_ctx_release DevicePrimaryCtxRelease c"cuDevicePrimaryCtxRelease_v2"
        ctx_push_current CtxPushCurrent c"cuCtxPushCurrent_v2"
        ctx_pop_current CtxPopCurrent c"cuCtxPopCurrent_v2"
        pointer_get_attributes PointerGetAttributes c"cuPointerGetAttributes"
        pointer_set_attribute PointerSetAttribute c"cuPointerSetAttribute"
        mem_alloc MemAlloc c"cuMemAlloc_v2"
        mem_free MemFree c"cuMemFree_v2"
        get_error_name GetErrorName c"cuGetErrorName";
        mem_get_handle_for_address_range MemGetHandleForAddressRange c"cuMemGetHandleForAddressRange"
        ctx_get_flags CtxGetFlags c"cuCtxGetFlags"
        ctx_set_flags CtxSetFlags c"cuCtxSetFlags"
    ))
}

impl CudaLibrary {
    /// Initialises the driver.
    pub(crate) fn new(calls: Calls) -> Result<Self, GpuUnavailable> {
        let mut this = Self { calls, version: 0, devices: 0 };
        let mut count = 0;
        // SAFETY: the call writes a number to a local variable, and is allowed before `cuInit`.
        let code = unsafe { (this.calls.driver_get_version)(&raw mut this.version) };
        this.check_status("cuDriverGetVersion", code)?;
        if this.version < LEAST {
            let [found, least] = [this.version, LEAST].map(|v| format!("CUDA {}", format_version(v)));
            return Err(GpuUnavailable::TooOld { vendor: GpuVendor::Nvidia, found, least });
        }
        // SAFETY: 0 is the only defined flag; `cuInit` may be called repeatedly, also by other code of the process.
        let code = unsafe { (this.calls.init)(0) };
        if code == status::NO_DEVICE {
            return Err(GpuUnavailable::Devices { vendor: GpuVendor::Nvidia });
        }
        this.check_status("cuInit", code)?;
        // SAFETY: the call writes a number to a local variable.
        let code = unsafe { (this.calls.device_get_count)(&raw mut count) };
        this.check_status("cuDeviceGetCount", code)?;
        this.devices = u32::try_from(count).unwrap_or(0);
        if this.devices == 0 {
            return Err(GpuUnavailable::Devices { vendor: GpuVendor::Nvidia });
        }
        Ok(this)
    }

    pub(crate) fn version_text(&self) -> String {
        format!("CUDA {}", format_version(self.version))
    }

    /// Returns the version as the driver counts it: 12040 for CUDA 12.4.
    pub(crate) fn version_number(&self) -> c_int {
        self.version
    }

    /// Returns the table of functions.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn device_count(&self) -> u32 {
        self.devices
    }

    /// Returns whether every device can export memory.
    pub(super) fn exports_memory(&self) -> Result<bool, DriverCallError> {
        if self.calls.mem_get_handle_for_address_range.is_none() {
            return Ok(false);
        }
        for device in 0..self.devices {
            if !self.can_export(device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the attributes of an address. An address unknown to CUDA is not an error: its attributes are all zero.
    pub(super) fn query_pointer(&self, addr: usize) -> Result<AddressAttributes, LookError> {
        let (mut code, mut values) = self.query_attributes(addr, ASKED.len());
        if code == status::INVALID_CONTEXT {
            (code, values) = self.query_attributes(addr, PLAIN);
            let [kind, managed, device, ..] = values;
            if code == status::SUCCESS && kind as u32 == memory_type::DEVICE && managed as u32 == 0 {
                let asked =
                    self.with_device_context(device as u32, || self.query_attributes(addr, ASKED.len()));
                (code, values) = asked?;
            }
        }
        self.check_status("cuPointerGetAttributes", code)?;
        let [kind, managed, device, base, len, sync] = values;
        if managed as u32 != 0 {
            let kind = PointerKind::Managed { vendor: GpuVendor::Nvidia };
            return Ok(AddressAttributes { kind, allocation: None, sync_copies: sync as u32 != 0 });
        }
        match kind as u32 {
            0 | memory_type::HOST => Ok(AddressAttributes::HOST),
            memory_type::DEVICE => Ok(AddressAttributes {
                kind: PointerKind::Device { vendor: GpuVendor::Nvidia, device: device as u32 },
                allocation: Some(DeviceAllocation { base: base as usize, len: len as usize }),
                sync_copies: sync as u32 != 0,
            }),
            value => Err(LookError::Unfamiliar { call: "cuPointerGetAttributes", addr, value }),
        }
    }

    /// Queries the first `count` of [`ASKED`].
    fn query_attributes(&self, addr: usize, count: usize) -> (Status, [u64; ASKED.len()]) {
        // Wide enough for each attribute; the driver writes only the low bytes that an attribute has.
        let mut values = [0_u64; ASKED.len()];
        let mut places = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
        let mut asked = ASKED;
        let asked = &mut asked[..count];
        let places = &mut places[..count];
        // SAFETY: there is one place per attribute, with room for the largest; the driver does not access the address.
        let code = unsafe {
            (self.calls.pointer_get_attributes)(
                count as c_uint,
                asked.as_mut_ptr(),
                places.as_mut_ptr(),
                addr as u64,
            )
        };
        (code, values)
    }

    /// Exports whole pages around bytes that the caller has checked to lie in one allocation of the device.
    pub(super) fn export_dmabuf(
        &self,
        device: u32,
        addr: usize,
        len: usize,
        page: usize,
        mapping: DmaBufMapping,
    ) -> Result<DmaBufExport, DmaBufError> {
        let Some(export) = self.calls.mem_get_handle_for_address_range else {
            return Ok(DmaBufExport::Refused(ExportRefusal::Function { symbol: EXPORT }));
        };
        if !self.can_export(device)? {
            return Ok(DmaBufExport::Refused(ExportRefusal::Device { device }));
        }
        let Some(window) = PageWindow::around(addr, len, page) else {
            return Err(DmaBufError::Beyond { addr, len, base: addr, size: usize::MAX - addr });
        };
        let flags = match mapping {
            DmaBufMapping::Any => 0,
            DmaBufMapping::Pcie => calls::MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE,
        };
        let mut fd: c_int = -1;
        let kind = calls::MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let code = self.in_context(device, || {
            // SAFETY: the window covers whole pages of an allocation, and a handle of this type is one descriptor, which `fd` has room for.
            unsafe { export((&raw mut fd).cast(), window.start as u64, window.len, kind, flags) }
        })?;
        match self.check_status(EXPORT, code) {
            // SAFETY: the driver has just created the descriptor for this call; no other code owns it.
            Ok(()) => unsafe { DmaBuf::from_driver(EXPORT, fd, 0, window, len) }.map(DmaBufExport::Given),
            Err(error) if matches!(code, status::NOT_SUPPORTED | status::INVALID_VALUE) => {
                Ok(DmaBufExport::Refused(ExportRefusal::Memory(error)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Allocates memory on the device of the thread's context. Without a context it uses device 0 and retains that device's primary context,
    /// because the memory is freed with its context. Returns the address, and whether the context was retained.
    pub(super) fn allocate(&self, len: usize) -> Result<(usize, bool), DriverCallError> {
        let mut at = 0;
        let mut call = || {
            // SAFETY: the call writes an address to a local variable.
            unsafe { (self.calls.mem_alloc)(&raw mut at, len) }
        };
        let code = call();
        if code != status::INVALID_CONTEXT {
            self.check_status("cuMemAlloc", code)?;
            return Ok((at as usize, false));
        }
        self.retain_context(self.device_handle(0)?)?;
        let code = self.with_device_context(0, call).and_then(|code| self.check_status("cuMemAlloc", code));
        if code.is_err() {
            self.release_context(0);
        }
        code.map(|()| (at as usize, true))
    }

    /// Frees memory of a device, and releases the context that [`CudaLibrary::allocate`] retained if `keeps` is set.
    pub(super) fn free(&self, device: u32, addr: usize, keeps: bool) -> Result<(), DriverCallError> {
        let code = self.in_context(device, || {
            // SAFETY: the memory was allocated by `allocate`, and its last user has been dropped.
            unsafe { (self.calls.mem_free)(addr as u64) }
        });
        if keeps {
            self.release_context(0);
        }
        self.check_status("cuMemFree", code?)
    }

    /// Retains a device's primary context.
    fn retain_context(&self, device: calls::Device) -> Result<*mut calls::Context, DriverCallError> {
        let mut context = ptr::null_mut();
        // SAFETY: the call writes a handle to a local variable; the caller releases the context.
        let code = unsafe { (self.calls.device_primary_ctx_retain)(&raw mut context, device) };
        self.check_status("cuDevicePrimaryCtxRetain", code).map(|()| context)
    }

    /// Retains the primary context of a device, so that it persists between calls.
    pub(crate) fn keep_context(&self, ordinal: u32) -> Result<(), DriverCallError> {
        self.retain_context(self.device_handle(ordinal)?).map(drop)
    }

    /// Retains the primary context of a device and returns it.
    pub(super) fn retained_context(&self, ordinal: u32) -> Result<*mut calls::Context, DriverCallError> {
        self.retain_context(self.device_handle(ordinal)?)
    }

    /// Runs `call` in a context that the caller has retained.
    pub(super) fn with_context<T>(
        &self,
        mut context: *mut calls::Context,
        call: impl FnOnce() -> T,
    ) -> Result<T, DriverCallError> {
        // SAFETY: the caller has retained the context.
        let pushed = unsafe { (self.calls.ctx_push_current)(context) };
        self.check_status("cuCtxPushCurrent", pushed)?;
        let result = call();
        // SAFETY: the context pushed above is on top of the stack, because `call` leaves the stack as it is. The pop cannot fail then.
        let _ = unsafe { (self.calls.ctx_pop_current)(&raw mut context) };
        Ok(result)
    }

    /// Releases a context that was retained by [`CudaLibrary::keep_context`] or [`CudaLibrary::retained_context`].
    pub(crate) fn release_context(&self, ordinal: u32) {
        if let Ok(device) = self.device_handle(ordinal).or_else(|_| self.device_handle(ordinal)) {
            // SAFETY: the context was retained before. The caller could not act on an error.
            let _ = unsafe { (self.calls.device_primary_ctx_release)(device) };
        }
    }

    /// Returns whether a device can export memory.
    fn can_export(&self, device: u32) -> Result<bool, DriverCallError> {
        let device = self.device_handle(device)?;
        let mut can = 0;
        let asked = calls::DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        // SAFETY: the call writes a number to a local variable; the driver returned the device handle.
        let code = unsafe { (self.calls.device_get_attribute)(&raw mut can, asked, device) };
        // A driver that does not know the attribute does not support dma-bufs either.
        if code == status::INVALID_VALUE {
            return Ok(false);
        }
        self.check_status("cuDeviceGetAttribute", code)?;
        Ok(can != 0)
    }

    /// Returns the driver's handle of a device.
    pub(super) fn device_handle(&self, ordinal: u32) -> Result<calls::Device, DriverCallError> {
        let mut device = 0;
        // SAFETY: the call writes a handle to a local variable.
        let code =
            unsafe { (self.calls.device_get)(&raw mut device, c_int::try_from(ordinal).unwrap_or(-1)) };
        self.check_status("cuDeviceGet", code)?;
        Ok(device)
    }

    /// Runs `call`, and runs it again in the device's primary context if the thread has no suitable one.
    pub(super) fn in_context(
        &self,
        device: u32,
        mut call: impl FnMut() -> Status,
    ) -> Result<Status, DriverCallError> {
        match call() {
            status::INVALID_CONTEXT => self.with_device_context(device, call),
            code => Ok(code),
        }
    }

    /// Runs `call` in the device's primary context, which is retained for the call.
    pub(crate) fn with_device_context<T>(
        &self,
        device: u32,
        call: impl FnOnce() -> T,
    ) -> Result<T, DriverCallError> {
        let device = self.device_handle(device)?;
        let mut context = self.retain_context(device)?;
        // SAFETY: the context stays retained until it has been popped.
        let pushed = unsafe { (self.calls.ctx_push_current)(context) };
        let result = self.check_status("cuCtxPushCurrent", pushed).map(|()| call());
        if pushed == status::SUCCESS {
            // SAFETY: the context pushed above is on top of the stack, because `call` leaves the stack as it is. The pop cannot fail then.
            let _ = unsafe { (self.calls.ctx_pop_current)(&raw mut context) };
        }
        // SAFETY: the context was retained above. The caller could not act on an error.
        let _ = unsafe { (self.calls.device_primary_ctx_release)(device) };
        result
    }

    pub(crate) fn check_status(&self, call: &'static str, code: Status) -> Result<(), DriverCallError> {
        if code == status::SUCCESS {
            return Ok(());
        }
        Err(DriverCallError { call, code, name: self.error_name(code), remedy: error_remedy(code) })
    }

    /// Returns the driver's name of a code.
    fn error_name(&self, code: Status) -> String {
        let mut name = ptr::null();
        // SAFETY: the call writes a pointer to a local variable.
        let known = unsafe { (self.calls.get_error_name)(code, &raw mut name) } == status::SUCCESS;
        if !known || name.is_null() {
            return "an error without a name".to_owned();
        }
        // SAFETY: the driver returned a zero-terminated string that it never frees.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// Formats 12040 as `12.4`.
fn format_version(counted: c_int) -> String {
    format!("{}.{}", counted / 1000, counted % 1000 / 10)
}

fn error_remedy(code: Status) -> &'static str {
    match code {
        status::INVALID_VALUE => {
            "the memory may have been freed, or is of a kind that this call does not support"
        }
        status::OUT_OF_MEMORY => "free memory on the device, or use another one",
        status::NOT_INITIALIZED | status::DEINITIALIZED => {
            "the process is ending, or was forked after CUDA was initialised; initialise it in the child"
        }
        status::STUB_LIBRARY => "a stub of libcuda.so.1 was loaded; remove it from LD_LIBRARY_PATH",
        status::INVALID_CONTEXT => "make a context of the device current in the calling thread",
        status::NOT_SUPPORTED => "the driver or the kernel is too old, or the device does not support it",
        status::SYSTEM_NOT_READY => "start the fabric manager, or wait until the system is up (nvidia-smi)",
        status::SYSTEM_DRIVER_MISMATCH => "library and kernel driver differ; reboot or load the right module",
        _ => "see nvidia-smi and the kernel's log (dmesg)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_symbol() {
        // Every field of the table is a pointer.
        assert_eq!(size_of::<Calls>() / size_of::<usize>(), calls::SYMBOLS.len());
        let lines = include_str!("cuda.rs").lines().map(str::split_whitespace).map(Vec::from_iter);
        let mut loaded = 0;
        for line in lines {
            let [field, kind, symbol] = line[..] else { continue };
            let Some(symbol) = symbol.trim_end_matches(';').strip_prefix("c\"cu") else { continue };
            let symbol = symbol.trim_end_matches('"');
            assert_eq!(kind, symbol.trim_end_matches("_v2"));
            assert_eq!(field.replace('_', ""), kind.to_lowercase());
            assert_eq!(calls::SYMBOLS[loaded].to_str(), Ok(&*format!("cu{symbol}")));
            loaded += 1;
        }
        assert_eq!(loaded, calls::SYMBOLS.len());
    }

    #[test]
    fn versions_are_formatted_as_major_and_minor() {
        assert_eq!(
            [format_version(11_070), format_version(12_040), format_version(13_000)],
            ["11.7", "12.4", "13.0"]
        );
    }
}
