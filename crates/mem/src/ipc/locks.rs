//! Locks on ranges of a file that belong to an open file (`F_OFD_SETLK`, fcntl(2)). The kernel lets go of them when nothing refers to
//! that open file any more: no descriptor of any process, none that is under way in a socket, and no mapping. So a lock tells that
//! somebody is there, however he may end. Never waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Bytes of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FileRange {
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Who else may hold a range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LockMode {
    /// Others that share it.
    Shared,
    /// Nobody.
    Alone,
}

/// Takes a lock for the open file; whether nobody else was in the way.
///
/// # Errors
/// What the system says.
pub(super) fn try_lock_range(file: &impl AsFd, range: FileRange, lock: LockMode) -> io::Result<bool> {
    match fcntl_lock(file, libc::F_OFD_SETLK, &mut lock_request(range, lock_type(lock))?) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets go of what the open file holds there.
///
/// # Errors
/// What the system says.
pub(super) fn unlock_range(file: &impl AsFd, range: FileRange) -> io::Result<()> {
    fcntl_lock(file, libc::F_OFD_SETLK, &mut lock_request(range, libc::F_UNLCK)?)
}

/// Whether another open file holds any of it.
///
/// # Errors
/// What the system says.
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
    // SAFETY: the descriptor is open while it is borrowed; these commands read and write the one structure.
    let done = unsafe { libc::fcntl(fd, command, std::ptr::from_mut(request)) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
