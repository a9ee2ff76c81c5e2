//! A rank's part of a window, as `proxy` and `service` use it. Created by the code that makes windows; plain data.

use std::sync::Arc;

use trunkline_device_queue::SlotLayout;
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::device_queue::{BOX_BYTES, PostRooms};

use crate::region::DeviceCopier;

/// A part of a window at another rank, as that rank published it.
#[derive(Clone, Debug)]
pub struct RemotePart {
    /// The heap at that rank; of a part with separate words, the heap of the words.
    pub heap: u8,
    /// Offset of its post boxes in that heap.
    pub boxes: u64,
    /// Whether the network reaches only host memory beside the part, and not the part itself.
    pub is_posted: bool,
    /// The slots here that that rank raises.
    pub slots: Vec<SlotLayout>,
}

/// This rank's part of a window, and the parts of all ranks.
#[derive(Clone, Debug)]
pub struct LocalPart {
    /// The heap as the network names it; of a part with separate words, the heap of the words.
    pub heap: u8,
    /// The memory of that heap: the part itself, host memory beside it, or its words.
    pub memory: MemoryRange,
    /// Offset of the post boxes in it, one per rank.
    pub boxes: u64,
    /// The rooms of posted parts, behind the boxes.
    pub rooms: PostRooms,
    /// The part, if it is posted memory of a device, and its copier. Only the proxy uses this copier, but its copies share a stream with
    /// all that change the part.
    pub device: Option<(MemoryRange, Arc<dyn DeviceCopier>)>,
    /// The parts, by rank.
    pub peers: Vec<RemotePart>,
}

impl LocalPart {
    /// Returns the size of the boxes for `ranks` ranks.
    #[must_use]
    pub const fn boxes_bytes(ranks: u64) -> u64 {
        ranks * BOX_BYTES
    }
}
