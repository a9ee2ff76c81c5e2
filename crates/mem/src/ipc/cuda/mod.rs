//! Memory of NVIDIA's devices, by the CUDA driver: what `cudaMalloc` gave goes by legacy handles, and segments of virtual memory
//! (`cuMemCreate`) that may be exported go by their descriptors.
//!
//! Every call is made in the primary context of a device, which is borrowed for it and kept as long as the value: the thread has its
//! own context back afterwards. Memory of others is mapped in the context of the device that copies it, as the driver has it, of each
//! such device anew: of the one that a buffer of this process is of, and for memory of the host of the one that was opened. Virtual memory may be one behind the other in several segments, of which each is an allocation of its
//! own: bytes of several go another way. Memory of pools (`cudaMallocAsync`) is not exported, nor is what was not
//! made for it.

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

use super::driven::{CopySlots, CopyStreams as _, Driven, Driver, Each, Sealed, Way, among};
use super::error::{Cause, ExportError, OpenError};
use super::{Allocation, AllocationId, Caps, Handle, NoMemory, Passing, planted};
use crate::gpu::cuda::Cuda as Library;
use crate::gpu::{CallError, Missing};

/// Memory of NVIDIA's devices.
pub type Cuda = Driven<CudaDriver>;

/// What is asked about an address, in one call. The last is not known before CUDA 11.2.
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
/// The version since which all of it is known.
const ALL_SINCE: i32 = 11_020;

/// The driver, and the device that memory of others is mapped for.
pub struct CudaDriver {
    cuda: Library,
    calls: Calls,
    device: u32,
    /// Of those devices whose context is kept.
    streams: Each<Stream>,
    slots: CopySlots<Self>,
}

// SAFETY: the driver may be called by any thread, and locks what it keeps for a stream.
unsafe impl Send for CudaDriver {}
// SAFETY: as above.
unsafe impl Sync for CudaDriver {}

/// How an allocation may be shared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sort {
    /// By a legacy handle.
    Legacy,
    /// A segment, by a descriptor.
    Segment,
    /// Not at all.
    Kept(&'static str),
}

/// What is open.
#[derive(Debug)]
pub enum Opened {
    /// By a legacy handle, in the context of that device.
    Legacy(u32),
    /// A segment, of so many bytes.
    Segment(usize),
}

impl CudaDriver {
    /// The stream of a device, whose context is kept from the first time on.
    fn stream(&self, device: u32) -> Result<*mut Stream, CallError> {
        self.streams.get(device, || {
            let mut made = ptr::null_mut();
            self.cuda.keep(device)?;
            let created = self.call(device, "cuStreamCreate", || {
                // SAFETY: writes a handle to a place of ours, in the device's context.
                unsafe { (self.calls.stream_create)(&raw mut made, STREAM_NON_BLOCKING) }
            });
            created.inspect_err(|_| self.cuda.release(device))?;
            Ok(made)
        })
    }

    /// Calls in a device's context.
    fn call(&self, device: u32, name: &'static str, call: impl FnOnce() -> c_uint) -> Result<(), CallError> {
        self.cuda.within(device, call).and_then(|code| self.cuda.check(name, code))
    }

    /// The allocation around an address, and how it may be shared.
    fn look(&self, addr: usize) -> Result<Option<(Allocation, Sort)>, CallError> {
        // Wide enough for each; the driver writes as many of the low bytes as the attribute has.
        let mut values = [0_u64; ASKED.len()];
        let mut places = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
        let mut asked = ASKED;
        let count = if self.cuda.counted() < ALL_SINCE { ASKED.len() - 1 } else { ASKED.len() };
        let get = self.cuda.calls().pointer_get_attributes;
        self.call(self.device, "cuPointerGetAttributes", || {
            // SAFETY: at most as many attributes as places, each with room for the largest; the address is only looked up.
            unsafe { get(count as c_uint, asked.as_mut_ptr(), places.as_mut_ptr(), addr as u64) }
        })?;
        let [kind, managed, device, id, start, len, legacy, types, pool] = values;
        if kind as u32 != memory_type::DEVICE || managed as u8 != 0 {
            return Ok(None);
        }
        let is_legacy = legacy as u32 != 0 && pool == 0;
        let (base, len) = if is_legacy || planted("mem-vmm-exports-one-segment") {
            (start as usize, len as usize)
        } else {
            // Of virtual memory that was the range of addresses, which may have several segments or none.
            match self.segment_at(addr)? {
                Some(found) => found,
                None => return Ok(None),
            }
        };
        let sort = match (is_legacy, pool) {
            (true, _) => Sort::Legacy,
            (false, 0) if types & u64::from(MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 => Sort::Segment,
            (false, 0) => Sort::Kept(
                "the memory was made (cuMemCreate) without a handle type that is a file descriptor",
            ),
            (false, _) => Sort::Kept("memory of a pool (cudaMallocAsync) has no handle of its own"),
        };
        let id = AllocationId(if planted("mem-cuda-ignores-buffer-id") { 1 } else { id });
        Ok(Some((Allocation { base, len, id, device: device as u32 }, sort)))
    }

    /// What is mapped around an address.
    fn segment_at(&self, addr: usize) -> Result<Option<(usize, usize)>, CallError> {
        let mut base = 0;
        let mut len = 0;
        let code = self.cuda.within(self.device, || {
            // SAFETY: writes an address and a size to places of ours.
            unsafe { (self.calls.mem_get_address_range)(&raw mut base, &raw mut len, addr as u64) }
        })?;
        if matches!(code, status::INVALID_VALUE | status::NOT_FOUND) {
            return Ok(None);
        }
        self.cuda.check("cuMemGetAddressRange", code)?;
        Ok(Some((base as usize, len)))
    }
}

impl Driver for CudaDriver {
    type Opened = Opened;

    const KINDS: &'static [u8] = &[Handle::CUDA, Handle::CUDA_SEGMENT];

    fn begin(device: u32) -> Result<Self, NoMemory> {
        let cuda = Library::new(crate::gpu::cuda::load()?)?;
        let calls = calls::load()?;
        if device >= cuda.devices() {
            return Err(NoMemory::Device { vendor: "NVIDIA", device, devices: cuda.devices() });
        }
        let streams = Each::of(cuda.devices());
        let slots = CopySlots::of(cuda.devices(), device);
        let this = Self { cuda, calls, device, streams, slots };
        this.stream(device).map_err(Missing::Driver)?;
        if !planted("mem-gpu-makes-streams-late") {
            this.slots.prepare(&this).map_err(Missing::Driver)?;
        }
        Ok(this)
    }

    /// Those of legacy handles, which are the stricter ones; descriptors are for segments.
    fn caps(&self) -> Caps {
        Caps {
            maps: true,
            by_bytes: true,
            by_descriptor: true,
            opens_once: true,
            refuses_overlap: true,
            outlives_free: true,
            tells_descriptors: false,
        }
    }

    fn find(&self, addr: usize) -> Result<Option<Allocation>, Cause> {
        Ok(self.look(addr)?.map(|(found, _)| found))
    }

    fn export(
        &self,
        of: &Allocation,
        how: Passing,
        sealed: &mut Sealed,
    ) -> Result<Option<OwnedFd>, ExportError> {
        let found = self.look(of.base).map_err(Cause::from)?;
        let (_, sort) = found.ok_or(ExportError::Gone(of.id))?;
        let made = match (sort, how) {
            (Sort::Kept(why), _) => Err(ExportError::Unshareable(why)),
            (Sort::Legacy, Passing::Descriptor) => {
                Err(ExportError::Passing("what cudaMalloc gave goes by the bytes of its handle"))
            }
            (Sort::Segment, Passing::Bytes) => {
                Err(ExportError::Passing("a segment of virtual memory goes by its descriptor"))
            }
            (Sort::Legacy, _) => self.export_legacy(of, sealed).map(|()| None),
            (Sort::Segment, _) => self.export_segment(of, sealed).map(Some),
        };
        // Else a peer may read bytes that a memset or copy of the user's has not written yet. Where nothing can be set the user is warned, and it is exported all the same.
        if made.is_ok() && !planted("mem-exports-asynchronous-memory") {
            let _ = self.cuda.request_sync_memops(of.device, of.base);
        }
        made
    }

    fn conflicts(&self, kind: u8) -> bool {
        kind == Handle::CUDA
    }

    fn device_for(&self, own: Option<u32>) -> Option<u32> {
        let told_apart = among(self.cuda.devices(), self.device, own);
        told_apart.filter(|_| !planted("mem-cuda-maps-for-one-device"))
    }

    fn open(
        &self,
        sealed: &Sealed,
        descriptor: Option<OwnedFd>,
        device: Option<u32>,
    ) -> Result<(usize, Opened), OpenError> {
        let device = device.unwrap_or(self.device);
        // Its context is kept, as what is mapped goes with it.
        self.stream(device).map_err(|error| OpenError::Other(error.into()))?;
        if sealed.kind == Handle::CUDA {
            if descriptor.is_some() {
                return Err(OpenError::Descriptor("a legacy handle has no descriptor"));
            }
            return Ok((self.open_legacy(sealed, device)?, Opened::Legacy(device)));
        }
        let fd =
            descriptor.ok_or(OpenError::Descriptor("the descriptor of the segment did not come along"))?;
        Ok((self.open_segment(&fd, sealed.len, device)?, Opened::Segment(sealed.len)))
    }

    fn close(&self, addr: usize, opened: &Opened) -> Result<(), Cause> {
        match opened {
            Opened::Legacy(device) => self.close_legacy(addr, *device),
            Opened::Segment(len) => self.close_segment(addr, *len),
        }
        .map_err(Cause::from)
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
        self.call(self.device, "cuMemHostRegister", || {
            let at = ptr::with_exposed_provenance_mut(addr);
            // SAFETY: a range of the host that the caller holds until it is unpinned; the driver only pins its pages.
            unsafe { (self.calls.mem_host_register)(at, len, MEM_HOST_REGISTER_PORTABLE) }
        })?;
        Ok(true)
    }

    fn unpin(&self, addr: usize) {
        // What cannot be given back is the driver's until the process ends.
        let _ = self.call(self.device, "cuMemHostUnregister", || {
            // SAFETY: pinned above, and still mapped.
            unsafe { (self.calls.mem_host_unregister)(ptr::with_exposed_provenance_mut(addr)) }
        });
    }

    fn slots(&self) -> &CopySlots<Self> {
        &self.slots
    }

    fn alloc(&self, len: usize) -> Result<usize, Cause> {
        let mut at = 0;
        let alloc = self.cuda.calls().mem_alloc;
        self.call(self.device, "cuMemAlloc", || {
            // SAFETY: writes an address to a place of ours.
            unsafe { alloc(&raw mut at, len) }
        })?;
        Ok(at as usize)
    }

    fn free(&self, addr: usize) -> Result<(), Cause> {
        let free = self.cuda.calls().mem_free;
        self.call(self.device, "cuMemFree", || {
            // SAFETY: the driver knows what it has given, and refuses the rest.
            unsafe { free(addr as u64) }
        })?;
        Ok(())
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        std::mem::replace(&mut self.slots, CopySlots::of(0, 0)).end(self);
        for (device, stream) in self.streams.take() {
            self.end_stream(device, stream);
            self.cuda.release(device);
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, device {}", self.cuda.version(), self.device)
    }
}
