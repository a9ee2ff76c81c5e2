//! Static variables of neighbours that could not be made shared memory: the system copies between the two processes (process_vm_readv(2)), if it lets
//! them. Made when the library starts; used by `rma`, where such variables are not mapped. Atomics and signals on them are their owner's.

use std::sync::Arc;

use trunkline_mem::Memory;
use trunkline_mem::ipc::{
    Allocation, AllocationId, At, CopyError, Handle, IpcMemory as _, Mapped, Passing, Private,
};

use crate::error::{Error, Result};

/// Bytes that are copied in one go.
const STEP: usize = 16 << 10;

/// The static variables of a neighbour.
#[derive(Debug)]
pub(crate) struct Behind {
    by: Arc<Private>,
    open: Mapped,
    /// Where they begin in its process.
    base: u64,
}

/// What a PE tells of its own: their address, and what proves its process.
///
/// # Errors
/// The system has no random number.
pub(crate) fn told(by: &Private, base: usize) -> Result<Vec<u8>> {
    let id = by.allocation_of(base).map_or(AllocationId(1), |all| all.id);
    let all = Allocation { base: 0, len: usize::MAX, id, device: 0 };
    let export =
        by.export(&all, Passing::Bytes).map_err(|_| Error::Argument("no handle for static variables"))?;
    let mut bytes = (base as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(export.handle.bytes());
    Ok(bytes)
}

impl Behind {
    /// Those of a PE that told this; nothing if the system does not let this process copy.
    pub(crate) fn open(by: &Arc<Private>, told: &[u8]) -> Option<Self> {
        let (base, handle) = told.split_first_chunk()?;
        let open = by.open(&Handle::new(Handle::PRIVATE, handle)?, None).ok()?;
        Some(Self { by: Arc::clone(by), open, base: u64::from_le_bytes(*base) })
    }

    /// Copies bytes to so many bytes from their begin.
    pub(crate) fn put(&self, pe: usize, offset: u64, from: &Memory) -> Result<()> {
        if crate::planted("shmem-copies-nothing") {
            return Ok(());
        }
        let mut bytes = [0; STEP];
        for at in (0..from.len()).step_by(STEP) {
            let part = &mut bytes[..STEP.min(from.len() - at)];
            from.read(at as u64, part).map_err(|_| Error::Argument("outside of the memory"))?;
            let to = At::Open(&self.open, self.base + offset + at as u64);
            self.by.write(to, part).map_err(|error| failed(pe, error))?;
        }
        Ok(())
    }

    /// Copies bytes from there.
    pub(crate) fn get(&self, pe: usize, offset: u64, into: &Memory) -> Result<()> {
        let mut bytes = [0; STEP];
        for at in (0..into.len()).step_by(STEP) {
            let part = &mut bytes[..STEP.min(into.len() - at)];
            let from = At::Open(&self.open, self.base + offset + at as u64);
            self.by.read(from, part).map_err(|error| failed(pe, error))?;
            into.write(at as u64, part).map_err(|_| Error::Argument("outside of the memory"))?;
        }
        Ok(())
    }
}

fn failed(pe: usize, error: CopyError) -> Error {
    match error {
        CopyError::Gone => Error::Dead(pe),
        source => Error::Copy { pe, source },
    }
}
