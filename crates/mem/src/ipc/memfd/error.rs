//! What goes wrong with a device, and with its memory.

use super::DeviceUsage;
use crate::ipc::error::CallFailure;

/// A device cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemfdError {
    /// The descriptor is of none.
    #[error("the descriptor is of no device")]
    Foreign,
    /// It is of another version.
    #[error("the device is of version {0}, which is not known here")]
    Version(u64),
    /// Another process does not let go of its table.
    #[error("another process has held the device's table for 10 s; is it stopped?")]
    Busy,
    /// Its table says what cannot be.
    #[error("the device's table is broken")]
    Broken,
    /// It was joined by a process of which this one is a copy.
    #[error("a child of a fork has nothing of its parent's device, and may join it anew")]
    Child,
    /// As much was allocated in its life as there are names for.
    #[error("the device is worn out")]
    Worn,
    /// What the system says.
    #[error(transparent)]
    System(#[from] CallFailure),
}

/// Memory was not allocated.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No allocation has that size.
    #[error("{0} bytes cannot be allocated")]
    Size(usize),
    /// Others have it.
    #[error(
        "{wanted} bytes do not fit: of the device's {} bytes {} are in use, {} of them freed and still open in a process",
        .usage.capacity, .usage.used, .usage.freed
    )]
    Exhausted {
        /// Bytes asked for, as they would be charged.
        wanted: u64,
        /// What there is.
        usage: DeviceUsage,
    },
    /// There are as many allocations as there may be.
    #[error("the device has {0} allocations already")]
    Slots(usize),
    /// The device fails.
    #[error(transparent)]
    Device(#[from] MemfdError),
}

/// Memory was not freed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// No allocation begins there.
    #[error("no allocation begins at {addr:#x}")]
    Unknown {
        /// The address.
        addr: usize,
    },
    /// The device fails.
    #[error(transparent)]
    Device(#[from] MemfdError),
}
