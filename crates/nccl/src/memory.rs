//! Registers memory for NCCL: host memory, GPU memory by its pointer, or GPU memory as a dma-buf that NCCL has made.
//! Called by `abi`; chooses how GPU memory is registered, and returns a remedy if it cannot be registered.

use std::os::fd::{AsFd as _, BorrowedFd};

use trunkline_engine::EngineError;
use trunkline_fabric::{ExportedDmaBuf, RegisterError};
use trunkline_mem::gpu::{DmaBufExport, DmaBufMapping, PointerKind, VendorDriver, VendorDrivers};
use trunkline_mem::{MemoryKind, MemoryRange};

use crate::abi::{PTR_CUDA, PTR_HOST};
use crate::plugin::comm_from_bits;
use crate::status::NetCallError;
use crate::world::{PluginWorld, world};

/// A range of memory as NCCL describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NcclExtent {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    /// One of the `NCCL_PTR_...` constants.
    pub(crate) kind: i32,
}

/// The owner of a range.
#[derive(Debug)]
enum MemoryOwner<'a> {
    Host,
    /// The GPU's number, and the driver that knows it.
    Device(u32, &'a VendorDriver),
}

impl NcclExtent {
    /// Finds the owner of the range. If there are drivers, they must agree with `kind`.
    fn find_owner(self, gpus: &VendorDrivers) -> Result<MemoryOwner<'_>, NetCallError> {
        if self.addr == 0 || self.len == 0 || self.addr.checked_add(self.len).is_none() {
            return Err(NetCallError::Argument(
                "the memory to register is null, empty, or wraps around the address space",
            ));
        }
        if self.kind != PTR_HOST && (self.kind != PTR_CUDA || gpus.open_drivers().is_empty()) {
            return Err(NetCallError::Unsupported(
                "only host memory can be registered; see ptrSupport of the device, and `trunkline info` for the reason",
            ));
        }
        let (gpu, pointer) = gpus.query_pointer(self.addr)?;
        match (pointer.kind, gpu) {
            // Pinned host memory, which a GPU can access too, also counts as host memory.
            (PointerKind::Host, _) => Ok(MemoryOwner::Host),
            (PointerKind::Device { .. }, _) if self.kind == PTR_HOST => Err(NetCallError::Argument(
                "memory of a GPU was registered as memory of the host; pass NCCL_PTR_CUDA",
            )),
            (PointerKind::Device { device, .. }, Some(gpu)) => Ok(MemoryOwner::Device(device, gpu)),
            _ => Err(NetCallError::Unsupported(
                "managed memory moves between host and GPU, where no NIC finds it; allocate it on the GPU",
            )),
        }
    }
}

/// Registers a range; `name` makes the memory range once its kind is known.
pub(crate) fn register_memory(
    bits: u64,
    range: NcclExtent,
    name: impl Fn(MemoryKind) -> MemoryRange,
) -> Result<u64, NetCallError> {
    let world = world()?;
    let comm = comm_from_bits(bits)?;
    let (device, gpu) = match range.find_owner(&world.gpus)? {
        MemoryOwner::Host => return Ok(world.engine.register(comm, name(MemoryKind::Host))?.to_bits()),
        MemoryOwner::Device(device, gpu) => (device, gpu),
    };
    // Without this, a NIC could send bytes that a copy of the user has not written yet.
    gpu.sync_copies(range.addr)?;
    let memory = name(MemoryKind::Device(device));
    if !world.engine.nics().iter().any(|nic| nic.caps.devices.reaches_any()) {
        return Err(NetCallError::Unsupported(
            "no NIC reaches memory of GPUs here: load nvidia-peermem, or use a kernel and drivers of NIC and GPU that support \
             dma-bufs; `trunkline info` names the missing part",
        ));
    }
    let refused = match as_dmabuf(world, bits, range, gpu, &memory)? {
        Ok(region) => return Ok(region),
        Err(refused) => refused,
    };
    match world.engine.register(comm, memory) {
        Ok(region) => Ok(region.to_bits()),
        Err(EngineError::Register(error @ RegisterError::Device { .. })) => {
            Err(NetCallError::Gpu { dmabuf: refused, address: error.to_string() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes the driver export GPU memory, and registers the dma-buf. `Ok(Err(..))` is the reason why the memory must be
/// registered by its address.
fn as_dmabuf(
    world: &PluginWorld,
    bits: u64,
    range: NcclExtent,
    gpu: &VendorDriver,
    memory: &MemoryRange,
) -> Result<Result<u64, String>, NetCallError> {
    if !world.engine.nics().iter().any(|nic| nic.caps.devices.dmabuf) {
        return Ok(Err("no NIC registers dma-bufs".to_owned()));
    }
    let given = match gpu.export_dmabuf(range.addr, range.len, DmaBufMapping::Any)? {
        DmaBufExport::Given(given) => given,
        DmaBufExport::Refused(why) => return Ok(Err(why.to_string())),
    };
    // The registration keeps a reference to the memory, so the descriptor can be closed afterwards.
    let exported = ExportedDmaBuf { fd: given.fd.as_fd(), offset: given.offset };
    match world.engine.register_exported(comm_from_bits(bits)?, memory.clone(), exported) {
        Ok(region) => Ok(Ok(region.to_bits())),
        Err(EngineError::Register(error @ RegisterError::Device { .. })) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Registers a dma-buf of NCCL. The descriptor remains NCCL's.
pub(crate) fn register_dmabuf(
    bits: u64,
    range: NcclExtent,
    fd: BorrowedFd<'_>,
    offset: u64,
    name: impl Fn(MemoryKind) -> MemoryRange,
) -> Result<u64, NetCallError> {
    let world = world()?;
    let kind = match range.find_owner(&world.gpus)? {
        MemoryOwner::Host => MemoryKind::Host,
        MemoryOwner::Device(device, gpu) => {
            gpu.sync_copies(range.addr)?;
            MemoryKind::Device(device)
        }
    };
    let offset = offset_of_first(range.addr, offset, rustix::param::page_size())?;
    let exported = ExportedDmaBuf { fd, offset };
    Ok(world.engine.register_exported(comm_from_bits(bits)?, name(kind), exported)?.to_bits())
}

/// Returns the offset of the first byte in a dma-buf. NCCL exports whole pages, and passes the offset of the first
/// byte's page. A caller that passes the offset of the byte itself passes the same number if the byte begins its
/// page.
fn offset_of_first(addr: usize, offset: u64, page: usize) -> Result<u64, NetCallError> {
    let inset = (addr % page) as u64;
    let of_offset = offset % page as u64;
    match of_offset {
        _ if of_offset == inset => Ok(offset),
        // The offset is a multiple of the page size, and the inset is less than a page, so the result cannot
        // overflow.
        0 => Ok(offset | inset),
        _ => Err(NetCallError::Argument(
            "the offset in the dma-buf and the address are not at the same place of a page",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_within_a_page_are_found_in_their_dmabuf() {
        let first = |addr, offset| offset_of_first(addr, offset, 4096).ok();
        assert_eq!(first(0x7000_1000, 0), Some(0));
        assert_eq!(first(0x7000_1000, 8192), Some(8192));
        assert_eq!(first(0x7000_1200, 8192), Some(8192 + 0x200), "of the page");
        assert_eq!(first(0x7000_1200, 8192 + 0x200), Some(8192 + 0x200), "of the byte");
        assert_eq!(first(0x7000_1200, 8192 + 0x100), None);
        assert_eq!(first(0x7000_1fff, u64::MAX - 4095), Some(u64::MAX));
    }

    #[test]
    fn without_drivers_only_host_memory_is_accepted() {
        let gpus = VendorDrivers::default();
        let owner = |kind| NcclExtent { addr: 0x1000, len: 1, kind }.find_owner(&gpus);
        assert!(matches!(owner(PTR_HOST), Ok(MemoryOwner::Host)));
        for kind in [PTR_CUDA, 4, 0] {
            assert!(matches!(owner(kind), Err(NetCallError::Unsupported(_))), "{kind}");
        }
        for (addr, len) in [(0, 1), (0x1000, 0), (usize::MAX, 2)] {
            assert!(NcclExtent { addr, len, kind: PTR_HOST }.find_owner(&gpus).is_err());
        }
    }
}
