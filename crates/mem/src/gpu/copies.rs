//! Copies of a few bytes from and to memory of an NVIDIA device, on a dedicated stream, so that they never wait for a kernel that itself waits
//! for the copied data. For callers that have no mapping of the memory; each copy takes ten microseconds or more. Drivers of other vendors are
//! not supported.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::transmute;
use std::ptr::{self, NonNull};

use trunkline_sys::cuda::{self as calls, CopyCalls, status};

use super::cuda::CudaLibrary;
use super::library::DynamicLibrary;
use super::{DriverCallError, GpuUnavailable};

/// A stream for copies.
pub struct GpuCopyStream {
    cuda: CudaLibrary,
    calls: CopyCalls,
    device: u32,
    stream: *mut calls::Stream,
}

// SAFETY: any thread may call the driver, which locks its own state of a stream.
unsafe impl Send for GpuCopyStream {}
// SAFETY: as above.
unsafe impl Sync for GpuCopyStream {}

/// Why a copy cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuCopyError {
    /// The driver lacks the functions for copies.
    #[error(transparent)]
    Missing(#[from] GpuUnavailable),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] DriverCallError),
    /// The device is of another vendor.
    #[error("cannot create a copy stream: only NVIDIA's driver supports these copies")]
    Vendor,
}

impl GpuCopyStream {
    /// Creates a stream for memory of a device.
    ///
    /// # Errors
    /// [`GpuCopyError`].
    pub(super) fn new(cuda: CudaLibrary, device: u32) -> Result<Self, GpuCopyError> {
        let library = DynamicLibrary::open(&[calls::LIBRARY], "NVIDIA's driver (Debian: package libcuda1)")?;
        let find = |symbol: &CStr| library.find(symbol);
        let [create, destroy] = [find(c"cuStreamCreate")?, find(c"cuStreamDestroy_v2")?];
        let synchronize = find(c"cuStreamSynchronize")?;
        let [from, to] = [find(c"cuMemcpyDtoHAsync_v2")?, find(c"cuMemcpyHtoDAsync_v2")?];
        let calls = CopyCalls {
            // SAFETY: the function of this name has this type, by the driver's header.
            stream_create: unsafe { transmute::<NonNull<c_void>, calls::StreamCreate>(create) },
            // SAFETY: as above.
            stream_destroy: unsafe { transmute::<NonNull<c_void>, calls::StreamDestroy>(destroy) },
            // SAFETY: as above.
            stream_synchronize: unsafe {
                transmute::<NonNull<c_void>, calls::StreamSynchronize>(synchronize)
            },
            // SAFETY: as above.
            memcpy_dtoh_async: unsafe { transmute::<NonNull<c_void>, calls::MemcpyDtoHAsync>(from) },
            // SAFETY: as above.
            memcpy_htod_async: unsafe { transmute::<NonNull<c_void>, calls::MemcpyHtoDAsync>(to) },
            flush_gpu_direct_rdma_writes: find(c"cuFlushGPUDirectRDMAWrites")
                .ok()
                // SAFETY: as above.
                .map(|at| unsafe { transmute::<NonNull<c_void>, calls::FlushGpuDirectRdmaWrites>(at) }),
        };
        // Without this flag, the stream would wait for kernels on the default stream.
        let flags = calls::STREAM_NON_BLOCKING;
        let mut stream = ptr::null_mut();
        let code = cuda.with_device_context(device, || {
            // SAFETY: the call writes a handle to a local variable, in the device's context.
            unsafe { (calls.stream_create)(&raw mut stream, flags) }
        })?;
        cuda.check_status("cuStreamCreate", code)?;
        Ok(Self { cuda, calls, device, stream })
    }

    /// Copies from the device and waits until the copy completes. Writes by NICs that arrived before the call are visible to it, and are ordered
    /// before the next copy to the device.
    ///
    /// # Errors
    /// [`DriverCallError`]: `out` is not filled.
    pub fn copy_from_device(&self, addr: usize, out: &mut [u8]) -> Result<(), DriverCallError> {
        if let Some(flush) = self.calls.flush_gpu_direct_rdma_writes {
            let target = calls::FLUSH_TARGET_CURRENT_CTX;
            let scope = calls::FLUSH_TO_OWNER;
            // SAFETY: the call takes two numbers. A device that keeps this order by itself returns `NOT_SUPPORTED`.
            let code = self.cuda.with_device_context(self.device, || unsafe { flush(target, scope) })?;
            if code != status::NOT_SUPPORTED {
                self.cuda.check_status("cuFlushGPUDirectRDMAWrites", code)?;
            }
        }
        let code = self.cuda.with_device_context(self.device, || {
            // SAFETY: the driver checks the address, and writes at most `out.len()` bytes to `out`, which is borrowed until the wait below.
            unsafe {
                (self.calls.memcpy_dtoh_async)(out.as_mut_ptr().cast(), addr as u64, out.len(), self.stream)
            }
        })?;
        self.cuda.check_status("cuMemcpyDtoHAsync", code)?;
        self.synchronize_stream()
    }

    /// Copies to the device and waits until the copy completes.
    ///
    /// # Errors
    /// As [`GpuCopyStream::copy_from_device`].
    pub fn copy_to_device(&self, addr: usize, bytes: &[u8]) -> Result<(), DriverCallError> {
        self.write_all(&[(addr, bytes)])
    }

    /// Copies to several addresses of the device in order, and waits once for all copies.
    ///
    /// # Errors
    /// As [`GpuCopyStream::copy_from_device`]: some of the copies may have completed.
    pub fn write_all(&self, all: &[(usize, &[u8])]) -> Result<(), DriverCallError> {
        let begun = all.iter().try_for_each(|(addr, bytes)| self.begin_write(*addr, bytes));
        // Copies that were enqueued before a failed one still read their bytes, so wait in either case.
        begun.and(self.synchronize_stream())
    }

    /// Enqueues a copy; `bytes` must not change until [`GpuCopyStream::synchronize_stream`] returns.
    fn begin_write(&self, addr: usize, bytes: &[u8]) -> Result<(), DriverCallError> {
        let code = self.cuda.with_device_context(self.device, || {
            // SAFETY: the driver checks the address; the callers hold `bytes` until they have synchronized the stream.
            unsafe {
                (self.calls.memcpy_htod_async)(addr as u64, bytes.as_ptr().cast(), bytes.len(), self.stream)
            }
        })?;
        self.cuda.check_status("cuMemcpyHtoDAsync", code)
    }

    fn synchronize_stream(&self) -> Result<(), DriverCallError> {
        let code = self.cuda.with_device_context(self.device, || {
            // SAFETY: the stream was created by this value.
            unsafe { (self.calls.stream_synchronize)(self.stream) }
        })?;
        self.cuda.check_status("cuStreamSynchronize", code)
    }
}

impl Drop for GpuCopyStream {
    fn drop(&mut self) {
        // A stream that cannot be destroyed stays with the driver until the process ends.
        let _ = self.cuda.with_device_context(self.device, || {
            // SAFETY: the stream was created by this value, and every copy on it was waited for.
            unsafe { (self.calls.stream_destroy)(self.stream) }
        });
    }
}

impl fmt::Debug for GpuCopyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copies(device {})", self.device)
    }
}
