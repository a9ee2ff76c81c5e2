//! The processes at the ends of a copy by system calls: proofs of this process, and the process at the other end of a socket. Used by
//! [`PrivateMemory`](super::PrivateMemory), and by owners of sockets.
//!
//! A process may always write to itself, even where the kernel refuses access to others. A handle received from a peer that names this process
//! is therefore accepted only if its proof was created here; any other word of this process's memory proves nothing.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Proofs of this process, by address and value. One list per process, as the kernel's permissions are: the value that opens a handle may be
/// another one than the value that created it.
static OWN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());

/// The maximum number of proofs that this process accepts for itself; handles with later proofs can only be opened by other processes.
const OWN_MAX: usize = 256;

/// Adds a proof.
pub(super) fn add_proof(addr: usize, proof: u64) {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if own.len() < OWN_MAX {
        own.push((addr, proof));
    }
}

/// Removes a proof.
pub(super) fn remove(addr: usize) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|(at, _)| *at != addr);
}

/// Returns whether a proof was created by this process.
pub(super) fn is_own(addr: usize, proof: u64) -> bool {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).contains(&(addr, proof))
}

/// Returns whether a number is that of this process or of one of its threads, by which the kernel also finds its memory.
pub(super) fn is_this(number: libc::pid_t) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes numbers and sends no signal: signal 0 only checks whether this process has such a thread.
    let code = unsafe { libc::syscall(libc::SYS_tgkill, own, number, 0) };
    number == own || code == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// The process that connected a local socket or listened on it, as the kernel reports it (unix(7), `SO_PEERCRED`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerCredentials {
    /// The process's number in this process's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// Its effective user, as this process's user namespace names it; the overflow user (65534) if it has no name there.
    pub uid: u32,
}

/// Reads the credentials of the process at the other end of a local socket. They are those of the time when that process connected or began to
/// listen, so a descriptor that was passed on since still names its creator.
///
/// Returns `None` if the socket is not a local one.
#[must_use]
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Option<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: `ucred` consists of three numbers, for which every value is valid.
    let is_read = unsafe { read_option(socket, libc::SO_PEERCRED, &mut found) };
    // Other sockets have no process at the other end, and report no user.
    let is_local = is_read && found.uid != libc::uid_t::MAX;
    let pid = u32::try_from(found.pid).ok().filter(|_| is_local)?;
    Some(PeerCredentials { pid, uid: found.uid })
}

/// Opens a descriptor of that process (`SO_PEERPIDFD`), which no later process with the same number can have.
///
/// Returns `None` if the socket is not a local one, the process has no number here, or the kernel is older than Linux 6.5.
#[must_use]
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut found: libc::c_int = -1;
    // SAFETY: every value of a number is valid.
    let is_read = unsafe { read_option(socket, libc::SO_PEERPIDFD, &mut found) };
    // SAFETY: the kernel has just opened it for this call, so no other object owns it.
    (is_read && found >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found) })
}

/// Reads a socket option whose value is a `T`. Returns whether the kernel has filled all of it.
///
/// # Safety
/// Every bit pattern is a valid `T`.
unsafe fn read_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> bool {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: the call writes at most `len` bytes to `value`, for which every bit pattern is valid.
    let code = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &raw mut len) };
    code == 0 && len as usize == size_of::<T>()
}

/// Returns only the process number of [`peer_credentials`].
#[must_use]
pub fn process_across(socket: BorrowedFd<'_>) -> Option<u32> {
    peer_credentials(socket).map(|credentials| credentials.pid)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_local_sockets_report_the_peer_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(process_across(one.as_fd()), Some(std::process::id()));
        let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(process_across(far.as_fd()), None);
        assert_eq!(process_across(std::fs::File::open("/dev/null").unwrap().as_fd()), None);
    }

    #[test]
    fn local_socket_reports_the_credentials_of_its_peer() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let expected = PeerCredentials { pid: std::process::id(), uid: user };
        assert_eq!(peer_credentials(one.as_fd()), Some(expected));
        let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(peer_credentials(far.as_fd()), None);
        assert!(peer_pidfd(far.as_fd()).is_none());
        // Linux before 6.5 does not have them.
        if let Some(pidfd) = peer_pidfd(one.as_fd()) {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
            assert!(info.contains(&format!("Pid:\t{}\n", std::process::id())), "{info}");
        }
    }

    #[test]
    fn only_own_thread_numbers_are_of_this_process() {
        assert!(is_this(rustix::process::getpid().as_raw_nonzero().get()));
        let thread = std::thread::spawn(|| {
            let number = rustix::thread::gettid().as_raw_nonzero().get();
            assert!(is_this(number));
            number
        });
        thread.join().unwrap();
        assert!(!is_this(rustix::process::getppid().unwrap().as_raw_nonzero().get()));
    }

    #[test]
    fn proofs_are_accepted_until_removed() {
        add_proof(8, 77);
        assert!(is_own(8, 77) && !is_own(8, 78) && !is_own(16, 77));
        remove(8);
        assert!(!is_own(8, 77));
    }
}
