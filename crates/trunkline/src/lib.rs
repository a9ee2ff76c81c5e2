//! One-sided communication between the processes of a job, over whatever connects them.
//!
//! Each process is a *rank* of a [`World`]. All ranks allocate the same *symmetric* objects; each then reads and writes those of
//! any other by number, without that one's help: [`put`](Context::put) and [`get`](Context::get), atomics, and
//! [`signal`](Context::signal)s, which come after what was put before them.
//!
//! ```
//! use trunkline::{Error, World};
//!
//! fn main() -> Result<(), Error> {
//!     let world = World::start()?; // as the rank that the launcher says; alone without one
//!     let numbers = world.alloc::<u64>(world.size())?; // on every rank, all zero
//!     let next = (world.rank() + 1) % world.size();
//!     world.put(next, numbers.at(world.rank()), &[7])?; // into the next rank's memory
//!     world.barrier()?; // everything that was put is there, everywhere
//!     let before = (world.rank() + world.size() - 1) % world.size();
//!     assert_eq!(numbers.load(before), 7);
//!     world.finish()
//! }
//! ```
//!
//! `trunkline run -n 4 PROGRAM` starts such a program as four ranks, `--hosts a,b` on several hosts; so do torchrun, Slurm and
//! `mpiexec`. [`launch`](launch()) lets a program start its own ranks, which the examples in `examples/` do.
//!
//! # What is guaranteed
//!
//! - *Order.* None between puts, unless a [`fence`](Context::fence) stands between them. A signal comes after all that its context put to
//!   that rank before, and after the signals before it.
//! - *Completion.* When a put comes back its source may be changed. When a [`quiet`](Context::quiet) comes back, everything that its context
//!   began is done and can be seen at its target. A get or a fetching atomic is done when it comes back.
//! - *Width.* A [`Word`] at its natural place (all elements of symmetric objects of such a type) is never torn. Of longer elements parts may be
//!   new and parts old while they are being written.
//! - *Atomics* are atomic among each other, whichever rank asks and whichever NIC carries it, as each word has one executor: the rank that
//!   has it, or, for words of 8 bytes where every rank has one NIC that does so by itself, and no other, that NIC
//!   (`TRUNKLINE_ATOMICS=owner`: always the rank). Puts into the same word are whole, too, but one between the parts of an atomic may be lost; so may a signal's change
//!   where NICs execute: a word is for atomics or for signals.
//! - *Progress.* A rank that computes is served by a thread beside it ([`WorldBuilder::passive`]), which sleeps up to four milliseconds at a
//!   time when nothing comes, up to one when something came lately. A rank that waits in a call of this crate serves by itself, at once. What a
//!   rank has begun goes on with its own calls and by that thread, and is out after a quiet at the latest.
//! - *Death.* A call that waits for a rank which dies ends with [`Error::Gone`] or [`Error::Failed`], never hangs. A rank that is stopped, or
//!   computes for an hour, is alive.
//!
//! # Memory
//!
//! Other ranks may write this rank's part at any moment, which no `&[T]` allows. So symmetric objects are read and written by copies
//! ([`SymmetricSlice::read`], [`write`](SymmetricSlice::write)) and, word by word, as atomics ([`load`](SymmetricSlice::load),
//! [`store`](SymmetricSlice::store)). Elements are plain old data (`bytemuck::Pod`): any bytes that arrive are a value. This crate holds no
//! unsafe code.
//!
//! # Settings
//!
//! The environment chooses, as for the plugin: `TRUNKLINE_FABRIC` (the software NIC unless something else is named or there is
//! EFA or Slingshot), `TRUNKLINE_HEAP_BYTES`, `TRUNKLINE_PROGRESS_THREAD`; `trunkline info --params` lists all. What a program sets by
//! [`World::builder`] comes first.
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
