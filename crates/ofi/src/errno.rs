//! libfabric's error numbers as values. Unknown numbers are kept.

use std::ffi::c_int;
use std::fmt;

use trunkline_sys::ofi::errno;

/// An error of libfabric, positive: the system's numbers, and from 256 on its own (fi_errno(3)).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OfiErrno(i32);

/// Number, name and meaning of each known error.
const KNOWN: &[(i32, &str, &str)] = &[
    (errno::EPERM, "FI_EPERM", "operation not permitted"),
    (errno::ENOENT, "FI_ENOENT", "no such file or directory"),
    (errno::EINTR, "FI_EINTR", "interrupted system call"),
    (errno::EIO, "FI_EIO", "I/O error"),
    (errno::E2BIG, "FI_E2BIG", "argument list too long"),
    (errno::EBADF, "FI_EBADF", "bad file number"),
    (errno::EAGAIN, "FI_EAGAIN", "try again"),
    (errno::ENOMEM, "FI_ENOMEM", "out of memory"),
    (errno::EACCES, "FI_EACCES", "permission denied"),
    (errno::EFAULT, "FI_EFAULT", "bad address"),
    (errno::EBUSY, "FI_EBUSY", "device or resource busy"),
    (errno::ENODEV, "FI_ENODEV", "no such device"),
    (errno::EINVAL, "FI_EINVAL", "invalid argument"),
    (errno::EMFILE, "FI_EMFILE", "too many open files"),
    (errno::ENOSPC, "FI_ENOSPC", "no space left on device"),
    (errno::ENOSYS, "FI_ENOSYS", "function not implemented"),
    (errno::ENOMSG, "FI_ENOMSG", "no message of desired type"),
    (errno::ENODATA, "FI_ENODATA", "no data available"),
    (errno::EOVERFLOW, "FI_EOVERFLOW", "value too large for defined data type"),
    (errno::EMSGSIZE, "FI_EMSGSIZE", "message too long"),
    (errno::ENOPROTOOPT, "FI_ENOPROTOOPT", "protocol not available"),
    (errno::EOPNOTSUPP, "FI_EOPNOTSUPP", "operation not supported on transport endpoint"),
    (errno::EADDRINUSE, "FI_EADDRINUSE", "address already in use"),
    (errno::EADDRNOTAVAIL, "FI_EADDRNOTAVAIL", "cannot assign requested address"),
    (errno::ENETDOWN, "FI_ENETDOWN", "network is down"),
    (errno::ENETUNREACH, "FI_ENETUNREACH", "network is unreachable"),
    (errno::ECONNABORTED, "FI_ECONNABORTED", "software caused connection abort"),
    (errno::ECONNRESET, "FI_ECONNRESET", "connection reset by peer"),
    (errno::ENOBUFS, "FI_ENOBUFS", "no buffer space available"),
    (errno::EISCONN, "FI_EISCONN", "transport endpoint is already connected"),
    (errno::ENOTCONN, "FI_ENOTCONN", "transport endpoint is not connected"),
    (errno::ESHUTDOWN, "FI_ESHUTDOWN", "cannot send after transport endpoint shutdown"),
    (errno::ETIMEDOUT, "FI_ETIMEDOUT", "connection timed out"),
    (errno::ECONNREFUSED, "FI_ECONNREFUSED", "connection refused"),
    (errno::EHOSTDOWN, "FI_EHOSTDOWN", "host is down"),
    (errno::EHOSTUNREACH, "FI_EHOSTUNREACH", "no route to host"),
    (errno::EALREADY, "FI_EALREADY", "operation already in progress"),
    (errno::EINPROGRESS, "FI_EINPROGRESS", "operation now in progress"),
    (errno::EREMOTEIO, "FI_EREMOTEIO", "remote I/O error"),
    (errno::ECANCELED, "FI_ECANCELED", "operation canceled"),
    (errno::EKEYREJECTED, "FI_EKEYREJECTED", "key was rejected by service"),
    (errno::EOTHER, "FI_EOTHER", "unspecified error"),
    (errno::ETOOSMALL, "FI_ETOOSMALL", "provided buffer is too small"),
    (errno::EOPBADSTATE, "FI_EOPBADSTATE", "operation not permitted in current state"),
    (errno::EAVAIL, "FI_EAVAIL", "error available"),
    (errno::EBADFLAGS, "FI_EBADFLAGS", "flags not supported"),
    (errno::ENOEQ, "FI_ENOEQ", "missing or unavailable event queue"),
    (errno::EDOMAIN, "FI_EDOMAIN", "invalid resource domain"),
    (errno::ENOCQ, "FI_ENOCQ", "missing or unavailable completion queue"),
    (errno::ECRC, "FI_ECRC", "CRC error"),
    (errno::ETRUNC, "FI_ETRUNC", "truncation error"),
    (errno::ENOKEY, "FI_ENOKEY", "required key not available"),
    (errno::ENOAV, "FI_ENOAV", "missing or unavailable address vector"),
    (errno::EOVERRUN, "FI_EOVERRUN", "queue has been overrun"),
    (errno::ENORX, "FI_ENORX", "receiver not ready, no receive buffers available"),
];

impl OfiErrno {
    /// Retry: a queue is full, or no entry is available yet.
    pub const AGAIN: Self = Self(errno::EAGAIN);
    /// The object is in use.
    pub const BUSY: Self = Self(errno::EBUSY);
    /// The operation was canceled.
    pub const CANCELED: Self = Self(errno::ECANCELED);
    /// An argument is invalid.
    pub const INVALID: Self = Self(errno::EINVAL);
    /// No match.
    pub const NO_DATA: Self = Self(errno::ENODATA);
    /// The key is invalid, or in use.
    pub const NO_KEY: Self = Self(errno::ENOKEY);
    /// The provider does not implement the call.
    pub const NO_SYS: Self = Self(errno::ENOSYS);
    /// Out of memory.
    pub const NO_MEMORY: Self = Self(errno::ENOMEM);
    /// An error entry is in the queue.
    pub const AVAILABLE: Self = Self(errno::EAVAIL);
    /// Not supported for this endpoint.
    pub const NOT_SUPPORTED: Self = Self(errno::EOPNOTSUPP);
    /// No completion arrived in time.
    pub const TIMED_OUT: Self = Self(errno::ETIMEDOUT);
    /// The message was longer than the receive.
    pub const TRUNCATED: Self = Self(errno::ETRUNC);
    /// The operation is longer than the limit.
    pub const TOO_LONG: Self = Self(errno::EMSGSIZE);

    /// Returns the error of a number of either sign.
    #[must_use]
    pub const fn new(number: i32) -> Self {
        // i32::MIN has no absolute value.
        Self(if number == i32::MIN { i32::MAX } else { number.abs() })
    }

    /// Converts the result of a call that returns 0 or a negative number.
    pub(crate) fn check_code(code: c_int) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self::new(code)) }
    }

    /// Converts the result of a call that posts or counts: negative numbers are errors.
    pub(crate) fn check_count(code: isize) -> Result<usize, Self> {
        // A code beyond i32 is not one of libfabric, so it is kept as an unknown number.
        usize::try_from(code).map_err(|_| Self::new(i32::try_from(code).unwrap_or(i32::MAX)))
    }

    /// Returns the number, positive.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns its name in libfabric's headers, if it is known.
    #[must_use]
    pub fn symbol_name(self) -> Option<&'static str> {
        self.known_entry().map(|(_, name, _)| *name)
    }

    fn known_entry(self) -> Option<&'static (i32, &'static str, &'static str)> {
        KNOWN.iter().find(|(number, _, _)| *number == self.0)
    }
}

impl fmt::Display for OfiErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known_entry() {
            Some((_, name, meaning)) => write!(f, "{meaning} ({name})"),
            None => write!(f, "error {} of libfabric", self.0),
        }
    }
}

impl std::error::Error for OfiErrno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_named_and_unknown_numbers_are_kept() {
        assert_eq!(OfiErrno::new(-266), OfiErrno::NO_KEY);
        assert_eq!(OfiErrno::NO_KEY.to_string(), "required key not available (FI_ENOKEY)");
        assert_eq!((OfiErrno::new(-4711).number(), OfiErrno::new(-4711).symbol_name()), (4711, None));
        assert_eq!(OfiErrno::new(4711).to_string(), "error 4711 of libfabric");
        assert_eq!(OfiErrno::new(i32::MIN).number(), i32::MAX);
    }

    #[test]
    fn negative_results_are_errors() {
        assert_eq!(OfiErrno::check_code(0), Ok(()));
        assert_eq!(OfiErrno::check_code(-16), Err(OfiErrno::BUSY));
        assert_eq!(OfiErrno::check_count(3), Ok(3));
        assert_eq!(OfiErrno::check_count(-11), Err(OfiErrno::AGAIN));
        assert_eq!(OfiErrno::check_count(isize::MIN).unwrap_err().number(), i32::MAX);
    }

    #[test]
    fn every_number_is_known_once() {
        for (at, (number, name, _)) in KNOWN.iter().enumerate() {
            assert!(KNOWN[..at].iter().all(|(other, _, _)| other != number), "{name}");
        }
    }
}
