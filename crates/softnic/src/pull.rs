//! One copy straight out of the peer's memory, by the peer that receives it (`process_vm_readv`), and the book in which
//! the owner of that memory sees who may be reading it. The receiver claims a record before it reads; the owner may
//! revoke a record that is not claimed, and waits for one that is.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::segment::Segment;

/// Values of a record's claim word; see docs/wire.md.
mod claim {
    pub(super) const OFFERED: u64 = 1;
    pub(super) const READING: u64 = 2;
    pub(super) const DONE: u64 = 3;
    pub(super) const REVOKED: u64 = 4;
}

/// A process, by number and, where the system can, by descriptor.
pub(crate) struct Process {
    pid: u32,
    fd: Option<OwnedFd>,
}

impl Process {
    /// The process with a number, as its owner sees it.
    pub(crate) fn new(pid: u32) -> Self {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let fd = number.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { pid, fd }
    }

    /// Whether it is known to be dead.
    pub(crate) fn is_dead(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Reads `len` bytes at address `from` of the process.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    unsafe fn read(&self, to: *mut u8, from: u64, len: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            // SAFETY: `done < len`.
            let into = unsafe { to.add(done) };
            let local = libc::iovec { iov_base: into.cast(), iov_len: len - done };
            let at = (from as usize).wrapping_add(done);
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len - done };
            let pid = libc::pid_t::try_from(self.pid).map_err(|_| io::ErrorKind::NotFound)?;
            // SAFETY: the local range is writable; the kernel checks the remote one.
            let got = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(got) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => done += got,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Copies `len` bytes from address `from` of the process; whether that worked.
    pub(crate) fn copies(&self, to: &mut [u8], from: u64, len: usize) -> bool {
        // SAFETY: the slice has that many bytes.
        len <= to.len() && unsafe { self.read(to.as_mut_ptr(), from, len) }.is_ok()
    }

    /// Whether this process can read that one's memory, shown by a word that only that one can have told.
    pub(crate) fn proves(&self, addr: u64, value: u64) -> bool {
        let mut word = [0u8; 8];
        // SAFETY: eight writable bytes.
        let read = unsafe { self.read(word.as_mut_ptr(), addr, 8) };
        read.is_ok() && value != 0 && word == value.to_ne_bytes()
    }
}

/// How a pull ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pulled {
    /// All bytes are here.
    Done,
    /// The source is not there any more, or was taken back.
    Gone,
    /// The peer is dead.
    Dead,
}

/// Claims the record whose claim word is given, and reads its bytes.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub(crate) unsafe fn pull(peer: &Process, word: &AtomicU64, to: *mut u8, from: u64, len: usize) -> Pulled {
    let offered = claim::OFFERED.to_le();
    let reading = claim::READING.to_le();
    if word.compare_exchange(offered, reading, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return Pulled::Gone;
    }
    // SAFETY: the caller's promise.
    let read = unsafe { peer.read(to, from, len) };
    word.store(claim::DONE.to_le(), Ordering::Release);
    // A dead peer's number may belong to another process by now; then what was read is no good either.
    if peer.is_dead() {
        return Pulled::Dead;
    }
    match read {
        Ok(()) => Pulled::Done,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Pulled::Dead,
        Err(_) => Pulled::Gone,
    }
}

/// One record that names memory of this process.
struct Offer {
    key: u64,
    link: u64,
    position: u64,
    segment: Arc<Segment>,
    peer: Arc<Process>,
}

impl Offer {
    /// Takes the offer back if nobody reads; whether nobody does.
    fn end(&self) -> bool {
        let word = self.segment.claim(self.position);
        let offered = claim::OFFERED.to_le();
        let revoked = claim::REVOKED.to_le();
        match word.compare_exchange(offered, revoked, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(now) => u64::from_le(now) != claim::READING || self.peer.is_dead(),
        }
    }
}

/// All memory of one NIC that peers may be reading.
#[derive(Default)]
pub(crate) struct Book {
    offers: Mutex<Vec<Offer>>,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Vec<Offer>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an offer down; before its record is stamped.
    pub(crate) fn offer(
        &self,
        key: u64,
        link: u64,
        position: u64,
        segment: &Arc<Segment>,
        peer: &Arc<Process>,
    ) {
        segment.claim(position).store(claim::OFFERED.to_le(), Ordering::Release);
        let offer = Offer { key, link, position, segment: Arc::clone(segment), peer: Arc::clone(peer) };
        self.lock().push(offer);
    }

    /// Strikes out a link's offers before a position: the peer is done with them.
    pub(crate) fn strike(&self, link: u64, before: u64) {
        self.lock()
            .retain(|offer| offer.link != link || before.wrapping_sub(offer.position).cast_signed() <= 0);
    }

    /// The link ends: takes its offers back. Those that are being read stay until they are not.
    pub(crate) fn end_link(&self, link: u64) {
        self.lock().retain(|offer| offer.link != link || !offer.end());
    }

    /// Takes a region's offers back and waits for those that are being read; the process that still reads when the
    /// time is up is the error.
    pub(crate) fn end_region(&self, key: u64, limit: Duration) -> Result<(), u32> {
        let mut started = None;
        loop {
            let mut reader = None;
            self.lock().retain(|offer| {
                if offer.key != key || offer.end() {
                    return offer.key != key;
                }
                reader = Some(offer.peer.pid);
                true
            });
            let Some(pid) = reader else { return Ok(()) };
            if started.get_or_insert_with(Instant::now).elapsed() > limit {
                return Err(pid);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
