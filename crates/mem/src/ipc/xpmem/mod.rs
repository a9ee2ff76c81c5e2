//! Any memory of a process, attached by XPMEM (a kernel module with a library that is opened at run time). Memory that [`PrivateMemory`] copies
//! by a system call is mapped here once, and then read without one.
//!
//! A process makes all its addresses available once. A peer that opens its handle gets one permission, and attaches pieces of the address space
//! as copies need them. An attachment maps addresses: the kernel removes pages when their owner frees them or dies, so no attachment is stale.
//! A copy from a removed page ends ([`FaultGuard`]) and is repeated by a system call, which returns the cause.
//!
//! Copies without an attachment use system calls, and so do all writes to another process. The module maps pages that their owner may only read
//! as writable for others (`xpmem_pin_page`), whereas a system call rejects a write to such a page.
//!
//! Every call fails in a forked child: the segment belongs to the parent, and the parent's attachments do not exist in the child.

mod attachments;
mod library;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use trunkline_sys::xpmem::SegmentId;

use self::attachments::{AttachPermit, AttachedPeer, PAGE, PIECE, PeerAttachments};
use self::library::XpmemLibrary;
use super::error::{
    CallFailure, CloseError, CopyError, ExportError, FindAllocationError, HandleOpenError, NoMemory,
    NotClosed,
};
use super::fault_guard::FaultGuard;
use super::fork_guard::ForkGuard;
use super::host::HostError;
use super::memory::copy_in_steps;
use super::private::{ADDRESSES, ALL};
use super::process;
use super::{
    CopyPlace, CopyTarget, ExportedHandle, HandlePassing, IpcAllocation, IpcCaps, IpcHandle, IpcHandleError,
    IpcMemory, OpenedHandle, PrivateMemory,
};
use crate::{MemoryKind, MemoryRange};

/// This process's memory for peers, and the peers' memory for this process.
#[derive(Debug)]
pub struct XpmemMemory {
    driver: XpmemLibrary,
    guard: FaultGuard,
    here: ForkGuard,
    private: PrivateMemory,
    /// The segment by which peers attach this process's memory.
    segment: SegmentId,
    open: RwLock<PeerAttachments>,
    attached: AtomicU64,
    by_calls: AtomicU64,
    refused: AtomicU64,
}

/// Counters of attachments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AttachCounts {
    /// Number of pieces attached.
    pub attached: u64,
    /// Number of copies from other processes that attachments could not serve and that system calls made.
    pub by_calls: u64,
    /// Number of opened processes that cannot be attached.
    pub refused: u64,
}

/// The maximum number of pieces attached at a time, over all processes: 8 GiB of addresses.
const PIECES_MAX: usize = 1024;

impl XpmemMemory {
    /// Creates the kind for this process, after a trial: it attaches a piece of its own memory and reads it.
    ///
    /// # Errors
    /// [`NoMemory`]: the library or the module is missing, or the module refuses this process.
    pub fn open() -> Result<Self, NoMemory> {
        Self::with_pieces(PIECES_MAX)
    }

    /// Creates the kind with at most `most` pieces attached at a time.
    ///
    /// # Errors
    /// As [`XpmemMemory::open`].
    pub fn with_pieces(most: usize) -> Result<Self, NoMemory> {
        let driver = XpmemLibrary::load()?;
        let guard = FaultGuard::install()?;
        let here = ForkGuard::new()?;
        let private = PrivateMemory::new()?;
        // From here on, the segment is removed when the value is dropped.
        let this = Self {
            driver,
            guard,
            here,
            private,
            segment: driver.make_segment()?,
            open: RwLock::new(PeerAttachments::new(most)),
            attached: AtomicU64::new(0),
            by_calls: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        let [_, addr, proof] = this.private.handle_words();
        this.request_permit(this.segment, addr as usize, proof)?.end_permit(&driver);
        Ok(this)
    }

    /// Returns the counters of attachments.
    #[must_use]
    pub fn attach_counts(&self) -> AttachCounts {
        let [attached, by_calls, refused] =
            [&self.attached, &self.by_calls, &self.refused].map(|count| count.load(Ordering::Relaxed));
        AttachCounts { attached, by_calls, refused }
    }

    /// Allocates zeroed memory, for callers without another allocator; see [`PrivateMemory::alloc`].
    ///
    /// # Errors
    /// [`HostError`].
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        self.check_process()?;
        self.private.alloc(len)
    }

    /// As [`PrivateMemory::admit_memory`].
    pub fn admit_memory(&self, memory: MemoryRange) -> usize {
        self.private.admit_memory(memory)
    }

    /// Frees memory, as [`PrivateMemory::free`].
    ///
    /// # Errors
    /// [`HostError`].
    pub fn free(&self, addr: usize) -> Result<(), HostError> {
        self.check_process()?;
        self.private.free(addr)
    }

    /// Fails in a forked child.
    fn check_process(&self) -> Result<(), CallFailure> {
        self.here.check_process()
    }

    fn open_ones(&self) -> RwLockReadGuard<'_, PeerAttachments> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_ones_mut(&self) -> RwLockWriteGuard<'_, PeerAttachments> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets the permission to attach the memory of a process, and verifies the process by its proof.
    fn request_permit(
        &self,
        segment: SegmentId,
        addr: usize,
        proof: u64,
    ) -> Result<AttachPermit, CallFailure> {
        let id = self.driver.get(segment)?;
        let from = addr / PAGE * PAGE;
        let page =
            self.driver.attach_range(id, from, PAGE).inspect_err(|_| self.driver.release_permit(id))?;
        let permit = AttachPermit { id, page, word: addr - from, proof };
        if self.is_there(permit) {
            return Ok(permit);
        }
        permit.end_permit(&self.driver);
        Err(CallFailure::System { call: "xpmem_attach", code: libc::ESRCH })
    }

    /// Returns whether the process of a permission still exists and has the expected proof.
    fn is_there(&self, permit: AttachPermit) -> bool {
        let mut found = 0_u64;
        let to = std::ptr::from_mut(&mut found).expose_provenance();
        // SAFETY: the target is a local word, borrowed for the call; the source lies in the attached page of the permission, a different page.
        (unsafe { self.guard.copy_guarded(to, permit.page + permit.word, 8) }) && found == permit.proof
    }

    /// Copies bytes of a process to a local address by its attachments. Returns whether all bytes were copied.
    ///
    /// # Safety
    /// As [`FaultGuard::copy_guarded`] requires for `to`.
    unsafe fn pull_bytes(&self, peer: u64, from: usize, to: usize, len: usize) -> bool {
        let mut done = 0;
        while done < len {
            let at = from + done;
            let part = (PIECE - at % PIECE).min(len - done);
            // SAFETY: the caller guarantees the conditions for `to`.
            if !unsafe { self.pull_part(peer, at, to + done, part) } {
                return false;
            }
            done += part;
        }
        true
    }

    /// Copies bytes that lie in one piece, as [`XpmemMemory::pull_bytes`].
    ///
    /// # Safety
    /// As [`XpmemMemory::pull_bytes`].
    unsafe fn pull_part(&self, peer: u64, from: usize, to: usize, len: usize) -> bool {
        // In the second pass the piece is attached, unless another thread has displaced it.
        for _ in 0..2 {
            let open = self.open_ones();
            if let Some(at) = open.find_piece(peer, from / PIECE) {
                // SAFETY: the caller guarantees `to`; the piece stays attached while `open` is borrowed, and all bytes lie inside it.
                return unsafe { self.guard.copy_guarded(to, at + from % PIECE, len) };
            }
            drop(open);
            if !self.attach_piece(peer, from / PIECE) {
                return false;
            }
        }
        false
    }

    /// Attaches a piece of a process; returns whether it is attached.
    fn attach_piece(&self, peer: u64, number: usize) -> bool {
        // Without the handler, a fault during a copy would kill the process.
        if !self.guard.is_in_place() {
            return false;
        }
        let mut open = self.open_ones_mut();
        let Some(permit) = open.peers.get(&peer).and_then(|peer| peer.permit) else { return false };
        match open.attach_piece(&self.driver, peer, permit, number) {
            Ok(made) => {
                self.attached.fetch_add(u64::from(made.is_some()), Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the process of a place if it is another one, and the address in it.
    fn resolve_place(&self, at: CopyPlace<'_>, len: usize) -> Result<(Option<u64>, usize), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let (peer, addr) = match at {
            CopyPlace::Own(addr) => (None, addr as u64),
            CopyPlace::Open(mapped, offset) => {
                let is_open = self.open_ones().peers.contains_key(&mapped.number);
                (Some(is_open.then_some(mapped.number).ok_or(CopyError::Closed)?), offset)
            }
        };
        match usize::try_from(addr) {
            Ok(start) if start.checked_add(len).is_some() => Ok((peer, start)),
            _ => Err(CopyError::Outside { at: addr, len }),
        }
    }

    /// Runs a copy by system calls instead of attachments.
    fn call_private<T>(
        &self,
        peer: u64,
        at: usize,
        call: impl FnOnce(&OpenedHandle, u64) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        let open = self.open_ones();
        let peer = open.peers.get(&peer).ok_or(CopyError::Closed)?;
        match &peer.by_calls {
            Ok(mapped) => call(mapped, at as u64),
            Err(_) if peer.permit.is_some_and(|permit| !self.is_there(permit)) => Err(CopyError::Gone),
            Err(cause) => Err(CopyError::Refused(cause.clone())),
        }
    }
}

impl IpcMemory for XpmemMemory {
    fn caps(&self) -> IpcCaps {
        self.private.caps()
    }

    fn is_everything(&self) -> bool {
        true
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        self.check_process().map_err(|_| FindAllocationError::Unknown { addr })?;
        Ok(ALL)
    }

    fn holds_range(&self, addr: usize, len: usize) -> bool {
        self.check_process().is_ok() && self.private.holds_range(addr, len)
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        self.check_process()?;
        let ExportedHandle { descriptor, .. } = self.private.export(of, how)?;
        let [pid, addr, proof] = self.private.handle_words();
        let words = [pid, addr, proof, self.segment.cast_unsigned()];
        Ok(ExportedHandle { handle: IpcHandle::of_words(IpcHandle::XPMEM, words), descriptor })
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        self.check_process().map_err(HandleOpenError::Other)?;
        let permit = match handle.kind() {
            IpcHandle::PRIVATE => Err(CallFailure::System { call: "xpmem_get", code: libc::ENOSYS }),
            _ => {
                let [_, addr, proof, segment] = handle.parse_words(IpcHandle::XPMEM)?;
                let addr = usize::try_from(addr).ok().filter(|addr| addr.is_multiple_of(8));
                let addr = addr.ok_or(IpcHandleError::Value("address"))?;
                // Refused for every handle of this process: an attachment would make all its addresses accessible.
                let is_own = process::is_own(addr, proof) || segment.cast_signed() == self.segment;
                match descriptor {
                    // If this is refused, opening by system calls below returns the reason.
                    None if !is_own => self.request_permit(segment.cast_signed(), addr, proof),
                    _ => Err(CallFailure::System { call: "xpmem_get", code: libc::EINVAL }),
                }
            }
        };
        let by_calls = match (self.private.open(handle, descriptor), &permit) {
            (Ok(mapped), _) => Ok(mapped),
            (Err(error), Err(_)) => return Err(error),
            (Err(HandleOpenError::Refused { cause, .. } | HandleOpenError::Other(cause)), Ok(_)) => {
                Err(cause)
            }
            // The process number is unknown here, or belongs to another process: the two are in different PID namespaces.
            (Err(_), Ok(_)) => Err(CallFailure::System { call: "process_vm_readv", code: libc::ESRCH }),
        };
        self.refused.fetch_add(u64::from(permit.is_err()), Ordering::Relaxed);
        let mut open = self.open_ones_mut();
        let number = open.next;
        open.next += 1;
        open.peers.insert(number, AttachedPeer { permit: permit.ok(), by_calls });
        Ok(OpenedHandle { number, address: None, len: ADDRESSES })
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        if self.check_process().is_err() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        let mut open = self.open_ones_mut();
        let Some(peer) = open.peers.remove(&mapped.number) else {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        };
        if let Some(permit) = peer.permit {
            open.detach_peer(&self.driver, mapped.number, permit);
        }
        match peer.by_calls.map(|by_calls| self.private.close(by_calls)) {
            Ok(Err(NotClosed { error, .. })) => Err(NotClosed { mapped, error }),
            _ => Ok(()),
        }
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let (Some(peer), addr) = self.resolve_place(from, out.len())? else {
            return self.private.read(from, out);
        };
        let to = out.as_mut_ptr().expose_provenance();
        // SAFETY: `out` is borrowed exclusively during the call.
        if unsafe { self.pull_bytes(peer, addr, to, out.len()) } {
            return Ok(());
        }
        self.by_calls.fetch_add(1, Ordering::Relaxed);
        self.call_private(peer, addr, |mapped, at| self.private.read(CopyPlace::Open(mapped, at), out))
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let (Some(peer), addr) = self.resolve_place(to, bytes.len())? else {
            return self.private.write(to, bytes);
        };
        self.call_private(peer, addr, |mapped, at| self.private.write(CopyPlace::Open(mapped, at), bytes))
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        match (self.resolve_place(from, len)?, to) {
            ((Some(_), _), CopyTarget::Open(..)) => copy_in_steps(self, from, to, len),
            ((None, _), CopyTarget::Open(mapped, at)) => {
                let (Some(peer), to) = self.resolve_place(CopyPlace::Open(mapped, at), len)? else {
                    return Err(CopyError::Closed);
                };
                self.call_private(peer, to, |mapped, to| {
                    self.private.copy(from, CopyTarget::Open(mapped, to), len)
                })
            }
            ((None, _), _) => self.private.copy(from, to, len),
            ((Some(peer), addr), _) => {
                let to_here = match to {
                    CopyTarget::Own(addr) => addr.checked_add(len).map(|_| addr),
                    CopyTarget::Memory(memory, at) if memory.kind() == MemoryKind::Host => {
                        memory.checked_address(at, len as u64).ok()
                    }
                    CopyTarget::Memory(..) | CopyTarget::Open(..) => None,
                };
                let held = self.private.hold_blocks([to.own_address(), None], len)?;
                // SAFETY: the target is a checked range of a `MemoryRange` or lies inside a held block: no reference exists to it.
                if to_here.is_some_and(|to| unsafe { self.pull_bytes(peer, addr, to, len) }) {
                    return Ok(());
                }
                drop(held);
                self.by_calls.fetch_add(1, Ordering::Relaxed);
                self.call_private(peer, addr, |mapped, at| {
                    self.private.copy(CopyPlace::Open(mapped, at), to, len)
                })
            }
        }
    }

    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        match self.resolve_place(to, len)? {
            (None, _) => self.private.fill_from(to, from, offset, len),
            (Some(peer), at) => self.call_private(peer, at, |mapped, at| {
                self.private.fill_from(CopyPlace::Open(mapped, at), from, offset, len)
            }),
        }
    }
}

impl Drop for XpmemMemory {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        let driver = self.driver;
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (number, peer) in std::mem::take(&mut open.peers) {
            peer.permit.into_iter().for_each(|permit| open.detach_peer(&driver, number, permit));
        }
        driver.remove(self.segment);
    }
}
