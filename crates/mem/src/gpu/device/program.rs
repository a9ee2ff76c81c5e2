//! Kernels: loaded from a compiler's output, found by name, and started, each on a stream that no other has meanwhile.

use std::ffi::{CString, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_sys::cuda::Stream;
use trunkline_sys::cuda_run::{Function, Module};

use super::{Device, Inner};
use crate::Memory;
use crate::gpu::CallError;
use crate::gpu::device::Pinned;

/// How long a look at a running kernel is from the next.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Loaded kernels. Cheap to clone.
#[derive(Clone)]
pub struct Program {
    loaded: Arc<Loaded>,
}

struct Loaded {
    device: Arc<Inner>,
    module: *mut Module,
}

// SAFETY: a handle of the driver's, which any thread may use.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Words by value, as a structure that is made of them.
    Words(Vec<u64>),
    /// The address of memory of the device, which is held while the kernel runs.
    Memory(Memory),
    /// The address of memory of the host as the device sees it, which is held as well.
    Pinned(Pinned),
}

/// A kernel was not started.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A name with a zero in it.
    #[error("a name of a kernel with a zero in it")]
    Name,
    /// The driver refuses.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A kernel that was started. Dropping it waits for the kernel's end, so that nothing that it uses goes before: abort its queues first, if
/// it waits for them.
#[must_use = "dropping it waits for the kernel"]
pub struct Running {
    loaded: Arc<Loaded>,
    stream: *mut Stream,
    _held: Vec<Arg>,
}

// SAFETY: as for `Loaded`.
unsafe impl Send for Running {}

impl Device {
    /// Loads what a compiler made for this device: machine code, or PTX, which ends with a zero.
    ///
    /// # Errors
    /// [`CallError`]: it is not for this device, say.
    ///
    /// # Safety
    /// Whatever they are started with, its kernels change no memory but what their arguments name, and read none else, within its bounds.
    /// Arguments that are words name none, unless the memory is held by another argument.
    pub unsafe fn program(&self, image: &[u8]) -> Result<Program, CallError> {
        // The driver is told no length: text ends with a zero, and machine code says its own.
        let mut image = image.to_vec();
        image.push(0);
        let inner = &self.inner;
        let mut module = ptr::null_mut();
        inner.call("cuModuleLoadData", || {
            // SAFETY: an image that ends with a zero, read during the call; a place of ours for a handle.
            unsafe { (inner.calls.module_load_data)(&raw mut module, image.as_ptr().cast()) }
        })?;
        Ok(Program { loaded: Arc::new(Loaded { device: Arc::clone(inner), module }) })
    }
}

impl Program {
    /// The device that it was loaded for.
    #[must_use]
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.loaded.device) }
    }

    /// Starts a kernel: so many blocks of so many threads.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn launch(
        &self,
        name: &str,
        (blocks, threads): (u32, u32),
        args: Vec<Arg>,
    ) -> Result<Running, LaunchError> {
        let device = &self.loaded.device;
        let function = self.find(name)?;
        let mut words: Vec<Vec<u64>> = args
            .iter()
            .map(|arg| match arg {
                Arg::Words(words) => words.clone(),
                Arg::Memory(memory) => vec![memory.addr() as u64],
                Arg::Pinned(pinned) => vec![pinned.at()],
            })
            .collect();
        let mut places: Vec<*mut c_void> = words.iter_mut().map(|of| of.as_mut_ptr().cast()).collect();
        let stream = device.take_stream()?;
        let running = Running { loaded: Arc::clone(&self.loaded), stream, _held: args };
        let blocks: c_uint = blocks;
        let threads: c_uint = threads;
        device.call("cuLaunchKernel", || {
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

    fn find(&self, name: &str) -> Result<*mut Function, LaunchError> {
        let name = CString::new(name).map_err(|_| LaunchError::Name)?;
        let device = &self.loaded.device;
        let mut function = ptr::null_mut();
        device.call("cuModuleGetFunction", || {
            // SAFETY: a module of ours, a name that ends with a zero, and a place of ours for a handle.
            unsafe {
                (device.calls.module_get_function)(&raw mut function, self.loaded.module, name.as_ptr())
            }
        })?;
        Ok(function)
    }
}

impl Running {
    /// Whether it has ended.
    ///
    /// # Errors
    /// [`CallError`]: it has failed.
    pub fn is_over(&self) -> Result<bool, CallError> {
        let device = &self.loaded.device;
        device.ask("cuStreamQuery", || {
            // SAFETY: a stream of ours.
            unsafe { (device.calls.stream_query)(self.stream) }
        })
    }

    /// Waits for its end, at most so long. Whether it has ended.
    ///
    /// # Errors
    /// As [`Running::is_over`].
    pub fn wait(&self, limit: Duration) -> Result<bool, CallError> {
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

impl Drop for Running {
    fn drop(&mut self) {
        self.loaded.device.give_back_stream(self.stream);
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.device.give_back("cuModuleUnload", || {
            // SAFETY: a module of ours, none of whose kernels runs: each of those holds it.
            unsafe { (self.device.calls.module_unload)(self.module) }
        });
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(device {})", self.loaded.device.ordinal)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running(device {})", self.loaded.device.ordinal)
    }
}
