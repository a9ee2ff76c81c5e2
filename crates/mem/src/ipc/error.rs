//! Errors of the kinds of memory, and their meaning for the caller. Codes without a known meaning are kept.

use std::io;

use super::{IpcAllocationId, IpcHandleError, OpenedHandle};
use crate::OutOfMemory;
use crate::gpu::{DriverCallError, GpuUnavailable};

/// The failed call of the system or of a driver.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailure {
    /// A system call failed.
    #[error("{call} failed: {}", io::Error::from_raw_os_error(*.code))]
    System {
        /// The call.
        call: &'static str,
        /// Its `errno`, or 0 if it has none.
        code: i32,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
}

/// The general meaning of a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureClass {
    /// A resource is exhausted; a later attempt may succeed.
    Exhausted,
    /// The operation is not permitted or supported, now or later.
    Refused,
    /// The process or the memory no longer exists.
    Gone,
    /// No known meaning.
    Other,
}

impl CallFailure {
    pub(super) fn from_system(call: &'static str, error: &io::Error) -> Self {
        Self::System { call, code: error.raw_os_error().unwrap_or(0) }
    }

    /// Classifies the failure. Driver codes have no general meaning: the driver's own module classifies them first.
    #[must_use]
    pub fn failure_class(&self) -> FailureClass {
        let Self::System { code, .. } = self else { return FailureClass::Other };
        match *code {
            libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSPC | libc::ENOLCK => {
                FailureClass::Exhausted
            }
            libc::EPERM | libc::EACCES | libc::ENOSYS => FailureClass::Refused,
            libc::ESRCH => FailureClass::Gone,
            _ => FailureClass::Other,
        }
    }
}

/// Why a kind of memory is unusable in this process.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMemory {
    /// No usable driver is installed.
    #[error(transparent)]
    Missing(#[from] GpuUnavailable),
    /// The device number is out of range.
    #[error("{vendor} device {device} does not exist: the driver has {devices}, numbered from 0")]
    Device {
        /// The vendor.
        vendor: &'static str,
        /// Its number.
        device: u32,
        /// The number of devices.
        devices: u32,
    },
    /// The name is unknown.
    #[error("unknown kind of memory {0:?}: use one of host, private, xpmem, cuda, hip, ze, and auto")]
    Unknown(String),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] CallFailure),
}

/// Why no allocation was found around an address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FindAllocationError {
    /// The address is not memory of this kind, or was freed.
    #[error("no allocation is at {addr:#x}")]
    Unknown {
        /// The address.
        addr: usize,
    },
    /// The address lies in an import, which only its owner can export.
    #[error("the memory at {addr:#x} belongs to another process, which alone can export it")]
    Imported {
        /// The address.
        addr: usize,
    },
    /// Another failure.
    #[error(transparent)]
    Other(CallFailure),
}

/// Why an allocation was not exported.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The allocation was freed; its address may belong to a newer one.
    #[error("allocation {} was freed", .0.0)]
    Gone(IpcAllocationId),
    /// Handles of this kind are not passed in the requested way.
    #[error("{0}")]
    Passing(&'static str),
    /// This memory cannot be exported; its bytes are copied through memory of the host instead.
    #[error("{0}")]
    Unshareable(&'static str),
    /// A resource is exhausted.
    #[error("{0}")]
    Exhausted(CallFailure),
    /// The operation is not permitted.
    #[error("{0}")]
    Refused(CallFailure),
    /// Another failure.
    #[error(transparent)]
    Other(CallFailure),
}

impl From<CallFailure> for ExportError {
    fn from(cause: CallFailure) -> Self {
        match cause.failure_class() {
            FailureClass::Exhausted => Self::Exhausted(cause),
            FailureClass::Refused => Self::Refused(cause),
            FailureClass::Gone | FailureClass::Other => Self::Other(cause),
        }
    }
}

/// Why a handle was not opened. Nothing stays mapped.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleOpenError {
    /// The handle's bytes are invalid.
    #[error(transparent)]
    Handle(#[from] IpcHandleError),
    /// The memory is already mapped.
    #[error("the memory is already mapped in this process")]
    AlreadyMapped,
    /// An older import of the same owner overlaps the addresses, and is therefore stale.
    #[error("a stale mapping of allocation {} overlaps allocation {}; close it first", .stale.0, .wanted.0)]
    Overlap {
        /// The stale import.
        stale: IpcAllocationId,
        /// The requested allocation.
        wanted: IpcAllocationId,
    },
    /// The memory was freed, or its owner is dead.
    #[error("the memory was freed, or its owner is dead")]
    Gone,
    /// The memory belongs to this process.
    #[error("the memory belongs to this process")]
    Own,
    /// The descriptor is missing, or refers to other memory.
    #[error("{0}")]
    Descriptor(&'static str),
    /// A resource is exhausted.
    #[error("{0}")]
    Exhausted(CallFailure),
    /// The operation is not permitted.
    #[error("{cause}; {remedy}")]
    Refused {
        /// The failed call.
        cause: CallFailure,
        /// The remedy.
        remedy: &'static str,
    },
    /// Another failure.
    #[error(transparent)]
    Other(CallFailure),
}

impl HandleOpenError {
    /// Returns whether a retry can succeed after stale imports have been closed.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        matches!(self, Self::AlreadyMapped | Self::Overlap { .. })
    }

    /// Classifies a failure; `remedy` is used if it is not permitted.
    pub(super) fn from_cause(cause: CallFailure, remedy: &'static str) -> Self {
        match cause.failure_class() {
            FailureClass::Exhausted => Self::Exhausted(cause),
            FailureClass::Refused => Self::Refused { cause, remedy },
            FailureClass::Gone => Self::Gone,
            FailureClass::Other => Self::Other(cause),
        }
    }
}

/// Why an import was not closed, or an export not ended.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// It is not open in this process.
    #[error("cannot close: the handle or export is not open in this process")]
    Unknown,
    /// Another failure.
    #[error(transparent)]
    Other(CallFailure),
}

/// A mapping that could not be closed and still exists.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotClosed {
    /// The mapping.
    pub mapped: OpenedHandle,
    /// The reason.
    pub error: CloseError,
}

/// Why bytes were not copied.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The range exceeds the allocation.
    #[error("{len} bytes at {at:#x} are not all inside one allocation")]
    Outside {
        /// Address or offset of the first byte.
        at: u64,
        /// Length, in bytes.
        len: usize,
    },
    /// No slot for copies is free, or a device is not ready for its first copy. Start the same copies again, after the end of their batch if they
    /// have one.
    #[error("no slot for copies is free, or a device is not ready for its first copy; try again")]
    Busy,
    /// The system has no memory for intermediate buffers.
    #[error("cannot allocate memory for a copy: {0}")]
    Memory(#[from] OutOfMemory),
    /// The memory is not open in this process.
    #[error("cannot copy: the memory is not open in this process")]
    Closed,
    /// The owner of the memory is dead.
    #[error("the owner of the memory is dead")]
    Gone,
    /// The operation is not permitted.
    #[error("{0}")]
    Refused(CallFailure),
    /// Another failure.
    #[error(transparent)]
    Other(CallFailure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_classified_or_kept() {
        let system = |code| CallFailure::System { call: "mmap", code };
        for (code, meaning) in [
            (libc::ENOMEM, FailureClass::Exhausted),
            (libc::EMFILE, FailureClass::Exhausted),
            (libc::EPERM, FailureClass::Refused),
            (libc::ESRCH, FailureClass::Gone),
            (libc::EXDEV, FailureClass::Other),
            (4711, FailureClass::Other),
        ] {
            assert_eq!(system(code).failure_class(), meaning);
        }
        let error = HandleOpenError::from_cause(system(4711), "");
        assert_eq!(error, HandleOpenError::Other(system(4711)));
        assert!(error.to_string().contains("4711"), "{error}");
        let call = DriverCallError {
            call: "cuIpcOpenMemHandle",
            code: 4712,
            name: "?".to_owned(),
            remedy: "see the driver's manual",
        };
        let error = HandleOpenError::from_cause(CallFailure::Driver(call), "");
        assert!(error.to_string().contains("4712"), "{error}");
        assert!(!error.is_in_the_way() && HandleOpenError::AlreadyMapped.is_in_the_way());
    }
}
