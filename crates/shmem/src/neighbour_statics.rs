//! Static variables of neighbours that could not be made shared memory: the system copies a few bytes of them (process_vm_readv(2)), if it lets this
//! process. Made when the library starts; used by `rma`, where such variables are not mapped. All else of them goes over the fabric, which is faster with
//! what is put (1.2 us instead of 2.7) and with what is long (35 us a MiB instead of 175), and whose owner executes atomics and signals.

use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{
    CopyError, CopyPlace, HandlePassing, IpcHandle, IpcMemory as _, OpenedHandle, PrivateMemory,
};

use crate::error::{Result, ShmemError};

/// Most bytes that are copied so.
pub(crate) const STEP: usize = 16 << 10;

/// The static variables of a neighbour.
#[derive(Debug)]
pub(crate) struct NeighbourStatics {
    by: Arc<PrivateMemory>,
    open: OpenedHandle,
    /// Where they begin in its process.
    base: u64,
}

/// What a PE tells of its own: their address, and what proves its process.
///
/// # Errors
/// The system has no random number.
pub(crate) fn export_statics(by: &PrivateMemory, base: usize) -> Result<Vec<u8>> {
    let none = "no handle for static variables";
    let all = by.allocation_of(base).map_err(|_| ShmemError::Argument(none))?;
    let export = by.export(&all, HandlePassing::Bytes).map_err(|_| ShmemError::Argument(none))?;
    let mut bytes = (base as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(export.handle.bytes());
    Ok(bytes)
}

impl NeighbourStatics {
    /// Those of a PE that told this; nothing if the system does not let this process copy.
    pub(crate) fn open(by: &Arc<PrivateMemory>, told: &[u8]) -> Option<Self> {
        let (base, handle) = told.split_first_chunk()?;
        let open = by.open(&IpcHandle::new(IpcHandle::PRIVATE, handle)?, None).ok()?;
        Some(Self { by: Arc::clone(by), open, base: u64::from_le_bytes(*base) })
    }

    /// Copies bytes from so many bytes behind their begin; at most [`STEP`].
    pub(crate) fn get(&self, pe: usize, offset: u64, into: &MemoryRange) -> Result<()> {
        let mut bytes = [0; STEP];
        let part = bytes.get_mut(..into.len()).ok_or(ShmemError::Argument("more bytes than are copied"))?;
        let from = CopyPlace::Open(&self.open, self.base + offset);
        self.by.read(from, part).map_err(|error| copy_error(pe, error))?;
        into.write(0, part).map_err(|_| ShmemError::Argument("outside of the memory"))
    }
}

fn copy_error(pe: usize, error: CopyError) -> ShmemError {
    match error {
        CopyError::Gone => ShmemError::Dead(pe),
        source => ShmemError::Copy { pe, source },
    }
}
