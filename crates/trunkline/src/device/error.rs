//! What can go wrong with windows, and with what kernels post and wait for.

use trunkline_device::{GuestError, LanesError, QueuesError};
use trunkline_device_queue::{ReserveError, WaitError};
use trunkline_engine::rma::RmaError;
use trunkline_mem::gpu::{DriverCallError, RangeError};
use trunkline_mem::ipc::CallFailure;
use trunkline_mem::{OutOfMemory, PeerError};
use trunkline_proto::wire::device_queue::{CardError, GuestCardError, ReportError, WindowShapeError};

use crate::error::Error;

/// Why a host call about windows failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The ranks could not do it together.
    #[error(transparent)]
    World(#[from] Error),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] RmaError),
    /// The system has no memory for a window.
    #[error("cannot allocate memory of a window: {0}")]
    Allocate(#[from] OutOfMemory),
    /// No queue can be had.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// There is no such window.
    #[error(transparent)]
    Shape(#[from] WindowShapeError),
    /// A rank gave another configuration than this one.
    #[error("rank {rank} makes another window than this rank; all ranks give the same configuration")]
    Differ {
        /// Which.
        rank: usize,
    },
    /// What a rank tells of its part cannot be.
    #[error("rank {rank} tells of its part of a window what cannot be")]
    Told {
        /// Which.
        rank: usize,
        /// Why not.
        #[source]
        source: CardError,
    },
    /// This rank could make its part of a window, and another could not.
    #[error("rank {rank} could not make its part of the window: {cause}")]
    Elsewhere {
        /// Which.
        rank: usize,
        /// The cause that it reports.
        cause: String,
    },
    /// The report of a rank is not valid.
    #[error(
        "rank {rank} reports how it made its part of a window, but not in the words of a report: do all ranks run the same version?"
    )]
    Report {
        /// Which.
        rank: usize,
        /// Why not.
        #[source]
        source: ReportError,
    },
    /// A window was freed while something of it was still under way, ten seconds after its kernels had ended.
    #[error(
        "rank {rank} still has operations of the freed window under way after ten seconds; its memory stays registered until the world ends. \
         Flush in the kernels, or look why a rank or a link does not go on"
    )]
    Unsettled {
        /// The first such rank.
        rank: usize,
    },
    /// There is no such channel.
    #[error("there is no channel {channel}: the window has {channels}, from 0")]
    NoChannel {
        /// The number that was given.
        channel: u32,
        /// Channels of the window.
        channels: u32,
    },
    /// Bytes beyond the end of a window.
    #[error("{len} bytes from {at} on are not in a window of {bytes}")]
    Range {
        /// The first.
        at: u64,
        /// How many.
        len: u64,
        /// How many the window has.
        bytes: u64,
    },
    /// All regions that an executor may have are in use.
    #[error("an executor has no room for another region")]
    Regions,
    /// Kernels of the window run on a GPU, and are given [`Window::gpu_view`](super::Window::gpu_view).
    #[error("kernels of this window run on a GPU")]
    OnGpu,
    /// Kernels of the window run on the host.
    #[error("kernels of this window run on the host")]
    OnHost,
    /// The GPU's driver fails.
    #[error(transparent)]
    Call(#[from] DriverCallError),
    /// No queues for kernels of a GPU.
    #[error(transparent)]
    Lanes(#[from] LanesError),
    /// Memory of the GPU cannot be read or written.
    #[error(transparent)]
    Memory(#[from] RangeError),
    /// The window is not of [`World::devices_for_processes`](crate::World::devices_for_processes).
    #[error("channels of this window are lent to no other process")]
    NotForProcesses,
    /// The channel is another process's.
    #[error("channel {channel} is lent to another process")]
    Lent {
        /// Which.
        channel: u32,
    },
    /// There is no such process of the host, or it cannot be watched.
    #[error("process {process}: {source}")]
    Process {
        /// Its number.
        process: u32,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// No memory file for a window.
    #[error("no memory file for a window: {0}")]
    File(#[source] CallFailure),
    /// Bytes are no card of a guest.
    #[error(transparent)]
    Card(#[from] GuestCardError),
    /// The files of the process that has lent a channel cannot be mapped.
    #[error("memory of the process that has lent the channel: {0}")]
    Map(#[from] PeerError),
    /// There are no such queues in its file.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// What a kernel posted earlier has not ended well.
    #[error("an earlier kernel of the channel: {0}")]
    Earlier(#[source] WaitError),
}

/// Why a call of a kernel failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The queue did not take it.
    #[error(transparent)]
    Post(#[from] ReserveError),
    /// What was waited for has failed, or did not come in time.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// There is no such rank.
    #[error("there is no rank {0}")]
    NoRank(usize),
    /// Bytes beyond the end of the window's data, or of the source.
    #[error("{len} bytes from {at} on are not in a window")]
    Range {
        /// The first.
        at: u64,
        /// How many.
        len: u64,
    },
    /// The system has no memory for a chunk of a stream.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The window has no such thing.
    #[error("the window has no {what} {id}")]
    None {
        /// What.
        what: &'static str,
        /// The number that was given.
        id: u32,
    },
}
