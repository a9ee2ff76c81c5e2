//! Kernels: loaded from a compiler's output, found by name, and started, each on a stream that no other has meanwhile.

use std::ffi::{CString, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_sys::cuda::Stream;
use trunkline_sys::cuda_run::{Function, Module};

use super::{DeviceContext, GpuDevice};
use crate::MemoryRange;
use crate::gpu::DriverCallError;
use crate::gpu::device::PinnedMemory;

/// How long a look at a running kernel is from the next.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Loaded kernels. Cheap to clone.
#[derive(Clone)]
pub struct KernelModule {
    loaded: Arc<LoadedModule>,
}

struct LoadedModule {
    device: Arc<DeviceContext>,
    module: *mut Module,
}

// SAFETY: a handle of the driver's, which any thread may use.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub enum KernelArg {
    /// Words by value, as a structure that is made of them.
    Words(Vec<u64>),
    /// The address of memory of the device, which is held while the kernel runs.
    Memory(MemoryRange),
    /// The address of memory of the host as the device sees it, which is held as well.
    Pinned(PinnedMemory),
}

/// A kernel was not started.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelLaunchError {
    /// A name with a zero in it.
    #[error("a name of a kernel with a zero in it")]
    Name,
    /// The driver refuses.
    #[error(transparent)]
    Call(#[from] DriverCallError),
}

/// A kernel that was started. Dropping it waits for the kernel's end, so that nothing that it uses goes before: abort its queues first, if
/// it waits for them.
#[must_use = "dropping it waits for the kernel"]
pub struct RunningKernel {
    loaded: Arc<LoadedModule>,
    stream: *mut Stream,
    _held: Vec<KernelArg>,
}

// SAFETY: as for `LoadedModule`.
unsafe impl Send for RunningKernel {}

impl GpuDevice {
    /// Loads what a compiler made for this device: machine code, or PTX, which ends with a zero.
    ///
    /// # Errors
    /// [`DriverCallError`]: it is not for this device, say.
    ///
    /// # Safety
    /// Whatever they are started with, its kernels change no memory but what their arguments name, and read none else, within its bounds.
    /// Arguments that are words name none, unless the memory is held by another argument.
    pub unsafe fn load_module(&self, image: &[u8]) -> Result<KernelModule, DriverCallError> {
        // The driver is told no length: text ends with a zero, and machine code says its own.
        let mut image = image.to_vec();
        image.push(0);
        let inner = &self.inner;
        let mut module = ptr::null_mut();
        inner.call_driver("cuModuleLoadData", || {
            // SAFETY: an image that ends with a zero, read during the call; a place of ours for a handle.
            unsafe { (inner.calls.module_load_data)(&raw mut module, image.as_ptr().cast()) }
        })?;
        Ok(KernelModule { loaded: Arc::new(LoadedModule { device: Arc::clone(inner), module }) })
    }
}

impl KernelModule {
    /// The device that it was loaded for.
    #[must_use]
    pub fn device(&self) -> GpuDevice {
        GpuDevice { inner: Arc::clone(&self.loaded.device) }
    }

    /// Starts a kernel of `blocks` blocks, each of `threads` threads.
    ///
    /// # Errors
    /// [`KernelLaunchError`].
    pub fn launch_kernel(
        &self,
        name: &str,
        blocks: u32,
        threads: u32,
        args: Vec<KernelArg>,
    ) -> Result<RunningKernel, KernelLaunchError> {
        let device = &self.loaded.device;
        let function = self.find_function(name)?;
        let mut words: Vec<Vec<u64>> = args
            .iter()
            .map(|arg| match arg {
                KernelArg::Words(words) => words.clone(),
                KernelArg::Memory(memory) => vec![memory.addr() as u64],
                KernelArg::Pinned(pinned) => vec![pinned.device_address()],
            })
            .collect();
        let mut places: Vec<*mut c_void> = words.iter_mut().map(|of| of.as_mut_ptr().cast()).collect();
        let stream = device.take_stream()?;
        let running = RunningKernel { loaded: Arc::clone(&self.loaded), stream, _held: args };
        let blocks: c_uint = blocks;
        let threads: c_uint = threads;
        device.call_driver("cuLaunchKernel", || {
            // SAFETY: a kernel of a module that is held, as many places as it has arguments (who loaded it has promised what it does with
            // any), which are read during the call.
            unsafe {
                (device.calls.launch_kernel)(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream,
                    places.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
        })?;
        Ok(running)
    }

    fn find_function(&self, name: &str) -> Result<*mut Function, KernelLaunchError> {
        let name = CString::new(name).map_err(|_| KernelLaunchError::Name)?;
        let device = &self.loaded.device;
        let mut function = ptr::null_mut();
        device.call_driver("cuModuleGetFunction", || {
            // SAFETY: a module of ours, a name that ends with a zero, and a place of ours for a handle.
            unsafe {
                (device.calls.module_get_function)(&raw mut function, self.loaded.module, name.as_ptr())
            }
        })?;
        Ok(function)
    }
}

impl RunningKernel {
    /// Whether it has ended.
    ///
    /// # Errors
    /// [`DriverCallError`]: it has failed.
    pub fn is_over(&self) -> Result<bool, DriverCallError> {
        let device = &self.loaded.device;
        device.poll_driver("cuStreamQuery", || {
            // SAFETY: a stream of ours.
            unsafe { (device.calls.stream_query)(self.stream) }
        })
    }

    /// Waits for its end, at most so long. Whether it has ended.
    ///
    /// # Errors
    /// As [`RunningKernel::is_over`].
    pub fn wait(&self, limit: Duration) -> Result<bool, DriverCallError> {
        let began = Instant::now();
        while !self.is_over()? {
            if began.elapsed() > limit {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }
}

impl Drop for RunningKernel {
    fn drop(&mut self) {
        self.loaded.device.give_back_stream(self.stream);
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        let _ = self.device.give_back("cuModuleUnload", || {
            // SAFETY: a module of ours, none of whose kernels runs: each of those holds it.
            unsafe { (self.device.calls.module_unload)(self.module) }
        });
    }
}

impl fmt::Debug for KernelModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(device {})", self.loaded.device.ordinal)
    }
}

impl fmt::Debug for RunningKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running(device {})", self.loaded.device.ordinal)
    }
}
