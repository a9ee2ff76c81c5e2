//! Static variables of neighbours that could not be made shared memory: the system copies a few bytes of them (process_vm_readv(2)), if it lets this
//! process. Made when the library starts; used by `rma`, where such variables are not mapped. All else of them goes over the fabric, which is faster with
//! what is put (1.2 us instead of 2.7) and with what is long (35 us a MiB instead of 175), and whose owner executes atomics and signals.

use std::sync::Arc;

use trunkline_mem::Memory;
use trunkline_mem::ipc::{At, CopyError, Handle, IpcMemory as _, Mapped, Passing, Private};

use crate::error::{Error, Result};

/// Most bytes that are copied so.
pub(crate) const STEP: usize = 16 << 10;

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
    let none = "no handle for static variables";
    let all = by.allocation_of(base).map_err(|_| Error::Argument(none))?;
    let export = by.export(&all, Passing::Bytes).map_err(|_| Error::Argument(none))?;
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

    /// Copies bytes from so many bytes behind their begin; at most [`STEP`].
    pub(crate) fn get(&self, pe: usize, offset: u64, into: &Memory) -> Result<()> {
        let mut bytes = [0; STEP];
        let part = bytes.get_mut(..into.len()).ok_or(Error::Argument("more bytes than are copied"))?;
        if !crate::planted("shmem-copies-nothing") {
            let from = At::Open(&self.open, self.base + offset);
            self.by.read(from, part).map_err(|error| failed(pe, error))?;
        }
        into.write(0, part).map_err(|_| Error::Argument("outside of the memory"))
    }
}

fn failed(pe: usize, error: CopyError) -> Error {
    match error {
        CopyError::Gone => Error::Dead(pe),
        source => Error::Copy { pe, source },
    }
}
