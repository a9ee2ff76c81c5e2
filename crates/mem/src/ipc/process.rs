//! Which processes there are at the ends of a copy by the kernel's calls: what proves this one, and who is at the other end of a socket. Used by
//! [`Private`](super::PrivateMemory), and by whoever has the sockets.
//!
//! A process may always write to itself, whatever the kernel refuses others. So what names this process, and was said by another one, is
//! only taken if it is a proof that was made here; any other word of its memory proves nothing.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Proofs of this process: their addresses and what they are. The process's, as the kernel's rights are: whoever opens a handle may be another value
/// than the one that made it.
static OWN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());

/// Proofs of a process that it takes itself, at most; by those made later it is reached by others only.
const OWN_MAX: usize = 256;

/// A proof was made.
pub(super) fn add_proof(addr: usize, proof: u64) {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if own.len() < OWN_MAX {
        own.push((addr, proof));
    }
}

/// It is over.
pub(super) fn remove(addr: usize) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|(at, _)| *at != addr);
}

/// Whether it is one.
pub(super) fn is_own(addr: usize, proof: u64) -> bool {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).contains(&(addr, proof))
}

/// Whether a number is this process's, or one of its threads', by which the kernel finds its memory, too.
pub(super) fn is_this(number: libc::pid_t) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: takes numbers, and sends nothing: signal 0 only asks whether there is such a thread of this process.
    let code = unsafe { libc::syscall(libc::SYS_tgkill, own, number, 0) };
    number == own || code == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Who connected a local socket or listened for it, as the kernel says (unix(7), `SO_PEERCRED`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerCredentials {
    /// The process's number in this process's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// Its effective user, as this process's user namespace names it; the overflow user (65534) if it has no name there.
    pub uid: u32,
}

/// Reads the credentials of the process at the other end of a local socket. They are those of the moment in which that process connected
/// or began to listen, so a descriptor that was handed on since still names the process that made it.
///
/// `None`: it is no such socket.
#[must_use]
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Option<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: every value of the three numbers is one.
    let is_read = unsafe { read_option(socket, libc::SO_PEERCRED, &mut found) };
    // Other sockets have no process at the other end, and no user either.
    let is_local = is_read && found.uid != libc::uid_t::MAX;
    let pid = u32::try_from(found.pid).ok().filter(|_| is_local)?;
    Some(PeerCredentials { pid, uid: found.uid })
}

/// Opens a descriptor of that process itself (`SO_PEERPIDFD`), which no later process can have, whatever its number.
///
/// `None`: it is no such socket, the process has no number here, or the kernel is older than Linux 6.5.
#[must_use]
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut found: libc::c_int = -1;
    // SAFETY: every value of the number is one.
    let is_read = unsafe { read_option(socket, libc::SO_PEERPIDFD, &mut found) };
    // SAFETY: the kernel has just opened it for this call, so no other object owns it.
    (is_read && found >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found) })
}

/// Reads an option of a socket whose value is a `T`. Whether the kernel has filled all of it.
///
/// # Safety
/// All bytes of a `T` may have any value.
unsafe fn read_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> bool {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: fills at most `len` bytes of a place of ours, whose bytes may have any value.
    let code = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &raw mut len) };
    code == 0 && len as usize == size_of::<T>()
}

/// The number alone of [`peer_credentials`].
#[must_use]
pub fn process_across(socket: BorrowedFd<'_>) -> Option<u32> {
    peer_credentials(socket).map(|credentials| credentials.pid)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_local_socket_says_who_is_there_and_others_do_not() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(process_across(one.as_fd()), Some(std::process::id()));
        let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(process_across(far.as_fd()), None);
        assert_eq!(process_across(std::fs::File::open("/dev/null").unwrap().as_fd()), None);
    }

    #[test]
    fn a_local_socket_names_user_and_process_of_its_peer() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let expected = PeerCredentials { pid: std::process::id(), uid: user };
        assert_eq!(peer_credentials(one.as_fd()), Some(expected));
        let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(peer_credentials(far.as_fd()), None);
        assert!(peer_pidfd(far.as_fd()).is_none());
        // Linux before 6.5 has none to give.
        if let Some(pidfd) = peer_pidfd(one.as_fd()) {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
            assert!(info.contains(&format!("Pid:\t{}\n", std::process::id())), "{info}");
        }
    }

    #[test]
    fn this_process_has_the_numbers_of_its_threads_and_no_other() {
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
    fn proofs_are_taken_until_they_end() {
        add_proof(8, 77);
        assert!(is_own(8, 77) && !is_own(8, 78) && !is_own(16, 77));
        remove(8);
        assert!(!is_own(8, 77));
    }
}
