//! The errors of windows, and of the operations of kernels.

use trunkline_device::{GuestError, LanesError, QueuesError};
use trunkline_device_queue::{ReserveError, WaitError};
use trunkline_engine::rma::RmaError;
use trunkline_mem::gpu::{DriverCallError, RangeError};
use trunkline_mem::ipc::CallFailure;
use trunkline_mem::{OutOfMemory, PeerError};
use trunkline_proto::wire::device_queue::{CardError, GuestCardError, ReportError, WindowShapeError};

use crate::error::Error;

/// The reason why a host call on windows failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A collective call of the ranks failed.
    #[error(transparent)]
    World(#[from] Error),
    /// The engine rejects the call. Its own error is the text.
    #[error(transparent)]
    Engine(#[from] RmaError),
    /// The system has no memory for a window.
    #[error("cannot allocate memory of a window: {0}")]
    Allocate(#[from] OutOfMemory),
    /// The queues or their thread cannot be created.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// The shape of the window is invalid.
    #[error(transparent)]
    Shape(#[from] WindowShapeError),
    /// Another rank passed a different shape than this one.
    #[error("rank {rank} creates another window than this rank; pass the same configuration at all ranks")]
    Differ {
        /// The rank.
        rank: usize,
    },
    /// A rank published an invalid description of its part.
    #[error(
        "rank {rank} published an invalid description of its part of a window; do all ranks run the same version?"
    )]
    Told {
        /// The rank.
        rank: usize,
        /// The invalid field.
        #[source]
        source: CardError,
    },
    /// Another rank could not create its part of a window.
    #[error("rank {rank} could not create its part of the window: {cause}")]
    Elsewhere {
        /// The rank.
        rank: usize,
        /// The cause that it reports.
        cause: String,
    },
    /// A rank published an invalid report.
    #[error(
        "rank {rank} published an invalid report on its part of a window; do all ranks run the same version?"
    )]
    Report {
        /// The rank.
        rank: usize,
        /// The invalid field.
        #[source]
        source: ReportError,
    },
    /// Operations of a freed window were still in flight ten seconds after its kernels had ended.
    #[error(
        "rank {rank} still has operations of the freed window in flight after ten seconds; the window's memory stays \
         registered until the world ends. Flush in the kernels, or find out why a rank or a link makes no progress"
    )]
    Unsettled {
        /// The first such rank.
        rank: usize,
    },
    /// The channel is out of range.
    #[error("channel {channel} is out of range: the window has {channels}, counted from 0")]
    NoChannel {
        /// The number that the caller passed.
        channel: u32,
        /// The number of channels of the window.
        channels: u32,
    },
    /// The bytes extend beyond the end of the window.
    #[error("{len} bytes from offset {at} on exceed a window of {bytes} bytes")]
    Range {
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes.
        len: u64,
        /// The number of bytes of the window.
        bytes: u64,
    },
    /// All regions that an executor may have are in use.
    #[error("cannot register another region: the executor has the largest number; deregister one first")]
    Regions,
    /// Kernels of the window run on a GPU: pass [`Window::gpu_view`](super::Window::gpu_view) to them.
    #[error("kernels of this window run on a GPU; pass Window::gpu_view to them")]
    OnGpu,
    /// Kernels of the window run on the host: use [`Window::kernel`](super::Window::kernel).
    #[error("kernels of this window run on the host; use Window::kernel")]
    OnHost,
    /// A call of the GPU's driver failed.
    #[error(transparent)]
    Call(#[from] DriverCallError),
    /// The queues for kernels of a GPU cannot be created.
    #[error(transparent)]
    Lanes(#[from] LanesError),
    /// Memory of the GPU cannot be read or written.
    #[error(transparent)]
    Memory(#[from] RangeError),
    /// The window is not of [`World::devices_for_processes`](crate::World::devices_for_processes).
    #[error("cannot lend a channel of this window: its executor is not of World::devices_for_processes")]
    NotForProcesses,
    /// The channel is lent to another process.
    #[error("channel {channel} is lent to another process; use another channel")]
    Lent {
        /// The channel.
        channel: u32,
    },
    /// The process does not exist on this host, or cannot be watched.
    #[error("cannot watch process {process}: {source}")]
    Process {
        /// The process id.
        process: u32,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The memory file of a window cannot be created.
    #[error("cannot create the memory file of a window: {0}")]
    File(#[source] CallFailure),
    /// The bytes are no valid card of a guest.
    #[error(transparent)]
    Card(#[from] GuestCardError),
    /// The memory files of the lending process cannot be mapped.
    #[error("cannot map the memory of the process that lent the channel: {0}")]
    Map(#[from] PeerError),
    /// The memory file of the lending process has no such queues.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// An operation of the channel's previous kernel failed.
    #[error("an operation of the channel's previous kernel failed: {0}")]
    Earlier(#[source] WaitError),
}

/// The reason why a call of a kernel failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The queue does not accept the entries.
    #[error(transparent)]
    Post(#[from] ReserveError),
    /// The awaited operation failed, or the wait exceeded its limit.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The rank is out of range.
    #[error("rank {0} is out of range")]
    NoRank(usize),
    /// The bytes extend beyond the end of the window's data, or of the source.
    #[error("{len} bytes from offset {at} on exceed the window, or the source")]
    Range {
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes.
        len: u64,
    },
    /// The system has no memory for a chunk of a stream.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The window has no such signal, counter, barrier or stream.
    #[error("the window has no {what} {id}")]
    None {
        /// The kind of object.
        what: &'static str,
        /// The number that the caller passed.
        id: u32,
    },
}
