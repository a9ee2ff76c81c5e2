//! What is left to begin of an entry once it was looked at: an operation of the network, a copy of a device, or both, one after the other. Used by
//! [`port`](super::port).

use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{AtomicChange, EntryStatus, InlineBytes};

use crate::region::{DeviceCopier, EntryRegion};
use trunkline_engine::rma::{HeapAddress, HeapRange};

/// What is left to begin of an entry.
#[derive(Clone, Debug)]
pub(super) enum RemainingWork {
    Nothing,
    Put {
        to: HeapAddress,
        from: HeapRange,
    },
    /// Bytes of a device, piece by piece: each is copied to a room and put from there.
    Staged {
        to: HeapAddress,
        copies: Arc<dyn DeviceCopier>,
        memory: MemoryRange,
        words: MemoryRange,
        from: HeapRange,
    },
    /// Bytes that come to a device, piece by piece: each is got to the host's bytes beside it and copied from there.
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

/// What is known of an entry once it was looked at.
pub(super) enum EntryPlan {
    Done(u64),
    Later(RemainingWork, Option<(HeapAddress, AtomicChange, Option<u64>)>),
    /// A word has changed, and was this before: its memory has that when what is left has ended.
    Changed(RemainingWork, u64),
}

impl RemainingWork {
    /// So many bytes have begun.
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

/// Who moves a region's bytes from and to those of the host that the network knows it by, if it is so.
fn staging_path(region: &EntryRegion) -> Option<(Arc<dyn DeviceCopier>, MemoryRange)> {
    Some((Arc::clone(region.copies.as_ref()?), region.words.clone()?))
}

/// Brings bytes that were changed in memory of the host to the device's, where they lie at the same place.
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

/// Bytes within this process.
pub(super) fn plan_copy(
    copies: Option<&Arc<dyn DeviceCopier>>,
    from: MemoryLocation<'_>,
    to: MemoryLocation<'_>,
    len: u64,
) -> Result<EntryPlan, EntryStatus> {
    if let Some(copies) = copies {
        let from = (from.memory.clone(), from.offset);
        let to = (to.memory.clone(), to.offset);
        return Ok(EntryPlan::Later(RemainingWork::Copy { copies: Arc::clone(copies), from, to, len }, None));
    }
    to.memory.copy_from(to.offset, from.memory, from.offset, len).map_err(|_| EntryStatus::Access)?;
    Ok(EntryPlan::Done(0))
}

/// Bytes of a region to the network.
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

/// Bytes from the network to a region.
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
