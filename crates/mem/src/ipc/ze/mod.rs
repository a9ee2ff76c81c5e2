//! Memory of Intel's devices, by Level Zero.
//!
//! A handle begins with a descriptor (a dma-buf) of its process. A copy of it goes along, and the importer puts its own in its place.
//! The driver holds the memory for a handle, freed or not, until that is put back: once for each time it was got. So an export lasts
//! from the first use of the memory to the last word that it was unmapped, and ends with one `zeMemPutIpcHandle`.

mod calls;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use trunkline_sys::ze::{self, Calls, ZeCommandList, ZeContext, ZeDevice, ZeDriver, ZeIpcMemHandle};

use self::calls::{check, open_error};
use super::driven::{Driven, Driver, Sealed, Way};
use super::error::{Cause, CloseError, ExportError, OpenError};
use super::{Allocation, AllocationId, Caps, Handle, NoMemory, Passing, planted};
use crate::gpu::{CallError, Missing};

/// Memory of Intel's devices.
pub type LevelZero = Driven<ZeDrivers>;

/// Devices of a driver that are looked at.
const DEVICES_MAX: u32 = 256;
/// What is allocated here begins at a multiple of that.
const ALIGNMENT: usize = 64 << 10;

/// The driver, and the device that memory of others is mapped for.
pub struct ZeDrivers {
    calls: Calls,
    context: *mut ZeContext,
    devices: Vec<*mut ZeDevice>,
    device: *mut ZeDevice,
    /// Of one thread at a time.
    list: Mutex<*mut ZeCommandList>,
}

// SAFETY: the driver may be called by any thread, but for the list, which is locked.
unsafe impl Send for ZeDrivers {}
// SAFETY: as above.
unsafe impl Sync for ZeDrivers {}

impl LevelZero {
    /// Opens the driver that is installed. Memory of others will be mapped for that device, by its number in this process.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn open_device(device: u32) -> Result<Self, NoMemory> {
        Ok(Self::with(ZeDrivers::new(device)?)?)
    }
}

impl ZeDrivers {
    fn new(device: u32) -> Result<Self, NoMemory> {
        let calls = calls::load()?;
        // SAFETY: one flag; may be called again and by others.
        check("zeInit", unsafe { (calls.init)(ze::INIT_FLAG_GPU_ONLY) }).map_err(Missing::Driver)?;
        let mut driver: *mut ZeDriver = ptr::null_mut();
        let mut drivers = 1;
        // SAFETY: room for one, and the number says so.
        let code = unsafe { (calls.driver_get)(&raw mut drivers, &raw mut driver) };
        check("zeDriverGet", code).map_err(Missing::Driver)?;
        let devices = if drivers == 0 { Vec::new() } else { devices(&calls, driver)? };
        let Some(found) = devices.get(device as usize).copied() else {
            return Err(NoMemory::Device { vendor: "Intel", device, devices: devices.len() as u32 });
        };
        let desc = ze::ZeContextDesc { stype: ze::STRUCTURE_TYPE_CONTEXT_DESC, next: ptr::null(), flags: 0 };
        let mut context = ptr::null_mut();
        // SAFETY: a description and a place of ours.
        let code = unsafe { (calls.context_create)(driver, &raw const desc, &raw mut context) };
        check("zeContextCreate", code).map_err(Missing::Driver)?;
        let list = Mutex::new(ptr::null_mut());
        let mut this = Self { calls, context, devices, device: found, list };
        let queue = ze::ZeCommandQueueDesc {
            stype: ze::STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
            next: ptr::null(),
            ordinal: 0,
            index: 0,
            flags: 0,
            mode: ze::COMMAND_QUEUE_MODE_SYNCHRONOUS,
            priority: 0,
        };
        let list = this.list.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above.
        let code = unsafe { (calls.command_list_create_immediate)(context, found, &raw const queue, list) };
        check("zeCommandListCreateImmediate", code).map_err(Missing::Driver)?;
        Ok(this)
    }

    fn look(&self, addr: usize) -> Result<Option<Allocation>, CallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        let mut found = ze::ZeMemoryAllocationProperties {
            stype: ze::STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES,
            next: ptr::null_mut(),
            kind: 0,
            id: 0,
            page_size: 0,
        };
        let mut device = ptr::null_mut();
        // SAFETY: places of ours; the address is only looked up.
        let code = unsafe {
            (self.calls.mem_get_alloc_properties)(self.context, at, &raw mut found, &raw mut device)
        };
        check("zeMemGetAllocProperties", code)?;
        if found.kind != ze::memory_type::DEVICE {
            return Ok(None);
        }
        let (base, len) = self.range(addr)?;
        let device = self.devices.iter().position(|one| *one == device).unwrap_or(0) as u32;
        Ok(Some(Allocation { base, len, id: AllocationId(found.id), device }))
    }

    fn range(&self, addr: usize) -> Result<(usize, usize), CallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        let (mut base, mut len) = (ptr::null_mut(), 0);
        // SAFETY: as above.
        let code =
            unsafe { (self.calls.mem_get_address_range)(self.context, at, &raw mut base, &raw mut len) };
        check("zeMemGetAddressRange", code)?;
        Ok((base.expose_provenance(), len))
    }

    fn put(&self, bytes: [u8; 64]) -> Result<(), CallError> {
        let handle = ZeIpcMemHandle { data: bytes.map(u8::cast_signed) };
        // SAFETY: the driver knows what it has given, and refuses the rest.
        check("zeMemPutIpcHandle", unsafe { (self.calls.mem_put_ipc_handle)(self.context, handle) })
    }

    fn close_handle(&self, addr: usize) -> Result<(), CallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        // SAFETY: as above.
        check("zeMemCloseIpcHandle", unsafe { (self.calls.mem_close_ipc_handle)(self.context, at) })
    }
}

fn devices(calls: &Calls, driver: *mut ZeDriver) -> Result<Vec<*mut ZeDevice>, Missing> {
    let mut count = 0;
    // SAFETY: asks for the number alone.
    let code = unsafe { (calls.device_get)(driver, &raw mut count, ptr::null_mut()) };
    check("zeDeviceGet", code)?;
    count = count.min(DEVICES_MAX);
    let mut devices = vec![ptr::null_mut(); count as usize];
    if count > 0 {
        // SAFETY: as many places as the number says.
        let code = unsafe { (calls.device_get)(driver, &raw mut count, devices.as_mut_ptr()) };
        check("zeDeviceGet", code)?;
    }
    devices.truncate(count as usize);
    Ok(devices)
}

/// The descriptor that a driver's handle begins with.
fn descriptor_of(bytes: &[u8; 64]) -> c_int {
    let [a, b, c, d, ..] = *bytes;
    c_int::from_ne_bytes([a, b, c, d])
}

impl Driver for ZeDrivers {
    type Opened = ();

    const KINDS: &'static [u8] = &[Handle::LEVEL_ZERO];

    fn caps(&self) -> Caps {
        Caps {
            maps: true,
            by_bytes: false,
            by_descriptor: true,
            opens_once: false,
            refuses_overlap: false,
            outlives_free: true,
            tells_descriptors: false,
        }
    }

    fn find(&self, addr: usize) -> Result<Option<Allocation>, Cause> {
        Ok(self.look(addr)?)
    }

    fn export(
        &self,
        of: &Allocation,
        how: Passing,
        sealed: &mut Sealed,
    ) -> Result<Option<OwnedFd>, ExportError> {
        if how == Passing::Bytes {
            return Err(ExportError::Passing("memory of Intel's devices goes by its descriptor"));
        }
        let mut handle = ZeIpcMemHandle { data: [0; 64] };
        let at = ptr::with_exposed_provenance::<c_void>(of.base);
        // SAFETY: writes 64 bytes to a place of ours; the address is only looked up.
        let code = unsafe { (self.calls.mem_get_ipc_handle)(self.context, at, &raw mut handle) };
        check("zeMemGetIpcHandle", code).map_err(|error| ExportError::Other(error.into()))?;
        let bytes = handle.data.map(i8::cast_unsigned);
        sealed.set_bytes(bytes);
        let fd = descriptor_of(&bytes);
        let copy = if fd < 0 {
            Err(Cause::System { call: "zeMemGetIpcHandle", code: libc::EBADF })
        } else {
            // SAFETY: the driver's, which is open until the handle is put.
            let theirs = unsafe { BorrowedFd::borrow_raw(fd) };
            theirs.try_clone_to_owned().map_err(|error| Cause::system("fcntl", &error))
        };
        copy.map(Some).map_err(|cause| {
            // It was got, and nobody has it.
            let _ = self.put(bytes);
            ExportError::from(cause)
        })
    }

    fn unexport(&self, sealed: &Sealed) -> Result<(), CloseError> {
        if planted("mem-ze-never-puts") {
            return Ok(());
        }
        if planted("mem-ze-puts-twice") {
            let _ = self.put(sealed.bytes());
        }
        self.put(sealed.bytes()).map_err(|error| CloseError::Other(error.into()))
    }

    fn conflicts(&self, _kind: u8) -> bool {
        false
    }

    fn open(
        &self,
        sealed: &Sealed,
        descriptor: Option<OwnedFd>,
        _device: Option<u32>,
    ) -> Result<(usize, ()), OpenError> {
        let fd =
            descriptor.ok_or(OpenError::Descriptor("the descriptor of the memory did not come along"))?;
        let mut bytes = sealed.bytes();
        for (byte, ours) in bytes.iter_mut().zip(fd.as_raw_fd().to_ne_bytes()) {
            *byte = ours;
        }
        let handle = ZeIpcMemHandle { data: bytes.map(u8::cast_signed) };
        let mut at = ptr::null_mut();
        // SAFETY: writes an address to a place of ours; the driver looks at the bytes of the handle, and the descriptor is open.
        let code =
            unsafe { (self.calls.mem_open_ipc_handle)(self.context, self.device, handle, 0, &raw mut at) };
        // What is mapped holds the memory; the descriptor closes here.
        if planted("mem-ze-keeps-descriptors") {
            std::mem::forget(fd);
        } else {
            drop(fd);
        }
        check("zeMemOpenIpcHandle", code).map_err(open_error)?;
        Ok((at.expose_provenance(), ()))
    }

    fn maps(&self, addr: usize, len: usize) -> Result<bool, Cause> {
        let (base, all) = self.range(addr)?;
        Ok(addr.checked_sub(base).is_some_and(|offset| offset <= all && all - offset >= len))
    }

    fn close(&self, addr: usize, _opened: &()) -> Result<(), Cause> {
        Ok(self.close_handle(addr)?)
    }

    unsafe fn transfer(
        &self,
        to: usize,
        from: usize,
        len: usize,
        _how: (Way, Option<u32>),
    ) -> Result<(), Cause> {
        if len == 0 {
            return Ok(());
        }
        let (into, out) = (ptr::with_exposed_provenance_mut(to), ptr::with_exposed_provenance(from));
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let (none, nobody) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller's promise; a list of ours, which has done it when the call returns.
        let code =
            unsafe { (self.calls.command_list_append_memory_copy)(*list, into, out, len, none, 0, nobody) };
        Ok(check("zeCommandListAppendMemoryCopy", code)?)
    }

    fn alloc(&self, len: usize) -> Result<usize, Cause> {
        let desc = ze::ZeDeviceMemAllocDesc {
            stype: ze::STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC,
            next: ptr::null(),
            flags: 0,
            ordinal: 0,
        };
        let mut at = ptr::null_mut();
        // SAFETY: a description and a place of ours.
        let code = unsafe {
            (self.calls.mem_alloc_device)(
                self.context,
                &raw const desc,
                len,
                ALIGNMENT,
                self.device,
                &raw mut at,
            )
        };
        check("zeMemAllocDevice", code)?;
        Ok(at.expose_provenance())
    }

    fn free(&self, addr: usize) -> Result<(), Cause> {
        let at = ptr::with_exposed_provenance_mut(addr);
        // SAFETY: the driver knows what it has given, and refuses the rest.
        Ok(check("zeMemFree", unsafe { (self.calls.mem_free)(self.context, at) })?)
    }
}

impl Drop for ZeDrivers {
    fn drop(&mut self) {
        let list = *self.list.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !list.is_null() {
            // SAFETY: a list of ours, on which nothing is under way. What it says changes nothing.
            let _ = unsafe { (self.calls.command_list_destroy)(list) };
        }
        // SAFETY: a context of ours, of which nothing is mapped any more.
        let _ = unsafe { (self.calls.context_destroy)(self.context) };
    }
}

impl fmt::Debug for ZeDrivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Level Zero, {} devices", self.devices.len())
    }
}
