//! Memory of AMD's devices, by the HIP runtime.
//!
//! A device is made the thread's current device for a call, and the previous one is restored. Imported memory is mapped, once per device, by
//! the device that copies it: the device of this process's buffer, or for memory of the host the device that was opened.
//!
//! Virtual memory (`hipMemMap`) and memory of pools (`hipMallocAsync`) is exported if the runtime allows it. Memory that it rejects, and ranges
//! over several allocations, are not shared here. The runtime's ids have 32 bits, which [`ids`] extends. A handle is created once per
//! allocation and kept ([`exports`]), because the runtime may hold the memory forever for each handle.

mod calls;
mod copy_slots;
mod exports;
mod ids;

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use trunkline_sys::hip::status;
use trunkline_sys::hip_ipc::{
    Calls, HOST_REGISTER_PORTABLE, HipIpcMemHandle, HipStream, IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
    POINTER_ATTRIBUTE_BUFFER_ID,
};

use self::calls::open_error;
use self::exports::HipHandles;
use self::ids::AllocationEpochs;
use super::driver_memory::{
    CopyDirection, CopySlots, CopyStreams as _, DriverMemory, IpcDriver, PerDevice, RawCopy, SealedHandle,
    choose_device,
};
use super::error::{CallFailure, ExportError, HandleOpenError};
use super::{HandlePassing, IpcAllocation, IpcAllocationId, IpcCaps, IpcHandle, NoMemory};
use crate::gpu::hip::HipLibrary as Library;
use crate::gpu::{DriverCallError, GpuUnavailable, LookError, PointerKind};

/// Memory of AMD's devices.
pub type HipMemory = DriverMemory<HipDriver>;

/// The runtime, and the device for which imported memory is mapped.
pub struct HipDriver {
    hip: Library,
    calls: Calls,
    device: u32,
    /// The streams of those devices that have copied.
    streams: PerDevice<HipStream>,
    slots: CopySlots<Self>,
    ids: AllocationEpochs,
    exports: Mutex<HipHandles>,
}

// SAFETY: any thread may call the runtime, which locks its own state of a stream.
unsafe impl Send for HipDriver {}
// SAFETY: as above.
unsafe impl Sync for HipDriver {}

impl HipDriver {
    fn device_stream(&self, device: u32) -> Result<*mut HipStream, DriverCallError> {
        self.streams.get(device, || self.make_stream(device))
    }

    /// Runs `call` with `device` as the thread's device.
    fn with_device<T>(&self, device: u32, call: impl FnOnce() -> T) -> Result<T, DriverCallError> {
        let mut before: c_int = 0;
        // SAFETY: the call writes a number to a local variable.
        let code = unsafe { (self.calls.get_device)(&raw mut before) };
        self.hip.check_status("hipGetDevice", code)?;
        let wanted = device.cast_signed();
        if before == wanted {
            return Ok(call());
        }
        // SAFETY: the call takes a number and rejects invalid ones.
        let code = unsafe { (self.calls.set_device)(wanted) };
        self.hip.check_status("hipSetDevice", code)?;
        let result = call();
        // SAFETY: the call takes a number; this device was the thread's before.
        let _ = unsafe { (self.calls.set_device)(before) };
        Ok(result)
    }

    fn call_driver(
        &self,
        device: u32,
        name: &'static str,
        call: impl FnOnce() -> c_uint,
    ) -> Result<(), DriverCallError> {
        self.with_device(device, call).and_then(|code| self.hip.check_status(name, code))
    }

    fn query_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, CallFailure> {
        let found = match self.hip.query_pointer(addr) {
            Ok(found) => found,
            // Runtimes before 6.2 return this for an unknown address.
            Err(LookError::Driver(error)) if error.code == status::INVALID_VALUE => return Ok(None),
            Err(LookError::Driver(error)) => return Err(error.into()),
            Err(LookError::Unfamiliar { .. }) => return Ok(None),
        };
        let (PointerKind::Device { device, .. }, Some(range)) = (found.kind, found.allocation) else {
            return Ok(None);
        };
        let mut id = 0_u32;
        let at = ptr::with_exposed_provenance_mut::<c_void>(addr);
        // SAFETY: the value of this attribute has 32 bits, which `id` has room for; the runtime does not access the address.
        let code = unsafe {
            (self.calls.pointer_get_attribute)((&raw mut id).cast(), POINTER_ATTRIBUTE_BUFFER_ID, at)
        };
        self.hip.check_status("hipPointerGetAttribute", code)?;
        let id = IpcAllocationId(self.ids.extend_id(id));
        Ok(Some(IpcAllocation { base: range.base, len: range.len, id, device }))
    }

    fn close_handle(&self, addr: usize, device: u32) -> Result<(), DriverCallError> {
        self.call_driver(device, "hipIpcCloseMemHandle", || {
            // SAFETY: the runtime rejects addresses that it has not mapped.
            unsafe { (self.calls.ipc_close_mem_handle)(ptr::with_exposed_provenance_mut(addr)) }
        })
    }
}

impl IpcDriver for HipDriver {
    /// The device by which the memory is mapped.
    type Opened = u32;

    const KINDS: &'static [u8] = &[IpcHandle::HIP];

    fn open_for_device(device: u32) -> Result<Self, NoMemory> {
        let hip = Library::new(crate::gpu::hip::load_calls()?)?;
        let calls = calls::load_calls()?;
        if device >= hip.device_count() {
            return Err(NoMemory::Device { vendor: "AMD", device, devices: hip.device_count() });
        }
        let streams = PerDevice::for_devices(hip.device_count());
        let slots = CopySlots::for_devices(hip.device_count(), device);
        let this = Self {
            hip,
            calls,
            device,
            streams,
            slots,
            ids: AllocationEpochs::default(),
            exports: Mutex::default(),
        };
        this.device_stream(device).map_err(GpuUnavailable::Driver)?;
        this.slots.prepare_default(&this).map_err(GpuUnavailable::Driver)?;
        Ok(this)
    }

    fn caps(&self) -> IpcCaps {
        IpcCaps {
            maps: true,
            by_bytes: true,
            by_descriptor: false,
            opens_once: true,
            refuses_overlap: true,
            outlives_free: true,
            tells_descriptors: false,
        }
    }

    fn find_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, CallFailure> {
        self.query_allocation(addr)
    }

    fn export_handle(
        &self,
        of: &IpcAllocation,
        how: HandlePassing,
        sealed: &mut SealedHandle,
    ) -> Result<Option<OwnedFd>, ExportError> {
        if how == HandlePassing::Descriptor {
            return Err(ExportError::Passing("memory of AMD's devices is passed by the bytes of its handle"));
        }
        let mut exports = self.exports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = exports.get(of) {
            sealed.set_bytes(made);
            return Ok(None);
        }
        let mut handle = HipIpcMemHandle { reserved: [0; 64] };
        let got = self.call_driver(of.device, "hipIpcGetMemHandle", || {
            let at = ptr::with_exposed_provenance_mut(of.base);
            // SAFETY: the call writes 64 bytes to a local variable; it does not access the address.
            unsafe { (self.calls.ipc_get_mem_handle)(&raw mut handle, at) }
        });
        got.map_err(|error| match error.code {
            status::OUT_OF_MEMORY => ExportError::Exhausted(error.into()),
            _ => ExportError::Other(error.into()),
        })?;
        let bytes = handle.reserved.map(i8::cast_unsigned);
        exports.add_handle(of, bytes);
        sealed.set_bytes(bytes);
        Ok(None)
    }

    fn refuses_overlap(&self, _kind: u8) -> bool {
        true
    }

    fn device_for(&self, own: Option<u32>) -> Option<u32> {
        choose_device(self.hip.device_count(), self.device, own)
    }

    fn open_handle(
        &self,
        sealed: &SealedHandle,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, u32), HandleOpenError> {
        let device = device.unwrap_or(self.device);
        if descriptor.is_some() {
            return Err(HandleOpenError::Descriptor("memory of AMD's devices has no descriptor"));
        }
        let handle = HipIpcMemHandle { reserved: sealed.driver_bytes().map(u8::cast_signed) };
        let mut at = ptr::null_mut();
        let opened = self.call_driver(device, "hipIpcOpenMemHandle", || {
            // SAFETY: the call writes an address to a local variable; the runtime validates the handle.
            unsafe { (self.calls.ipc_open_mem_handle)(&raw mut at, handle, IPC_MEM_LAZY_ENABLE_PEER_ACCESS) }
        });
        opened.map_err(open_error)?;
        Ok((at.expose_provenance(), device))
    }

    /// Does not query the allocation id, because imported memory need not have one.
    fn maps_contiguously(&self, addr: usize, len: usize) -> Result<bool, CallFailure> {
        match self.hip.query_pointer(addr) {
            Ok(found) => Ok(found.allocation.is_some_and(|found| found.contains_range(addr, len))),
            Err(LookError::Driver(error)) => Err(error.into()),
            Err(LookError::Unfamiliar { .. }) => Ok(false),
        }
    }

    fn unmap_import(&self, addr: usize, device: &u32) -> Result<(), CallFailure> {
        Ok(self.close_handle(addr, *device)?)
    }

    unsafe fn transfer(
        &self,
        copy: RawCopy,
        _direction: CopyDirection,
        device: Option<u32>,
    ) -> Result<(), CallFailure> {
        if copy.len == 0 {
            return Ok(());
        }
        let device = device.unwrap_or(self.device);
        let stream = self.device_stream(device)?;
        // SAFETY: the caller guarantees the memory until this call returns, and the copy has completed when the stream is synchronized.
        unsafe { self.begin_copy(device, stream, copy) }?;
        Ok(self.synchronize_stream(device, stream)?)
    }

    fn pin_host(&self, addr: usize, len: usize) -> Result<bool, CallFailure> {
        self.call_driver(self.device, "hipHostRegister", || {
            let at = ptr::with_exposed_provenance_mut(addr);
            // SAFETY: the caller holds this range of the host until it is unpinned; the runtime only pins its pages.
            unsafe { (self.calls.host_register)(at, len, HOST_REGISTER_PORTABLE) }
        })?;
        Ok(true)
    }

    fn unpin_host(&self, addr: usize) {
        // Memory that cannot be unregistered stays pinned until the process ends.
        let _ = self.call_driver(self.device, "hipHostUnregister", || {
            // SAFETY: `pin_host` pinned the range, and it is still mapped.
            unsafe { (self.calls.host_unregister)(ptr::with_exposed_provenance_mut(addr)) }
        });
    }

    fn copy_slots(&self) -> &CopySlots<Self> {
        &self.slots
    }

    fn alloc(&self, len: usize) -> Result<usize, CallFailure> {
        Ok(self.with_device(self.device, || self.hip.allocate(len))??)
    }

    fn free(&self, addr: usize) -> Result<(), CallFailure> {
        Ok(self.hip.free(addr)?)
    }
}

impl Drop for HipDriver {
    fn drop(&mut self) {
        std::mem::replace(&mut self.slots, CopySlots::for_devices(0, 0)).end_slots(self);
        self.streams.take_all().for_each(|(device, stream)| self.end_stream(device, stream));
    }
}

impl fmt::Debug for HipDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HIP, device {}", self.device)
    }
}
