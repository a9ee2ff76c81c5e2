//! The work of an entry that has not begun yet: an operation of the network, a copy by a device, or both in sequence. Used by
//! [`entry_ops`](crate::entry_ops).

use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{AtomicChange, EntryStatus, InlineBytes};

use crate::region::{DeviceCopier, EntryRegion};
use trunkline_engine::rma::{HeapAddress, HeapRange};

/// The work of an entry that has not begun yet.
#[derive(Clone, Debug)]
pub(super) enum RemainingWork {
    Nothing,
    Put {
        to: HeapAddress,
        from: HeapRange,
    },
    /// Bytes of a device for another process, piece by piece: each is copied to a room in host memory and put from there.
    Staged {
        to: HeapAddress,
        copies: Arc<dyn DeviceCopier>,
        memory: MemoryRange,
        words: MemoryRange,
        from: HeapRange,
    },
    /// Bytes for a device from another process, piece by piece: each is read into the host memory beside the device's and copied from
    /// there.
    Landed {
        from: HeapAddress,
        copies: Arc<dyn DeviceCopier>,
        memory: MemoryRange,
        words: MemoryRange,
        into: HeapRange,
    },
    Inline {
        to: HeapAddress,
        bytes: InlineBytes,
    },
    Get {
        from: HeapAddress,
        into: HeapRange,
    },
    Copy {
        copies: Arc<dyn DeviceCopier>,
        from: (MemoryRange, u64),
        to: (MemoryRange, u64),
        len: u64,
    },
    Atomic {
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    },
}

/// The plan of a checked entry.
pub(super) enum EntryPlan {
    Done(u64),
    Later(RemainingWork, Option<(HeapAddress, AtomicChange, Option<u64>)>),
    /// A word has changed, and had this old value. The region's memory has the new value when the remaining work has ended.
    Changed(RemainingWork, u64),
}

impl RemainingWork {
    /// Advances by `bytes` that have begun.
    pub(super) fn consume_bytes(&mut self, bytes: u64) {
        let left = match self {
            Self::Put { to, from } | Self::Staged { to, from, .. } => {
                (to.offset, from.offset, from.len) =
                    (to.offset + bytes, from.offset + bytes, from.len - bytes);
                from.len
            }
            Self::Get { from, into } | Self::Landed { from, into, .. } => {
                (from.offset, into.offset, into.len) =
                    (from.offset + bytes, into.offset + bytes, into.len - bytes);
                into.len
            }
            Self::Nothing | Self::Inline { .. } | Self::Copy { .. } | Self::Atomic { .. } => 0,
        };
        if left == 0 {
            *self = Self::Nothing;
        }
    }
}

/// Returns the copier and the host memory of a region, if the network reaches the region only by that memory.
fn staging_path(region: &EntryRegion) -> Option<(Arc<dyn DeviceCopier>, MemoryRange)> {
    Some((Arc::clone(region.copies.as_ref()?), region.words.clone()?))
}

/// Plans the copy of changed bytes from host memory to the same offset of the device's memory.
pub(super) fn plan_write_back(
    copies: Option<&Arc<dyn DeviceCopier>>,
    words: &MemoryRange,
    memory: &MemoryRange,
    offset: u64,
    len: u64,
) -> Result<RemainingWork, EntryStatus> {
    let copies = Arc::clone(copies.ok_or(EntryStatus::Access)?);
    Ok(RemainingWork::Copy { copies, from: (words.clone(), offset), to: (memory.clone(), offset), len })
}

/// Copies bytes within this process, at once or by a device.
pub(super) fn plan_copy(
    copies: Option<&Arc<dyn DeviceCopier>>,
    from: MemoryLocation<'_>,
    to: MemoryLocation<'_>,
    len: u64,
) -> Result<EntryPlan, EntryStatus> {
    // The CPU does not access the memory of a device, so the device copies, asynchronously.
    if let Some(copies) = copies {
        let from = (from.memory.clone(), from.offset);
        let to = (to.memory.clone(), to.offset);
        return Ok(EntryPlan::Later(RemainingWork::Copy { copies: Arc::clone(copies), from, to, len }, None));
    }
    to.memory.copy_from(to.offset, from.memory, from.offset, len).map_err(|_| EntryStatus::Access)?;
    Ok(EntryPlan::Done(0))
}

/// Plans a put of a region's bytes to another process.
pub(super) fn plan_put(source: &EntryRegion, from: u64, to: HeapAddress, len: u64) -> EntryPlan {
    let from = HeapRange { heap: source.heap, offset: from, len };
    let rest = match staging_path(source) {
        Some((copies, words)) => {
            RemainingWork::Staged { to, copies, memory: source.memory.clone(), words, from }
        }
        None => RemainingWork::Put { to, from },
    };
    EntryPlan::Later(rest, None)
}

/// Plans a get of bytes of another process into a region.
pub(super) fn plan_get(target: &EntryRegion, into: u64, from: HeapAddress, len: u64) -> EntryPlan {
    let into = HeapRange { heap: target.heap, offset: into, len };
    let rest = match staging_path(target) {
        Some((copies, words)) => {
            RemainingWork::Landed { from, copies, memory: target.memory.clone(), words, into }
        }
        None => RemainingWork::Get { from, into },
    };
    EntryPlan::Later(rest, None)
}
