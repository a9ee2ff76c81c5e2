//! Why no device queue was made. Told by `executor`; decides nothing.

use trunkline_mem::OutOfMemory;
use trunkline_mem::gpu::DriverCallError;
use trunkline_proto::wire::device_queue::ShapeError;

/// No queue was made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum QueueError {
    /// It cannot be.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// There are as many as doorbells; some have to be given back first ([`QueueExecutor::end_queue`](super::QueueExecutor::end_queue)).
    #[error("all {0} queues of this executor are in use")]
    Full(u32),
    /// There is no pinned memory for it.
    #[error("no memory that both the host and the device see: {0}")]
    Pinned(#[from] DriverCallError),
    /// The system has no memory for its words.
    #[error("cannot allocate memory for a queue: {0}")]
    Memory(#[from] OutOfMemory),
    /// There is no memory file for them.
    #[error("no memory file for queues of other processes: {0}")]
    File(String),
    /// The executor is no device's, or its queues are made by [`QueueExecutor::make_lane`](super::QueueExecutor::make_lane).
    #[error("queues of an executor for a device are made as lanes, and of no other")]
    Device,
}

impl QueueError {
    pub(super) fn from_file_error(cause: impl std::fmt::Display) -> Self {
        Self::File(cause.to_string())
    }
}
