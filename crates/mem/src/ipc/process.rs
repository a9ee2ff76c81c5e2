//! Which processes there are at the ends of a copy by the kernel's calls: what proves this one, and who is at the other end of a socket. Used by
//! [`Private`](super::Private), and by whoever has the sockets.
//!
//! A process may always write to itself, whatever the kernel refuses others. So what names this process, and was said by another one, is
//! only taken if it is a proof that was made here; any other word of its memory proves nothing.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// Proofs of this process: their addresses and what they are. The process's, as the kernel's rights are: whoever opens a handle may be another value
/// than the one that made it.
static OWN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());

/// Proofs of a process that it takes itself, at most; by those made later it is reached by others only.
const OWN_MAX: usize = 256;

/// A proof was made.
pub(super) fn add(addr: usize, proof: u64) {
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

/// The number, here, of the process that connected a local socket or listened for it, as the kernel says (unix(7), `SO_PEERCRED`); 0 if it has none in
/// this process's namespace.
///
/// `None`: it is no such socket.
#[must_use]
pub fn process_across(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: fills at most so many bytes of a place of ours, whose every value is one.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    // Other sockets have nobody there: no user either.
    let is_told = code == 0 && len as usize == size_of::<libc::ucred>() && found.uid != libc::uid_t::MAX;
    u32::try_from(found.pid).ok().filter(|_| is_told)
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
        add(8, 77);
        assert!(is_own(8, 77) && !is_own(8, 78) && !is_own(16, 77));
        remove(8);
        assert!(!is_own(8, 77));
    }
}
