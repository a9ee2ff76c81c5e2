//! Delayed visibility: remote writes into relaxed regions are held here, in order, until a flush lands them. A test mode that shows
//! whether a caller flushes; it allocates, and is never on the path of a NIC without it.

use std::collections::VecDeque;

use trunkline_mem::copy_shared;
use trunkline_proto::reserve::try_filled;

use crate::register::{CheckedPlace, RegionTable};

/// Most bytes held for one link; above it the oldest land by themselves, as in a hardware write buffer.
const MOST: usize = 1 << 30;

/// The destination of held bytes, to be found again when they land.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeldTarget {
    /// By the key the peer used.
    Remote { key: u64, addr: u64 },
    /// By a local key.
    Local { key: u64, offset: u64 },
}

impl HeldTarget {
    /// Returns the place where `len` bytes land. Call inside a guard.
    fn find_place(self, table: &RegionTable, len: u64) -> Option<CheckedPlace> {
        match self {
            Self::Remote { key, addr } => table.find_remote(key, addr, len, 0),
            Self::Local { key, offset } => table.find_local(key, offset, len),
        }
    }
}

/// The writes of one link that are not visible yet.
#[derive(Default)]
pub(crate) struct HeldWrites {
    writes: VecDeque<(HeldTarget, Box<[u8]>)>,
    bytes: usize,
}

impl HeldWrites {
    /// Holds a copy of `len` bytes at `from`.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, and the call is inside a guard.
    pub(crate) unsafe fn push(
        &mut self,
        table: &RegionTable,
        target: HeldTarget,
        from: *const u8,
        len: usize,
    ) {
        let Ok(mut bytes) = try_filled(0, len) else {
            // Without memory to hold them the bytes land at once, which is always allowed.
            self.land_all(table);
            if let Some(place) = target.find_place(table, len as u64) {
                // SAFETY: the caller promises that `from` is readable; the place was checked just now for `len` bytes, inside the caller's guard.
                unsafe { table.copy_in(place, from, len, false) };
            }
            return;
        };
        // SAFETY: the caller promises that `from` is readable for `len` bytes; `bytes` has `len` bytes.
        unsafe { copy_shared(from, bytes.as_mut_ptr(), len) };
        self.bytes += len;
        self.writes.push_back((target, bytes));
        while self.bytes > MOST && self.land_one(table) {}
    }

    /// Makes everything visible. Call inside a guard.
    pub(crate) fn land_all(&mut self, table: &RegionTable) {
        while self.land_one(table) {}
    }

    fn land_one(&mut self, table: &RegionTable) -> bool {
        let Some((target, bytes)) = self.writes.pop_front() else { return false };
        self.bytes -= bytes.len();
        let len = bytes.len() as u64;
        if let Some(place) = target.find_place(table, len) {
            // SAFETY: checked just now for `bytes.len()` bytes, inside the caller's guard.
            unsafe { table.copy_in(place, bytes.as_ptr(), bytes.len(), false) };
        }
        true
    }
}
