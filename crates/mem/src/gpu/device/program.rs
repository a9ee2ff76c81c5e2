//! Kernels: loaded from a compiler's output, found by name, and launched, each on a stream that no other kernel uses at that time.

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

/// Interval between polls of a running kernel.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// A loaded module of kernels. Cheap to clone.
#[derive(Clone)]
pub struct KernelModule {
    loaded: Arc<LoadedModule>,
}

struct LoadedModule {
    device: Arc<DeviceContext>,
    module: *mut Module,
}

// SAFETY: `module` is a handle of the driver, which any thread may use.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub enum KernelArg {
    /// Words by value; a structure is passed as its words.
    Words(Vec<u64>),
    /// The address of memory of the device, which is held while the kernel runs.
    Memory(MemoryRange),
    /// The device address of memory of the host, which is held while the kernel runs.
    Pinned(PinnedMemory),
}

/// Why a kernel was not launched.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelLaunchError {
    /// The name contains a zero byte.
    #[error("cannot launch a kernel: its name contains a zero byte")]
    Name,
    /// A driver call failed.
    #[error(transparent)]
    Call(#[from] DriverCallError),
}

/// A launched kernel. Dropping it waits until the kernel has ended, because the kernel uses its arguments until then. If the kernel waits for
/// device queues, abort them first.
#[must_use = "dropping it waits for the kernel"]
pub struct RunningKernel {
    loaded: Arc<LoadedModule>,
    stream: *mut Stream,
    _held: Vec<KernelArg>,
}

// SAFETY: as for `LoadedModule`.
unsafe impl Send for RunningKernel {}

impl GpuDevice {
    /// Loads a compiler's output for this device: machine code, or PTX. A terminating zero is added.
    ///
    /// # Errors
    /// [`DriverCallError`], for example if the image is for another architecture.
    ///
    /// # Safety
    /// For any arguments, the kernels access only memory that their arguments name, within its bounds. An argument passed as words names memory
    /// only if another argument holds that memory.
    pub unsafe fn load_module(&self, image: &[u8]) -> Result<KernelModule, DriverCallError> {
        // The driver takes no length: PTX ends with a zero, and machine code contains its own length.
        let mut image = image.to_vec();
        image.push(0);
        let inner = &self.inner;
        let mut module = ptr::null_mut();
        inner.call_driver("cuModuleLoadData", || {
            // SAFETY: the image ends with a zero and is only read during the call, which writes a handle to a local variable.
            unsafe { (inner.calls.module_load_data)(&raw mut module, image.as_ptr().cast()) }
        })?;
        Ok(KernelModule { loaded: Arc::new(LoadedModule { device: Arc::clone(inner), module }) })
    }
}

impl KernelModule {
    /// Returns the device for which the module was loaded.
    #[must_use]
    pub fn device(&self) -> GpuDevice {
        GpuDevice { inner: Arc::clone(&self.loaded.device) }
    }

    /// Launches a kernel of `blocks` blocks with `threads` threads each.
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
            // SAFETY: the function belongs to a module that is held, and there is one place per argument, read during the call. The caller of
            // `load_module` has promised that the kernel is sound for any arguments.
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
            // SAFETY: the module is loaded, the name ends with a zero, and the call writes a handle to a local variable.
            unsafe {
                (device.calls.module_get_function)(&raw mut function, self.loaded.module, name.as_ptr())
            }
        })?;
        Ok(function)
    }
}

impl RunningKernel {
    /// Returns whether the kernel has ended.
    ///
    /// # Errors
    /// [`DriverCallError`]: the kernel failed.
    pub fn is_over(&self) -> Result<bool, DriverCallError> {
        let device = &self.loaded.device;
        device.poll_driver("cuStreamQuery", || {
            // SAFETY: the stream was created by this device.
            unsafe { (device.calls.stream_query)(self.stream) }
        })
    }

    /// Waits at most `limit` for the kernel to end. Returns whether it has ended.
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
            // SAFETY: the module was loaded by this value, and none of its kernels is running: each running kernel holds the module.
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
