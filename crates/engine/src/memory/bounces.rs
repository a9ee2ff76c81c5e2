//! Bounce buffers: where eager messages lie until their receive is known. They belong to a group, whose members give each
//! back when they have copied what is in it.

use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::{AccessRights, BounceRole, Rail, RegionExtent, RegisterError, RegisteredRegion};
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::try_filled_with;

use crate::link::rails::GroupRails;

/// The bounce buffers of a group: as many for each link, one number for all.
#[derive(Debug)]
pub(crate) struct BounceBuffers {
    /// By link.
    mrs: Vec<RegisteredRegion<BounceRole>>,
    /// Of a buffer.
    bytes: u64,
    /// Of a link.
    each: u32,
    /// Those with a message in them, which are not to be posted.
    held: Box<[AtomicBool]>,
}

impl BounceBuffers {
    /// For links on these rails, by their number in `rails`.
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

    /// The numbers of those of a link that have no message in them.
    pub(crate) fn free_of_link(&self, link: usize) -> impl Iterator<Item = u32> {
        let all = link as u32 * self.each..(link as u32 + 1) * self.each;
        all.filter(|&bounce| !self.held.get(bounce as usize).is_some_and(|held| held.load(Ordering::Relaxed)))
    }

    /// A message has come into a buffer, or the buffer is posted again. Only under the group's lane.
    #[inline]
    pub(crate) fn set_held(&self, bounce: u32, holds: bool) {
        if let Some(held) = self.held.get(bounce as usize) {
            held.store(holds, Ordering::Relaxed);
        }
    }

    /// The link of a buffer, and where the buffer begins in the memory of that link's.
    #[inline]
    fn link_and_offset(&self, bounce: u32) -> (usize, u64) {
        if self.mrs.len() == 1 {
            return (0, u64::from(bounce) * self.bytes);
        }
        let each = self.each.max(1);
        ((bounce / each) as usize, u64::from(bounce % each) * self.bytes)
    }

    /// The memory of a buffer, and where it begins; `None` if there is no such buffer.
    #[inline]
    pub(crate) fn buffer_memory(&self, bounce: u32) -> Option<(&MemoryRange, u64)> {
        let (link, offset) = self.link_and_offset(bounce);
        Some((self.mrs.get(link)?.memory(), offset))
    }

    /// The link of a buffer, and the buffer, to be posted there.
    #[inline]
    pub(crate) fn buffer_extent(&self, bounce: u32) -> Option<(usize, RegionExtent)> {
        let (link, offset) = self.link_and_offset(bounce);
        Some((link, self.mrs.get(link)?.extent_at(offset, self.bytes)))
    }

    /// Forgets what is in them; they take memory again as they are used.
    pub(crate) fn release_pages(&self) {
        self.mrs.iter().for_each(|mr| mr.memory().discard_pages());
    }
}
