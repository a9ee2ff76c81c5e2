//! CPU mappings of a GPU's memory, by GDRCopy's library and kernel driver. Opened by code that reads or writes single words of such memory; a
//! mapping ends with the last clone of its memory.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::mem::transmute;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use trunkline_sys::gdrcopy::{self as calls, Calls, Info, Pinned};

use super::GpuUnavailable;
use super::library::DynamicLibrary;
use crate::mapped::fence_mapped_stores;
use crate::{MappedBytes, MappedMemory};

/// The GPU's page size, in bytes: mappings begin and end at multiples of it.
const PAGE: usize = 64 << 10;

/// Why a mapping cannot be made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GdrError {
    /// A call of the library failed.
    #[error("{call} failed with {status}: {}", std::io::Error::from_raw_os_error(*status))]
    Call {
        /// The function.
        call: &'static str,
        /// The returned status.
        status: c_int,
    },
    /// The library mapped another range than the requested one.
    #[error("GDRCopy mapped {size} bytes at {va:#x} instead of {len} bytes at {addr:#x}")]
    Elsewhere {
        /// First byte of the mapping.
        va: u64,
        /// Length of the mapping, in bytes.
        size: u64,
        /// First byte requested.
        addr: usize,
        /// Length requested, in bytes.
        len: usize,
    },
}

/// The library, and its connection to the kernel driver. Any thread may use it.
pub struct GdrCopy {
    calls: Calls,
    open: NonNull<calls::Open>,
}

// SAFETY: the library locks its state of a connection.
unsafe impl Send for GdrCopy {}
// SAFETY: as above.
unsafe impl Sync for GdrCopy {}

/// A mapping; dropping it unmaps and unpins the memory.
struct GdrMapping {
    gdr: Arc<GdrCopy>,
    pinned: Pinned,
    /// Address and length of the mapping; null before it is mapped.
    at: *mut c_void,
    len: usize,
    /// Address of the first requested byte.
    start: usize,
}

// SAFETY: the fields do not change, and any thread may call the library.
unsafe impl Send for GdrMapping {}
// SAFETY: as above.
unsafe impl Sync for GdrMapping {}

impl GdrCopy {
    /// Opens the library and its kernel driver.
    ///
    /// # Errors
    /// [`GpuUnavailable`] names the missing one of the two.
    pub fn open() -> Result<Self, GpuUnavailable> {
        let library = DynamicLibrary::open(&calls::LIBRARIES, "GDRCopy (package gdrcopy)")?;
        let find = |symbol: &CStr| library.find(symbol);
        let open = find(c"gdr_open")?;
        let close = find(c"gdr_close")?;
        let pin = find(c"gdr_pin_buffer")?;
        let unpin = find(c"gdr_unpin_buffer")?;
        let info = find(c"gdr_get_info_v2")?;
        let map = find(c"gdr_map")?;
        let unmap = find(c"gdr_unmap")?;
        let [to, from] = [find(c"gdr_copy_to_mapping")?, find(c"gdr_copy_from_mapping")?];
        let calls = Calls {
            // SAFETY: the function of this name has this type, by the library's header.
            open: unsafe { transmute::<NonNull<c_void>, calls::OpenFn>(open) },
            // SAFETY: as above.
            close: unsafe { transmute::<NonNull<c_void>, calls::Close>(close) },
            // SAFETY: as above.
            pin_buffer: unsafe { transmute::<NonNull<c_void>, calls::PinBuffer>(pin) },
            // SAFETY: as above.
            unpin_buffer: unsafe { transmute::<NonNull<c_void>, calls::UnpinBuffer>(unpin) },
            // SAFETY: as above.
            get_info: unsafe { transmute::<NonNull<c_void>, calls::GetInfo>(info) },
            // SAFETY: as above.
            map: unsafe { transmute::<NonNull<c_void>, calls::Map>(map) },
            // SAFETY: as above.
            unmap: unsafe { transmute::<NonNull<c_void>, calls::Unmap>(unmap) },
            // SAFETY: as above.
            copy_to_mapping: unsafe { transmute::<NonNull<c_void>, calls::CopyToMapping>(to) },
            // SAFETY: as above.
            copy_from_mapping: unsafe { transmute::<NonNull<c_void>, calls::CopyFromMapping>(from) },
        };
        // SAFETY: the call takes no arguments; it returns null if the kernel driver is missing.
        let open = NonNull::new(unsafe { (calls.open)() });
        let open = open
            .ok_or(GpuUnavailable::Module { module: "gdrdrv", package: "GDRCopy (package gdrdrv-dkms)" })?;
        Ok(Self { calls, open })
    }

    /// Maps `len` bytes of a GPU at `addr` for the CPU, write-combined. Reads are slow, because each one is a PCIe read of the GPU.
    ///
    /// # Errors
    /// [`GdrError`].
    pub fn map_memory(self: &Arc<Self>, addr: usize, len: usize) -> Result<MappedMemory, GdrError> {
        let first = addr / PAGE * PAGE;
        let whole = (addr - first).saturating_add(len).next_multiple_of(PAGE);
        let mut pinned = Pinned { h: 0 };
        // SAFETY: the driver checks the address; the call writes a handle to a local variable.
        let status = unsafe {
            (self.calls.pin_buffer)(self.open.as_ptr(), first as u64, whole, 0, 0, &raw mut pinned)
        };
        check_status("gdr_pin_buffer", status)?;
        let mut mapping =
            GdrMapping { gdr: Arc::clone(self), pinned, at: ptr::null_mut(), len: whole, start: 0 };
        let mut at = ptr::null_mut();
        // SAFETY: the range was pinned above and is not mapped yet.
        let status = unsafe { (self.calls.map)(self.open.as_ptr(), pinned, &raw mut at, whole) };
        check_status("gdr_map", status)?;
        mapping.at = at;
        let mut info = Info::default();
        // SAFETY: the range was pinned above; newer libraries write no more bytes than `Info` has.
        let status = unsafe { (self.calls.get_info)(self.open.as_ptr(), pinned, &raw mut info) };
        check_status("gdr_get_info", status)?;
        let Info { va, mapped_size: size, .. } = info;
        let elsewhere = GdrError::Elsewhere { va, size, addr, len };
        let before = (addr as u64).checked_sub(va).ok_or_else(|| elsewhere.clone())?;
        before.checked_add(len as u64).filter(|&end| end <= size).ok_or(elsewhere)?;
        let start = mapping.at.expose_provenance() + before as usize;
        mapping.start = start;
        // SAFETY: the range lies inside the mapping, which `mapping` keeps.
        Ok(unsafe { MappedMemory::new(start, len, Arc::new(mapping)) })
    }
}

impl GdrMapping {
    /// Returns a pointer to offset `at` of the mapping.
    fn pointer_at<T>(&self, at: u64) -> *mut T {
        ptr::with_exposed_provenance_mut(self.start + at as usize)
    }
}

impl MappedBytes for GdrMapping {
    fn load_word(&self, at: u64) -> u64 {
        // SAFETY: the caller has checked that the word is inside the mapping and aligned; it is read as volatile because the device may change it.
        unsafe { self.pointer_at::<u64>(at).read_volatile() }
    }

    fn load_half(&self, at: u64) -> u32 {
        // SAFETY: as above.
        unsafe { self.pointer_at::<u32>(at).read_volatile() }
    }

    fn store_word(&self, at: u64, value: u64) {
        // SAFETY: as above.
        unsafe { self.pointer_at::<u64>(at).write_volatile(value) };
    }

    fn store_half(&self, at: u64, value: u32) {
        // SAFETY: as above.
        unsafe { self.pointer_at::<u32>(at).write_volatile(value) };
    }

    fn fence(&self) {
        fence_mapped_stores();
    }

    fn copy_to(&self, at: u64, bytes: &[u8]) {
        let copy = self.gdr.calls.copy_to_mapping;
        // SAFETY: the caller has checked that the bytes fit. The call fails only for addresses that are not mapped.
        let _ = unsafe { copy(self.pinned, self.pointer_at(at), bytes.as_ptr().cast(), bytes.len()) };
    }

    fn copy_from(&self, at: u64, out: &mut [u8]) {
        let copy = self.gdr.calls.copy_from_mapping;
        // SAFETY: as above.
        let _ = unsafe { copy(self.pinned, out.as_mut_ptr().cast(), self.pointer_at(at), out.len()) };
    }
}

impl fmt::Debug for GdrMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:#x}+{})", self.start, self.len)
    }
}

impl Drop for GdrMapping {
    fn drop(&mut self) {
        let calls = &self.gdr.calls;
        let open = self.gdr.open.as_ptr();
        if !self.at.is_null() {
            // SAFETY: this handle mapped the range, and the last user has been dropped.
            let _ = unsafe { (calls.unmap)(open, self.pinned, self.at, self.len) };
        }
        // SAFETY: this handle pinned the range, which is no longer mapped.
        let _ = unsafe { (calls.unpin_buffer)(open, self.pinned) };
    }
}

impl Drop for GdrCopy {
    fn drop(&mut self) {
        // SAFETY: this value opened the connection, and the last mapping has been dropped.
        let _ = unsafe { (self.calls.close)(self.open.as_ptr()) };
    }
}

impl fmt::Debug for GdrCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gdr")
    }
}

fn check_status(call: &'static str, status: c_int) -> Result<(), GdrError> {
    if status == 0 { Ok(()) } else { Err(GdrError::Call { call, status }) }
}
