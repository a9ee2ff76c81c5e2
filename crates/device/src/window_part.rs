//! A rank's part of a window, as the courier and those who serve others know it. Made by the code that makes windows.

use std::sync::Arc;

use trunkline_device_queue::SlotLayout;
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::device_queue::{BOX_BYTES, PostRooms};

use crate::region::DeviceCopier;

/// A part of a window, as another rank has told of it.
#[derive(Clone, Debug)]
pub struct RemotePart {
    /// The heap that it is there; of a part whose words lie apart from its data, that of the words.
    pub heap: u8,
    /// Where its boxes begin in that.
    pub boxes: u64,
    /// The network does not reach it, but memory beside it.
    pub is_posted: bool,
    /// What that rank raises here.
    pub slots: Vec<SlotLayout>,
}

/// This rank's part of a window, and those of all.
#[derive(Clone, Debug)]
pub struct LocalPart {
    /// The heap that the network knows it by; where its words lie apart from its data, that of the words.
    pub heap: u8,
    /// The bytes of that: the part itself, memory beside it, or its words.
    pub memory: MemoryRange,
    /// Where the boxes begin in it: one for each rank.
    pub boxes: u64,
    /// The rooms of parts that are posted, behind the boxes.
    pub rooms: PostRooms,
    /// The part, if it is a device's and posted, and who moves its bytes; of the courier alone, but on the stream of all who change it.
    pub device: Option<(MemoryRange, Arc<dyn DeviceCopier>)>,
    /// By rank.
    pub peers: Vec<RemotePart>,
}

impl LocalPart {
    /// Bytes of the boxes for so many ranks.
    #[must_use]
    pub const fn boxes_bytes(ranks: u64) -> u64 {
        ranks * BOX_BYTES
    }
}
