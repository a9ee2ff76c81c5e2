//! Memory of AMD's devices, by the HIP runtime.
//!
//! A device is made the thread's for a call and the one before given back. Memory of others is mapped by the device that copies it, of each
//! such device anew: by the one that a buffer of this process is of, and for memory of the host by the one that was opened. Virtual memory
//! (`hipMemMap`) and memory of pools (`hipMallocAsync`) is exported where the runtime does it; what it refuses, and bytes of several
//! allocations, go another way. Ids have 32 bits there, so [`ids`] names them. A handle is
//! made once an allocation and kept ([`exports`]): with each one that is made the runtime may hold the memory for ever.

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
use self::exports::Exports;
use self::ids::Ids;
use super::driven::{CopySlots, CopyStreams as _, Driven, Driver, Each, Sealed, Way, among};
use super::error::{Cause, ExportError, OpenError};
use super::{Allocation, AllocationId, Caps, Handle, NoMemory, Passing, planted};
use crate::gpu::hip::Hip as Library;
use crate::gpu::{CallError, LookError, Missing, PointerKind};

/// Memory of AMD's devices.
pub type Hip = Driven<HipDriver>;

/// The runtime, and the device that memory of others is mapped for.
pub struct HipDriver {
    hip: Library,
    calls: Calls,
    device: u32,
    /// Of those devices that have copied.
    streams: Each<HipStream>,
    slots: CopySlots<Self>,
    ids: Ids,
    exports: Mutex<Exports>,
}

// SAFETY: the runtime may be called by any thread, and locks what it keeps for a stream.
unsafe impl Send for HipDriver {}
// SAFETY: as above.
unsafe impl Sync for HipDriver {}

impl HipDriver {
    fn stream(&self, device: u32) -> Result<*mut HipStream, CallError> {
        self.streams.get(device, || self.make_stream(device))
    }

    /// Calls with a device as the thread's.
    fn within<T>(&self, device: u32, call: impl FnOnce() -> T) -> Result<T, CallError> {
        let mut before: c_int = 0;
        // SAFETY: writes a number to a place of ours.
        let code = unsafe { (self.calls.get_device)(&raw mut before) };
        self.hip.check("hipGetDevice", code)?;
        let wanted = device.cast_signed();
        if before == wanted {
            return Ok(call());
        }
        // SAFETY: takes a number.
        let code = unsafe { (self.calls.set_device)(wanted) };
        self.hip.check("hipSetDevice", code)?;
        let result = call();
        if !planted("mem-hip-keeps-devices") {
            // SAFETY: as above; it was the thread's before.
            let _ = unsafe { (self.calls.set_device)(before) };
        }
        Ok(result)
    }

    fn call(&self, device: u32, name: &'static str, call: impl FnOnce() -> c_uint) -> Result<(), CallError> {
        self.within(device, call).and_then(|code| self.hip.check(name, code))
    }

    fn look(&self, addr: usize) -> Result<Option<Allocation>, Cause> {
        let found = match self.hip.look(addr) {
            Ok(found) => found,
            // Runtimes before 6.2 say so of an address that they do not know.
            Err(LookError::Driver(error)) if error.code == status::INVALID_VALUE => return Ok(None),
            Err(LookError::Driver(error)) => return Err(error.into()),
            Err(LookError::Unfamiliar { .. }) => return Ok(None),
        };
        let (PointerKind::Device { device, .. }, Some(range)) = (found.kind, found.allocation) else {
            return Ok(None);
        };
        let mut id = 0_u32;
        let at = ptr::with_exposed_provenance_mut::<c_void>(addr);
        // SAFETY: this attribute is a number of 32 bits, and there is room for one; the address is only looked up.
        let code = unsafe {
            (self.calls.pointer_get_attribute)((&raw mut id).cast(), POINTER_ATTRIBUTE_BUFFER_ID, at)
        };
        self.hip.check("hipPointerGetAttribute", code)?;
        let id = AllocationId(self.ids.name(id));
        Ok(Some(Allocation { base: range.base, len: range.len, id, device }))
    }

    fn close_handle(&self, addr: usize, device: u32) -> Result<(), CallError> {
        self.call(device, "hipIpcCloseMemHandle", || {
            // SAFETY: the runtime knows what it has mapped, and refuses the rest.
            unsafe { (self.calls.ipc_close_mem_handle)(ptr::with_exposed_provenance_mut(addr)) }
        })
    }
}

impl Driver for HipDriver {
    /// The device that it is mapped by.
    type Opened = u32;

    const KINDS: &'static [u8] = &[Handle::HIP];

    fn begin(device: u32) -> Result<Self, NoMemory> {
        let hip = Library::new(crate::gpu::hip::load()?)?;
        let calls = calls::load()?;
        if device >= hip.devices() {
            return Err(NoMemory::Device { vendor: "AMD", device, devices: hip.devices() });
        }
        let streams = Each::of(hip.devices());
        let slots = CopySlots::of(hip.devices(), device);
        let this =
            Self { hip, calls, device, streams, slots, ids: Ids::default(), exports: Mutex::default() };
        this.stream(device).map_err(Missing::Driver)?;
        if !planted("mem-gpu-makes-streams-late") {
            this.slots.prepare(&this).map_err(Missing::Driver)?;
        }
        Ok(this)
    }

    fn caps(&self) -> Caps {
        Caps {
            maps: true,
            by_bytes: true,
            by_descriptor: false,
            opens_once: true,
            refuses_overlap: true,
            outlives_free: true,
            tells_descriptors: false,
        }
    }

    fn find(&self, addr: usize) -> Result<Option<Allocation>, Cause> {
        self.look(addr)
    }

    fn export(
        &self,
        of: &Allocation,
        how: Passing,
        sealed: &mut Sealed,
    ) -> Result<Option<OwnedFd>, ExportError> {
        if how == Passing::Descriptor {
            return Err(ExportError::Passing("memory of AMD's devices goes by the bytes of its handle"));
        }
        let mut exports = self.exports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = exports.get(of) {
            sealed.set_bytes(made);
            return Ok(None);
        }
        let mut handle = HipIpcMemHandle { reserved: [0; 64] };
        let got = self.call(of.device, "hipIpcGetMemHandle", || {
            let at = ptr::with_exposed_provenance_mut(of.base);
            // SAFETY: writes 64 bytes to a place of ours; the address is only looked up.
            unsafe { (self.calls.ipc_get_mem_handle)(&raw mut handle, at) }
        });
        got.map_err(|error| match error.code {
            status::OUT_OF_MEMORY => ExportError::Exhausted(error.into()),
            _ => ExportError::Other(error.into()),
        })?;
        let bytes = handle.reserved.map(i8::cast_unsigned);
        exports.add(of, bytes);
        sealed.set_bytes(bytes);
        Ok(None)
    }

    fn conflicts(&self, _kind: u8) -> bool {
        true
    }

    fn device_for(&self, own: Option<u32>) -> Option<u32> {
        let told_apart = among(self.hip.devices(), self.device, own);
        told_apart.filter(|_| !planted("mem-hip-maps-for-one-device"))
    }

    fn open(
        &self,
        sealed: &Sealed,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, u32), OpenError> {
        let device = device.unwrap_or(self.device);
        if descriptor.is_some() {
            return Err(OpenError::Descriptor("memory of AMD's devices has no descriptor"));
        }
        let handle = HipIpcMemHandle { reserved: sealed.bytes().map(u8::cast_signed) };
        let mut at = ptr::null_mut();
        let opened = self.call(device, "hipIpcOpenMemHandle", || {
            // SAFETY: writes an address to a place of ours; the runtime looks at the bytes of the handle.
            unsafe { (self.calls.ipc_open_mem_handle)(&raw mut at, handle, IPC_MEM_LAZY_ENABLE_PEER_ACCESS) }
        });
        opened.map_err(open_error)?;
        Ok((at.expose_provenance(), device))
    }

    /// Without its id: what is another process's need have none.
    fn maps(&self, addr: usize, len: usize) -> Result<bool, Cause> {
        match self.hip.look(addr) {
            Ok(found) => Ok(found.allocation.is_some_and(|found| found.holds(addr, len))),
            Err(LookError::Driver(error)) => Err(error.into()),
            Err(LookError::Unfamiliar { .. }) => Ok(false),
        }
    }

    fn close(&self, addr: usize, device: &u32) -> Result<(), Cause> {
        Ok(self.close_handle(addr, *device)?)
    }

    unsafe fn transfer(
        &self,
        to: usize,
        from: usize,
        len: usize,
        (_way, device): (Way, Option<u32>),
    ) -> Result<(), Cause> {
        if len == 0 {
            return Ok(());
        }
        let device = device.unwrap_or(self.device);
        let stream = self.stream(device)?;
        // SAFETY: the caller's promise; it has ended when the stream has been waited for.
        unsafe { self.begin_copy(device, stream, (to, from, len)) }?;
        Ok(self.wait(device, stream)?)
    }

    fn pin(&self, addr: usize, len: usize) -> Result<bool, Cause> {
        if planted("mem-hip-pins-nothing") {
            return Ok(false);
        }
        self.call(self.device, "hipHostRegister", || {
            let at = ptr::with_exposed_provenance_mut(addr);
            // SAFETY: a range of the host that the caller holds until it is unpinned; the runtime only pins its pages.
            unsafe { (self.calls.host_register)(at, len, HOST_REGISTER_PORTABLE) }
        })?;
        Ok(true)
    }

    fn unpin(&self, addr: usize) {
        // What cannot be given back is the runtime's until the process ends.
        let _ = self.call(self.device, "hipHostUnregister", || {
            // SAFETY: pinned above, and still mapped.
            unsafe { (self.calls.host_unregister)(ptr::with_exposed_provenance_mut(addr)) }
        });
    }

    fn slots(&self) -> &CopySlots<Self> {
        &self.slots
    }

    fn alloc(&self, len: usize) -> Result<usize, Cause> {
        Ok(self.within(self.device, || self.hip.allocate(len))??)
    }

    fn free(&self, addr: usize) -> Result<(), Cause> {
        Ok(self.hip.free(addr)?)
    }
}

impl Drop for HipDriver {
    fn drop(&mut self) {
        std::mem::replace(&mut self.slots, CopySlots::of(0, 0)).end(self);
        self.streams.take().for_each(|(device, stream)| self.end_stream(device, stream));
    }
}

impl fmt::Debug for HipDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HIP, device {}", self.device)
    }
}
