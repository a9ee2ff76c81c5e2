//! NVSHMEM's bootstrap, by which PEs exchange their cards.

use trunkline_proto::reserve::try_filled;
use trunkline_sys::nvshmem::BootstrapHandle;

use super::guard::read_pointer;
use crate::error::{CallError, Result};
use crate::plugin::BootstrapOps;

/// The bootstrap of this process.
pub(super) struct NvshmemBootstrap {
    at: *mut BootstrapHandle,
    handle: BootstrapHandle,
}

impl NvshmemBootstrap {
    /// Wraps the bootstrap of a transport.
    ///
    /// # Safety
    /// If not null, `at` points to NVSHMEM's handle, which stays valid while this value lives.
    pub(super) unsafe fn new(at: *mut BootstrapHandle) -> Result<Self> {
        // SAFETY: by the contract of this function.
        let handle = unsafe { read_pointer(at, "no bootstrap handle") }?;
        let is_there = handle.pg_size > 0 && (0..handle.pg_size).contains(&handle.pg_rank);
        if !is_there {
            return Err(CallError::Argument("the bootstrap's rank and size are invalid"));
        }
        Ok(Self { at, handle })
    }
}

impl BootstrapOps for NvshmemBootstrap {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.handle.pg_rank as usize, self.handle.pg_size as usize)
    }

    fn gather_all<const N: usize>(&self, mine: &[u8; N]) -> Result<Vec<[u8; N]>> {
        let call = "allgather";
        let gather = self.handle.allgather.ok_or(CallError::Bootstrap { call, status: -1 })?;
        let mut all = try_filled([0; N], self.handle.pg_size as usize)?.into_vec();
        // SAFETY: each process passes N bytes, and `all` has room for N bytes of every process. The handle is valid
        // by the contract of `new`.
        let status = unsafe { gather(mine.as_ptr().cast(), all.as_mut_ptr().cast(), N as i32, self.at) };
        if status == 0 { Ok(all) } else { Err(CallError::Bootstrap { call, status }) }
    }
}
