//! Device queues: communication that *kernels* start, threads of the host here, by themselves and without a call of the engine.
//!
//! [`Devices`] is the executor of a rank. A [`Window`] is memory of every rank with signals, counters, barriers and streams of its own, made by all
//! ranks together. A [`Kernel`] is what one thread uses of a window: it writes entries into a queue, and waits on words.
//!
//! ```
//! use trunkline::World;
//! use trunkline::device::{ExecutorMode, WindowConfig, PutNotification};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let world = World::start()?;
//!     let devices = world.devices(ExecutorMode::Thread)?;
//!     let window = devices.window(&world, WindowConfig { bytes: 4096, signals: 1, ..WindowConfig::default() })?;
//!     let next = (world.rank() + 1) % world.size();
//!     let before = (world.rank() + world.size() - 1) % world.size();
//!     let kernel = window.kernel(0)?;
//!     window.write(0, b"hello")?;
//!     kernel.put(next, 100, 0, 5, PutNotification::signal(0))?; // five bytes, and then signal 0
//!     kernel.wait_signal(before, 0, 1)?;
//!     let mut text = [0; 5];
//!     window.read(100, &mut text)?;
//!     assert_eq!(&text, b"hello");
//!     drop(kernel);
//!     window.free(&world)?;
//!     Ok(world.finish()?)
//! }
//! ```
//!
//! # What is guaranteed
//!
//! - *Order.* None between puts. A signal or counter that goes with a put comes after its bytes, and after all that its kernel has put before on the same lane.
//! - *Completion.* A ticket that was waited for ([`Kernel::wait`]), a flush, and a counter say that the bytes are placed at their target and their source may be used again.
//! - *Failure.* An entry that fails ends every wait for it: by ticket, by counter, and the other rank's for the signal. So does the death of the rank
//!   that would have raised a signal. No wait takes a failure for success, and with a limit ([`Kernel::limit`]) none lasts longer.
//! - *Memory.* Signals, counters and barriers count on from kernel to kernel; nobody sets them back but [`Kernel::reset_signal`], which loses no addition.
//! - *Other processes.* A channel can be lent to another process of the host, whose kernels use it as this rank's ([`Window::lend`], [`GuestWindow`]).
//! - *Progress.* [`ExecutorMode::Inline`]: whoever posts or waits executes, too. [`ExecutorMode::Thread`]: a thread does, which sleeps while nothing is asked for.

mod error;
mod gpudirect;
mod guest;
mod kernel;
mod on_gpu;
mod stream;
mod view;
mod window;
mod window_setup;

pub use error::{DeviceError, KernelError};
pub use guest::{GuestCard, GuestWindow};
pub use kernel::{Kernel, PostedTransfer, PutNotification};
pub use on_gpu::{GpuPlacement, GpuView, Residence};
pub use trunkline_device::ExecutorMode;
pub use trunkline_device_queue::WaitError;
pub use trunkline_mem::gpu;
pub use view::{DeviceTables, DeviceView, LaneView, PeerView, VIEW_VERSION};
pub use window::{Devices, SourceMemory, Window, WindowConfig};
