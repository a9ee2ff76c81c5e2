//! What a call of a kind of memory failed with, and what that means for who called. Numbers that have no meaning here are kept.

use std::io;

use super::{AllocationId, HandleError, Mapped};
use crate::OutOfMemory;
use crate::gpu::{CallError, Missing};

/// What a system or a driver said.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
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
    Driver(#[from] CallError),
}

/// What a cause means for any call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Meaning {
    /// There is too little of something; later there may be more.
    Exhausted,
    /// It is not allowed, and will not be.
    Refused,
    /// Process or memory is not there any more.
    Gone,
    /// Nothing that is known here.
    Other,
}

impl Cause {
    pub(super) fn system(call: &'static str, error: &io::Error) -> Self {
        Self::System { call, code: error.raw_os_error().unwrap_or(0) }
    }

    /// What it means. Who knows a driver tells its numbers apart before; here they mean nothing.
    #[must_use]
    pub fn meaning(&self) -> Meaning {
        let Self::System { code, .. } = self else { return Meaning::Other };
        match *code {
            libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSPC | libc::ENOLCK => Meaning::Exhausted,
            libc::EPERM | libc::EACCES | libc::ENOSYS => Meaning::Refused,
            libc::ESRCH => Meaning::Gone,
            _ => Meaning::Other,
        }
    }
}

/// A kind of memory cannot be used in this process.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMemory {
    /// There is no driver, or none that will do.
    #[error(transparent)]
    Missing(#[from] Missing),
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
    System(#[from] Cause),
}

/// No allocation was found around an address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
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
    Other(Cause),
}

/// An allocation was not exported.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// It was freed; what is at its address now is another one.
    #[error("allocation {} was freed", .0.0)]
    Gone(AllocationId),
    /// Handles of this kind do not go that way.
    #[error("{0}")]
    Passing(&'static str),
    /// Memory of this sort is exported in no way; its bytes are copied through memory of the host instead.
    #[error("{0}")]
    Unshareable(&'static str),
    /// Too little of something.
    #[error("{0}")]
    Exhausted(Cause),
    /// Not allowed.
    #[error("{0}")]
    Refused(Cause),
    /// Something else.
    #[error(transparent)]
    Other(Cause),
}

impl From<Cause> for ExportError {
    fn from(cause: Cause) -> Self {
        match cause.meaning() {
            Meaning::Exhausted => Self::Exhausted(cause),
            Meaning::Refused => Self::Refused(cause),
            Meaning::Gone | Meaning::Other => Self::Other(cause),
        }
    }
}

/// A handle was not opened, and nothing of it is left here.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its bytes are no good.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// It is open already.
    #[error("the memory is mapped already")]
    AlreadyMapped,
    /// Something older of the same owner that is still open has addresses in common with it, so that must be stale.
    #[error("a stale mapping of allocation {} lies in the way of allocation {}; close it first", .stale.0, .wanted.0)]
    Overlap {
        /// What is in the way.
        stale: AllocationId,
        /// What was to be opened.
        wanted: AllocationId,
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
    Exhausted(Cause),
    /// Not allowed.
    #[error("{cause}; {remedy}")]
    Refused {
        /// What was said.
        cause: Cause,
        /// What helps.
        remedy: &'static str,
    },
    /// Something else.
    #[error(transparent)]
    Other(Cause),
}

impl OpenError {
    /// Whether it is worth another try once what is stale has been closed.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        matches!(self, Self::AlreadyMapped | Self::Overlap { .. })
    }

    /// A cause, with what helps where it is refused.
    pub(super) fn of(cause: Cause, remedy: &'static str) -> Self {
        match cause.meaning() {
            Meaning::Exhausted => Self::Exhausted(cause),
            Meaning::Refused => Self::Refused { cause, remedy },
            Meaning::Gone => Self::Gone,
            Meaning::Other => Self::Other(cause),
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
    Other(Cause),
}

/// A mapping is still there.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotClosed {
    /// It.
    pub mapped: Mapped,
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
    Refused(Cause),
    /// Something else.
    #[error(transparent)]
    Other(Cause),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_meaning_or_are_kept() {
        let system = |code| Cause::System { call: "mmap", code };
        for (code, meaning) in [
            (libc::ENOMEM, Meaning::Exhausted),
            (libc::EMFILE, Meaning::Exhausted),
            (libc::EPERM, Meaning::Refused),
            (libc::ESRCH, Meaning::Gone),
            (libc::EXDEV, Meaning::Other),
            (4711, Meaning::Other),
        ] {
            assert_eq!(system(code).meaning(), meaning);
        }
        let error = OpenError::of(system(4711), "");
        assert_eq!(error, OpenError::Other(system(4711)));
        assert!(error.to_string().contains("4711"), "{error}");
        let call =
            CallError { call: "cuIpcOpenMemHandle", code: 4712, name: "?".to_owned(), remedy: "look it up" };
        let error = OpenError::of(Cause::Driver(call), "");
        assert!(error.to_string().contains("4712"), "{error}");
        assert!(!error.is_in_the_way() && OpenError::AlreadyMapped.is_in_the_way());
    }
}
