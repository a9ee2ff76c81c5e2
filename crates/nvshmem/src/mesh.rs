//! The connections of all PEs: the engine, a context for the host and one for the proxy, the registered memory of
//! this PE, and the known registrations of other PEs. All operations use it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use trunkline_engine::rma::HeapAddress;
use trunkline_mem::gpu::VendorDrivers;
use trunkline_proto::limits::RMA_HEAPS_MAX;
use trunkline_proto::reserve::try_filled_with;
use trunkline_proto::wire::memory_handle::{MEMORY_HANDLE_BYTES, MemoryHandle, RegisteredMemory};
use trunkline_runtime::OneSided;

use crate::error::{CallError, Result};
use crate::memory::{GpuReach, MemoryTable};
use crate::plugin::StderrLog;
use crate::role_context::RoleContext;

/// A memory handle as bytes.
pub(crate) type HandleBytes = [u8; MEMORY_HANDLE_BYTES];

/// The generation that the engine knows for each heap number of a PE; 0 for none.
type GenerationTable = Box<[AtomicU32; RMA_HEAPS_MAX]>;

/// The mesh of all PEs.
pub(crate) struct PeMesh {
    pub(crate) network: OneSided,
    pub(crate) host: RoleContext,
    pub(crate) proxy: RoleContext,
    pub(crate) memories: MemoryTable,
    /// The known generations, by PE.
    known: Box<[OnceLock<GenerationTable>]>,
}

impl PeMesh {
    /// Returns the mesh of a job whose members have met.
    ///
    /// # Errors
    /// The engine has no room for two contexts.
    pub(crate) fn new(
        network: OneSided,
        size: usize,
        gpus: VendorDrivers,
        ways: GpuReach,
        log: StderrLog,
    ) -> Result<Self> {
        let memories = MemoryTable::new(&network, gpus, ways, log)?;
        let host = RoleContext::new(&network, memories.context_stage(0))?;
        let proxy = RoleContext::new(&network, memories.context_stage(1))?;
        let known = try_filled_with(size, OnceLock::new)?;
        Ok(Self { network, host, proxy, memories, known })
    }

    /// Returns the context of the caller's role, from NVSHMEM's number of a queue pair.
    #[inline]
    pub(crate) fn role_context(&self, queue_pair: i32) -> &RoleContext {
        if queue_pair == 0 { &self.host } else { &self.proxy }
    }

    /// Checks the number of a PE.
    ///
    /// # Errors
    /// [`CallError::Argument`].
    #[inline]
    pub(crate) fn check_pe(&self, pe: i32) -> Result<u32> {
        let known = u32::try_from(pe).ok().filter(|&pe| (pe as usize) < self.known.len());
        known.ok_or(CallError::Argument("the PE is out of range"))
    }

    /// Returns the address of remote bytes, from the memory handle of their PE.
    ///
    /// # Errors
    /// [`CallError::Handle`], [`CallError::Outside`].
    #[inline]
    pub(crate) fn remote_place(
        &self,
        pe: u32,
        handle: &HandleBytes,
        addr: u64,
        len: u64,
    ) -> Result<HeapAddress> {
        let refused = |source| CallError::Handle { pe, source };
        let memory = MemoryHandle::memory_of(handle).map_err(refused)?;
        let offset = memory_offset(&memory, addr, len)?;
        let uses =
            self.known[pe as usize].get_or_init(|| Box::new([const { AtomicU32::new(0) }; RMA_HEAPS_MAX]));
        let use_of = &uses[usize::from(memory.heap)];
        let known = use_of.load(Ordering::Acquire);
        if known != memory.generation {
            let whole = MemoryHandle::from_bytes(handle).map_err(refused)?;
            self.network.set_member_heap(pe, memory.heap, &whole.rail_heaps())?;
            use_of.store(memory.generation, Ordering::Release);
        }
        Ok(HeapAddress { member: pe, heap: memory.heap, offset })
    }
}

/// Returns the offset of bytes in registered memory.
#[inline]
pub(crate) fn memory_offset(memory: &RegisteredMemory, addr: u64, len: u64) -> Result<u64> {
    let outside = || CallError::Outside { addr, len, base: memory.base, size: memory.len };
    memory.offset_of(addr, len).ok_or_else(outside)
}
