//! Mailboxes: memory of a comm that its peer writes to, registered on each rail. A comm by itself has one of its own;
//! members of a group have places in a slab, so that registrations do not grow with them.

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
    /// Where it begins.
    offset: u64,
    /// How the peer reaches it, by rail.
    regions: [RemoteRegion; RAILS_MAX],
    /// Registrations of its own.
    _own: Vec<RegisteredRegion<ControlRole>>,
}

impl MailboxPiece {
    /// Memory of `bytes` bytes, registered for it alone.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn register_own(rails: &GroupRails<impl Rail>, bytes: usize) -> Result<Self, RegisterError> {
        let chunk = SlabChunk::new(rails, bytes)?;
        Ok(Self { memory: chunk.memory.clone(), offset: 0, regions: chunk.rail_regions(0), _own: chunk.mrs })
    }

    /// The memory, and where in it the piece begins.
    #[inline]
    pub(crate) fn memory_and_offset(&self) -> (&MemoryRange, u64) {
        (&self.memory, self.offset)
    }

    /// How the peer reaches it over a rail.
    pub(crate) fn rail_region(&self, rail: usize) -> RemoteRegion {
        self.regions[rail]
    }
}

/// A stretch of memory, registered on each rail.
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

/// Writes zeros where they are memory.
fn clear(memory: &MemoryRange, offset: u64, bytes: usize) {
    const ZEROS: [u8; 512] = [0; 512];
    for at in (0..bytes).step_by(ZEROS.len()) {
        let len = ZEROS.len().min(bytes - at);
        let _ = memory.write(offset + at as u64, &ZEROS[..len]);
    }
}

/// A place in a slab.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SlabSlot {
    chunk: u16,
    index: u16,
}

/// Places of one size. It grows by a quarter of what it has, at least by one place: so at most a quarter more is registered
/// than was used at once, and a group that is full has 22 stretches, each registered once on each rail. It gives its youngest
/// stretch back when nobody has a place in it.
#[derive(Debug)]
pub(crate) struct MailboxSlab {
    bytes: usize,
    chunks: Vec<SlabChunk>,
    lots: usize,
    /// In the order in which they became free.
    free: VecDeque<SlabSlot>,
}

impl MailboxSlab {
    /// Of places of `bytes` bytes.
    pub(crate) const fn new(bytes: usize) -> Self {
        Self { bytes, chunks: Vec::new(), lots: 0, free: VecDeque::new() }
    }

    /// A place, all zeros, to be given back; the one that has been free for longest.
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
        // Of who had it before nothing must be left; it lies within its chunk.
        clear(&chunk.memory, offset, self.bytes);
        let memory = chunk.memory.clone();
        let regions = chunk.rail_regions(offset);
        Ok((lot, MailboxPiece { memory, offset, regions, _own: Vec::new() }))
    }

    /// Places that are not free.
    pub(crate) fn used_slots(&self) -> usize {
        self.lots - self.free.len()
    }

    /// A place is of no use any more, and nothing more is written to it.
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

    /// By how many places it grows if it has so many.
    fn growth_step(lots: usize) -> usize {
        let room = MEMBERS_OF_GROUP_MAX.checked_sub(lots).filter(|&room| room > 0);
        (lots / 4).max(1).min(room.unwrap_or(MEMBERS_OF_GROUP_MAX))
    }

    /// Places of a stretch.
    fn slots_in_chunk(&self, chunk: usize) -> usize {
        self.chunks[chunk].memory.len() / self.bytes
    }

    fn is_free(&self, chunk: usize) -> bool {
        self.free.iter().filter(|lot| usize::from(lot.chunk) == chunk).count() == self.slots_in_chunk(chunk)
    }
}
