//! What a call of a kind of memory failed with, and what that means for who called. Numbers that have no meaning here are kept.

use std::io;

use super::{IpcAllocationId, IpcHandleError, OpenedHandle};
use crate::OutOfMemory;
use crate::gpu::{DriverCallError, GpuUnavailable};

/// What a system or a driver said.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailure {
    /// The system.
    #[error("{call} failed: {}", io::Error::from_raw_os_error(*.code))]
    System {
        /// Which call.
        call: &'static str,
        /// Its `errno`, 0 if there was none.
        code: i32,
    },
    /// A GPU's driver.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
}

/// What a cause means for any call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureClass {
    /// There is too little of something; later there may be more.
    Exhausted,
    /// It is not allowed, and will not be.
    Refused,
    /// Process or memory is not there any more.
    Gone,
    /// Nothing that is known here.
    Other,
}

impl CallFailure {
    pub(super) fn from_system(call: &'static str, error: &io::Error) -> Self {
        Self::System { call, code: error.raw_os_error().unwrap_or(0) }
    }

    /// What it means. Who knows a driver tells its numbers apart before; here they mean nothing.
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

/// A kind of memory cannot be used in this process.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMemory {
    /// There is no driver, or none that will do.
    #[error(transparent)]
    Missing(#[from] GpuUnavailable),
    /// There is no such device.
    #[error("there is no device {device} of {vendor}: the driver has {devices}, from 0")]
    Device {
        /// Whose.
        vendor: &'static str,
        /// Its number.
        device: u32,
        /// How many there are.
        devices: u32,
    },
    /// There is no kind of that name.
    #[error("there is no kind of memory {0:?}: they are host, private, xpmem, cuda, hip, ze, and auto")]
    Unknown(String),
    /// The system.
    #[error(transparent)]
    System(#[from] CallFailure),
}

/// No allocation was found around an address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FindAllocationError {
    /// It is none of this kind, or was freed.
    #[error("no allocation is at {addr:#x}")]
    Unknown {
        /// The address.
        addr: usize,
    },
    /// It is a peer's, which alone exports it.
    #[error("the memory at {addr:#x} is another process's")]
    Imported {
        /// The address.
        addr: usize,
    },
    /// Something else.
    #[error(transparent)]
    Other(CallFailure),
}

/// An allocation was not exported.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// It was freed; what is at its address now is another one.
    #[error("allocation {} was freed", .0.0)]
    Gone(IpcAllocationId),
    /// Handles of this kind do not go that way.
    #[error("{0}")]
    Passing(&'static str),
    /// Memory of this sort is exported in no way; its bytes are copied through memory of the host instead.
    #[error("{0}")]
    Unshareable(&'static str),
    /// Too little of something.
    #[error("{0}")]
    Exhausted(CallFailure),
    /// Not allowed.
    #[error("{0}")]
    Refused(CallFailure),
    /// Something else.
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

/// A handle was not opened, and nothing of it is left here.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleOpenError {
    /// Its bytes are no good.
    #[error(transparent)]
    Handle(#[from] IpcHandleError),
    /// It is open already.
    #[error("the memory is mapped already")]
    AlreadyMapped,
    /// Something older of the same owner that is still open has addresses in common with it, so that must be stale.
    #[error("a stale mapping of allocation {} lies in the way of allocation {}; close it first", .stale.0, .wanted.0)]
    Overlap {
        /// What is in the way.
        stale: IpcAllocationId,
        /// What was to be opened.
        wanted: IpcAllocationId,
    },
    /// The memory was freed, or its owner is dead.
    #[error("the memory is not there any more")]
    Gone,
    /// It is the own memory of this process.
    #[error("the memory is this process's own")]
    Own,
    /// The descriptor is missing, or is none of that memory.
    #[error("{0}")]
    Descriptor(&'static str),
    /// Too little of something.
    #[error("{0}")]
    Exhausted(CallFailure),
    /// Not allowed.
    #[error("{cause}; {remedy}")]
    Refused {
        /// What was said.
        cause: CallFailure,
        /// What helps.
        remedy: &'static str,
    },
    /// Something else.
    #[error(transparent)]
    Other(CallFailure),
}

impl HandleOpenError {
    /// Whether it is worth another try once what is stale has been closed.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        matches!(self, Self::AlreadyMapped | Self::Overlap { .. })
    }

    /// A cause, with what helps where it is refused.
    pub(super) fn from_cause(cause: CallFailure, remedy: &'static str) -> Self {
        match cause.failure_class() {
            FailureClass::Exhausted => Self::Exhausted(cause),
            FailureClass::Refused => Self::Refused { cause, remedy },
            FailureClass::Gone => Self::Gone,
            FailureClass::Other => Self::Other(cause),
        }
    }
}

/// An open handle or an export did not end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// It is nothing that is open here.
    #[error("it is not open here")]
    Unknown,
    /// Something else.
    #[error(transparent)]
    Other(CallFailure),
}

/// A mapping is still there.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotClosed {
    /// It.
    pub mapped: OpenedHandle,
    /// Why.
    pub error: CloseError,
}

/// Bytes were not copied.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// They are not all inside.
    #[error("{len} bytes at {at:#x} are not all inside of one allocation")]
    Outside {
        /// Address or offset of the first one.
        at: u64,
        /// Bytes.
        len: usize,
    },
    /// No slot for copies is free, or a device is not ready for its first copy. Begin the same copies again, behind the end of their batch if they have one.
    #[error("no slot for copies is free, or a device is not ready for its first copy")]
    Busy,
    /// The system has no memory for the bytes on their way.
    #[error("cannot allocate memory for a copy: {0}")]
    Memory(#[from] OutOfMemory),
    /// It is not open here.
    #[error("it is not open here")]
    Closed,
    /// Its owner is dead.
    #[error("the owner of the memory is gone")]
    Gone,
    /// Not allowed.
    #[error("{0}")]
    Refused(CallFailure),
    /// Something else.
    #[error(transparent)]
    Other(CallFailure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_meaning_or_are_kept() {
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
            remedy: "look it up",
        };
        let error = HandleOpenError::from_cause(CallFailure::Driver(call), "");
        assert!(error.to_string().contains("4712"), "{error}");
        assert!(!error.is_in_the_way() && HandleOpenError::AlreadyMapped.is_in_the_way());
    }
}
