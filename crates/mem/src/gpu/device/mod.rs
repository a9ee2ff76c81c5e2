//! An NVIDIA device on which kernels of this process run: its memory, memory of the host that it can access, copies that run beside kernels,
//! and kernels that are loaded and launched. Opened by programs that launch kernels
//! ([`VendorDriver::open_device`](super::VendorDriver::open_device)); used by the executor of device queues.
//!
//! Allocate and free memory, and load kernels, only while no kernel that waits for the host is running: the driver may wait for such a kernel
//! first. A function here waits for the device only if its documentation states it.

mod calls;
mod copy_queue;
mod memory;
mod program;

use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, getpid};

use trunkline_sys::cuda::{self as driver, Stream, status};
use trunkline_sys::cuda_run::{self as calls_of, Calls};

use super::cuda::CudaLibrary;
use super::{DriverCallError, GpuUnavailable};

pub use copy_queue::{DeviceCopyQueue, MOVES_MAX, MemoryLocation};
pub use memory::{PinnedMemory, RangeError};
pub use program::{KernelArg, KernelLaunchError, KernelModule, RunningKernel};

/// Idle streams kept for later kernels: creating a stream may wait for running kernels.
const SPARE_STREAMS_MAX: usize = 16;

/// A device. Cheap to clone; its context is retained until the last clone, and every object made from it, is dropped.
#[derive(Clone)]
pub struct GpuDevice {
    inner: Arc<DeviceContext>,
}

pub(super) struct DeviceContext {
    cuda: CudaLibrary,
    calls: Calls,
    ordinal: u32,
    context: *mut driver::Context,
    /// The stream of calls that wait for their completion.
    stream: *mut Stream,
    /// Idle streams.
    spare: Mutex<Vec<*mut Stream>>,
    /// The process that opened the driver: its objects are unusable in a forked child.
    process: Pid,
}

// SAFETY: any thread may call the driver, which locks its own state of a context and a stream.
unsafe impl Send for DeviceContext {}
// SAFETY: as above.
unsafe impl Sync for DeviceContext {}

/// Why a device cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuDeviceError {
    /// The driver lacks the functions for kernels.
    #[error(transparent)]
    Missing(#[from] GpuUnavailable),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] DriverCallError),
    /// The device is of another vendor: only NVIDIA's driver can launch kernels.
    #[error("cannot open the device: only NVIDIA's driver can launch kernels")]
    Vendor,
}

impl GpuDevice {
    pub(super) fn new(cuda: CudaLibrary, ordinal: u32) -> Result<Self, GpuDeviceError> {
        let calls = calls::load_calls()?;
        let context = cuda.retained_context(ordinal)?;
        let stream = ptr::null_mut();
        let spare = Mutex::new(Vec::with_capacity(SPARE_STREAMS_MAX));
        let mut inner = DeviceContext { cuda, calls, ordinal, context, stream, spare, process: getpid() };
        inner.stream = inner.new_stream()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the device's number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// Returns the compute capability as compilers write it: 90 for `sm_90`.
    ///
    /// # Errors
    /// [`DriverCallError`].
    pub fn architecture(&self) -> Result<u32, DriverCallError> {
        let of = |attribute| self.inner.device_attribute(attribute);
        let major = of(calls_of::COMPUTE_CAPABILITY_MAJOR)?;
        let minor = of(calls_of::COMPUTE_CAPABILITY_MINOR)?;
        Ok(u32::try_from(major * 10 + minor).unwrap_or(0))
    }

    /// Returns the PCI address as sysfs writes it: `0000:3b:00.0`.
    ///
    /// # Errors
    /// [`DriverCallError`].
    pub fn pci_address(&self) -> Result<String, DriverCallError> {
        let of = |attribute| self.inner.device_attribute(attribute);
        let domain = of(calls_of::PCI_DOMAIN_ID)?;
        let bus = of(calls_of::PCI_BUS_ID)?;
        Ok(format!("{domain:04x}:{bus:02x}:{:02x}.0", of(calls_of::PCI_DEVICE_ID)?))
    }
}

impl DeviceContext {
    /// Checks that this process opened the device. In a forked child, a driver call is undefined and may wait for a lock forever.
    fn check_process(&self, name: &'static str) -> Result<(), DriverCallError> {
        if getpid() == self.process {
            return Ok(());
        }
        let code = status::NOT_INITIALIZED;
        let name_of_code = "CUDA_ERROR_NOT_INITIALIZED".to_owned();
        let remedy = "the process was forked after it opened the GPU; open it in the child";
        Err(DriverCallError { call: name, code, name: name_of_code, remedy })
    }

    /// Calls the driver in the device's context.
    fn call_driver(
        &self,
        name: &'static str,
        call: impl FnOnce() -> driver::Status,
    ) -> Result<(), DriverCallError> {
        self.check_process(name)?;
        let code = self.cuda.with_context(self.context, call)?;
        self.cuda.check_status(name, code)
    }

    /// Calls a function that frees an object. If the context cannot be made current, the call is retried once: no other code frees the object.
    fn give_back(
        &self,
        name: &'static str,
        mut call: impl FnMut() -> driver::Status,
    ) -> Result<(), DriverCallError> {
        self.check_process(name)?;
        let first = self.cuda.with_context(self.context, &mut call);
        let code = first.or_else(|_| self.cuda.with_context(self.context, &mut call))?;
        self.cuda.check_status(name, code)
    }

    /// Calls a query of the driver; returns `false` for `CUDA_ERROR_NOT_READY`.
    fn poll_driver(
        &self,
        name: &'static str,
        call: impl FnOnce() -> driver::Status,
    ) -> Result<bool, DriverCallError> {
        self.check_process(name)?;
        match self.cuda.with_context(self.context, call)? {
            calls_of::NOT_READY => Ok(false),
            code => self.cuda.check_status(name, code).map(|()| true),
        }
    }

    fn device_attribute(&self, attribute: u32) -> Result<c_int, DriverCallError> {
        let device = self.cuda.device_handle(self.ordinal)?;
        let mut value = 0;
        // SAFETY: the call writes a number to a local variable.
        let code = unsafe { (self.calls.device_get_attribute)(&raw mut value, attribute, device) };
        self.cuda.check_status("cuDeviceGetAttribute", code).map(|()| value)
    }

    /// Creates a stream that does not wait for others.
    fn new_stream(&self) -> Result<*mut Stream, DriverCallError> {
        let mut stream = ptr::null_mut();
        self.call_driver("cuStreamCreate", || {
            // SAFETY: the call writes a handle to a local variable.
            unsafe { (self.calls.stream_create)(&raw mut stream, driver::STREAM_NON_BLOCKING) }
        })?;
        Ok(stream)
    }

    /// Returns an idle stream, creating one if none is spare.
    fn take_stream(&self) -> Result<*mut Stream, DriverCallError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.map_or_else(|| self.new_stream(), Ok)
    }

    /// Waits for a stream and keeps it for another kernel. Destroys it if its kernel failed or enough streams are spare.
    fn give_back_stream(&self, stream: *mut Stream) {
        if self.wait_for(stream).is_ok() {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.len() < SPARE_STREAMS_MAX {
                return spare.push(stream);
            }
        }
        self.end_stream(stream);
    }

    /// Waits for a stream, then destroys it.
    fn end_stream(&self, stream: *mut Stream) {
        // A stream that cannot be synchronized or destroyed stays with the driver until the process ends.
        let _ = self.wait_for(stream);
        let _ = self.give_back("cuStreamDestroy", || {
            // SAFETY: the stream was created by this value and is destroyed once.
            unsafe { (self.calls.stream_destroy)(stream) }
        });
    }

    /// Waits until a stream is idle. A failed wait is retried once: until completion is known, the device may access the memory of its copies.
    fn wait_for(&self, stream: *mut Stream) -> Result<(), DriverCallError> {
        let wait = || {
            self.call_driver("cuStreamSynchronize", || {
                // SAFETY: the stream was created by this value.
                unsafe { (self.calls.stream_synchronize)(stream) }
            })
        };
        wait().or_else(|_| wait())
    }

    /// Enqueues a copy on a stream.
    ///
    /// # Safety
    /// Both ranges are memory of this device, or memory of this process that stays mapped until the copy has completed.
    unsafe fn enqueue_copy(
        &self,
        to: usize,
        from: usize,
        len: usize,
        stream: *mut Stream,
    ) -> Result<(), DriverCallError> {
        self.call_driver("cuMemcpyAsync", || {
            // SAFETY: the caller guarantees the conditions above.
            unsafe { (self.calls.memcpy_async)(to as u64, from as u64, len, stream) }
        })
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        let spare = std::mem::take(self.spare.get_mut().unwrap_or_else(PoisonError::into_inner));
        spare.into_iter().for_each(|stream| self.end_stream(stream));
        if !self.stream.is_null() {
            self.end_stream(self.stream);
        }
        if self.check_process("cuDevicePrimaryCtxRelease").is_ok() {
            self.cuda.release_context(self.ordinal);
        }
    }
}

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {})", self.inner.ordinal, self.inner.cuda.version_text())
    }
}

const _: () = assert!(status::SUCCESS == 0 && calls_of::NOT_READY != 0);
