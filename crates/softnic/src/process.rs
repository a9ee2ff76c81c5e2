//! Another process of this host, and copies into and out of its memory by system calls (process_vm_readv(2)). Used by
//! [`PeerMemory`](crate::peer_memory::PeerMemory), which verifies that it is the right one; decides nothing about when a copy is allowed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

/// Time for which a process that was seen alive counts as alive. The kernel does not reuse the number of a dead process within
/// that time, because it first assigns all other numbers in turn.
const SEEN: Duration = Duration::from_millis(10);

/// A process, by number and, where the system supports it, by descriptor (pidfd_open(2)).
pub(crate) struct HostProcess {
    pid: u32,
    fd: Option<OwnedFd>,
    made: Instant,
    /// Time when it was last seen alive, in nanoseconds after this value was created.
    seen: AtomicU64,
}

/// The direction of a copy.
#[derive(Clone, Copy)]
enum ProcessCopyDirection {
    Out,
    In,
}

impl HostProcess {
    /// Creates the process that the kernel has named. If the kernel gave no descriptor of the process itself, its number may belong to another
    /// process by now; the proof of a link detects that.
    pub(crate) fn new(pid: u32, pidfd: Option<OwnedFd>) -> Self {
        let number = || i32::try_from(pid).ok().and_then(Pid::from_raw);
        let open = || rustix::process::pidfd_open(number()?, PidfdFlags::empty()).ok();
        Self { fd: pidfd.or_else(open), ..Self::without_pidfd(pid) }
    }

    /// Returns this process, whose death need not be detected.
    pub(crate) fn this_process() -> Self {
        Self::without_pidfd(std::process::id())
    }

    fn without_pidfd(pid: u32) -> Self {
        Self { pid, fd: None, made: Instant::now(), seen: AtomicU64::new(0) }
    }

    /// Returns its number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is known to be dead.
    pub(crate) fn is_dead(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Whether its number still names it; makes a system call only if the last one is older than [`SEEN`].
    pub(crate) fn is_alive(&self) -> bool {
        // 584 years fit.
        let now = self.made.elapsed().as_nanos() as u64;
        // The result of a recent check is reused, because this is called for each record.
        if u128::from(now - self.seen.load(Ordering::Relaxed).min(now)) < SEEN.as_nanos() {
            return true;
        }
        if self.is_dead() {
            return false;
        }
        self.seen.store(now, Ordering::Relaxed);
        true
    }

    /// Whether [`HostProcess::is_dead`] can detect its death: only then may its memory be written.
    pub(crate) fn is_watched(&self) -> bool {
        self.fd.is_some()
    }

    /// Reads `len` bytes at address `from` of the process.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(crate) unsafe fn read_bytes(&self, to: *mut u8, from: u64, len: usize) -> io::Result<()> {
        // SAFETY: the caller promises that `to` is writable for `len` bytes.
        unsafe { self.copy_bytes(ProcessCopyDirection::Out, to, from, len) }
    }

    /// Writes `len` bytes to address `to` of the process.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub(crate) unsafe fn write_bytes(&self, to: u64, from: *const u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller promises that `from` is readable for `len` bytes; a write only reads the local range.
        unsafe { self.copy_bytes(ProcessCopyDirection::In, from.cast_mut(), to, len) }
    }

    /// # Safety
    /// `here` is readable for `len` bytes, and writable too for [`ProcessCopyDirection::Out`].
    unsafe fn copy_bytes(
        &self,
        way: ProcessCopyDirection,
        here: *mut u8,
        there: u64,
        len: usize,
    ) -> io::Result<()> {
        let pid = libc::pid_t::try_from(self.pid).map_err(|_| io::ErrorKind::NotFound)?;
        let mut done = 0;
        while done < len {
            // SAFETY: `done < len`, so this is inside the caller's range.
            let at = unsafe { here.add(done) };
            let local = libc::iovec { iov_base: at.cast(), iov_len: len - done };
            let at = (there as usize).wrapping_add(done);
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len - done };
            let got = match way {
                // SAFETY: the local range is writable; the kernel checks the remote one.
                ProcessCopyDirection::Out => unsafe {
                    libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
                },
                // SAFETY: the local range is readable; the kernel checks the remote one.
                ProcessCopyDirection::In => unsafe {
                    libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
                },
            };
            match usize::try_from(got) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => done += got,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Whether system calls can reach a range of that process at all. They cannot reach memory that a driver has mapped (for example pinned memory of
    /// an accelerator), though the processor reads and writes it as any other. Checks only the first, the
    /// middle and the last byte: memory of one region has one origin.
    pub(crate) fn can_reach(&self, addr: usize, len: usize) -> bool {
        let mut byte = 0u8;
        len > 0
            && [0, len / 2, len - 1].into_iter().all(|offset| {
                let from = addr.wrapping_add(offset) as u64;
                // SAFETY: one writable byte.
                unsafe { self.read_bytes(&raw mut byte, from, 1) }.is_ok()
            })
    }

    /// Reads the word at `word_addr` and, by the same system call, up to `len` bytes at `from`. Returns how many
    /// of those bytes were read, at least one.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(crate) unsafe fn read_with_word(
        &self,
        word: &mut u64,
        word_addr: u64,
        to: *mut u8,
        from: u64,
        len: usize,
    ) -> io::Result<usize> {
        let pid = libc::pid_t::try_from(self.pid).map_err(|_| io::ErrorKind::NotFound)?;
        let there = |addr: u64| std::ptr::without_provenance_mut(addr as usize);
        let local = [
            libc::iovec { iov_base: std::ptr::from_mut(word).cast(), iov_len: 8 },
            libc::iovec { iov_base: to.cast(), iov_len: len },
        ];
        let remote = [
            libc::iovec { iov_base: there(word_addr), iov_len: 8 },
            libc::iovec { iov_base: there(from), iov_len: len },
        ];
        // SAFETY: both local ranges are writable; the kernel checks the remote ones.
        let got = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        match usize::try_from(got) {
            Ok(got) if got > 8 => Ok(got - 8),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}
