//! Handles that AMD's runtime has created: one per allocation, created on first use and then reused. As of ROCm 7 a handle holds its memory
//! until the process ends, even if the memory is freed, and no call releases the handle.

use std::collections::BTreeMap;

use crate::ipc::IpcAllocation;

/// The maximum number of remembered handles.
const MOST: usize = 4096;

/// The handles, by base address of their allocations.
#[derive(Debug, Default)]
pub(super) struct HipHandles {
    made: BTreeMap<usize, (IpcAllocation, [u8; 64])>,
}

impl HipHandles {
    /// Returns the handle of an allocation, if it was created before.
    pub(super) fn get(&self, of: &IpcAllocation) -> Option<[u8; 64]> {
        let (found, handle) = self.made.get(&of.base)?;
        (found == of).then_some(*handle)
    }

    /// Adds a handle. Older allocations that overlap it have been freed, so their handles are removed.
    pub(super) fn add_handle(&mut self, of: &IpcAllocation, handle: [u8; 64]) {
        let end = of.base.saturating_add(of.len);
        self.made.retain(|base, (other, _)| *base >= end || base.saturating_add(other.len) <= of.base);
        if self.made.len() >= MOST {
            let oldest = self.made.iter().min_by_key(|(_, (other, _))| other.id);
            if let Some(base) = oldest.map(|(base, _)| *base) {
                self.made.remove(&base);
            }
        }
        self.made.insert(of.base, (*of, handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::IpcAllocationId;

    #[test]
    fn overlapping_export_replaces_older_ones() {
        let of = |base, len, id| IpcAllocation { base, len, id: IpcAllocationId(id), device: 0 };
        let mut exports = HipHandles::default();
        exports.add_handle(&of(100, 10, 1), [1; 64]);
        exports.add_handle(&of(110, 10, 2), [2; 64]);
        assert_eq!(exports.get(&of(100, 10, 1)), Some([1; 64]));
        assert_eq!(
            exports.get(&of(100, 10, 3)),
            None,
            "another allocation at the same address must not match"
        );
        exports.add_handle(&of(95, 16, 4), [4; 64]);
        assert_eq!((exports.get(&of(100, 10, 1)), exports.get(&of(110, 10, 2))), (None, None));
        for n in 0..2 * MOST as u64 {
            exports.add_handle(&of(1000 + 10 * n as usize, 10, 10 + n), [0; 64]);
        }
        assert_eq!(exports.made.len(), MOST);
        assert_eq!(exports.get(&of(95, 16, 4)), None, "the oldest handle must be dropped");
    }
}
