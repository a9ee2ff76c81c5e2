//! Mailboxes: memory of a comm that its peer writes to, registered on each rail. A comm by itself has one of its own;
//! members of a group have places in a slab, so that registrations do not grow with them.

use std::collections::VecDeque;

use trunkline_fabric::{Access, Ctrl, Mr, Rail, RegisterError};
use trunkline_mem::Memory;
use trunkline_proto::limits::{MEMBERS_OF_GROUP_MAX, RAILS_MAX};
use trunkline_proto::wire::frame::Region;

use crate::Mutant;
use crate::link::rails::Rails;

/// Memory of one comm, on the rails of its group.
#[derive(Debug)]
pub(crate) struct Piece {
    memory: Memory,
    /// Where it begins.
    offset: u64,
    /// How the peer reaches it, by rail.
    regions: [Region; RAILS_MAX],
    /// Registrations of its own.
    _own: Vec<Mr<Ctrl>>,
}

impl Piece {
    /// Memory of `bytes` bytes, registered for it alone.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn alone(rails: &Rails<impl Rail>, bytes: usize) -> Result<Self, RegisterError> {
        let chunk = Chunk::new(rails, bytes)?;
        Ok(Self { memory: chunk.memory.clone(), offset: 0, regions: chunk.regions(0), _own: chunk.mrs })
    }

    /// The memory, and where in it the piece begins.
    #[inline]
    pub(crate) fn memory(&self) -> (&Memory, u64) {
        (&self.memory, self.offset)
    }

    /// How the peer reaches it over a rail.
    pub(crate) fn region(&self, rail: usize) -> Region {
        self.regions[rail]
    }
}

/// A stretch of memory, registered on each rail.
#[derive(Debug)]
struct Chunk {
    memory: Memory,
    mrs: Vec<Mr<Ctrl>>,
}

impl Chunk {
    fn new(rails: &Rails<impl Rail>, bytes: usize) -> Result<Self, RegisterError> {
        let memory = Memory::try_heap(bytes)?;
        let register = |rail: &_| Mr::register(&Rail::registrar(rail), memory.clone(), Access::WRITE);
        let mrs = rails.iter().map(register).collect::<Result<_, _>>()?;
        Ok(Self { memory, mrs })
    }

    fn regions(&self, offset: u64) -> [Region; RAILS_MAX] {
        let mut regions = [Region { key: 0, addr: 0 }; RAILS_MAX];
        for (region, mr) in regions.iter_mut().zip(&self.mrs) {
            let keys = mr.keys();
            *region = Region { key: keys.remote.0, addr: keys.remote_base.wrapping_add(offset) };
        }
        regions
    }
}

/// Writes zeros where they are memory.
fn clear(memory: &Memory, offset: u64, bytes: usize) {
    const ZEROS: [u8; 512] = [0; 512];
    for at in (0..bytes).step_by(ZEROS.len()) {
        let len = ZEROS.len().min(bytes - at);
        let _ = memory.write(offset + at as u64, &ZEROS[..len]);
    }
}

/// A place in a slab.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lot {
    chunk: u16,
    index: u16,
}

/// Places of one size. It grows by a quarter of what it has, at least by one place: so at most a quarter more is registered
/// than was used at once, and a group that is full has 22 stretches, each registered once on each rail. It gives its youngest
/// stretch back when nobody has a place in it.
#[derive(Debug)]
pub(crate) struct Slab {
    bytes: usize,
    chunks: Vec<Chunk>,
    lots: usize,
    /// In the order in which they became free.
    free: VecDeque<Lot>,
}

impl Slab {
    /// Of places of `bytes` bytes.
    pub(crate) const fn new(bytes: usize) -> Self {
        Self { bytes, chunks: Vec::new(), lots: 0, free: VecDeque::new() }
    }

    /// A place, all zeros, to be given back; the one that has been free for longest.
    ///
    /// # Errors
    /// As [`Piece::alone`].
    pub(crate) fn take(&mut self, rails: &Rails<impl Rail>) -> Result<(Lot, Piece), RegisterError> {
        if self.free.is_empty() {
            let count = Self::step(self.lots, rails.mutant);
            let chunk = self.chunks.len() as u16;
            self.chunks.push(Chunk::new(rails, count.saturating_mul(self.bytes))?);
            self.lots += count;
            self.free.extend((0..count as u16).map(|index| Lot { chunk, index }));
        }
        let Some(lot) = self.free.pop_front() else { return Err(RegisterError::Exhausted(0)) };
        let chunk = &self.chunks[usize::from(lot.chunk)];
        let offset = u64::from(lot.index) * self.bytes as u64;
        // Of who had it before nothing must be left; it lies within its chunk.
        if !rails.mutant.is("ride-keeps-mailboxes") {
            clear(&chunk.memory, offset, self.bytes);
        }
        let memory = chunk.memory.clone();
        let regions = chunk.regions(offset);
        Ok((lot, Piece { memory, offset, regions, _own: Vec::new() }))
    }

    /// Places that are not free.
    pub(crate) fn used(&self) -> usize {
        self.lots - self.free.len()
    }

    /// A place is of no use any more, and nothing more is written to it.
    pub(crate) fn give(&mut self, lot: Lot) {
        self.free.push_back(lot);
        while let Some(youngest) = self.chunks.len().checked_sub(1).filter(|&at| at > 0)
            && self.is_free(youngest)
        {
            self.free.retain(|lot| usize::from(lot.chunk) != youngest);
            self.lots -= self.lots_of(youngest);
            self.chunks.pop();
        }
    }

    /// By how many places it grows if it has so many.
    fn step(lots: usize, mutant: Mutant) -> usize {
        let room = MEMBERS_OF_GROUP_MAX.checked_sub(lots).filter(|&room| room > 0);
        match () {
            () if mutant.is("slab-doubles") => lots.max(1),
            () if mutant.is("slab-registers-each-place") => 1,
            () => (lots / 4).max(1).min(room.unwrap_or(MEMBERS_OF_GROUP_MAX)),
        }
    }

    /// Places of a stretch.
    fn lots_of(&self, chunk: usize) -> usize {
        self.chunks[chunk].memory.len() / self.bytes
    }

    fn is_free(&self, chunk: usize) -> bool {
        self.free.iter().filter(|lot| usize::from(lot.chunk) == chunk).count() == self.lots_of(chunk)
    }
}
