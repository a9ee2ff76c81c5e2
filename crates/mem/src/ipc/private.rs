//! Any memory of a process, reached by `process_vm_readv` and `process_vm_writev` (process_vm_readv(2)) and mapped by nobody: what there is
//! on every kernel. What is this process's own at both ends of a copy takes no call. Where XPMEM is there, [`Xpmem`](super::Xpmem) is faster. What is exported is the whole address space, once: there is nothing to cache, and nothing that is freed can be stale.
//!
//! A number of a process may be another one's in another namespace, and is used again. So what proves a process is a random number at
//! an address of it, which is read together with what is read, and before what is written. A handle that names this process is another one's word
//! for where its proof is, so it must be one that was made here: whoever knows any word of this process could have it write to itself.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::error::{Cause, CopyError, ExportError, FindError, Meaning, NotClosed, OpenError};
use super::host::random;
use super::memory::copy_in_steps;
use super::process;
use super::{
    Allocation, AllocationId, At, Caps, CloseError, Export, Handle, HandleError, HostError, IpcMemory,
    Mapped, Passing, To, planted,
};
use crate::memory::{HeldHeaps, hold_heap};
use crate::shared_copy::copy_shared;
use crate::{Kind, Memory};

/// What a user can do where the kernel refuses.
const REMEDY: &str = "the kernel lets a process look into another one of the same user only if kernel.yama.ptrace_scope is 0, \
                      the other one has not made itself undumpable, and both are in one user namespace; a container needs \
                      --cap-add=SYS_PTRACE or a seccomp profile that allows process_vm_readv";

/// More addresses than any processor gives a process, and still a number that others reckon with.
pub(super) const ADDRESSES: usize = 1 << 62;

/// The one allocation: all addresses.
pub(super) const ALL: Allocation = Allocation { base: 0, len: ADDRESSES, id: AllocationId(1), device: 0 };

/// This process's memory for others, and that of others for this one.
#[derive(Debug)]
pub struct Private {
    /// What others look for; it stays where it is.
    proof: Pin<Box<u64>>,
    peers: RwLock<Peers>,
    /// The allocations made here, by address: the only own addresses that are copied from and to, as any other may be what some Rust
    /// reference names.
    blocks: RwLock<Blocks>,
}

type Blocks = BTreeMap<usize, Memory>;

#[derive(Debug, Default)]
struct Peers {
    open: BTreeMap<u64, Peer>,
    next: u64,
}

/// Another process, and what proves that it is still that one.
#[derive(Clone, Copy, Debug)]
struct Peer {
    pid: libc::pid_t,
    addr: usize,
    proof: u64,
    /// It is in this process, whose other bytes may be named by a reference of safe code: it is reached in its heaps alone.
    is_here: bool,
}

/// Bytes of one system call; it moves less than 2 GiB.
const PART: usize = 1 << 30;

impl Private {
    /// For this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> Result<Self, Cause> {
        let proof = Box::pin(random()?);
        let this = Self { proof, peers: RwLock::default(), blocks: RwLock::default() };
        process::add(this.proof_at(), *this.proof);
        Ok(this)
    }

    /// New zeroed memory; its address. Copies by address reach memory that was allocated here and nothing else of this process; other memory of it
    /// is a [`Memory`].
    ///
    /// # Errors
    /// [`HostError::Size`], [`HostError::Memory`].
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        if len == 0 {
            return Err(HostError::Size(len));
        }
        Ok(self.admit(Memory::try_heap(len)?))
    }

    /// Has copies by address reach memory that the program made, too, until [`Private::free`]; its address.
    pub fn admit(&self, memory: Memory) -> usize {
        let addr = memory.addr();
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).insert(addr, memory);
        addr
    }

    /// Frees it; of memory that the program made, ends the hold on it.
    ///
    /// # Errors
    /// [`HostError::Unknown`].
    pub fn free(&self, addr: usize) -> Result<(), HostError> {
        let block = self.blocks.write().unwrap_or_else(PoisonError::into_inner).remove(&addr);
        block.map(drop).ok_or(HostError::Unknown { addr })
    }

    /// Has own bytes stay while the answer lives, those at each of two addresses.
    ///
    /// # Errors
    /// [`CopyError::Outside`], if they are not all in one block that was allocated here.
    pub(super) fn hold(
        &self,
        places: [Option<usize>; 2],
        len: usize,
    ) -> Result<Option<RwLockReadGuard<'_, Blocks>>, CopyError> {
        if places == [None; 2] {
            return Ok(None);
        }
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        for addr in places.into_iter().flatten() {
            let block = blocks.range(..=addr).next_back();
            let inside =
                block.is_some_and(|(base, block)| block.checked((addr - base) as u64, len as u64).is_ok());
            if !inside && !planted("mem-private-copies-at-any-address") {
                return Err(CopyError::Outside { at: addr as u64, len });
            }
        }
        Ok(Some(blocks))
    }

    /// A handle's words for it: its number, and where and what its proof is.
    pub(super) fn words(&self) -> [u64; 3] {
        let Peer { pid, addr, proof, .. } = self.this();
        [u64::from(pid.unsigned_abs()), addr as u64, proof]
    }

    /// The process and the address there that a place is; a place of one's own is in this process.
    fn place(&self, at: At<'_>, len: usize) -> Result<(Peer, usize), CopyError> {
        let (peer, addr) = match at {
            At::Own(addr) => (self.this(), addr as u64),
            At::Open(mapped, offset) => {
                let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
                (*peers.open.get(&mapped.number).ok_or(CopyError::Closed)?, offset)
            }
        };
        match usize::try_from(addr) {
            Ok(start) if start.checked_add(len).is_some() => Ok((peer, start)),
            _ => Err(CopyError::Outside { at: addr, len }),
        }
    }

    /// Copies own bytes to another own place, which may overlap; whether it did. If not, a system call does.
    ///
    /// # Safety
    /// Both are memory, in blocks that are held, borrowed, or of a [`Memory`], and no reference but the caller's exists to the bytes at `to`.
    #[inline]
    unsafe fn move_own(&self, to: usize, from: usize, len: usize) -> bool {
        if planted("mem-private-calls-for-own") {
            return false;
        }
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        let to = std::ptr::with_exposed_provenance_mut(to);
        // SAFETY: the caller's promise.
        unsafe { copy_shared(from, to, len) };
        true
    }

    fn this(&self) -> Peer {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Peer { pid, addr: self.proof_at(), proof: *self.proof, is_here: false }
    }

    fn proof_at(&self) -> usize {
        std::ptr::from_ref(&*self.proof).expose_provenance()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        process::remove(self.proof_at());
    }
}

impl Peer {
    /// Has the bytes stay while the answer lives, where they are in this process.
    ///
    /// # Errors
    /// [`CopyError::Outside`], if they are not all in one heap that was allocated here.
    fn hold(&self, addr: usize, len: usize) -> Result<Option<HeldHeaps>, CopyError> {
        if !self.is_here || len == 0 || planted("mem-private-reaches-all-of-itself") {
            return Ok(None);
        }
        hold_heap(addr, len).map(Some).ok_or(CopyError::Outside { at: addr as u64, len })
    }

    /// Reads bytes of it, and its proof with them.
    fn read(&self, out: &mut [u8], from: usize) -> Result<(), CopyError> {
        // SAFETY: an exclusive borrow of so many bytes.
        unsafe { self.pull(out.as_mut_ptr().expose_provenance(), from, out.len()) }
    }

    /// Reads bytes of it to an address here, and its proof with them.
    ///
    /// # Safety
    /// What is at the address may be written, or nothing is there, which the kernel says.
    unsafe fn pull(&self, to: usize, from: usize, len: usize) -> Result<(), CopyError> {
        let _held = self.hold(from, len)?;
        let mut done = 0;
        loop {
            let part_len = (len - done).min(PART);
            let mut found = [0; 8];
            let here = [range(found.as_mut_ptr(), 8), remote(to + done, part_len)];
            let there = [remote(self.addr, 8), remote(from + done, part_len)];
            // SAFETY: the first local range is an exclusive borrow, the second as the caller says; the kernel checks the remote ones.
            let got = unsafe { libc::process_vm_readv(self.pid, here.as_ptr(), 2, there.as_ptr(), 2, 0) };
            let got = moved("process_vm_readv", got)?;
            if got < 8 || (u64::from_ne_bytes(found) != self.proof && !planted("mem-ipc-believes-pids")) {
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

    /// Writes bytes that are here to it, once it has proved to be that process. The kernel reads them, and says so where nothing is.
    fn push(&self, from: usize, to: usize, len: usize) -> Result<(), CopyError> {
        let _held = self.hold(to, len)?;
        self.read(&mut [], to)?;
        let mut done = 0;
        while done < len {
            let part_len = (len - done).min(PART);
            let here = remote(from + done, part_len);
            let there = remote(to + done, part_len);
            // SAFETY: the local range is only read; the kernel checks both.
            let got =
                unsafe { libc::process_vm_writev(self.pid, &raw const here, 1, &raw const there, 1, 0) };
            if moved("process_vm_writev", got)? < part_len {
                return Err(CopyError::Outside { at: to as u64, len });
            }
            done += part_len;
        }
        Ok(())
    }
}

fn range(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: len }
}

/// Of addresses that the kernel looks at.
fn remote(addr: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(addr), iov_len: len }
}

/// How many bytes a call moved. None, because the first are nowhere, is not an error here.
fn moved(call: &'static str, got: libc::ssize_t) -> Result<usize, CopyError> {
    #[cfg(test)]
    tests::CALLS.set(tests::CALLS.get() + 1);
    let Err(_) = usize::try_from(got) else { return Ok(got.unsigned_abs()) };
    let error = std::io::Error::last_os_error();
    let cause = Cause::system(call, &error);
    match cause.meaning() {
        Meaning::Gone => Err(CopyError::Gone),
        Meaning::Refused => Err(CopyError::Refused(cause)),
        _ if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        _ => Err(CopyError::Other(cause)),
    }
}

impl IpcMemory for Private {
    fn caps(&self) -> Caps {
        Caps {
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

    fn allocation_of(&self, _addr: usize) -> Result<Allocation, FindError> {
        Ok(ALL)
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        self.hold([Some(addr), None], len).is_ok()
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
        if how == Passing::Descriptor {
            return Err(ExportError::Passing("private memory has no descriptor"));
        }
        if *of != ALL {
            return Err(ExportError::Gone(of.id));
        }
        Ok(Export { handle: Handle::of_words(Handle::PRIVATE, self.words()), descriptor: None })
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        let [pid, addr, proof] = match handle.kind() {
            // What could be attached, too.
            Handle::XPMEM => {
                handle.words(Handle::XPMEM).map(|[pid, addr, proof, _segment]| [pid, addr, proof])?
            }
            _ => handle.words(Handle::PRIVATE)?,
        };
        if descriptor.is_some() {
            return Err(OpenError::Descriptor("private memory has no descriptor"));
        }
        let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0);
        let pid = pid.ok_or(HandleError::Value("process"))?;
        let addr = usize::try_from(addr).map_err(|_| HandleError::Value("address"))?;
        let is_here = process::is_this(pid);
        let foreign = is_here && !process::is_own(addr, proof) && !planted("mem-private-writes-to-itself");
        if proof == *self.proof || foreign {
            return Err(OpenError::Own);
        }
        let peer = Peer { pid, addr, proof, is_here };
        match peer.read(&mut [], addr) {
            Ok(()) => {}
            Err(CopyError::Refused(cause)) => return Err(OpenError::Refused { cause, remedy: REMEDY }),
            Err(CopyError::Other(cause)) => return Err(OpenError::of(cause, REMEDY)),
            Err(_) => return Err(OpenError::Gone),
        }
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let number = peers.next;
        peers.next += 1;
        peers.open.insert(number, peer);
        Ok(Mapped { number, address: None, len: ADDRESSES })
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        match peers.open.remove(&mapped.number) {
            Some(_) => Ok(()),
            None => Err(NotClosed { mapped, error: CloseError::Unknown }),
        }
    }

    fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let _held = self.hold([from.own(), None], out.len())?;
        if let At::Own(addr) = from {
            let to = out.as_mut_ptr().expose_provenance();
            // SAFETY: an exclusive borrow of so many bytes, as long as the call.
            if unsafe { self.move_own(to, addr, out.len()) } {
                return Ok(());
            }
        }
        let (peer, addr) = self.place(from, out.len())?;
        peer.read(out, addr)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let _held = self.hold([to.own(), None], bytes.len())?;
        if let At::Own(addr) = to {
            let from = bytes.as_ptr().expose_provenance();
            // SAFETY: inside a block that was allocated here and is held, to which no reference exists.
            if unsafe { self.move_own(addr, from, bytes.len()) } {
                return Ok(());
            }
        }
        let (peer, addr) = self.place(to, bytes.len())?;
        peer.push(bytes.as_ptr().expose_provenance(), addr, bytes.len())
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        if planted("mem-private-copies-in-steps") {
            return copy_in_steps(self, from, to, len);
        }
        let _held = self.hold([from.own(), to.own()], len)?;
        let ((peer, addr), to) = match (from, to, here_of(to, len)?) {
            (At::Own(from), _, Some(to)) => {
                // SAFETY: memory that says how long it is, or bytes inside a block that is held: no reference exists to either.
                if unsafe { self.move_own(to, from, len) } {
                    return Ok(());
                }
                (self.place(At::Own(from), len)?, to)
            }
            (At::Own(from), To::Open(mapped, at), None) => {
                let (peer, to) = self.place(At::Open(mapped, at), len)?;
                return peer.push(from, to, len);
            }
            (At::Open(..), _, Some(to)) => (self.place(from, len)?, to),
            (..) => return copy_in_steps(self, from, to, len),
        };
        // SAFETY: as above; and if nothing is there the kernel says so.
        unsafe { peer.pull(to, addr, len) }
    }

    fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        let from = here(from, offset, len)?;
        let _held = self.hold([to.own(), None], len)?;
        if let At::Own(to) = to {
            // SAFETY: as in `write`.
            if unsafe { self.move_own(to, from, len) } {
                return Ok(());
            }
        }
        let (peer, addr) = self.place(to, len)?;
        peer.push(from, addr, len)
    }
}

/// Where bytes are to go in this process; `None` if they go to another one.
fn here_of(to: To<'_>, len: usize) -> Result<Option<usize>, CopyError> {
    match to {
        To::Own(to) if to.checked_add(len).is_some() => Ok(Some(to)),
        To::Own(to) => Err(CopyError::Outside { at: to as u64, len }),
        To::Memory(memory, at) => here(memory, at, len).map(Some),
        To::Open(..) => Ok(None),
    }
}

/// Where bytes of memory are, which this process reaches.
fn here(memory: &Memory, offset: u64, len: usize) -> Result<usize, CopyError> {
    let outside = CopyError::Outside { at: offset, len };
    match memory.kind() {
        Kind::Host => memory.checked(offset, len as u64).map_err(|_| outside),
        Kind::Device(_) | Kind::Mapped => Err(outside),
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

    /// This process, and itself as a peer that it has opened.
    fn both() -> (Private, Private, Mapped) {
        let own = Private::new().unwrap();
        let other = Private::new().unwrap();
        let export = other.export(&ALL, Passing::Bytes).unwrap();
        let mapped = own.open(&export.handle, None).unwrap();
        (own, other, mapped)
    }

    /// A peer that has seen bytes of this process, and says that they are its proof.
    #[test]
    fn what_names_this_process_is_a_proof_that_was_made_here() {
        let own = Private::new().unwrap();
        let other = Private::new().unwrap();
        let bytes = own.alloc(4096).unwrap();
        let seen = [0x5a; 8];
        own.write(At::Own(bytes), &seen).unwrap();
        let pid = u64::from(std::process::id());
        let thread = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        for number in [pid, thread] {
            let lies = Handle::of_words(Handle::PRIVATE, [number, bytes as u64, u64::from_le_bytes(seen)]);
            assert!(matches!(own.open(&lies, None), Err(OpenError::Own)));
        }
        let [_, addr, proof] = other.words();
        let true_one = Handle::of_words(Handle::PRIVATE, [pid, addr, proof]);
        own.close(own.open(&true_one, None).unwrap()).unwrap();
        for (addr, proof) in [(addr + 8, proof), (addr, proof ^ 1)] {
            let lies = Handle::of_words(Handle::PRIVATE, [pid, addr, proof]);
            assert!(matches!(own.open(&lies, None), Err(OpenError::Own)));
        }
        drop(other);
        assert!(own.open(&true_one, None).is_err(), "it is over");
    }

    #[test]
    fn a_copy_between_any_two_places_is_whole_and_takes_one_call_each_way_and_none_inside() {
        let (own, _other, mapped) = both();
        let [a, b] = [own.alloc(LEN).unwrap(), own.alloc(LEN).unwrap()];
        let memory = Memory::heap(LEN);
        let at = |addr: usize| At::Open(&mapped, addr as u64);
        // What is this process's own at both ends takes none. A write looks for the proof first.
        let ways: [(&str, usize, At<'_>, To<'_>); 5] = [
            ("own to own", OWN, At::Own(a), To::Own(b)),
            ("own to memory", OWN, At::Own(a), To::Memory(&memory, 0)),
            ("open to own", 1, at(a), To::Own(b)),
            ("open to memory", 1, at(a), To::Memory(&memory, 0)),
            ("own to open", 2, At::Own(a), To::Open(&mapped, b as u64)),
        ];
        for (number, (name, calls, from, to)) in ways.into_iter().enumerate() {
            let sent = bytes(number);
            own.write(At::Own(a), &sent).unwrap();
            let before = CALLS.get();
            own.copy(from, to, LEN).unwrap();
            assert_eq!(CALLS.get() - before, calls, "{name}");
            let mut got = vec![0; LEN];
            match to {
                To::Memory(memory, at) => memory.read(at, &mut got).unwrap(),
                _ => own.read(At::Own(b), &mut got).unwrap(),
            }
            assert!(got == sent, "{name}");
        }
        let sent = bytes(9);
        memory.write(0, &sent).unwrap();
        let before = CALLS.get();
        own.fill(at(b), &memory, 0, LEN).unwrap();
        assert_eq!(CALLS.get() - before, 2, "memory to open");
        own.fill(At::Own(a), &memory, 0, LEN).unwrap();
        own.write(At::Own(a), &sent).unwrap();
        own.read(At::Own(a), &mut vec![0; LEN]).unwrap();
        assert_eq!(CALLS.get() - before, 2 + 5 * OWN, "what is own at both ends");
        own.copy(at(b), To::Open(&mapped, a as u64), LEN).unwrap();
        let mut got = vec![0; LEN];
        own.read(At::Own(a), &mut got).unwrap();
        assert!(got == sent, "open to open");
    }

    /// Any other address may be named by a reference of safe code.
    #[test]
    fn own_addresses_are_those_of_own_blocks() {
        let own = Private::new().unwrap();
        let block = own.alloc(64).unwrap();
        let bytes = [7_u8; 64];
        let foreign = bytes.as_ptr().expose_provenance();
        let memory = Memory::heap(64);
        let outside =
            |result: Result<(), CopyError>| assert!(matches!(result, Err(CopyError::Outside { .. })));
        for addr in [foreign, block + 1, block - 1] {
            assert!(!own.holds(addr, 64));
            outside(own.read(At::Own(addr), &mut [0; 64]));
            outside(own.write(At::Own(addr), &[1; 64]));
            outside(own.copy(At::Own(block), To::Own(addr), 64));
            outside(own.copy(At::Own(addr), To::Own(block), 64));
            outside(own.copy(At::Own(addr), To::Memory(&memory, 0), 64));
            outside(own.fill(At::Own(addr), &memory, 0, 64));
        }
        assert_eq!(bytes, [7; 64]);
        assert!(own.holds(block, 64));
        own.free(block).unwrap();
        outside(own.write(At::Own(block), &[1; 64]));
    }

    /// Two nodes of one process are no way round that.
    #[test]
    fn a_node_of_this_process_is_reached_in_its_heaps_alone() {
        let (own, other, mapped) = both();
        let block = other.alloc(64).unwrap();
        let heap = Memory::heap(64);
        let bytes = [7_u8; 64];
        let foreign = bytes.as_ptr().expose_provenance();
        let end = block + 4096 - 32;
        for addr in [foreign, end] {
            let at = At::Open(&mapped, addr as u64);
            let to = To::Open(&mapped, addr as u64);
            let mut got = [1; 64];
            let all = [
                own.read(at, &mut got),
                own.write(at, &[1; 64]),
                own.copy(at, To::Memory(&heap, 0), 64),
                own.copy(At::Open(&mapped, block as u64), to, 64),
                own.fill(at, &heap, 0, 64),
            ];
            for (number, result) in all.into_iter().enumerate() {
                assert!(matches!(result, Err(CopyError::Outside { .. })), "{number}: {result:?}");
            }
            assert_eq!(got, [1; 64], "nothing was read");
        }
        assert_eq!(bytes, [7; 64]);
        // Memory that the program holds as a `Memory` is reached, in a block or in none, until it is freed.
        for addr in [block, heap.addr()] {
            own.write(At::Open(&mapped, addr as u64), &[5; 64]).unwrap();
            let mut got = [0; 64];
            own.read(At::Open(&mapped, addr as u64), &mut got).unwrap();
            assert_eq!(got, [5; 64]);
        }
        other.free(block).unwrap();
        let freed = own.write(At::Open(&mapped, block as u64), &[1; 64]);
        assert!(matches!(freed, Err(CopyError::Outside { .. })), "{freed:?}");
    }

    #[test]
    fn where_nothing_is_a_copy_ends_and_says_so() {
        let (own, _other, mapped) = both();
        let a = own.alloc(LEN).unwrap();
        let nowhere = 4096;
        let memory = Memory::heap(LEN);
        let failed = [
            own.copy(At::Own(a), To::Own(nowhere), LEN),
            own.copy(At::Own(nowhere), To::Own(a), LEN),
            own.copy(At::Own(a), To::Own(usize::MAX - 5), LEN),
            own.copy(At::Open(&mapped, nowhere as u64), To::Own(a), LEN),
            own.copy(At::Own(nowhere), To::Open(&mapped, a as u64), LEN),
            own.copy(At::Own(a), To::Open(&mapped, nowhere as u64), LEN),
            own.copy(At::Own(a), To::Memory(&memory, 1), LEN),
            own.fill(At::Open(&mapped, a as u64), &memory, 1, LEN),
        ];
        for (number, result) in failed.into_iter().enumerate() {
            assert!(matches!(result, Err(CopyError::Outside { .. })), "{number}: {result:?}");
        }
    }

    #[test]
    fn a_process_that_is_another_one_is_copied_neither_from_nor_to() {
        let (own, other, mapped) = both();
        let [a, b] = [own.alloc(64).unwrap(), own.alloc(64).unwrap()];
        own.write(At::Own(a), &[7; 64]).unwrap();
        // The number is there, and what is at the address is not the proof any more.
        let place = std::ptr::from_ref(&*other.proof).expose_provenance();
        let changed = *other.proof ^ 1;
        // SAFETY: a word that only system calls of this test read.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(place).write_volatile(changed) };
        assert!(matches!(own.copy(At::Own(a), To::Open(&mapped, b as u64), 64), Err(CopyError::Gone)));
        let mut got = [1; 64];
        own.read(At::Own(b), &mut got).unwrap();
        assert_eq!(got[0], 0, "it is not written before that is known");
        assert!(matches!(own.copy(At::Open(&mapped, a as u64), To::Own(b), 64), Err(CopyError::Gone)));
    }
}
