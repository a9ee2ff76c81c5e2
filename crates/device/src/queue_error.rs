//! Errors of creating device queues. Returned by `executor`.

use trunkline_mem::OutOfMemory;
use trunkline_mem::gpu::DriverCallError;
use trunkline_proto::wire::device_queue::ShapeError;

/// No queue was created.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum QueueError {
    /// The depth, number or size is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// All doorbells are in use. End a queue first ([`QueueExecutor::end_queue`](super::QueueExecutor::end_queue)).
    #[error("all {0} queues of this executor are in use")]
    Full(u32),
    /// No pinned memory is available for it.
    #[error("cannot allocate memory that both the host and the device can access: {0}")]
    Pinned(#[from] DriverCallError),
    /// The system has no memory for its words.
    #[error("cannot allocate memory for a queue: {0}")]
    Memory(#[from] OutOfMemory),
    /// No memory file can be created for the queues.
    #[error("cannot create a memory file for queues of other processes: {0}")]
    File(String),
    /// The executor is not for a device, or it is, and queues are created only by
    /// [`QueueExecutor::make_lane`](super::QueueExecutor::make_lane).
    #[error("cannot create the queue: only an executor for a device has lanes, and it has no other queues")]
    Device,
}

impl QueueError {
    pub(super) fn from_file_error(cause: impl std::fmt::Display) -> Self {
        Self::File(cause.to_string())
    }
}
