//! One-sided communication between the processes of a job, over whatever connects them.
//!
//! Each process is a *rank* of a [`World`]. All ranks allocate the same *symmetric* objects; each then reads and writes those of any other by number, without
//! that rank's help: [`put`](Context::put) and [`get`](Context::get), atomics, and [`signal`](Context::signal)s, which arrive after earlier puts.
//!
//! ```
//! use trunkline::{Error, World};
//!
//! fn main() -> Result<(), Error> {
//!     let world = World::start()?; // joins the launcher's job, or starts alone
//!     let numbers = world.alloc::<u64>(world.size())?; // on every rank, zeroed
//!     let next = (world.rank() + 1) % world.size();
//!     world.put(next, numbers.at(world.rank()), &[7])?; // into the next rank's memory
//!     world.barrier()?; // all puts are complete on all ranks
//!     let before = (world.rank() + world.size() - 1) % world.size();
//!     assert_eq!(numbers.load(before), 7);
//!     world.finish()
//! }
//! ```
//!
//! `trunkline run -n 4 PROGRAM` starts such a program as four ranks, `--hosts a,b` on several hosts; so do torchrun, Slurm and `mpiexec`. [`launch`](launch())
//! lets a program start its own ranks, as the examples in `examples/` do. This crate never starts communication outside of its calls, except for the service
//! thread of *Progress* below and an executor of [`device`].
//!
//! # Guarantees
//!
//! - *Order.* None between puts, unless a [`fence`](Context::fence) stands between them. A signal arrives after all puts of its context to that rank before
//!   it, and after the signals before it.
//! - *Completion.* When a put returns, its source may be changed. When a [`quiet`](Context::quiet) returns, all operations that its context began are complete
//!   and visible at their targets. A get or a fetching atomic is complete when it returns.
//! - *Width.* A [`Word`] at its natural place (all elements of symmetric objects of such a type) is never torn. Longer elements may be partly new and partly
//!   old while they are being written.
//! - *Atomics* are atomic among each other, for every rank and every NIC, as each word has one executor: the rank that has it. For words of 8 bytes, where
//!   every rank has one NIC that executes atomics by itself, and no other, it is that NIC (`TRUNKLINE_ATOMICS=owner`: always the rank). Puts into the same
//!   word are whole, too, but a put between the parts of an atomic may be lost. So may a signal's change where NICs execute: a word is for atomics or for
//!   signals.
//! - *Progress.* A thread beside a computing rank serves other ranks ([`WorldBuilder::passive`]). It sleeps up to four milliseconds at a time when nothing
//!   arrives, up to one when something arrived lately. A rank that waits in a call of this crate serves by itself, at once. Operations that a rank has begun
//!   continue with its own calls and by that thread, and are sent by the next quiet at the latest.
//! - *Death.* A call that waits for a rank which dies ends with [`Error::Gone`] or [`Error::Failed`], never hangs. A rank that is stopped, or computes for an
//!   hour, is alive.
//!
//! # Memory
//!
//! Other ranks may write this rank's part at any moment, which no `&[T]` allows. So symmetric objects are read and written by copies
//! ([`SymmetricSlice::read`], [`write`](SymmetricSlice::write)) and, word by word, as atomics ([`load`](SymmetricSlice::load),
//! [`store`](SymmetricSlice::store)). Elements are plain old data (`bytemuck::Pod`): all bytes that may arrive are a valid value. This crate holds no unsafe
//! code.
//!
//! # Settings
//!
//! The environment selects, as for the plugin: `TRUNKLINE_FABRIC` (the software NIC unless another one is named or the host has EFA or Slingshot),
//! `TRUNKLINE_HEAP_BYTES`, `TRUNKLINE_PROGRESS_THREAD`; `trunkline info --params` lists all. Settings that a program makes by [`World::builder`] have
//! precedence.
//!
//! # How it works, for contributors
//!
//! - `world.rs`, `context.rs`, `symmetric.rs`: a world, its contexts, and symmetric objects.
//! - `atomics.rs`, `signal.rs`, `strided.rs`, `pending.rs`: operations, and values that have not arrived. `collective.rs`: barriers.
//! - [`messages`]: tagged messages inside a host. [`device`]: windows and kernels over device queues.
//! - *Symmetric without messages.* Each rank keeps the same list of free ranges ([`trunkline_proto::ranges`]), so the same calls give the same offsets and
//!   ranks exchange nothing. The words of a barrier contain the call that a rank makes (`collective.rs`), and a rank that makes another one is named.
//! - *Two heaps.* One is the program's. The other has the words of barriers and a stage for each context, through which memory that no NIC knows is copied.
//! - *A context has one owner.* It is `Send` and not `Sync`, so the list of its outstanding values needs no lock. The engine reuses the place of a replied
//!   atomic for the next one. So values are taken in before another begins (`pending.rs`).
//! - *Waits name the rank that they wait for*, in `wait_until` too, as that is how a wait ends when that rank dies. Data that it sent before counts.
//! - *A collective call ends with a death.* A rank that learns of a death leaves at once. So no rank waits for a living one while any is dead
//!   (`messages/collective.rs`).
//! - *The end.* `finish` is a barrier, then a quiet whose failures mean only that others have left before. A dropped world leaves without them, so that a
//!   failing rank does not wait for ranks that wait for it.
//! - *Memory of messages* (`messages/memory.rs`): [`messages::Messages`] shows the exports of this process and recalls memory from other ranks.
//! - *Windows of messages* (`messages/window.rs`). Each rank reports to each owner whether it could map the part, and each owner reports the result to all. So
//!   all ranks agree, and a window that one driver refuses uses messages for all (`messages/serve.rs`). Puts and gets are begun and polled
//!   (`messages/window_copy.rs`): a call returns with its bytes in place, and makes progress for everything meanwhile.
//! - *Windows of device queues* (`device/`). Their layout is in `proto` (`wire/device_queue/window.rs`), so that other languages can use it. A stream has a
//!   flag for each lane, since a sum of two lanes would not show which bytes have arrived. In C++ the same is `window.h` and `stream.h` of the header. There
//!   every thread of a group makes each call, the leader acts, and a failure persists, as nothing like `?` ends a kernel. The kernel's data of a window is in
//!   `view.rs`. Words that the kernel changes by atomics are passed by address, so that a device can keep them in its own memory.
#![forbid(unsafe_code)]

mod atomics;
mod collective;
mod context;
pub mod device;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod launch;
pub mod messages;
mod pending;
mod shared_world;
mod signal;
mod strided;
mod symmetric;
mod word;
mod world;

pub use atomics::FetchOp;
pub use bytemuck::{Pod, Zeroable};
pub use context::Context;
pub use error::Error;
pub use launch::{is_rank, launch, start_ranks};
pub use pending::PendingFetch;
pub use signal::{Compare, ElementRange, ExpectedRanks, SignalOp};
pub use strided::Strides;
pub use symmetric::{ElementPlace, Symmetric, SymmetricSlice};
pub use trunkline_fabric::LogLevel;
pub use trunkline_runtime::JobCarrier;
pub use word::{Integer, Word};
pub use world::{World, WorldBuilder};
