//! Delayed visibility: remote writes into relaxed regions wait here, in order, until a flush lands them. A mode for
//! proving that a caller flushes; it allocates, and is never on the path of a NIC without it.

use std::collections::VecDeque;

use crate::copy;
use crate::register::Table;

/// Most bytes held for one link; above it the oldest land by themselves, as in any real write buffer.
const MOST: usize = 1 << 30;

/// Names the bytes' destination again when they land.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// By the key the peer used.
    Remote { key: u64, addr: u64 },
    /// By a local key.
    Local { key: u64, offset: u64 },
}

/// The writes of one link that nobody sees yet.
#[derive(Default)]
pub(crate) struct Held {
    writes: VecDeque<(Target, Vec<u8>)>,
    bytes: usize,
}

impl Held {
    /// Takes `len` bytes at `from`.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub(crate) unsafe fn push(&mut self, table: &Table, target: Target, from: *const u8, len: usize) {
        let mut bytes = vec![0; len];
        // SAFETY: the caller vouches for `from`; the vector has `len` bytes.
        unsafe { copy::bytes(bytes.as_mut_ptr(), from, len) };
        self.bytes += len;
        self.writes.push_back((target, bytes));
        while self.bytes > MOST && self.land_one(table) {}
    }

    /// Makes everything visible. Call inside a guard.
    pub(crate) fn land(&mut self, table: &Table) {
        while self.land_one(table) {}
    }

    fn land_one(&mut self, table: &Table) -> bool {
        let Some((target, bytes)) = self.writes.pop_front() else { return false };
        self.bytes -= bytes.len();
        let len = bytes.len() as u64;
        let place = match target {
            Target::Remote { key, addr } => table.remote(key, addr, len, 0),
            Target::Local { key, offset } => table.local(key, offset, len),
        };
        if let Some(place) = place {
            // SAFETY: looked up just now, inside the caller's guard.
            unsafe { table.copy_in(place, bytes.as_ptr(), bytes.len(), false) };
        }
        true
    }
}
