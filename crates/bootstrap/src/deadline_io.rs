//! Reads and writes descriptors with a deadline. Used by the store and by PMI.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

/// Waits until a descriptor is ready.
///
/// # Errors
/// `TimedOut` as an `io::Error` at the deadline.
pub(crate) fn wait_ready(fd: impl AsFd, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer before the deadline"));
        }
        let mut polled = [PollFd::new(&fd, flags)];
        match poll(&mut polled, Some(&to_timespec(left))) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Converts a duration to the system's type.
pub(crate) fn to_timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// The error text for a process that dies while others connect to it.
const ENDED: &str = "its connection has ended: the process or its network failed; see its output";

/// Reads available bytes, at least one.
///
/// # Errors
/// `UnexpectedEof` at the end of the stream, `TimedOut` at the deadline.
pub(crate) fn read_some(fd: impl AsFd, bytes: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        wait_ready(&fd, PollFlags::IN, deadline)?;
        match rustix::io::read(&fd, &mut *bytes) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ENDED)),
            Ok(read) => return Ok(read),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Fills all of `bytes`.
///
/// # Errors
/// As [`read_some`].
pub(crate) fn read_exact(fd: impl AsFd, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += read_some(&fd, &mut bytes[filled..], deadline)?;
    }
    Ok(())
}

/// Writes all of `bytes`.
///
/// # Errors
/// `TimedOut` at the deadline; otherwise the system's error.
pub(crate) fn write_all(fd: impl AsFd, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        wait_ready(&fd, PollFlags::OUT, deadline)?;
        // `NOSIGNAL` turns a closed peer into an error instead of a signal. A descriptor that is not a socket is
        // written plainly.
        let written = match rustix::net::send(&fd, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::NOTSOCK) => rustix::io::write(&fd, bytes),
            sent => sent,
        };
        match written {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
