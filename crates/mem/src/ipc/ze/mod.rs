//! Memory of Intel's devices, by Level Zero.
//!
//! A device may be a card of several tiles; each tile is also a device, with memory and copy engines of its own. The cards are numbered first,
//! followed by their tiles. Imported memory is mapped, once per device, for the device that copies it: the tile or card of this process's
//! buffer, or for memory of the host the device that was opened.
//!
//! Memory of a card that spans several tiles has one descriptor per tile, of which the interface returns the first. Its mapping is too short,
//! so such memory is not shared here; neither are ranges over several allocations and memory mapped by `zeVirtualMemMap`.
//!
//! A handle begins with a descriptor (a dma-buf) of its process. A duplicate is passed along, and the importer replaces the number by that of
//! its own descriptor. The driver holds the memory for a handle, even if it is freed, until the handle is put back, once for each time it was
//! got. An export therefore lasts from the first use of the memory until all peers have unmapped it, and ends with one `zeMemPutIpcHandle`.

mod calls;
mod copy_slots;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_sys::ze::{
    self, Calls, Status, ZeCommandList, ZeContext, ZeDevice, ZeDriver, ZeIpcMemHandle, status,
};

use self::calls::{check_status, open_error, to_call_error};
use super::driver_memory::{
    CopyDirection, CopySlots, DriverMemory, IpcDriver, RawCopy, SealedHandle, choose_device,
};
use super::error::{CallFailure, CloseError, ExportError, HandleOpenError};
use super::{HandlePassing, IpcAllocation, IpcAllocationId, IpcCaps, IpcHandle, NoMemory};
use crate::gpu::{DriverCallError, GpuUnavailable};

/// Memory of Intel's devices.
pub type LevelZero = DriverMemory<ZeDrivers>;

/// The maximum number of devices considered, and of tiles per card.
const DEVICES_MAX: u32 = 256;
/// Alignment of allocations made here, in bytes.
const ALIGNMENT: usize = 64 << 10;

/// The driver, and the device for which imported memory is mapped.
pub struct ZeDrivers {
    calls: Calls,
    context: *mut ZeContext,
    devices: Vec<CardOrTile>,
    device: u32,
    slots: CopySlots<Self>,
    /// The pool that each event of the slots is in, by the event's address: one event per pool.
    pools: Mutex<BTreeMap<usize, EventPool>>,
    /// Number of opens per address. Some drivers return the same address again for another tile of a card, and unmap it at the first close.
    open: Mutex<BTreeMap<usize, u32>>,
}

/// A pool with room for one event.
struct EventPool(*mut ze::ZeEventPool);

/// A card or a tile.
struct CardOrTile {
    handle: *mut ZeDevice,
    /// The list for synchronous copies, created on first use and used by one thread at a time.
    list: Mutex<*mut ZeCommandList>,
}

// SAFETY: any thread may call the driver, except for the lists. Those are locked; lists of slots are used by the owner of all batches
// (`DriverMemory::lock_batches`).
unsafe impl Send for ZeDrivers {}
// SAFETY: as above.
unsafe impl Sync for ZeDrivers {}

impl ZeDrivers {
    fn device_handle(&self, device: u32) -> *mut ZeDevice {
        self.devices.get(device as usize).map_or(ptr::null_mut(), |device| device.handle)
    }

    /// Locks the list for synchronous copies of a device; creates it on first use.
    fn lock_command_list(&self, device: u32) -> Result<MutexGuard<'_, *mut ZeCommandList>, DriverCallError> {
        let found = self.devices.get(device as usize);
        let Some(CardOrTile { handle, list }) = found else {
            return Err(to_call_error("zeCommandListCreateImmediate", status::INVALID_ARGUMENT));
        };
        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.is_null() {
            *list = self.make_list(*handle, ze::COMMAND_QUEUE_MODE_SYNCHRONOUS)?;
        }
        Ok(list)
    }

    fn make_list(&self, device: *mut ZeDevice, mode: c_uint) -> Result<*mut ZeCommandList, DriverCallError> {
        let queue = ze::ZeCommandQueueDesc {
            stype: ze::STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
            next: ptr::null(),
            ordinal: 0,
            index: 0,
            flags: 0,
            mode,
            priority: 0,
        };
        let create = self.calls.command_list_create_immediate;
        let mut made = ptr::null_mut();
        // SAFETY: the arguments are a description and a local variable.
        let code = unsafe { create(self.context, device, &raw const queue, &raw mut made) };
        check_status("zeCommandListCreateImmediate", code)?;
        Ok(made)
    }

    /// Appends a copy to a list.
    ///
    /// # Safety
    /// As [`IpcDriver::begin_transfer`]; no other thread uses the list.
    unsafe fn append_copy(
        &self,
        list: *mut ZeCommandList,
        RawCopy { to, from, len }: RawCopy,
    ) -> Result<(), DriverCallError> {
        let into = ptr::with_exposed_provenance_mut(to);
        let out = ptr::with_exposed_provenance(from);
        let none = ptr::null_mut();
        let nobody = ptr::null_mut();
        // SAFETY: the caller guarantees the memory and exclusive use of the list, which this value created.
        let code =
            unsafe { (self.calls.command_list_append_memory_copy)(list, into, out, len, none, 0, nobody) };
        check_status("zeCommandListAppendMemoryCopy", code)
    }

    fn query_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, DriverCallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        let mut found = ze::ZeMemoryAllocationProperties {
            stype: ze::STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES,
            next: ptr::null_mut(),
            kind: 0,
            id: 0,
            page_size: 0,
        };
        let mut device = ptr::null_mut();
        // SAFETY: the call writes to local variables; it does not access the address.
        let code = unsafe {
            (self.calls.mem_get_alloc_properties)(self.context, at, &raw mut found, &raw mut device)
        };
        check_status("zeMemGetAllocProperties", code)?;
        if found.kind != ze::memory_type::DEVICE {
            return Ok(None);
        }
        let (base, len) = self.address_range(addr)?;
        let known = self.devices.iter().position(|one| one.handle == device);
        let device = known.map_or(self.device, |at| at as u32);
        Ok(Some(IpcAllocation { base, len, id: IpcAllocationId(found.id), device }))
    }

    fn address_range(&self, addr: usize) -> Result<(usize, usize), DriverCallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        let mut base = ptr::null_mut();
        let mut len = 0;
        // SAFETY: the call writes to local variables; it does not access the address.
        let code =
            unsafe { (self.calls.mem_get_address_range)(self.context, at, &raw mut base, &raw mut len) };
        check_status("zeMemGetAddressRange", code)?;
        Ok((base.expose_provenance(), len))
    }

    fn put_ipc_handle(&self, bytes: [u8; 64]) -> Result<(), DriverCallError> {
        let handle = ZeIpcMemHandle { data: bytes.map(u8::cast_signed) };
        // SAFETY: the driver rejects handles that it has not created.
        check_status("zeMemPutIpcHandle", unsafe { (self.calls.mem_put_ipc_handle)(self.context, handle) })
    }

    fn close_handle(&self, addr: usize) -> Result<(), DriverCallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        // SAFETY: the driver rejects addresses that it has not mapped.
        check_status("zeMemCloseIpcHandle", unsafe { (self.calls.mem_close_ipc_handle)(self.context, at) })
    }
}

/// Returns the cards, followed by their tiles.
fn list_devices(calls: &Calls, driver: *mut ZeDriver) -> Result<Vec<CardOrTile>, GpuUnavailable> {
    let mut handles = list_handles("zeDeviceGet", |count, places| {
        // SAFETY: the number of places is `count`, or there are none.
        unsafe { (calls.device_get)(driver, count, places) }
    })?;
    for card in 0..handles.len() {
        let Some(card) = handles.get(card).copied() else { break };
        handles.extend(list_handles("zeDeviceGetSubDevices", |count, places| {
            // SAFETY: the number of places is `count`, or there are none; the driver returned the card.
            unsafe { (calls.device_get_sub_devices)(card, count, places) }
        })?);
    }
    handles.truncate(DEVICES_MAX as usize);
    Ok(handles.into_iter().map(|handle| CardOrTile { handle, list: Mutex::new(ptr::null_mut()) }).collect())
}

/// Calls a listing function twice: first for the number, then for the handles.
fn list_handles(
    call: &'static str,
    list: impl Fn(*mut u32, *mut *mut ZeDevice) -> Status,
) -> Result<Vec<*mut ZeDevice>, DriverCallError> {
    let mut count = 0;
    check_status(call, list(&raw mut count, ptr::null_mut()))?;
    count = count.min(DEVICES_MAX);
    let mut found = vec![ptr::null_mut(); count as usize];
    if count > 0 {
        check_status(call, list(&raw mut count, found.as_mut_ptr()))?;
    }
    found.truncate(count as usize);
    Ok(found)
}

/// Returns the descriptor with which a driver's handle begins.
fn descriptor_of(bytes: &[u8; 64]) -> c_int {
    let [a, b, c, d, ..] = *bytes;
    c_int::from_ne_bytes([a, b, c, d])
}

impl IpcDriver for ZeDrivers {
    type Opened = ();

    const KINDS: &'static [u8] = &[IpcHandle::LEVEL_ZERO];

    /// Putting the last handle of memory that its owner has freed also frees the memory.
    const UNEXPORT_MAY_WAIT: bool = true;

    fn open_for_device(device: u32) -> Result<Self, NoMemory> {
        let calls = calls::load_calls()?;
        // SAFETY: the call takes a flag, and may be repeated, also by other code of the process.
        check_status("zeInit", unsafe { (calls.init)(ze::INIT_FLAG_GPU_ONLY) })
            .map_err(GpuUnavailable::Driver)?;
        let mut driver: *mut ZeDriver = ptr::null_mut();
        let mut drivers = 1;
        // SAFETY: there is room for one driver, as `drivers` states.
        let code = unsafe { (calls.driver_get)(&raw mut drivers, &raw mut driver) };
        check_status("zeDriverGet", code).map_err(GpuUnavailable::Driver)?;
        let devices = if drivers == 0 { Vec::new() } else { list_devices(&calls, driver)? };
        if device as usize >= devices.len() {
            return Err(NoMemory::Device { vendor: "Intel", device, devices: devices.len() as u32 });
        }
        let desc = ze::ZeContextDesc { stype: ze::STRUCTURE_TYPE_CONTEXT_DESC, next: ptr::null(), flags: 0 };
        let mut context = ptr::null_mut();
        // SAFETY: the arguments are a description and a local variable.
        let code = unsafe { (calls.context_create)(driver, &raw const desc, &raw mut context) };
        check_status("zeContextCreate", code).map_err(GpuUnavailable::Driver)?;
        let slots = CopySlots::for_devices(devices.len() as u32, device);
        let open = Mutex::default();
        let pools = Mutex::default();
        let this = Self { calls, context, devices, device, slots, pools, open };
        drop(this.lock_command_list(device).map_err(GpuUnavailable::Driver)?);
        this.slots.prepare_default(&this).map_err(GpuUnavailable::Driver)?;
        Ok(this)
    }

    fn caps(&self) -> IpcCaps {
        IpcCaps {
            maps: true,
            by_bytes: false,
            by_descriptor: true,
            opens_once: false,
            refuses_overlap: false,
            outlives_free: true,
            tells_descriptors: false,
        }
    }

    fn find_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, CallFailure> {
        Ok(self.query_allocation(addr)?)
    }

    fn export_handle(
        &self,
        of: &IpcAllocation,
        how: HandlePassing,
        sealed: &mut SealedHandle,
    ) -> Result<Option<OwnedFd>, ExportError> {
        if how == HandlePassing::Bytes {
            return Err(ExportError::Passing("memory of Intel's devices is passed by its descriptor"));
        }
        let mut handle = ZeIpcMemHandle { data: [0; 64] };
        let at = ptr::with_exposed_provenance::<c_void>(of.base);
        // SAFETY: the call writes 64 bytes to a local variable; it does not access the address.
        let code = unsafe { (self.calls.mem_get_ipc_handle)(self.context, at, &raw mut handle) };
        check_status("zeMemGetIpcHandle", code).map_err(|error| ExportError::Other(error.into()))?;
        let bytes = handle.data.map(i8::cast_unsigned);
        sealed.set_bytes(bytes);
        let fd = descriptor_of(&bytes);
        let copy = if fd < 0 {
            Err(CallFailure::System { call: "zeMemGetIpcHandle", code: libc::EBADF })
        } else {
            // SAFETY: the descriptor belongs to the driver, which keeps it open until the handle is put.
            let theirs = unsafe { BorrowedFd::borrow_raw(fd) };
            theirs.try_clone_to_owned().map_err(|error| CallFailure::from_system("fcntl", &error))
        };
        copy.map(Some).map_err(ExportError::from)
    }

    fn unexport_handle(&self, sealed: &SealedHandle) -> Result<(), CloseError> {
        self.put_ipc_handle(sealed.driver_bytes()).map_err(|error| CloseError::Other(error.into()))
    }

    fn refuses_overlap(&self, _kind: u8) -> bool {
        false
    }

    fn device_for(&self, own: Option<u32>) -> Option<u32> {
        choose_device(self.devices.len() as u32, self.device, own)
    }

    fn open_handle(
        &self,
        sealed: &SealedHandle,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, ()), HandleOpenError> {
        let fd = descriptor.ok_or(HandleOpenError::Descriptor(
            "the descriptor of the memory did not arrive with the handle",
        ))?;
        let mut bytes = sealed.driver_bytes();
        for (byte, ours) in bytes.iter_mut().zip(fd.as_raw_fd().to_ne_bytes()) {
            *byte = ours;
        }
        let handle = ZeIpcMemHandle { data: bytes.map(u8::cast_signed) };
        let mut at = ptr::null_mut();
        let on = self.device_handle(device.unwrap_or(self.device));
        // SAFETY: the call writes an address to a local variable; the driver validates the handle, whose descriptor is open.
        let code = unsafe { (self.calls.mem_open_ipc_handle)(self.context, on, handle, 0, &raw mut at) };
        // The mapping holds the memory; the descriptor can be closed.
        drop(fd);
        check_status("zeMemOpenIpcHandle", code).map_err(open_error)?;
        let at = at.expose_provenance();
        *self.open.lock().unwrap_or_else(PoisonError::into_inner).entry(at).or_default() += 1;
        Ok((at, ()))
    }

    fn maps_contiguously(&self, addr: usize, len: usize) -> Result<bool, CallFailure> {
        let (base, all) = self.address_range(addr)?;
        Ok(addr.checked_sub(base).is_some_and(|offset| offset <= all && all - offset >= len))
    }

    fn unmap_import(&self, addr: usize, _opened: &()) -> Result<(), CallFailure> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&addr) {
            Some(others) if *others > 1 => *others -= 1,
            _ => {
                self.close_handle(addr)?;
                open.remove(&addr);
            }
        }
        Ok(())
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
        let list = self.lock_command_list(device.unwrap_or(self.device))?;
        // SAFETY: the caller guarantees the memory; the list is locked, and the copy has completed when the call returns.
        Ok(unsafe { self.append_copy(*list, copy) }?)
    }

    fn copy_slots(&self) -> &CopySlots<Self> {
        &self.slots
    }

    fn alloc(&self, len: usize) -> Result<usize, CallFailure> {
        let desc = ze::ZeDeviceMemAllocDesc {
            stype: ze::STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC,
            next: ptr::null(),
            flags: 0,
            ordinal: 0,
        };
        let mut at = ptr::null_mut();
        // SAFETY: the arguments are a description and a local variable.
        let code = unsafe {
            (self.calls.mem_alloc_device)(
                self.context,
                &raw const desc,
                len,
                ALIGNMENT,
                self.device_handle(self.device),
                &raw mut at,
            )
        };
        check_status("zeMemAllocDevice", code)?;
        Ok(at.expose_provenance())
    }

    fn free(&self, addr: usize) -> Result<(), CallFailure> {
        let at = ptr::with_exposed_provenance_mut(addr);
        // SAFETY: the driver rejects addresses that it has not allocated.
        Ok(check_status("zeMemFree", unsafe { (self.calls.mem_free)(self.context, at) })?)
    }
}

impl Drop for ZeDrivers {
    fn drop(&mut self) {
        std::mem::replace(&mut self.slots, CopySlots::for_devices(0, 0)).end_slots(self);
        for CardOrTile { list, .. } in &mut self.devices {
            let list = *list.get_mut().unwrap_or_else(PoisonError::into_inner);
            if !list.is_null() {
                // SAFETY: the list was created by this value and has no command in flight. The caller could not act on an error.
                let _ = unsafe { (self.calls.command_list_destroy)(list) };
            }
        }
        // SAFETY: the context was created by this value, and nothing is mapped in it any more.
        let _ = unsafe { (self.calls.context_destroy)(self.context) };
    }
}

impl fmt::Debug for ZeDrivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Level Zero, device {} of {}", self.device, self.devices.len())
    }
}
