//! Bounce buffers, which hold eager messages until their receive is known. They belong to a group; its members release each
//! buffer when they have copied its message.

use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::{AccessRights, BounceRole, Rail, RegionExtent, RegisterError, RegisteredRegion};
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::try_filled_with;

use crate::link::rails::GroupRails;

/// The bounce buffers of a group: the same number for each link, numbered consecutively.
#[derive(Debug)]
pub(crate) struct BounceBuffers {
    /// By link.
    mrs: Vec<RegisteredRegion<BounceRole>>,
    /// Bytes per buffer.
    bytes: u64,
    /// Buffers per link.
    each: u32,
    /// Buffers with a message, which must not be posted.
    held: Box<[AtomicBool]>,
}

impl BounceBuffers {
    /// Creates the buffers for links on these rails, by their number in `rails`.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn new(
        rails: &GroupRails<impl Rail>,
        links: impl Iterator<Item = usize>,
        bytes: usize,
        each: u32,
    ) -> Result<Self, RegisterError> {
        let register = |rail: usize| {
            let memory = MemoryRange::try_heap(bytes.saturating_mul(each.max(1) as usize))?;
            RegisteredRegion::register(&rails.get(rail).registrar(), memory, AccessRights::LOCAL)
        };
        let mrs: Vec<_> = links.map(register).collect::<Result<_, _>>()?;
        let held = try_filled_with(mrs.len() * each as usize, || AtomicBool::new(false))?;
        Ok(Self { mrs, bytes: bytes as u64, each, held })
    }

    /// Returns the numbers of a link's buffers without a message.
    pub(crate) fn free_of_link(&self, link: usize) -> impl Iterator<Item = u32> {
        let all = link as u32 * self.each..(link as u32 + 1) * self.each;
        all.filter(|&bounce| !self.held.get(bounce as usize).is_some_and(|held| held.load(Ordering::Relaxed)))
    }

    /// Records that a message has arrived in a buffer, or that the buffer is posted again. Only under the group's lock.
    #[inline]
    pub(crate) fn set_held(&self, bounce: u32, holds: bool) {
        if let Some(held) = self.held.get(bounce as usize) {
            held.store(holds, Ordering::Relaxed);
        }
    }

    /// Returns the link of a buffer, and the offset of the buffer in that link's memory.
    #[inline]
    fn link_and_offset(&self, bounce: u32) -> (usize, u64) {
        if self.mrs.len() == 1 {
            return (0, u64::from(bounce) * self.bytes);
        }
        let each = self.each.max(1);
        ((bounce / each) as usize, u64::from(bounce % each) * self.bytes)
    }

    /// Returns the memory of a buffer, and its offset there; `None` if there is no such buffer.
    #[inline]
    pub(crate) fn buffer_memory(&self, bounce: u32) -> Option<(&MemoryRange, u64)> {
        let (link, offset) = self.link_and_offset(bounce);
        Some((self.mrs.get(link)?.memory(), offset))
    }

    /// Returns the link of a buffer, and the extent to post there.
    #[inline]
    pub(crate) fn buffer_extent(&self, bounce: u32) -> Option<(usize, RegionExtent)> {
        let (link, offset) = self.link_and_offset(bounce);
        Some((link, self.mrs.get(link)?.extent_at(offset, self.bytes)))
    }

    /// Discards the contents, and releases the pages, which are allocated again on use.
    pub(crate) fn release_pages(&self) {
        self.mrs.iter().for_each(|mr| mr.memory().discard_pages());
    }
}
