//! Device queues: communication that *kernels* start by themselves, without a call of the engine. Here kernels are
//! threads of the host, or of a GPU.
//!
//! [`Devices`] is the executor of a rank. All ranks together create a [`Window`]: memory of every rank with signals,
//! counters, barriers and streams. A [`Kernel`] is the access of one thread to a window: it writes entries into a
//! queue, and waits on words.
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
//! # Guarantees
//!
//! - *Order.* Puts are unordered. The signal or counter of a put follows its bytes, and all earlier puts of its
//!   kernel on the same lane.
//! - *Completion.* After a wait for a ticket ([`Kernel::wait`]), a flush, or a wait for a counter, the bytes are
//!   placed at their target, and their source may be used again.
//! - *Failure.* A failed entry ends every wait for it: by ticket, by counter, and the target's wait for the signal.
//!   So does the death of the rank that should have raised a signal. No wait reports a failure as success, and none
//!   exceeds its limit ([`Kernel::limit`]).
//! - *Memory.* Signals, counters and barriers keep counting from kernel to kernel. Only [`Kernel::reset_signal`]
//!   resets them, and it loses no addition.
//! - *Other processes.* A channel can be lent to another process of the host, whose kernels use it like those of this
//!   rank ([`Window::lend`], [`GuestWindow`]).
//! - *Progress.* With [`ExecutorMode::Inline`], the threads that post or wait execute the entries. With
//!   [`ExecutorMode::Thread`], a thread does; it sleeps while there is no work.

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
