//! Any memory of a process, copied by `process_vm_readv` and `process_vm_writev` (process_vm_readv(2)) and never mapped; available on every
//! kernel. A copy whose both ends are memory of this process needs no system call. [`XpmemMemory`](super::XpmemMemory) is faster where XPMEM is
//! available. The export is the whole address space, once, so nothing is cached and freed memory is never stale.
//!
//! A process number may belong to another process in another namespace, and is reused. A process is therefore identified by a random number at
//! one of its addresses (the proof), which is read together with the data, and before data is written. A handle that names this process
//! contains an address chosen by a peer, so only a proof created here is accepted. Otherwise a peer that knows any word of this process could
//! make the process write to itself.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::error::{
    CallFailure, CopyError, ExportError, FailureClass, FindAllocationError, HandleOpenError, NotClosed,
};
use super::host::random_number;
use super::memory::copy_in_steps;
use super::process;
use super::{
    CloseError, CopyPlace, CopyTarget, ExportedHandle, HandlePassing, HostError, IpcAllocation,
    IpcAllocationId, IpcCaps, IpcHandle, IpcHandleError, IpcMemory, OpenedHandle,
};
use crate::memory::{HeldHeaps, hold_heap};
use crate::shared_copy::copy_shared;
use crate::{MemoryKind, MemoryRange};

/// The remedy named in errors when the kernel refuses access.
const REMEDY: &str = "access to memory of another process of the same user needs kernel.yama.ptrace_scope = 0, \
                      a dumpable process, and a common user namespace; a container needs \
                      --cap-add=SYS_PTRACE or a seccomp profile that allows process_vm_readv";

/// More addresses than any CPU gives a process, and small enough for offset arithmetic without overflow.
pub(super) const ADDRESSES: usize = 1 << 62;

/// The only allocation: all addresses.
pub(super) const ALL: IpcAllocation =
    IpcAllocation { base: 0, len: ADDRESSES, id: IpcAllocationId(1), device: 0 };

/// This process's memory for peers, and the peers' memory for this process.
#[derive(Debug)]
pub struct PrivateMemory {
    /// The number that peers verify; pinned, because handles contain its address.
    proof: Pin<Box<u64>>,
    peers: RwLock<OpenPeers>,
    /// Allocations made here, by address: the only local addresses that are copied from or to, because a Rust reference may exist to any other.
    blocks: RwLock<AddressBlocks>,
}

type AddressBlocks = BTreeMap<usize, MemoryRange>;

#[derive(Debug, Default)]
struct OpenPeers {
    open: BTreeMap<u64, ProvenProcess>,
    next: u64,
}

/// Another process, and the proof of its identity.
#[derive(Clone, Copy, Debug)]
struct ProvenProcess {
    pid: libc::pid_t,
    addr: usize,
    proof: u64,
    /// Whether it is this process. Other code may hold references to its bytes, so only its heaps are accessed.
    is_here: bool,
}

/// Bytes per system call; the kernel moves less than 2 GiB.
const PART: usize = 1 << 30;

impl PrivateMemory {
    /// Creates the kind for this process.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> Result<Self, CallFailure> {
        let proof = Box::pin(random_number()?);
        let this = Self { proof, peers: RwLock::default(), blocks: RwLock::default() };
        process::add_proof(this.proof_at(), *this.proof);
        Ok(this)
    }

    /// Allocates zeroed memory; returns its address. Copies by address can access only memory that was allocated here; for other memory of this
    /// process use a [`MemoryRange`].
    ///
    /// # Errors
    /// [`HostError::Size`], [`HostError::Memory`].
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        if len == 0 {
            return Err(HostError::Size(len));
        }
        Ok(self.admit_memory(MemoryRange::try_heap(len)?))
    }

    /// Lets copies by address also access memory that the program allocated, until [`PrivateMemory::free`]; returns its address.
    pub fn admit_memory(&self, memory: MemoryRange) -> usize {
        let addr = memory.addr();
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).insert(addr, memory);
        addr
    }

    /// Frees memory of [`PrivateMemory::alloc`], or releases memory of [`PrivateMemory::admit_memory`].
    ///
    /// # Errors
    /// [`HostError::Unknown`].
    pub fn free(&self, addr: usize) -> Result<(), HostError> {
        let block = self.blocks.write().unwrap_or_else(PoisonError::into_inner).remove(&addr);
        block.map(drop).ok_or(HostError::Unknown { addr })
    }

    /// Keeps blocks of this process allocated while the result lives: those that contain `len` bytes at each of two addresses.
    ///
    /// # Errors
    /// [`CopyError::Outside`] if the bytes at an address are not all in one block that was allocated here.
    pub(super) fn hold_blocks(
        &self,
        places: [Option<usize>; 2],
        len: usize,
    ) -> Result<Option<RwLockReadGuard<'_, AddressBlocks>>, CopyError> {
        if places == [None; 2] {
            return Ok(None);
        }
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        for addr in places.into_iter().flatten() {
            let block = blocks.range(..=addr).next_back();
            let inside = block
                .is_some_and(|(base, block)| block.checked_address((addr - base) as u64, len as u64).is_ok());
            if !inside {
                return Err(CopyError::Outside { at: addr as u64, len });
            }
        }
        Ok(Some(blocks))
    }

    /// Returns a handle's words: the process number, and the address and value of its proof.
    pub(super) fn handle_words(&self) -> [u64; 3] {
        let ProvenProcess { pid, addr, proof, .. } = self.this_process();
        [u64::from(pid.unsigned_abs()), addr as u64, proof]
    }

    /// Returns the process and address of a place; a place `Own` is in this process.
    fn resolve_place(&self, at: CopyPlace<'_>, len: usize) -> Result<(ProvenProcess, usize), CopyError> {
        let (peer, addr) = match at {
            CopyPlace::Own(addr) => (self.this_process(), addr as u64),
            CopyPlace::Open(mapped, offset) => {
                let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
                (*peers.open.get(&mapped.number).ok_or(CopyError::Closed)?, offset)
            }
        };
        match usize::try_from(addr) {
            Ok(start) if start.checked_add(len).is_some() => Ok((peer, start)),
            _ => Err(CopyError::Outside { at: addr, len }),
        }
    }

    fn this_process(&self) -> ProvenProcess {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        ProvenProcess { pid, addr: self.proof_at(), proof: *self.proof, is_here: false }
    }

    fn proof_at(&self) -> usize {
        std::ptr::from_ref(&*self.proof).expose_provenance()
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        process::remove(self.proof_at());
    }
}

impl ProvenProcess {
    /// Keeps the bytes allocated while the result lives, if they are in this process.
    ///
    /// # Errors
    /// [`CopyError::Outside`] if they are not all in one heap that was allocated here.
    fn hold_bytes(&self, addr: usize, len: usize) -> Result<Option<HeldHeaps>, CopyError> {
        if !self.is_here || len == 0 {
            return Ok(None);
        }
        hold_heap(addr, len).map(Some).ok_or(CopyError::Outside { at: addr as u64, len })
    }

    /// Reads bytes of the process, together with its proof.
    fn read_bytes(&self, out: &mut [u8], from: usize) -> Result<(), CopyError> {
        // SAFETY: `out` is an exclusive borrow of that many bytes.
        unsafe { self.read_to_address(out.as_mut_ptr().expose_provenance(), from, out.len()) }
    }

    /// Reads bytes of the process to a local address, together with its proof.
    ///
    /// # Safety
    /// The bytes at `to` may be written, or are not mapped, which the kernel detects.
    unsafe fn read_to_address(&self, to: usize, from: usize, len: usize) -> Result<(), CopyError> {
        let _held = self.hold_bytes(from, len)?;
        let mut done = 0;
        loop {
            let part_len = (len - done).min(PART);
            let mut found = [0; 8];
            let here = [local_iovec(found.as_mut_ptr(), 8), remote_iovec(to + done, part_len)];
            let there = [remote_iovec(self.addr, 8), remote_iovec(from + done, part_len)];
            // SAFETY: `found` is borrowed exclusively, the caller guarantees the second local range, and the kernel checks the remote ones.
            let got = unsafe { libc::process_vm_readv(self.pid, here.as_ptr(), 2, there.as_ptr(), 2, 0) };
            let got = check_moved("process_vm_readv", got)?;
            if got < 8 || u64::from_ne_bytes(found) != self.proof {
                return Err(CopyError::Gone);
            }
            if got < 8 + part_len {
                return Err(CopyError::Outside { at: from as u64, len });
            }
            done += part_len;
            if done == len {
                return Ok(());
            }
        }
    }

    /// Writes local bytes to the process after it has verified the proof. The kernel reads them, and reports unmapped addresses.
    fn push(&self, from: usize, to: usize, len: usize) -> Result<(), CopyError> {
        let _held = self.hold_bytes(to, len)?;
        self.read_bytes(&mut [], to)?;
        let mut done = 0;
        while done < len {
            let part_len = (len - done).min(PART);
            let here = remote_iovec(from + done, part_len);
            let there = remote_iovec(to + done, part_len);
            // SAFETY: the local range is only read; the kernel checks both ranges.
            let got =
                unsafe { libc::process_vm_writev(self.pid, &raw const here, 1, &raw const there, 1, 0) };
            if check_moved("process_vm_writev", got)? < part_len {
                return Err(CopyError::Outside { at: to as u64, len });
            }
            done += part_len;
        }
        Ok(())
    }
}

fn local_iovec(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: len }
}

/// Describes a range that the kernel checks.
fn remote_iovec(addr: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(addr), iov_len: len }
}

/// Returns the number of bytes that a call moved. 0, because the first bytes are unmapped, is not an error here.
fn check_moved(call: &'static str, got: libc::ssize_t) -> Result<usize, CopyError> {
    #[cfg(test)]
    tests::CALLS.set(tests::CALLS.get() + 1);
    let Err(_) = usize::try_from(got) else { return Ok(got.unsigned_abs()) };
    let error = std::io::Error::last_os_error();
    let cause = CallFailure::from_system(call, &error);
    match cause.failure_class() {
        FailureClass::Gone => Err(CopyError::Gone),
        FailureClass::Refused => Err(CopyError::Refused(cause)),
        _ if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        _ => Err(CopyError::Other(cause)),
    }
}

impl IpcMemory for PrivateMemory {
    fn caps(&self) -> IpcCaps {
        IpcCaps {
            maps: false,
            by_bytes: true,
            by_descriptor: false,
            opens_once: false,
            refuses_overlap: false,
            outlives_free: false,
            tells_descriptors: true,
        }
    }

    fn is_everything(&self) -> bool {
        true
    }

    fn allocation_of(&self, _addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        Ok(ALL)
    }

    fn holds_range(&self, addr: usize, len: usize) -> bool {
        self.hold_blocks([Some(addr), None], len).is_ok()
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        if how == HandlePassing::Descriptor {
            return Err(ExportError::Passing("private memory has no descriptor"));
        }
        if *of != ALL {
            return Err(ExportError::Gone(of.id));
        }
        Ok(ExportedHandle {
            handle: IpcHandle::of_words(IpcHandle::PRIVATE, self.handle_words()),
            descriptor: None,
        })
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        let [pid, addr, proof] = match handle.kind() {
            // Accepts handles of XPMEM, whose first words are the same.
            IpcHandle::XPMEM => {
                handle.parse_words(IpcHandle::XPMEM).map(|[pid, addr, proof, _segment]| [pid, addr, proof])?
            }
            _ => handle.parse_words(IpcHandle::PRIVATE)?,
        };
        if descriptor.is_some() {
            return Err(HandleOpenError::Descriptor("private memory has no descriptor"));
        }
        let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0);
        let pid = pid.ok_or(IpcHandleError::Value("process"))?;
        let addr = usize::try_from(addr).map_err(|_| IpcHandleError::Value("address"))?;
        let is_here = process::is_this(pid);
        let foreign = is_here && !process::is_own(addr, proof);
        if proof == *self.proof || foreign {
            return Err(HandleOpenError::Own);
        }
        let peer = ProvenProcess { pid, addr, proof, is_here };
        match peer.read_bytes(&mut [], addr) {
            Ok(()) => {}
            Err(CopyError::Refused(cause)) => return Err(HandleOpenError::Refused { cause, remedy: REMEDY }),
            Err(CopyError::Other(cause)) => return Err(HandleOpenError::from_cause(cause, REMEDY)),
            Err(_) => return Err(HandleOpenError::Gone),
        }
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let number = peers.next;
        peers.next += 1;
        peers.open.insert(number, peer);
        Ok(OpenedHandle { number, address: None, len: ADDRESSES })
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        match peers.open.remove(&mapped.number) {
            Some(_) => Ok(()),
            None => Err(NotClosed { mapped, error: CloseError::Unknown }),
        }
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let _held = self.hold_blocks([from.own_address(), None], out.len())?;
        if let CopyPlace::Own(addr) = from {
            let to = out.as_mut_ptr().expose_provenance();
            // SAFETY: `out` is borrowed exclusively during the call; `hold_blocks` checked and holds the source.
            unsafe { move_own(to, addr, out.len()) };
            return Ok(());
        }
        let (peer, addr) = self.resolve_place(from, out.len())?;
        peer.read_bytes(out, addr)
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let _held = self.hold_blocks([to.own_address(), None], bytes.len())?;
        if let CopyPlace::Own(addr) = to {
            let from = bytes.as_ptr().expose_provenance();
            // SAFETY: the range lies inside a held block that was allocated here, to which no reference exists.
            unsafe { move_own(addr, from, bytes.len()) };
            return Ok(());
        }
        let (peer, addr) = self.resolve_place(to, bytes.len())?;
        peer.push(bytes.as_ptr().expose_provenance(), addr, bytes.len())
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        let _held = self.hold_blocks([from.own_address(), to.own_address()], len)?;
        let ((peer, addr), to) = match (from, to, here_of(to, len)?) {
            (CopyPlace::Own(from), _, Some(to)) => {
                // SAFETY: the target is a checked range of a `MemoryRange` or lies inside a held block, and so does the source: no reference exists to either.
                unsafe { move_own(to, from, len) };
                return Ok(());
            }
            (CopyPlace::Own(from), CopyTarget::Open(mapped, at), None) => {
                let (peer, to) = self.resolve_place(CopyPlace::Open(mapped, at), len)?;
                return peer.push(from, to, len);
            }
            (CopyPlace::Open(..), _, Some(to)) => (self.resolve_place(from, len)?, to),
            (..) => return copy_in_steps(self, from, to, len),
        };
        // SAFETY: the target is a checked range of a `MemoryRange` or lies inside a held block: no reference exists to it.
        unsafe { peer.read_to_address(to, addr, len) }
    }

    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let from = local_address(from, offset, len)?;
        let _held = self.hold_blocks([to.own_address(), None], len)?;
        if let CopyPlace::Own(to) = to {
            // SAFETY: the target lies inside a held block that was allocated here; the source is a checked range of a `MemoryRange`.
            unsafe { move_own(to, from, len) };
            return Ok(());
        }
        let (peer, addr) = self.resolve_place(to, len)?;
        peer.push(from, addr, len)
    }
}

/// Copies local bytes to another local address; the ranges may overlap.
///
/// # Safety
/// Both ranges are mapped: in blocks that are held, borrowed, or in a [`MemoryRange`]. No reference but the caller's exists to the bytes at
/// `to`.
#[inline]
unsafe fn move_own(to: usize, from: usize, len: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    let to = std::ptr::with_exposed_provenance_mut(to);
    // SAFETY: the caller guarantees the conditions above.
    unsafe { copy_shared(from, to, len) };
}

/// Returns the local address of a target; `None` if it is in another process.
fn here_of(to: CopyTarget<'_>, len: usize) -> Result<Option<usize>, CopyError> {
    match to {
        CopyTarget::Own(to) if to.checked_add(len).is_some() => Ok(Some(to)),
        CopyTarget::Own(to) => Err(CopyError::Outside { at: to as u64, len }),
        CopyTarget::Memory(memory, at) => local_address(memory, at, len).map(Some),
        CopyTarget::Open(..) => Ok(None),
    }
}

/// Returns the address of bytes of a range that the CPU can access.
fn local_address(memory: &MemoryRange, offset: u64, len: usize) -> Result<usize, CopyError> {
    let outside = CopyError::Outside { at: offset, len };
    match memory.kind() {
        MemoryKind::Host => memory.checked_address(offset, len as u64).map_err(|_| outside),
        MemoryKind::Device(_) | MemoryKind::Mapped => Err(outside),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// System calls of this thread.
        pub(super) static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    const LEN: usize = 1 << 20;
    /// System calls of a copy inside this process.
    const OWN: usize = 0;

    fn bytes(salt: usize) -> Vec<u8> {
        (0..LEN).map(|at| (at ^ (at >> 8)).wrapping_mul(31).wrapping_add(salt) as u8).collect()
    }

    /// Returns this process, and itself as a peer that it has opened.
    fn both() -> (PrivateMemory, PrivateMemory, OpenedHandle) {
        let own = PrivateMemory::new().unwrap();
        let other = PrivateMemory::new().unwrap();
        let export = other.export(&ALL, HandlePassing::Bytes).unwrap();
        let mapped = own.open(&export.handle, None).unwrap();
        (own, other, mapped)
    }

    /// A peer may know bytes of this process, and send them as its proof.
    #[test]
    fn handle_of_this_process_needs_an_own_proof() {
        let own = PrivateMemory::new().unwrap();
        let other = PrivateMemory::new().unwrap();
        let bytes = own.alloc(4096).unwrap();
        let seen = [0x5a; 8];
        own.write(CopyPlace::Own(bytes), &seen).unwrap();
        let pid = u64::from(std::process::id());
        let thread = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        for number in [pid, thread] {
            let lies =
                IpcHandle::of_words(IpcHandle::PRIVATE, [number, bytes as u64, u64::from_le_bytes(seen)]);
            assert!(matches!(own.open(&lies, None), Err(HandleOpenError::Own)));
        }
        let [_, addr, proof] = other.handle_words();
        let true_one = IpcHandle::of_words(IpcHandle::PRIVATE, [pid, addr, proof]);
        own.close(own.open(&true_one, None).unwrap()).unwrap();
        for (addr, proof) in [(addr + 8, proof), (addr, proof ^ 1)] {
            let lies = IpcHandle::of_words(IpcHandle::PRIVATE, [pid, addr, proof]);
            assert!(matches!(own.open(&lies, None), Err(HandleOpenError::Own)));
        }
        drop(other);
        assert!(own.open(&true_one, None).is_err(), "a removed proof must be refused");
    }

    #[test]
    fn copies_between_any_places_use_few_calls() {
        let (own, _other, mapped) = both();
        let [a, b] = [own.alloc(LEN).unwrap(), own.alloc(LEN).unwrap()];
        let memory = MemoryRange::heap(LEN);
        let at = |addr: usize| CopyPlace::Open(&mapped, addr as u64);
        // Copies between own addresses take no system call. A write verifies the proof first.
        let ways: [(&str, usize, CopyPlace<'_>, CopyTarget<'_>); 5] = [
            ("own to own", OWN, CopyPlace::Own(a), CopyTarget::Own(b)),
            ("own to memory", OWN, CopyPlace::Own(a), CopyTarget::Memory(&memory, 0)),
            ("open to own", 1, at(a), CopyTarget::Own(b)),
            ("open to memory", 1, at(a), CopyTarget::Memory(&memory, 0)),
            ("own to open", 2, CopyPlace::Own(a), CopyTarget::Open(&mapped, b as u64)),
        ];
        for (number, (name, calls, from, to)) in ways.into_iter().enumerate() {
            let sent = bytes(number);
            own.write(CopyPlace::Own(a), &sent).unwrap();
            let before = CALLS.get();
            own.copy(from, to, LEN).unwrap();
            assert_eq!(CALLS.get() - before, calls, "{name}");
            let mut got = vec![0; LEN];
            match to {
                CopyTarget::Memory(memory, at) => memory.read(at, &mut got).unwrap(),
                _ => own.read(CopyPlace::Own(b), &mut got).unwrap(),
            }
            assert!(got == sent, "{name}");
        }
        let sent = bytes(9);
        memory.write(0, &sent).unwrap();
        let before = CALLS.get();
        own.fill_from(at(b), &memory, 0, LEN).unwrap();
        assert_eq!(CALLS.get() - before, 2, "memory to open");
        own.fill_from(CopyPlace::Own(a), &memory, 0, LEN).unwrap();
        own.write(CopyPlace::Own(a), &sent).unwrap();
        own.read(CopyPlace::Own(a), &mut vec![0; LEN]).unwrap();
        assert_eq!(CALLS.get() - before, 2 + 5 * OWN, "copies inside this process need no further calls");
        own.copy(at(b), CopyTarget::Open(&mapped, a as u64), LEN).unwrap();
        let mut got = vec![0; LEN];
        own.read(CopyPlace::Own(a), &mut got).unwrap();
        assert!(got == sent, "open to open");
    }

    /// Safe code may hold a reference to any other address.
    #[test]
    fn only_own_blocks_are_own_addresses() {
        let own = PrivateMemory::new().unwrap();
        let block = own.alloc(64).unwrap();
        let bytes = [7_u8; 64];
        let foreign = bytes.as_ptr().expose_provenance();
        let memory = MemoryRange::heap(64);
        let outside =
            |result: Result<(), CopyError>| assert!(matches!(result, Err(CopyError::Outside { .. })));
        for addr in [foreign, block + 1, block - 1] {
            assert!(!own.holds_range(addr, 64));
            outside(own.read(CopyPlace::Own(addr), &mut [0; 64]));
            outside(own.write(CopyPlace::Own(addr), &[1; 64]));
            outside(own.copy(CopyPlace::Own(block), CopyTarget::Own(addr), 64));
            outside(own.copy(CopyPlace::Own(addr), CopyTarget::Own(block), 64));
            outside(own.copy(CopyPlace::Own(addr), CopyTarget::Memory(&memory, 0), 64));
            outside(own.fill_from(CopyPlace::Own(addr), &memory, 0, 64));
        }
        assert_eq!(bytes, [7; 64]);
        assert!(own.holds_range(block, 64));
        own.free(block).unwrap();
        outside(own.write(CopyPlace::Own(block), &[1; 64]));
    }

    /// Two nodes of one process must not circumvent that rule.
    #[test]
    fn same_process_node_exposes_only_its_heaps() {
        let (own, other, mapped) = both();
        let block = other.alloc(64).unwrap();
        let heap = MemoryRange::heap(64);
        let bytes = [7_u8; 64];
        let foreign = bytes.as_ptr().expose_provenance();
        let end = block + 4096 - 32;
        for addr in [foreign, end] {
            let at = CopyPlace::Open(&mapped, addr as u64);
            let to = CopyTarget::Open(&mapped, addr as u64);
            let mut got = [1; 64];
            let all = [
                own.read(at, &mut got),
                own.write(at, &[1; 64]),
                own.copy(at, CopyTarget::Memory(&heap, 0), 64),
                own.copy(CopyPlace::Open(&mapped, block as u64), to, 64),
                own.fill_from(at, &heap, 0, 64),
            ];
            for (number, result) in all.into_iter().enumerate() {
                assert!(matches!(result, Err(CopyError::Outside { .. })), "{number}: {result:?}");
            }
            assert_eq!(got, [1; 64], "nothing was read");
        }
        assert_eq!(bytes, [7; 64]);
        // Memory that the program holds as a `MemoryRange` is accessible until it is freed, whether it is a block or
        // not.
        for addr in [block, heap.addr()] {
            own.write(CopyPlace::Open(&mapped, addr as u64), &[5; 64]).unwrap();
            let mut got = [0; 64];
            own.read(CopyPlace::Open(&mapped, addr as u64), &mut got).unwrap();
            assert_eq!(got, [5; 64]);
        }
        other.free(block).unwrap();
        let freed = own.write(CopyPlace::Open(&mapped, block as u64), &[1; 64]);
        assert!(matches!(freed, Err(CopyError::Outside { .. })), "{freed:?}");
    }

    #[test]
    fn copies_of_unmapped_memory_are_refused() {
        let (own, _other, mapped) = both();
        let a = own.alloc(LEN).unwrap();
        let nowhere = 4096;
        let memory = MemoryRange::heap(LEN);
        let failed = [
            own.copy(CopyPlace::Own(a), CopyTarget::Own(nowhere), LEN),
            own.copy(CopyPlace::Own(nowhere), CopyTarget::Own(a), LEN),
            own.copy(CopyPlace::Own(a), CopyTarget::Own(usize::MAX - 5), LEN),
            own.copy(CopyPlace::Open(&mapped, nowhere as u64), CopyTarget::Own(a), LEN),
            own.copy(CopyPlace::Own(nowhere), CopyTarget::Open(&mapped, a as u64), LEN),
            own.copy(CopyPlace::Own(a), CopyTarget::Open(&mapped, nowhere as u64), LEN),
            own.copy(CopyPlace::Own(a), CopyTarget::Memory(&memory, 1), LEN),
            own.fill_from(CopyPlace::Open(&mapped, a as u64), &memory, 1, LEN),
        ];
        for (number, result) in failed.into_iter().enumerate() {
            assert!(matches!(result, Err(CopyError::Outside { .. })), "{number}: {result:?}");
        }
    }

    #[test]
    fn process_with_another_proof_is_not_copied() {
        let (own, other, mapped) = both();
        let [a, b] = [own.alloc(64).unwrap(), own.alloc(64).unwrap()];
        own.write(CopyPlace::Own(a), &[7; 64]).unwrap();
        // The process number is valid, but its proof has changed.
        let place = std::ptr::from_ref(&*other.proof).expose_provenance();
        let changed = *other.proof ^ 1;
        // SAFETY: a word that only system calls of this test read.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(place).write_volatile(changed) };
        assert!(matches!(
            own.copy(CopyPlace::Own(a), CopyTarget::Open(&mapped, b as u64), 64),
            Err(CopyError::Gone)
        ));
        let mut got = [1; 64];
        own.read(CopyPlace::Own(b), &mut got).unwrap();
        assert_eq!(got[0], 0, "nothing may be written before the proof is verified");
        assert!(matches!(
            own.copy(CopyPlace::Open(&mapped, a as u64), CopyTarget::Own(b), 64),
            Err(CopyError::Gone)
        ));
    }
}
