//! Fake GPU drivers: tables of functions that record calls and return configured results. A driver's functions have no argument for state, so
//! each thread has its own fake. Tests of other crates may include this file.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{IntoRawFd as _, OwnedFd};

use trunkline_sys::{cuda, hip};

/// Memory that the fake driver reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) device: i32,
    /// The driver's number of the memory type.
    pub(crate) kind: u32,
    pub(crate) managed: bool,
    pub(crate) sync: bool,
}

impl Known {
    /// Memory of a device.
    pub(crate) fn device(device: i32, base: usize, len: usize) -> Self {
        Self { base, len, device, kind: 2, managed: false, sync: false }
    }
}

/// The configured results, and the recorded calls.
#[derive(Debug)]
pub(crate) struct Fake {
    /// Calls, in order.
    pub(crate) calls: Vec<String>,
    pub(crate) version: c_int,
    pub(crate) devices: c_int,
    pub(crate) init: u32,
    /// The status of an address query.
    pub(crate) look: u32,
    /// The status of setting an attribute (CUDA).
    pub(crate) set: u32,
    /// Flags of each context (CUDA), and the status of setting them.
    pub(crate) flags: c_uint,
    pub(crate) set_flags: u32,
    /// The status of an allocation range query (HIP).
    pub(crate) range: u32,
    pub(crate) memory: Vec<Known>,
    /// The status of an allocation, which returns the first range of `memory`.
    pub(crate) alloc: u32,
    /// Whether devices export.
    pub(crate) exports: c_int,
    /// The status of an export.
    pub(crate) export: u32,
    /// Length of the exported dma-buf, in bytes; the requested length if `None`.
    pub(crate) size: Option<u64>,
    /// Where in the dma-buf the bytes are (HIP).
    pub(crate) offset: u64,
    /// Name of the memory file that stands for the dma-buf.
    pub(crate) name: String,
    /// Whether exports return an invalid descriptor.
    pub(crate) no_descriptor: bool,
    /// Whether calls fail in a thread without a context.
    pub(crate) needs_context: bool,
    /// Contexts that are pushed, and contexts that are retained.
    pub(crate) pushed: usize,
    pub(crate) retained: usize,
}

impl Fake {
    /// Creates a driver with two devices that accepts every call.
    pub(crate) fn new(version: c_int) -> Self {
        Self {
            calls: Vec::new(),
            version,
            devices: 2,
            init: 0,
            look: 0,
            set: 0,
            flags: 8,
            set_flags: 0,
            range: 0,
            memory: Vec::new(),
            alloc: 0,
            exports: 1,
            export: 0,
            size: None,
            offset: 0,
            name: "trunkline.fake".to_owned(),
            no_descriptor: false,
            needs_context: false,
            pushed: 0,
            retained: 0,
        }
    }

    fn find(&self, addr: usize) -> Option<Known> {
        self.memory.iter().copied().find(|m| addr >= m.base && addr - m.base < m.len)
    }

    /// A memory file in place of a dma-buf.
    fn make(&self, size: usize) -> c_int {
        if self.no_descriptor {
            return -1;
        }
        let flags = rustix::fs::MemfdFlags::empty();
        let fd: OwnedFd = rustix::fs::memfd_create(&*self.name, flags).expect("creating the memory file");
        File::from(fd.try_clone().expect("duplicating the descriptor"))
            .set_len(self.size.unwrap_or(size as u64))
            .expect("setting its size");
        fd.into_raw_fd()
    }
}

thread_local! {
    static FAKE: RefCell<Option<Fake>> = const { RefCell::new(None) };
}

/// Installs the fake of this thread.
pub(crate) fn set(fake: Fake) {
    FAKE.set(Some(fake));
}

/// Reads or changes this thread's fake.
pub(crate) fn with<T>(act: impl FnOnce(&mut Fake) -> T) -> T {
    FAKE.with_borrow_mut(|fake| act(fake.as_mut().expect("this thread has no fake")))
}

/// Takes the calls recorded since the last call.
pub(crate) fn asked() -> Vec<String> {
    with(|fake| std::mem::take(&mut fake.calls))
}

fn note(call: impl Into<String>) {
    with(|fake| fake.calls.push(call.into()));
}

fn write<T>(to: *mut T, value: T) {
    // SAFETY: the caller passes a valid address, as the call's contract requires.
    unsafe { to.write(value) };
}

/// NVIDIA's driver.
pub(crate) fn cuda_calls() -> cuda::Calls {
    cuda::Calls {
        init: cu_init,
        driver_get_version: cu_driver_get_version,
        device_get_count: cu_device_get_count,
        device_get: cu_device_get,
        device_get_attribute: cu_device_get_attribute,
        device_primary_ctx_retain: cu_device_primary_ctx_retain,
        device_primary_ctx_release: cu_device_primary_ctx_release,
        ctx_push_current: cu_ctx_push_current,
        ctx_pop_current: cu_ctx_pop_current,
        pointer_get_attributes: cu_pointer_get_attributes,
        pointer_set_attribute: cu_pointer_set_attribute,
        mem_alloc: cu_mem_alloc,
        mem_free: cu_mem_free,
        get_error_name: cu_get_error_name,
        mem_get_handle_for_address_range: Some(cu_mem_get_handle_for_address_range),
        ctx_get_flags: Some(cu_ctx_get_flags),
        ctx_set_flags: Some(cu_ctx_set_flags),
    }
}

extern "C" fn cu_init(flags: c_uint) -> cuda::Status {
    note(format!("cuInit({flags})"));
    with(|fake| fake.init)
}

extern "C" fn cu_driver_get_version(version: *mut c_int) -> cuda::Status {
    note("cuDriverGetVersion");
    write(version, with(|fake| fake.version));
    0
}

extern "C" fn cu_device_get_count(count: *mut c_int) -> cuda::Status {
    note("cuDeviceGetCount");
    write(count, with(|fake| fake.devices));
    0
}

extern "C" fn cu_device_get(device: *mut cuda::Device, ordinal: c_int) -> cuda::Status {
    note(format!("cuDeviceGet({ordinal})"));
    // Handles of devices differ from their ordinals.
    write(device, ordinal + 100);
    if ordinal < with(|fake| fake.devices) { 0 } else { 101 }
}

extern "C" fn cu_device_get_attribute(
    value: *mut c_int,
    attribute: c_uint,
    device: cuda::Device,
) -> cuda::Status {
    note(format!("cuDeviceGetAttribute({attribute}, {device})"));
    write(value, with(|fake| fake.exports));
    0
}

extern "C" fn cu_device_primary_ctx_retain(
    context: *mut *mut cuda::Context,
    device: cuda::Device,
) -> cuda::Status {
    note(format!("cuDevicePrimaryCtxRetain({device})"));
    with(|fake| fake.retained += 1);
    write(context, std::ptr::without_provenance_mut(0xc0 + device as usize));
    0
}

extern "C" fn cu_device_primary_ctx_release(device: cuda::Device) -> cuda::Status {
    note(format!("cuDevicePrimaryCtxRelease({device})"));
    with(|fake| fake.retained -= 1);
    0
}

extern "C" fn cu_ctx_push_current(context: *mut cuda::Context) -> cuda::Status {
    note(format!("cuCtxPushCurrent({:#x})", context.addr()));
    with(|fake| fake.pushed += 1);
    0
}

extern "C" fn cu_ctx_pop_current(_context: *mut *mut cuda::Context) -> cuda::Status {
    note("cuCtxPopCurrent");
    with(|fake| fake.pushed -= 1);
    0
}

extern "C" fn cu_pointer_get_attributes(
    count: c_uint,
    attributes: *mut c_uint,
    data: *mut *mut c_void,
    ptr: cuda::DevicePtr,
) -> cuda::Status {
    note(format!("cuPointerGetAttributes({count}, {ptr:#x})"));
    let (answer, found) = with(|fake| (fake.look, fake.find(ptr as usize)));
    if answer != 0 {
        return answer;
    }
    // A query of the range needs a context.
    if count > 3 && no_context() {
        return 201;
    }
    // SAFETY: the caller passes `count` attributes, as the call's contract requires.
    let attributes = unsafe { std::slice::from_raw_parts(attributes, count as usize) };
    // SAFETY: the caller passes one result address per attribute.
    let places = unsafe { std::slice::from_raw_parts(data, count as usize) };
    for (&attribute, &place) in attributes.iter().zip(places) {
        let Some(found) = found else { continue };
        // Each result has the width that CUDA documents.
        match attribute {
            2 => write(place.cast(), found.kind),
            6 => write(place.cast(), c_uint::from(found.sync)),
            8 => write(place.cast(), found.managed),
            9 => write(place.cast(), found.device),
            11 => write(place.cast(), found.base as c_ulonglong),
            12 => write(place.cast(), found.len),
            other => panic!("attribute {other}"),
        }
    }
    0
}

/// Returns whether the call needs a context and has none.
fn no_context() -> bool {
    with(|fake| fake.needs_context && fake.pushed == 0)
}

extern "C" fn cu_pointer_set_attribute(
    value: *const c_void,
    attribute: c_uint,
    ptr: cuda::DevicePtr,
) -> cuda::Status {
    // SAFETY: the one attribute that is ever set is an unsigned int.
    let value = unsafe { value.cast::<c_uint>().read() };
    note(format!("cuPointerSetAttribute({value}, {attribute}, {ptr:#x})"));
    if no_context() { 201 } else { with(|fake| fake.set) }
}

extern "C" fn cu_ctx_get_flags(flags: *mut c_uint) -> cuda::Status {
    note("cuCtxGetFlags");
    write(flags, with(|fake| fake.flags));
    if no_context() { 201 } else { 0 }
}

extern "C" fn cu_ctx_set_flags(flags: c_uint) -> cuda::Status {
    note(format!("cuCtxSetFlags({flags:#x})"));
    with(|fake| {
        if fake.set_flags == 0 {
            fake.flags = flags;
        }
        fake.set_flags
    })
}

extern "C" fn cu_get_error_name(error: cuda::Status, name: *mut *const c_char) -> cuda::Status {
    let Some(text) = text_of(error) else { return 1 };
    write(name, text.as_ptr());
    0
}

/// The export of both drivers.
fn text_of(error: u32) -> Option<&'static CStr> {
    Some(match error {
        1 => c"INVALID_VALUE",
        3 => c"NOT_INITIALIZED",
        100 => c"NO_DEVICE",
        201 => c"INVALID_CONTEXT",
        801 => c"NOT_SUPPORTED",
        802 => c"SYSTEM_NOT_READY",
        _ => return None,
    })
}

extern "C" fn cu_mem_get_handle_for_address_range(
    handle: *mut c_void,
    ptr: cuda::DevicePtr,
    size: usize,
    handle_type: c_uint,
    flags: c_ulonglong,
) -> cuda::Status {
    note(format!("cuMemGetHandleForAddressRange({ptr:#x}, {size}, {handle_type}, {flags})"));
    if no_context() {
        return 201;
    }
    let (answer, fd) = with(|fake| (fake.export, (fake.export == 0).then(|| fake.make(size))));
    if let Some(fd) = fd {
        write(handle.cast::<c_int>(), fd);
    }
    answer
}

/// Returns the address of an allocation.
fn first() -> usize {
    with(|fake| fake.memory.first().map_or(0, |known| known.base))
}

extern "C" fn cu_mem_alloc(ptr: *mut cuda::DevicePtr, size: usize) -> cuda::Status {
    note(format!("cuMemAlloc({size})"));
    if no_context() {
        return 201;
    }
    write(ptr, first() as u64);
    with(|fake| fake.alloc)
}

extern "C" fn cu_mem_free(ptr: cuda::DevicePtr) -> cuda::Status {
    note(format!("cuMemFree({ptr:#x})"));
    if no_context() { 201 } else { 0 }
}

extern "C" fn hip_malloc(ptr: *mut *mut c_void, size: usize) -> hip::Status {
    note(format!("hipMalloc({size})"));
    write(ptr, std::ptr::with_exposed_provenance_mut(first()));
    with(|fake| fake.alloc)
}

extern "C" fn hip_free(ptr: *mut c_void) -> hip::Status {
    note(format!("hipFree({:#x})", ptr.addr()));
    0
}

/// AMD's runtime.
pub(crate) fn hip_calls() -> hip::Calls {
    hip::Calls {
        init: hip_init,
        runtime_get_version: hip_runtime_get_version,
        get_device_count: hip_get_device_count,
        pointer_get_attributes: hip_pointer_get_attributes,
        mem_get_address_range: hip_mem_get_address_range,
        malloc: hip_malloc,
        free: hip_free,
        get_error_name: hip_get_error_name,
        export_dmabuf: Some(hsa_export_dmabuf),
    }
}

extern "C" fn hip_init(flags: c_uint) -> hip::Status {
    note(format!("hipInit({flags})"));
    with(|fake| fake.init)
}

extern "C" fn hip_runtime_get_version(version: *mut c_int) -> hip::Status {
    note("hipRuntimeGetVersion");
    write(version, with(|fake| fake.version));
    0
}

extern "C" fn hip_get_device_count(count: *mut c_int) -> hip::Status {
    note("hipGetDeviceCount");
    let devices = with(|fake| fake.devices);
    write(count, devices);
    if devices == 0 { 100 } else { 0 }
}

extern "C" fn hip_pointer_get_attributes(
    attributes: *mut hip::PointerAttributes,
    ptr: *const c_void,
) -> hip::Status {
    note(format!("hipPointerGetAttributes({:#x})", ptr.addr()));
    let (answer, found) = with(|fake| (fake.look, fake.find(ptr.addr())));
    if answer != 0 {
        return answer;
    }
    let found = found.unwrap_or(Known { base: 0, len: 0, device: -2, kind: 0, managed: false, sync: false });
    let null = std::ptr::null_mut();
    write(
        attributes,
        hip::PointerAttributes {
            kind: found.kind,
            device: found.device,
            device_pointer: null,
            host_pointer: null,
            is_managed: c_int::from(found.managed),
            allocation_flags: 0,
        },
    );
    0
}

extern "C" fn hip_mem_get_address_range(
    base: *mut *mut c_void,
    size: *mut usize,
    ptr: *mut c_void,
) -> hip::Status {
    note(format!("hipMemGetAddressRange({:#x})", ptr.addr()));
    let (answer, found) = with(|fake| (fake.range, fake.find(ptr.addr())));
    if let Some(found) = found {
        write(base, std::ptr::with_exposed_provenance_mut(found.base));
        write(size, found.len);
    }
    answer
}

extern "C" fn hip_get_error_name(error: hip::Status) -> *const c_char {
    text_of(error).map_or(std::ptr::null(), CStr::as_ptr)
}

extern "C" fn hsa_export_dmabuf(
    ptr: *const c_void,
    size: usize,
    dmabuf: *mut c_int,
    offset: *mut u64,
) -> hip::Status {
    note(format!("hsa_amd_portable_export_dmabuf({:#x}, {size})", ptr.addr()));
    let (answer, fd, at) =
        with(|fake| (fake.export, (fake.export == 0).then(|| fake.make(size)), fake.offset));
    if let Some(fd) = fd {
        write(dmabuf, fd);
        write(offset, at);
    }
    answer
}
