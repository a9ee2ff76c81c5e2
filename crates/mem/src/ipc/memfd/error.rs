//! Errors of a device, and of its memory.

use super::DeviceUsage;
use crate::ipc::error::CallFailure;

/// Why a device cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemfdError {
    /// The descriptor does not refer to a device.
    #[error("the descriptor is of no device")]
    Foreign,
    /// The device has an unknown version.
    #[error("the device is of version {0}, which is not known here")]
    Version(u64),
    /// Another process does not release the lock of the device's table.
    #[error("another process has held the device's table for 10 s; is it stopped?")]
    Busy,
    /// The device's table contains an invalid value.
    #[error("the device's table is broken")]
    Broken,
    /// This process is a forked child of the process that joined the device.
    #[error("a child of a fork has nothing of its parent's device, and may join it anew")]
    Child,
    /// All allocation places of the device have been used.
    #[error("the device is worn out")]
    Worn,
    /// A system call failed.
    #[error(transparent)]
    System(#[from] CallFailure),
}

/// Why memory was not allocated.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The size is 0 or too large.
    #[error("{0} bytes cannot be allocated")]
    Size(usize),
    /// Other allocations use the capacity.
    #[error(
        "{wanted} bytes do not fit: of the device's {} bytes {} are in use, {} of them freed and still open in a process",
        .usage.capacity, .usage.used, .usage.freed
    )]
    Exhausted {
        /// Bytes requested, rounded up as they would be charged.
        wanted: u64,
        /// The device's usage.
        usage: DeviceUsage,
    },
    /// All slots of the device are in use.
    #[error("the device has {0} allocations already")]
    Slots(usize),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] MemfdError),
}

/// Why memory was not freed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// No allocation begins there.
    #[error("no allocation begins at {addr:#x}")]
    Unknown {
        /// The address.
        addr: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] MemfdError),
}
