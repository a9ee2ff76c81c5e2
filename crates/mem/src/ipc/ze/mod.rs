//! Memory of Intel's devices, by Level Zero.
//!
//! A device may be a card of several tiles; each tile is a device, too, with memory and copy engines of its own. The cards are numbered first,
//! and behind them their tiles. Memory of others is mapped for the device that copies it, of each such device anew: for the one, tile or card,
//! that a buffer of this process is of, and for memory of the host for the one that was opened. Memory of a card that lies on several tiles has
//! a descriptor for each, of which the interface gives the first: what is mapped by that is too short, and goes another way, as do bytes of
//! several allocations, and what is put at addresses of the process's own choice (`zeVirtualMemMap`).
//!
//! A handle begins with a descriptor (a dma-buf) of its process. A copy of it goes along, and the importer puts its own in its place.
//! The driver holds the memory for a handle, freed or not, until that is put back: once for each time it was got. So an export lasts
//! from the first use of the memory to the last word that it was unmapped, and ends with one `zeMemPutIpcHandle`.

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

/// Devices of a driver that are looked at, and tiles of a card.
const DEVICES_MAX: u32 = 256;
/// What is allocated here begins at a multiple of that.
const ALIGNMENT: usize = 64 << 10;

/// The driver, and the device that memory of others is mapped for.
pub struct ZeDrivers {
    calls: Calls,
    context: *mut ZeContext,
    devices: Vec<CardOrTile>,
    device: u32,
    slots: CopySlots<Self>,
    /// The pool that each event of the slots is in, by the event's address: one event per pool.
    pools: Mutex<BTreeMap<usize, EventPool>>,
    /// How often each address is open. Some drivers give the same one again for another tile of a card, and end it when it is closed once.
    open: Mutex<BTreeMap<usize, u32>>,
}

/// Room for an event.
struct EventPool(*mut ze::ZeEventPool);

/// A card or a tile.
struct CardOrTile {
    handle: *mut ZeDevice,
    /// What copies, from the first time on; of one thread at a time.
    list: Mutex<*mut ZeCommandList>,
}

// SAFETY: the driver may be called by any thread, but for the lists, which are locked; those of slots by the owner of all batches (`DriverMemory::lock_batches`).
unsafe impl Send for ZeDrivers {}
// SAFETY: as above.
unsafe impl Sync for ZeDrivers {}

impl ZeDrivers {
    fn device_handle(&self, device: u32) -> *mut ZeDevice {
        self.devices.get(device as usize).map_or(ptr::null_mut(), |device| device.handle)
    }

    /// What copies with a device, for the caller alone; made when it is first wanted.
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
        // SAFETY: a description and a place of ours.
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
        // SAFETY: the caller's promise, and a list of ours.
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
        // SAFETY: places of ours; the address is only looked up.
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
        // SAFETY: as above.
        let code =
            unsafe { (self.calls.mem_get_address_range)(self.context, at, &raw mut base, &raw mut len) };
        check_status("zeMemGetAddressRange", code)?;
        Ok((base.expose_provenance(), len))
    }

    fn put_ipc_handle(&self, bytes: [u8; 64]) -> Result<(), DriverCallError> {
        let handle = ZeIpcMemHandle { data: bytes.map(u8::cast_signed) };
        // SAFETY: the driver knows what it has given, and refuses the rest.
        check_status("zeMemPutIpcHandle", unsafe { (self.calls.mem_put_ipc_handle)(self.context, handle) })
    }

    fn close_handle(&self, addr: usize) -> Result<(), DriverCallError> {
        let at = ptr::with_exposed_provenance::<c_void>(addr);
        // SAFETY: as above.
        check_status("zeMemCloseIpcHandle", unsafe { (self.calls.mem_close_ipc_handle)(self.context, at) })
    }
}

/// The cards, and behind them their tiles.
fn list_devices(calls: &Calls, driver: *mut ZeDriver) -> Result<Vec<CardOrTile>, GpuUnavailable> {
    let mut handles = list_handles("zeDeviceGet", |count, places| {
        // SAFETY: as many places as the number says, or none.
        unsafe { (calls.device_get)(driver, count, places) }
    })?;
    for card in 0..handles.len() {
        let Some(card) = handles.get(card).copied() else { break };
        handles.extend(list_handles("zeDeviceGetSubDevices", |count, places| {
            // SAFETY: as above; the card is one that the driver gave.
            unsafe { (calls.device_get_sub_devices)(card, count, places) }
        })?);
    }
    handles.truncate(DEVICES_MAX as usize);
    Ok(handles.into_iter().map(|handle| CardOrTile { handle, list: Mutex::new(ptr::null_mut()) }).collect())
}

/// What a call lists: asked for the number first.
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

/// The descriptor that a driver's handle begins with.
fn descriptor_of(bytes: &[u8; 64]) -> c_int {
    let [a, b, c, d, ..] = *bytes;
    c_int::from_ne_bytes([a, b, c, d])
}

impl IpcDriver for ZeDrivers {
    type Opened = ();

    const KINDS: &'static [u8] = &[IpcHandle::LEVEL_ZERO];

    /// The last handle of memory that its owner has freed frees it.
    const UNEXPORT_MAY_WAIT: bool = true;

    fn open_for_device(device: u32) -> Result<Self, NoMemory> {
        let calls = calls::load_calls()?;
        // SAFETY: one flag; may be called again and by others.
        check_status("zeInit", unsafe { (calls.init)(ze::INIT_FLAG_GPU_ONLY) })
            .map_err(GpuUnavailable::Driver)?;
        let mut driver: *mut ZeDriver = ptr::null_mut();
        let mut drivers = 1;
        // SAFETY: room for one, and the number says so.
        let code = unsafe { (calls.driver_get)(&raw mut drivers, &raw mut driver) };
        check_status("zeDriverGet", code).map_err(GpuUnavailable::Driver)?;
        let devices = if drivers == 0 { Vec::new() } else { list_devices(&calls, driver)? };
        if device as usize >= devices.len() {
            return Err(NoMemory::Device { vendor: "Intel", device, devices: devices.len() as u32 });
        }
        let desc = ze::ZeContextDesc { stype: ze::STRUCTURE_TYPE_CONTEXT_DESC, next: ptr::null(), flags: 0 };
        let mut context = ptr::null_mut();
        // SAFETY: a description and a place of ours.
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
            return Err(ExportError::Passing("memory of Intel's devices goes by its descriptor"));
        }
        let mut handle = ZeIpcMemHandle { data: [0; 64] };
        let at = ptr::with_exposed_provenance::<c_void>(of.base);
        // SAFETY: writes 64 bytes to a place of ours; the address is only looked up.
        let code = unsafe { (self.calls.mem_get_ipc_handle)(self.context, at, &raw mut handle) };
        check_status("zeMemGetIpcHandle", code).map_err(|error| ExportError::Other(error.into()))?;
        let bytes = handle.data.map(i8::cast_unsigned);
        sealed.set_bytes(bytes);
        let fd = descriptor_of(&bytes);
        let copy = if fd < 0 {
            Err(CallFailure::System { call: "zeMemGetIpcHandle", code: libc::EBADF })
        } else {
            // SAFETY: the driver's, which is open until the handle is put.
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
        let fd = descriptor
            .ok_or(HandleOpenError::Descriptor("the descriptor of the memory did not come along"))?;
        let mut bytes = sealed.driver_bytes();
        for (byte, ours) in bytes.iter_mut().zip(fd.as_raw_fd().to_ne_bytes()) {
            *byte = ours;
        }
        let handle = ZeIpcMemHandle { data: bytes.map(u8::cast_signed) };
        let mut at = ptr::null_mut();
        let on = self.device_handle(device.unwrap_or(self.device));
        // SAFETY: writes an address to a place of ours; the driver looks at the bytes of the handle, and the descriptor is open.
        let code = unsafe { (self.calls.mem_open_ipc_handle)(self.context, on, handle, 0, &raw mut at) };
        // What is mapped holds the memory; the descriptor closes here.
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
        // SAFETY: the caller's promise; the list is locked, and has done it when the call returns.
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
        // SAFETY: a description and a place of ours.
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
        // SAFETY: the driver knows what it has given, and refuses the rest.
        Ok(check_status("zeMemFree", unsafe { (self.calls.mem_free)(self.context, at) })?)
    }
}

impl Drop for ZeDrivers {
    fn drop(&mut self) {
        std::mem::replace(&mut self.slots, CopySlots::for_devices(0, 0)).end_slots(self);
        for CardOrTile { list, .. } in &mut self.devices {
            let list = *list.get_mut().unwrap_or_else(PoisonError::into_inner);
            if !list.is_null() {
                // SAFETY: a list of ours, on which nothing is under way. What it says changes nothing.
                let _ = unsafe { (self.calls.command_list_destroy)(list) };
            }
        }
        // SAFETY: a context of ours, of which nothing is mapped any more.
        let _ = unsafe { (self.calls.context_destroy)(self.context) };
    }
}

impl fmt::Debug for ZeDrivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Level Zero, device {} of {}", self.device, self.devices.len())
    }
}
