//! Device queues, executed: what threads of a GPU, or of the host, put into queues (`trunkline_device_queue`) is carried out over any fabric.
//!
//! One [`QueueExecutor`] drains any number of queues, and looks only at those whose doorbell was rung or that have something under way. It is
//! driven either by the very threads that post and wait ([`ExecutorMode::Inline`], M0) or by a thread of its own ([`ExecutorMode::Thread`], M1), which sleeps
//! while there is nothing to do; or by one for queues that kernels of a GPU post to, which nobody can wake ([`ExecutorMode::Device`], M2). [`DeviceQueues`] is what a front end holds of either.
//!
//! - [`words`]: memory of queues, signals and counters, which tells the executor when somebody rings or waits.
//! - [`network`]: what the executor asks of whatever carries bytes; [`rma`](trunkline_engine::rma) is one.
//! - [`courier`]: windows in memory of devices, which no network reaches: their owners are asked.
//! - [`flushed`]: windows in memory of devices that NICs reach: their writes are flushed before the end is reported.
//! - [`region`]: keys of entries, and the memory that they stand for. An entry is a stranger's until its key, bounds and generation are checked.
//! - [`port`]: entries as operations of the network, in as many pieces as that takes; how each ended.
//! - [`executor`]: one pass over all queues; poison of signals that a dead peer would have raised; companions.
//! - [`lanes`]: what a kernel of a GPU is given ([`ExecutorMode::Device`], M2).
//! - [`processes`]: queues in a memory file, whose producers are other processes; deaths at either side.
//! - [`driver`]: who makes the passes, and when it sleeps.
//! - [`patience`]: how long a thread of the host waits, and lets others go on meanwhile.
//!
//! Nothing here is ever reordered to be faster: an atomic of a queue begins when the bytes before it are known to be placed, on every fabric.

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
