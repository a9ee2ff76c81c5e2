//! All PEs, connected: the engine, a lane for the host and one for the proxy, the memory of this PE that is registered, and what is known of that
//! of others. Every operation goes through here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use trunkline_mem::gpu::Gpus;
use trunkline_proto::limits::RMA_HEAPS_MAX;
use trunkline_proto::reserve::try_filled_with;
use trunkline_proto::wire::memory_handle::{MEMORY_HANDLE_BYTES, MemoryHandle, Registered};
use trunkline_runtime::Running;

use crate::error::{CallError, Result};
use crate::lane::Lane;
use crate::memory::{Memories, Ways};
use crate::plugin::Log;

/// The bytes of a handle.
pub(crate) type Handle = [u8; MEMORY_HANDLE_BYTES];

/// For each number of a PE's memory, which use of it the engine knows; 0 for none.
type Uses = Box<[AtomicU32; RMA_HEAPS_MAX]>;

/// The mesh.
pub(crate) struct Mesh {
    pub(crate) job: Running,
    pub(crate) host: Lane,
    pub(crate) proxy: Lane,
    pub(crate) memories: Memories,
    /// By PE.
    known: Box<[OnceLock<Uses>]>,
}

impl Mesh {
    /// Of a job that has met.
    ///
    /// # Errors
    /// The engine has no room for two lanes.
    pub(crate) fn new(job: Running, size: usize, gpus: Gpus, ways: Ways, log: Log) -> Result<Self> {
        let unseen = job.works_unseen();
        let memories = Memories::new(&job, gpus, ways, log)?;
        let host = Lane::new(&job, unseen, memories.stage(0))?;
        let proxy = Lane::new(&job, unseen, memories.stage(1))?;
        let known = try_filled_with(size, OnceLock::new)?;
        Ok(Self { job, host, proxy, memories, known })
    }

    /// Who calls, by NVSHMEM's number of a queue pair.
    #[inline]
    pub(crate) fn lane(&self, queue_pair: i32) -> &Lane {
        if queue_pair == 0 { &self.host } else { &self.proxy }
    }

    /// The number of a PE.
    ///
    /// # Errors
    /// [`CallError::Argument`].
    #[inline]
    pub(crate) fn pe(&self, pe: i32) -> Result<u32> {
        let known = u32::try_from(pe).ok().filter(|&pe| (pe as usize) < self.known.len());
        known.ok_or(CallError::Argument("there is no such PE"))
    }

    /// Where bytes of a PE are, by its handle of the memory that they are in: heap and offset.
    ///
    /// # Errors
    /// [`CallError::Handle`], [`CallError::Outside`].
    #[inline]
    pub(crate) fn there(&self, pe: u32, handle: &Handle, addr: u64, len: u64) -> Result<(u8, u64)> {
        let refused = |source| CallError::Handle { pe, source };
        let memory = MemoryHandle::memory_of(handle).map_err(refused)?;
        let offset = inside(&memory, addr, len)?;
        let uses =
            self.known[pe as usize].get_or_init(|| Box::new([const { AtomicU32::new(0) }; RMA_HEAPS_MAX]));
        let use_of = &uses[usize::from(memory.heap)];
        let known = use_of.load(Ordering::Acquire);
        let stale = known != memory.generation;
        if stale && (known == 0 || !crate::planted("nvshmem-learns-once")) {
            let whole = MemoryHandle::from_bytes(handle).map_err(refused)?;
            self.job.learn(pe, memory.heap, &whole.told())?;
            use_of.store(memory.generation, Ordering::Release);
        }
        Ok((memory.heap, offset))
    }
}

/// Where bytes are in memory.
#[inline]
pub(crate) fn inside(memory: &Registered, addr: u64, len: u64) -> Result<u64> {
    let outside = || CallError::Outside { addr, len, base: memory.base, size: memory.len };
    memory.offset(addr, len).ok_or_else(outside)
}
