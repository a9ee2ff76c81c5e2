//! Mailboxes: memory of a comm that its peer writes to, registered on each rail. A comm with links of its own has its own
//! registration; members of a group have slots in a slab, so that the number of registrations does not grow with them.

use std::collections::VecDeque;

use trunkline_fabric::{AccessRights, ControlRole, Rail, RegisterError, RegisteredRegion};
use trunkline_mem::MemoryRange;
use trunkline_proto::limits::{MEMBERS_OF_GROUP_MAX, RAILS_MAX};
use trunkline_proto::wire::frame::RemoteRegion;

use crate::link::rails::GroupRails;

/// Memory of one comm, on the rails of its group.
#[derive(Debug)]
pub(crate) struct MailboxPiece {
    memory: MemoryRange,
    /// Its offset there.
    offset: u64,
    /// The peer's view of it, by rail.
    regions: [RemoteRegion; RAILS_MAX],
    /// Its own registrations.
    _own: Vec<RegisteredRegion<ControlRole>>,
}

impl MailboxPiece {
    /// Registers `bytes` bytes for one comm alone.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn register_own(rails: &GroupRails<impl Rail>, bytes: usize) -> Result<Self, RegisterError> {
        let chunk = SlabChunk::new(rails, bytes)?;
        Ok(Self { memory: chunk.memory.clone(), offset: 0, regions: chunk.rail_regions(0), _own: chunk.mrs })
    }

    /// Returns the memory, and the offset of the piece there.
    #[inline]
    pub(crate) fn memory_and_offset(&self) -> (&MemoryRange, u64) {
        (&self.memory, self.offset)
    }

    /// Returns the peer's view of it over a rail.
    pub(crate) fn rail_region(&self, rail: usize) -> RemoteRegion {
        self.regions[rail]
    }
}

/// A chunk of memory, registered on each rail.
#[derive(Debug)]
struct SlabChunk {
    memory: MemoryRange,
    mrs: Vec<RegisteredRegion<ControlRole>>,
}

impl SlabChunk {
    fn new(rails: &GroupRails<impl Rail>, bytes: usize) -> Result<Self, RegisterError> {
        let memory = MemoryRange::try_heap(bytes)?;
        let register = |rail: &_| {
            RegisteredRegion::register(&Rail::registrar(rail), memory.clone(), AccessRights::WRITE)
        };
        let mrs = rails.iter().map(register).collect::<Result<_, _>>()?;
        Ok(Self { memory, mrs })
    }

    fn rail_regions(&self, offset: u64) -> [RemoteRegion; RAILS_MAX] {
        let mut regions = [RemoteRegion { key: 0, addr: 0 }; RAILS_MAX];
        for (region, mr) in regions.iter_mut().zip(&self.mrs) {
            let keys = mr.region_keys();
            *region = RemoteRegion { key: keys.remote.0, addr: keys.remote_base.wrapping_add(offset) };
        }
        regions
    }
}

/// Writes zeros to a range of memory.
fn clear(memory: &MemoryRange, offset: u64, bytes: usize) {
    const ZEROS: [u8; 512] = [0; 512];
    for at in (0..bytes).step_by(ZEROS.len()) {
        let len = ZEROS.len().min(bytes - at);
        let _ = memory.write(offset + at as u64, &ZEROS[..len]);
    }
}

/// A slot in a slab.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SlabSlot {
    chunk: u16,
    index: u16,
}

/// Slots of one size. The slab grows by a quarter, at least by one slot. So at most a quarter more is registered than was used at
/// once, and a full group has 22 chunks, each registered once per rail. The youngest chunk is freed when none of its slots is
/// used.
#[derive(Debug)]
pub(crate) struct MailboxSlab {
    bytes: usize,
    chunks: Vec<SlabChunk>,
    lots: usize,
    /// In the order in which they became free.
    free: VecDeque<SlabSlot>,
}

impl MailboxSlab {
    /// Creates a slab of slots of `bytes` bytes.
    pub(crate) const fn new(bytes: usize) -> Self {
        Self { bytes, chunks: Vec::new(), lots: 0, free: VecDeque::new() }
    }

    /// Allocates the slot that has been free for longest, and fills it with zeros. The caller frees it by [`Self::free_slot`].
    ///
    /// # Errors
    /// As [`MailboxPiece::register_own`].
    pub(crate) fn take_slot(
        &mut self,
        rails: &GroupRails<impl Rail>,
    ) -> Result<(SlabSlot, MailboxPiece), RegisterError> {
        if self.free.is_empty() {
            let count = Self::growth_step(self.lots);
            let chunk = self.chunks.len() as u16;
            self.chunks.push(SlabChunk::new(rails, count.saturating_mul(self.bytes))?);
            self.lots += count;
            self.free.extend((0..count as u16).map(|index| SlabSlot { chunk, index }));
        }
        let Some(lot) = self.free.pop_front() else { return Err(RegisterError::Exhausted(0)) };
        let chunk = &self.chunks[usize::from(lot.chunk)];
        let offset = u64::from(lot.index) * self.bytes as u64;
        // In range. The slot must not show data of its previous user.
        clear(&chunk.memory, offset, self.bytes);
        let memory = chunk.memory.clone();
        let regions = chunk.rail_regions(offset);
        Ok((lot, MailboxPiece { memory, offset, regions, _own: Vec::new() }))
    }

    /// Returns the number of slots in use.
    pub(crate) fn used_slots(&self) -> usize {
        self.lots - self.free.len()
    }

    /// Frees a slot, to which nothing is written any more.
    pub(crate) fn free_slot(&mut self, lot: SlabSlot) {
        self.free.push_back(lot);
        while let Some(youngest) = self.chunks.len().checked_sub(1).filter(|&at| at > 0)
            && self.is_free(youngest)
        {
            self.free.retain(|lot| usize::from(lot.chunk) != youngest);
            self.lots -= self.slots_in_chunk(youngest);
            self.chunks.pop();
        }
    }

    /// Returns the number of slots by which a slab of `lots` slots grows.
    fn growth_step(lots: usize) -> usize {
        let room = MEMBERS_OF_GROUP_MAX.checked_sub(lots).filter(|&room| room > 0);
        (lots / 4).max(1).min(room.unwrap_or(MEMBERS_OF_GROUP_MAX))
    }

    /// Returns the number of slots of a chunk.
    fn slots_in_chunk(&self, chunk: usize) -> usize {
        self.chunks[chunk].memory.len() / self.bytes
    }

    fn is_free(&self, chunk: usize) -> bool {
        self.free.iter().filter(|lot| usize::from(lot.chunk) == chunk).count() == self.slots_in_chunk(chunk)
    }
}
