//! Memory of NVIDIA's devices, by the CUDA driver: allocations of `cudaMalloc` are shared by legacy handles, and segments of virtual memory
//! (`cuMemCreate`) that may be exported are shared by descriptors.
//!
//! Every call runs in the primary context of a device, which is made current for the call; the thread's own context is
//! restored afterwards. The context is retained until this value is dropped. Imported memory is mapped, once per
//! device, in the context of the device that copies it: the device of this process's buffer, or for memory of the host
//! the device that was opened.
//!
//! Virtual memory may consist of several segments, each an allocation of its own: a range that spans several is not shared here. Memory of
//! pools (`cudaMallocAsync`) and segments created without a shareable handle type are not exported.

mod calls;
mod copy_slots;
mod legacy;
mod segment;

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr;

use trunkline_sys::cuda::{STREAM_NON_BLOCKING, Stream, memory_type, pointer_attribute, status};
use trunkline_sys::cuda_ipc::{Calls, MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, MEM_HOST_REGISTER_PORTABLE};

use super::driver_memory::{
    CopyDirection, CopySlots, CopyStreams as _, DriverMemory, IpcDriver, PerDevice, RawCopy, SealedHandle,
    choose_device,
};
use super::error::{CallFailure, ExportError, HandleOpenError};
use super::{HandlePassing, IpcAllocation, IpcAllocationId, IpcCaps, IpcHandle, NoMemory};
use crate::gpu::cuda::CudaLibrary as Library;
use crate::gpu::{DriverCallError, GpuUnavailable};

/// Memory of NVIDIA's devices.
pub type CudaMemory = DriverMemory<CudaDriver>;

/// The attributes queried for an address, in one call. The last is unknown before CUDA 11.2.
const ASKED: [c_uint; 9] = [
    pointer_attribute::MEMORY_TYPE,
    pointer_attribute::IS_MANAGED,
    pointer_attribute::DEVICE_ORDINAL,
    pointer_attribute::BUFFER_ID,
    pointer_attribute::RANGE_START_ADDR,
    pointer_attribute::RANGE_SIZE,
    pointer_attribute::IS_LEGACY_CUDA_IPC_CAPABLE,
    pointer_attribute::ALLOWED_HANDLE_TYPES,
    pointer_attribute::MEMPOOL_HANDLE,
];
/// The version since which all of them are known.
const ALL_SINCE: i32 = 11_020;

/// The driver, and the device for which imported memory is mapped.
pub struct CudaDriver {
    cuda: Library,
    calls: Calls,
    device: u32,
    /// The streams of those devices whose context is retained.
    streams: PerDevice<Stream>,
    slots: CopySlots<Self>,
}

// SAFETY: any thread may call the driver, which locks its own state of a stream.
unsafe impl Send for CudaDriver {}
// SAFETY: as above.
unsafe impl Sync for CudaDriver {}

/// How an allocation may be shared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SharingMethod {
    /// By a legacy handle.
    Legacy,
    /// As a segment, by a descriptor.
    Segment,
    /// Not at all, with the reason.
    Kept(&'static str),
}

/// An open import.
#[derive(Debug)]
pub enum CudaImport {
    /// By a legacy handle, in the context of that device.
    Legacy(u32),
    /// A segment of that many bytes.
    Segment(usize),
}

impl CudaDriver {
    /// Returns the stream of a device, whose context is retained from the first call on.
    fn device_stream(&self, device: u32) -> Result<*mut Stream, DriverCallError> {
        self.streams.get(device, || {
            let mut made = ptr::null_mut();
            self.cuda.keep_context(device)?;
            let created = self.call_driver(device, "cuStreamCreate", || {
                // SAFETY: the call writes a handle to a local variable, in the device's context.
                unsafe { (self.calls.stream_create)(&raw mut made, STREAM_NON_BLOCKING) }
            });
            created.inspect_err(|_| self.cuda.release_context(device))?;
            Ok(made)
        })
    }

    /// Calls the driver in a device's context.
    fn call_driver(
        &self,
        device: u32,
        name: &'static str,
        call: impl FnOnce() -> c_uint,
    ) -> Result<(), DriverCallError> {
        self.cuda.with_device_context(device, call).and_then(|code| self.cuda.check_status(name, code))
    }

    /// Returns the allocation around an address, and how it may be shared.
    fn query_allocation(
        &self,
        addr: usize,
    ) -> Result<Option<(IpcAllocation, SharingMethod)>, DriverCallError> {
        // Wide enough for each attribute; the driver writes only the low bytes that an attribute has.
        let mut values = [0_u64; ASKED.len()];
        let mut places = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
        let mut asked = ASKED;
        let count = if self.cuda.version_number() < ALL_SINCE { ASKED.len() - 1 } else { ASKED.len() };
        let get = self.cuda.calls().pointer_get_attributes;
        self.call_driver(self.device, "cuPointerGetAttributes", || {
            // SAFETY: there is at least one place per attribute, with room for the largest; the driver does not access
            // the address.
            unsafe { get(count as c_uint, asked.as_mut_ptr(), places.as_mut_ptr(), addr as u64) }
        })?;
        let [kind, managed, device, id, start, len, legacy, types, pool] = values;
        if kind as u32 != memory_type::DEVICE || managed as u8 != 0 {
            return Ok(None);
        }
        let is_legacy = legacy as u32 != 0 && pool == 0;
        let (base, len) = if is_legacy {
            (start as usize, len as usize)
        } else {
            // For virtual memory the attributes describe the reserved range, which may contain several segments or none.
            match self.segment_at(addr)? {
                Some(found) => found,
                None => return Ok(None),
            }
        };
        let sort = match (is_legacy, pool) {
            (true, _) => SharingMethod::Legacy,
            (false, 0) if types & u64::from(MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 => {
                SharingMethod::Segment
            }
            (false, 0) => SharingMethod::Kept(
                "the memory was made (cuMemCreate) without a handle type that is a file descriptor",
            ),
            (false, _) => SharingMethod::Kept("memory of a pool (cudaMallocAsync) has no handle of its own"),
        };
        let id = IpcAllocationId(id);
        Ok(Some((IpcAllocation { base, len, id, device: device as u32 }, sort)))
    }

    /// Returns base and length of the mapping around an address.
    fn segment_at(&self, addr: usize) -> Result<Option<(usize, usize)>, DriverCallError> {
        let mut base = 0;
        let mut len = 0;
        let code = self.cuda.with_device_context(self.device, || {
            // SAFETY: the call writes an address and a size to local variables.
            unsafe { (self.calls.mem_get_address_range)(&raw mut base, &raw mut len, addr as u64) }
        })?;
        if matches!(code, status::INVALID_VALUE | status::NOT_FOUND) {
            return Ok(None);
        }
        self.cuda.check_status("cuMemGetAddressRange", code)?;
        Ok(Some((base as usize, len)))
    }
}

impl IpcDriver for CudaDriver {
    type Opened = CudaImport;

    const KINDS: &'static [u8] = &[IpcHandle::CUDA, IpcHandle::CUDA_SEGMENT];

    fn open_for_device(device: u32) -> Result<Self, NoMemory> {
        let cuda = Library::new(crate::gpu::cuda::load_calls()?)?;
        let calls = calls::load_calls()?;
        if device >= cuda.device_count() {
            return Err(NoMemory::Device { vendor: "NVIDIA", device, devices: cuda.device_count() });
        }
        let streams = PerDevice::for_devices(cuda.device_count());
        let slots = CopySlots::for_devices(cuda.device_count(), device);
        let this = Self { cuda, calls, device, streams, slots };
        this.device_stream(device).map_err(GpuUnavailable::Driver)?;
        this.slots.prepare_default(&this).map_err(GpuUnavailable::Driver)?;
        Ok(this)
    }

    /// Returns the capabilities of legacy handles, which are the stricter ones; descriptors are for segments.
    fn caps(&self) -> IpcCaps {
        IpcCaps {
            maps: true,
            by_bytes: true,
            by_descriptor: true,
            opens_once: true,
            refuses_overlap: true,
            outlives_free: true,
            tells_descriptors: false,
        }
    }

    fn find_allocation(&self, addr: usize) -> Result<Option<IpcAllocation>, CallFailure> {
        Ok(self.query_allocation(addr)?.map(|(found, _)| found))
    }

    fn export_handle(
        &self,
        of: &IpcAllocation,
        how: HandlePassing,
        sealed: &mut SealedHandle,
    ) -> Result<Option<OwnedFd>, ExportError> {
        let found = self.query_allocation(of.base).map_err(CallFailure::from)?;
        let (_, sort) = found.ok_or(ExportError::Gone(of.id))?;
        let made = match (sort, how) {
            (SharingMethod::Kept(why), _) => Err(ExportError::Unshareable(why)),
            (SharingMethod::Legacy, HandlePassing::Descriptor) => {
                Err(ExportError::Passing("memory of cudaMalloc is passed by the bytes of its handle"))
            }
            (SharingMethod::Segment, HandlePassing::Bytes) => {
                Err(ExportError::Passing("a segment of virtual memory is passed by its descriptor"))
            }
            (SharingMethod::Legacy, _) => self.export_legacy(of, sealed).map(|()| None),
            (SharingMethod::Segment, _) => self.export_segment(of, sealed).map(Some),
        };
        // Otherwise a peer could read bytes that an earlier memset or copy of the user has not written yet. If no setting is accepted, the user is
        // warned and the memory is exported anyway.
        if made.is_ok() {
            let _ = self.cuda.request_sync_memops(of.device, of.base);
        }
        made
    }

    fn refuses_overlap(&self, kind: u8) -> bool {
        kind == IpcHandle::CUDA
    }

    fn device_for(&self, own: Option<u32>) -> Option<u32> {
        choose_device(self.cuda.device_count(), self.device, own)
    }

    fn open_handle(
        &self,
        sealed: &SealedHandle,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, CudaImport), HandleOpenError> {
        let device = device.unwrap_or(self.device);
        // The context is retained, because the mapping ends with it.
        self.device_stream(device).map_err(|error| HandleOpenError::Other(error.into()))?;
        if sealed.kind == IpcHandle::CUDA {
            if descriptor.is_some() {
                return Err(HandleOpenError::Descriptor("a legacy handle has no descriptor"));
            }
            return Ok((self.open_legacy(sealed, device)?, CudaImport::Legacy(device)));
        }
        let fd = descriptor.ok_or(HandleOpenError::Descriptor(
            "the descriptor of the segment did not arrive with the handle",
        ))?;
        Ok((self.open_segment(&fd, sealed.len, device)?, CudaImport::Segment(sealed.len)))
    }

    fn unmap_import(&self, addr: usize, opened: &CudaImport) -> Result<(), CallFailure> {
        match opened {
            CudaImport::Legacy(device) => self.close_legacy(addr, *device),
            CudaImport::Segment(len) => self.close_segment(addr, *len),
        }
        .map_err(CallFailure::from)
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
        self.call_driver(self.device, "cuMemHostRegister", || {
            let at = ptr::with_exposed_provenance_mut(addr);
            // SAFETY: the caller holds this range of the host until it is unpinned; the driver only pins its pages.
            unsafe { (self.calls.mem_host_register)(at, len, MEM_HOST_REGISTER_PORTABLE) }
        })?;
        Ok(true)
    }

    fn unpin_host(&self, addr: usize) {
        // Memory that cannot be unregistered stays pinned until the process ends.
        let _ = self.call_driver(self.device, "cuMemHostUnregister", || {
            // SAFETY: `pin_host` pinned the range, and it is still mapped.
            unsafe { (self.calls.mem_host_unregister)(ptr::with_exposed_provenance_mut(addr)) }
        });
    }

    fn copy_slots(&self) -> &CopySlots<Self> {
        &self.slots
    }

    fn alloc(&self, len: usize) -> Result<usize, CallFailure> {
        let mut at = 0;
        let alloc = self.cuda.calls().mem_alloc;
        self.call_driver(self.device, "cuMemAlloc", || {
            // SAFETY: the call writes an address to a local variable.
            unsafe { alloc(&raw mut at, len) }
        })?;
        Ok(at as usize)
    }

    fn free(&self, addr: usize) -> Result<(), CallFailure> {
        let free = self.cuda.calls().mem_free;
        self.call_driver(self.device, "cuMemFree", || {
            // SAFETY: the driver rejects addresses that it has not allocated.
            unsafe { free(addr as u64) }
        })?;
        Ok(())
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        std::mem::replace(&mut self.slots, CopySlots::for_devices(0, 0)).end_slots(self);
        for (device, stream) in self.streams.take_all() {
            self.end_stream(device, stream);
            self.cuda.release_context(device);
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, device {}", self.cuda.version_text(), self.device)
    }
}
