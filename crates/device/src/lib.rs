//! Execution of device queues: entries that threads of a GPU, or of the host, post into queues (`trunkline_device_queue`) become one-sided operations over any
//! fabric.
//!
//! A front end, `trunkline` today, holds a [`DeviceQueues`]. One [`QueueExecutor`] drains any number of queues, and polls only queues whose doorbell was rung
//! or that have operations in progress. It never reorders entries to be faster. These threads drive it:
//!
//! - [`ExecutorMode::Inline`] (M0): the threads that post and wait.
//! - [`ExecutorMode::Thread`] (M1): a thread of its own, which sleeps while it has no work.
//! - [`ExecutorMode::Device`] (M2): a thread for queues of kernels of a GPU, or of other processes. No producer can wake it.
//!
//! # Modules, in reading order
//!
//! - [`words`]: memory of queues, signals and counters, which notifies the executor of doorbells and waits.
//! - [`driver`]: the thread that makes the passes, and when it sleeps. [`executor`]: one pass over all queues, poison, companions.
//! - [`entry_ops`]: entries as operations of the network, in one or more pieces. [`region`]: keys of entries, and their memory.
//! - [`network`]: the operations that the executor needs; [`rma`](trunkline_engine::rma) provides them.
//! - [`proxy`]: windows in memory of devices that no network reaches; their owners copy. [`flushed`]: such windows that NICs reach.
//! - [`lanes`]: the data for a kernel of a GPU. [`guest_queues`]: queues in a memory file, whose producers are other processes; deaths at either side.
//! - [`host_deadline`]: how long a thread of the host waits, and when it yields.
//!
//! # One entry, from the doorbell to its completion
//!
//! ```text
//!  DeviceQueues: a pass (inline, or of the thread)
//!    QueueExecutor::run_pass -> the drain of trunkline_device_queue: rung queues, entries in order
//!      EntryRegions: key, bounds and generation are checked before anything else
//!      entry_ops: pieces -> network: begin a put, get or atomic of an RmaJob's context
//!                           or a copy, where the bytes are in this process
//!    network: outcomes by number -> the entry completes; its counter is raised; the frontier is published
//! ```
//!
//! # Rules
//!
//! - *Order.* An atomic begins when the bytes before it are known to be placed, on every fabric. So a signal behind bytes takes a round trip more where the
//!   network would have kept the order, and is correct where it does not.
//! - *Counters need no companion.* A counter that belongs to a put is an ADD to a word of this rank behind it, which the executor does itself. Companions
//!   exist for counts from another queue.
//! - *Wake-ups.* Producers and waiters notify [`DeviceQueues`] through their memory (`words.rs`): a bit was set, or a poll found nothing. Inline, they make
//!   the passes; with a thread, they wake it. The thread marks itself asleep before it polls the bits once more, so no doorbell is lost.
//! - *A failure is reported outside the links.* Error words are set over a link if that carries within 20 ms, and by the control stream otherwise ("spoil" in
//!   docs/wire.md). The waiting rank poisons words that a dead rank would have raised. No waiter here waits until a waiter elsewhere is notified.
//! - *A GPU's queues* (M2) lie in pinned memory, with their companions from the beginning. A word of a region in the device's memory is changed in the host's
//!   bytes of that region, and is copied from there when the copy runs. So copies of one stream never deliver an older value last. The driver is called
//!   through `trunkline_mem`'s own table, NVRTC through `cudarc`; docs/device.md has the reason.
//! - *A window in a GPU's memory that NICs reach* is two heaps: the data, and in pinned memory all words behind them. Entries have one key and one offset;
//!   `region.rs` finds the heap. Data that NICs wrote is flushed before its end is reported (`flushed.rs`, between the proxy and the network). A rank whose
//!   NICs or driver refuse keeps its part separately, and uses the proxy: docs/device.md, "Windows that NICs reach".
//! - *Keys have generations.* The names in an entry are checked before anything is done with them.

#![forbid(unsafe_code)]

mod affinity;
pub mod driver;
pub mod entry_ops;
pub mod executor;
pub mod flushed;
pub mod guest_queues;
pub mod host_deadline;
pub mod lanes;
pub mod network;
mod numbers;
pub mod proxy;
pub mod queue_error;
pub mod region;
mod remaining_work;
mod service;
pub mod window_part;
pub mod words;

pub use driver::{DeviceQueues, ExecutorMode, QueuesError};
pub use entry_ops::{BegunOp, UNSUPPORTED};
pub use executor::{ExecutorPass, QueueExecutor};
pub use flushed::{FlushedNetwork, FlushedPart, FlushedPeer};
pub use guest_queues::{GuestBudget, GuestError, GuestQueues};
pub use host_deadline::{HostDeadline, abort_process};
pub use lanes::{KernelJob, KernelLanes, LanePlan, LanesError};
pub use network::{BeginOutcome, EntryFailure, MemberNetwork, NetworkCompletion, RmaNetwork};
pub use proxy::ProxyNetwork;
pub use queue_error::QueueError;
pub use region::{
    DeviceCopier, EntryKey, EntryRegion, EntryRegions, ErrorTable, FarWords, PeerRegion, WordsRegion,
};
pub use window_part::{LocalPart, RemotePart};
pub use words::{DoorbellObserver, QueueWords};
