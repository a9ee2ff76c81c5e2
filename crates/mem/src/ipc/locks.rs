//! Range locks owned by an open file description (`F_OFD_SETLK`, fcntl(2)). The kernel releases them with the last
//! reference to that open file: descriptors of all processes, descriptors in flight in a socket, and mappings. A lock
//! therefore proves that a holder still exists, however it may end. No function here waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// A range of a file, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FileRange {
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Whether other open files may hold the same range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LockMode {
    /// Other open files may hold it in shared mode.
    Shared,
    /// No other open file may hold it.
    Alone,
}

/// Tries to lock a range for the open file; returns whether it succeeded without a conflicting lock.
///
/// # Errors
/// The system's error.
pub(super) fn try_lock_range(file: &impl AsFd, range: FileRange, lock: LockMode) -> io::Result<bool> {
    match fcntl_lock(file, libc::F_OFD_SETLK, &mut lock_request(range, lock_type(lock))?) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases the open file's locks in a range.
///
/// # Errors
/// The system's error.
pub(super) fn unlock_range(file: &impl AsFd, range: FileRange) -> io::Result<()> {
    fcntl_lock(file, libc::F_OFD_SETLK, &mut lock_request(range, libc::F_UNLCK)?)
}

/// Returns whether another open file holds a lock in the range.
///
/// # Errors
/// The system's error.
pub(super) fn is_held(file: &impl AsFd, range: FileRange) -> io::Result<bool> {
    let mut request = lock_request(range, libc::F_WRLCK)?;
    fcntl_lock(file, libc::F_OFD_GETLK, &mut request)?;
    Ok(libc::c_int::from(request.l_type) != libc::F_UNLCK)
}

fn lock_type(lock: LockMode) -> libc::c_int {
    match lock {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Alone => libc::F_WRLCK,
    }
}

fn lock_request(range: FileRange, kind: libc::c_int) -> io::Result<libc::flock> {
    let place = |value: u64| i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: place(range.start)?,
        l_len: place(range.len)?,
        l_pid: 0,
    })
}

fn fcntl_lock(file: &impl AsFd, command: libc::c_int, request: &mut libc::flock) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while it is borrowed; these commands read and write only `request`.
    let done = unsafe { libc::fcntl(fd, command, std::ptr::from_mut(request)) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
