//! What is left to begin of an entry once it was looked at: an operation of the network, a copy of a device, or both, one after the other. Used by
//! [`port`](super::port).

use std::sync::Arc;

use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Atomic, Inline, Status};

use crate::network::Place;
use crate::region::{Copies, Region};
use trunkline_engine::rma::Local;

/// What is left to begin of an entry.
#[derive(Clone, Debug)]
pub(super) enum Rest {
    Nothing,
    Put {
        to: Place,
        from: Local,
    },
    /// Bytes of a device, piece by piece: each is copied to a room and put from there.
    Staged {
        to: Place,
        copies: Arc<dyn Copies>,
        memory: Memory,
        words: Memory,
        from: Local,
    },
    /// Bytes that come to a device, piece by piece: each is got to the host's bytes beside it and copied from there.
    Landed {
        from: Place,
        copies: Arc<dyn Copies>,
        memory: Memory,
        words: Memory,
        into: Local,
    },
    Inline {
        to: Place,
        bytes: Inline,
    },
    Get {
        from: Place,
        into: Local,
    },
    Copy {
        copies: Arc<dyn Copies>,
        from: (Memory, u64),
        to: (Memory, u64),
        len: u64,
    },
    Atomic {
        at: Place,
        action: Action,
        fetches: bool,
    },
}

/// What is known of an entry once it was looked at.
pub(super) enum Ready {
    Done(u64),
    Later(Rest, Option<(Place, Atomic, Option<u64>)>),
    /// A word has changed, and was this before: its memory has that when what is left has ended.
    Changed(Rest, u64),
}

impl Rest {
    /// So many bytes have begun.
    pub(super) fn shrink(&mut self, bytes: u64) {
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
fn staged(region: &Region) -> Option<(Arc<dyn Copies>, Memory)> {
    Some((Arc::clone(region.copies.as_ref()?), region.words.clone()?))
}

/// Brings bytes that were changed in memory of the host to the device's, where they lie at the same place.
pub(super) fn bring(
    copies: Option<&Arc<dyn Copies>>,
    words: &Memory,
    memory: &Memory,
    (at, len): (u64, u64),
) -> Result<Rest, Status> {
    let copies = Arc::clone(copies.ok_or(Status::Access)?);
    Ok(Rest::Copy { copies, from: (words.clone(), at), to: (memory.clone(), at), len })
}

/// Bytes within this process.
pub(super) fn copy(
    copies: Option<&Arc<dyn Copies>>,
    (from, at): (&Memory, u64),
    (to, offset): (&Memory, u64),
    len: u64,
) -> Result<Ready, Status> {
    if let Some(copies) = copies {
        let from = (from.clone(), at);
        let to = (to.clone(), offset);
        return Ok(Ready::Later(Rest::Copy { copies: Arc::clone(copies), from, to, len }, None));
    }
    to.copy_from(offset, from, at, len).map_err(|_| Status::Access)?;
    Ok(Ready::Done(0))
}

/// Bytes of a region to the network.
pub(super) fn put(source: &Region, from: u64, to: Place, len: u64) -> Ready {
    let from = Local { heap: source.heap, offset: from, len };
    let rest = match staged(source) {
        Some((copies, words)) => Rest::Staged { to, copies, memory: source.memory.clone(), words, from },
        None => Rest::Put { to, from },
    };
    Ready::Later(rest, None)
}

/// Bytes from the network to a region.
pub(super) fn get(target: &Region, into: u64, from: Place, len: u64) -> Ready {
    let into = Local { heap: target.heap, offset: into, len };
    let rest = match staged(target) {
        Some((copies, words)) => Rest::Landed { from, copies, memory: target.memory.clone(), words, into },
        None => Rest::Get { from, into },
    };
    Ready::Later(rest, None)
}
