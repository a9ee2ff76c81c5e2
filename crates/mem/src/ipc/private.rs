//! Any memory of a process, reached by `process_vm_readv` and `process_vm_writev` (process_vm_readv(2)) and mapped by nobody: what there is
//! on every kernel. Where XPMEM is there, [`Xpmem`](super::Xpmem) is faster. What is exported is the whole address space, once: there is nothing to cache, and nothing that is freed can be stale.
//!
//! A number of a process may be another one's in another namespace, and is used again. So what proves a process is a random number at
//! an address of it, which is read together with what is read, and before what is written.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError, RwLock};

use super::error::{Cause, CopyError, ExportError, FindError, Meaning, NotClosed, OpenError};
use super::host::random;
use super::{
    Allocation, AllocationId, At, Caps, CloseError, Export, Handle, HandleError, HostError, IpcMemory,
    Mapped, Passing, planted,
};
use crate::Memory;

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
    /// What was allocated here for who has no memory, by its address.
    blocks: Mutex<BTreeMap<usize, Memory>>,
}

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
}

/// Bytes of one system call; it moves less than 2 GiB.
const PART: usize = 1 << 30;

impl Private {
    /// For this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> Result<Self, Cause> {
        Ok(Self { proof: Box::pin(random()?), peers: RwLock::default(), blocks: Mutex::default() })
    }

    /// New zeroed memory, for whoever has no other; its address. It is as all other memory of the process.
    ///
    /// # Errors
    /// [`HostError::Size`].
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        // What cannot be had is told; `Memory::heap` would end the process.
        if len == 0 || Vec::<u8>::new().try_reserve_exact(len).is_err() {
            return Err(HostError::Size(len));
        }
        let block = Memory::heap(len);
        let addr = block.addr();
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(addr, block);
        Ok(addr)
    }

    /// Frees it.
    ///
    /// # Errors
    /// [`HostError::Unknown`].
    pub fn free(&self, addr: usize) -> Result<(), HostError> {
        let block = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(&addr);
        block.map(drop).ok_or(HostError::Unknown { addr })
    }

    /// A handle's words for it: its number, and where and what its proof is.
    pub(super) fn words(&self) -> [u64; 3] {
        let Peer { pid, addr, proof } = self.this();
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

    fn this(&self) -> Peer {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Peer { pid, addr: std::ptr::from_ref(&*self.proof).expose_provenance(), proof: *self.proof }
    }
}

impl Peer {
    /// Reads bytes of it, and its proof with them.
    fn read(&self, out: &mut [u8], from: usize) -> Result<(), CopyError> {
        let mut done = 0;
        loop {
            let part = out.get_mut(done..).unwrap_or_default();
            let part_len = part.len().min(PART);
            let part = part.get_mut(..part_len).unwrap_or_default();
            let mut found = [0; 8];
            let here = [range(found.as_mut_ptr(), 8), range(part.as_mut_ptr(), part_len)];
            let there = [remote(self.addr, 8), remote(from + done, part_len)];
            // SAFETY: both local ranges are exclusive borrows; the kernel checks the remote ones.
            let got = unsafe { libc::process_vm_readv(self.pid, here.as_ptr(), 2, there.as_ptr(), 2, 0) };
            let got = moved("process_vm_readv", got)?;
            if got < 8 || (u64::from_ne_bytes(found) != self.proof && !planted("mem-ipc-believes-pids")) {
                return Err(CopyError::Gone);
            }
            if got < 8 + part_len {
                return Err(CopyError::Outside { at: from as u64, len: out.len() });
            }
            done += part_len;
            if done == out.len() {
                return Ok(());
            }
        }
    }

    /// Writes bytes to it, once it has proved to be that process.
    fn write(&self, bytes: &[u8], to: usize) -> Result<(), CopyError> {
        self.read(&mut [], to)?;
        for (number, part) in bytes.chunks(PART).enumerate() {
            let here = range(part.as_ptr().cast_mut(), part.len());
            let there = remote(to + number * PART, part.len());
            // SAFETY: the local range is borrowed, and only read; the kernel checks the remote one.
            let got =
                unsafe { libc::process_vm_writev(self.pid, &raw const here, 1, &raw const there, 1, 0) };
            if moved("process_vm_writev", got)? < part.len() {
                return Err(CopyError::Outside { at: to as u64, len: bytes.len() });
            }
        }
        Ok(())
    }
}

fn range(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: len }
}

fn remote(addr: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: len }
}

/// How many bytes a call moved. None, because the first are nowhere, is not an error here.
fn moved(call: &'static str, got: libc::ssize_t) -> Result<usize, CopyError> {
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

    fn allocation_of(&self, _addr: usize) -> Result<Allocation, FindError> {
        Ok(ALL)
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
        if proof == *self.proof {
            return Err(OpenError::Own);
        }
        let peer = Peer { pid, addr, proof };
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
        let (peer, addr) = self.place(from, out.len())?;
        peer.read(out, addr)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let (peer, addr) = self.place(to, bytes.len())?;
        peer.write(bytes, addr)
    }
}
