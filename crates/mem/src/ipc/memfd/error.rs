//! Errors of a device, and of its memory.

use super::DeviceUsage;
use crate::ipc::error::CallFailure;

/// Why a device cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemfdError {
    /// The descriptor does not refer to a device.
    #[error("the descriptor does not refer to a device")]
    Foreign,
    /// The device has an unknown version.
    #[error("the device has the unknown version {0}")]
    Version(u64),
    /// Another process does not release the lock of the device's table.
    #[error("another process has held the device's table for 10 s; is it stopped?")]
    Busy,
    /// The device's table contains an invalid value.
    #[error("the device's table contains an invalid value")]
    Broken,
    /// This process is a forked child of the process that joined the device.
    #[error("a forked child cannot use its parent's device; join the device in the child")]
    Child,
    /// All allocation places of the device have been used.
    #[error("the device has used all its allocation places; create a new device")]
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
    #[error("cannot allocate {0} bytes: the size is 0 or too large")]
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
    #[error("cannot allocate: all {0} slots of the device are in use")]
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
