//! The symmetric memory of all PEs, as this PE reaches it: by loads and stores where it is mapped here, else over the fabric. Called by
//! `pe`, `collective` and `abi`. Knows nothing of teams' turns, of C's handles, or of what is allocated.

pub(crate) mod atomics;
pub(crate) mod rma;
pub(crate) mod wait;

use trunkline_engine::WaitPolicy;
use trunkline_mem::MemoryRange;

use crate::error::{Result, ShmemError};
use crate::fabric_transport::FabricTransport;
use crate::pe_access::PeAccess;
use crate::symmetric_segments::{SegmentIndex, SymmetricPlace, SymmetricSegments};

use self::wait::TestBackoff;

/// The symmetric memory of all PEs, as this PE reaches it, and the waits for changes of this PE's part.
///
/// `Pe::start` makes it. `abi` calls it for puts, gets, atomics, signals and waits; `TeamMember` for what collectives move. It never
/// allocates symmetric memory, and knows no handle of C.
///
/// - `near` has one entry per PE of the job, in their order; the entry `me` is this PE, all of whose memory is mapped.
/// - `segments` is this PE's own memory. Every PE has the same ranges, so a [`SymmetricPlace`] names a place in each of them.
/// - `parted` is true if of some PE a part of the memory is mapped and a part is not.
/// - `far` is present if any PE of the job reaches another one over the fabric.
pub(crate) struct SymmetricMemory {
    me: usize,
    segments: SymmetricSegments,
    near: Box<[PeAccess]>,
    parted: bool,
    far: Option<FabricTransport>,
    /// How long a thread spins and yields before it rests while it waits for a change.
    policy: WaitPolicy,
    tests: TestBackoff,
}

impl SymmetricMemory {
    /// The memory of the PEs that `near` has, of which this PE is number `me`. `policy` is for waits for their changes.
    pub(crate) fn new(
        me: usize,
        segments: SymmetricSegments,
        near: Box<[PeAccess]>,
        far: Option<FabricTransport>,
        policy: WaitPolicy,
    ) -> Self {
        let parted = near.iter().any(PeAccess::is_parted);
        Self { me, segments, near, parted, far, policy, tests: TestBackoff::default() }
    }

    /// The number of this PE.
    #[inline]
    pub(crate) fn own_pe(&self) -> usize {
        self.me
    }

    /// The number of PEs of the job.
    #[inline]
    pub(crate) fn pe_count(&self) -> usize {
        self.near.len()
    }

    /// The memory of this PE.
    #[inline]
    pub(crate) fn own_segments(&self) -> &SymmetricSegments {
        &self.segments
    }

    /// The fabric, if any PE needs it.
    #[inline]
    pub(crate) fn find_fabric(&self) -> Option<&FabricTransport> {
        self.far.as_ref()
    }

    /// Where bytes of this process are in symmetric memory.
    ///
    /// # Errors
    /// [`ShmemError::NotSymmetric`].
    #[inline]
    pub(crate) fn find_place(&self, addr: usize, len: usize) -> Result<SymmetricPlace> {
        self.segments.find_place(addr, len).ok_or_else(|| ShmemError::not_symmetric(addr, len))
    }

    /// Where bytes of a PE are mapped here, and how far in they begin; nothing if there is no such PE, or they are not mapped.
    #[inline(always)]
    pub(crate) fn find_mapped(&self, addr: usize, len: usize, pe: usize) -> Option<(&MemoryRange, u64)> {
        let near = self.near.get(pe)?;
        let place = self.segments.find_place(addr, len)?;
        Some((near.segment_memory(place.segment)?, place.offset))
    }

    /// A range of a PE's memory, if it is mapped here.
    #[inline]
    pub(crate) fn mapped_memory(&self, pe: usize, segment: SegmentIndex) -> Option<&MemoryRange> {
        self.near[pe].segment_memory(segment)
    }

    /// Whether a PE's memory of that kind is read and written by loads and stores, and where.
    pub(crate) fn mapped_address(&self, place: SymmetricPlace, pe: usize) -> Option<usize> {
        let memory = self.mapped_memory(pe, place.segment)?;
        Some(memory.addr() + place.offset as usize)
    }

    /// The fabric, which is present if any memory is not mapped.
    #[inline]
    fn fabric_transport(&self) -> Result<&FabricTransport> {
        self.far.as_ref().ok_or_else(ShmemError::not_running)
    }

    /// Bytes of this PE at a place.
    pub(crate) fn local_memory(&self, place: SymmetricPlace, len: usize) -> Result<MemoryRange> {
        if len == 0 {
            return Ok(raw_memory(0, 0));
        }
        let of = &self.segments.0[place.segment];
        let addr = of
            .checked_address(place.offset, len as u64)
            .map_err(|_| ShmemError::Argument("outside of the memory"))?;
        Ok(raw_memory(addr, len))
    }
}

/// Memory of the program.
pub(crate) fn raw_memory(addr: usize, len: usize) -> MemoryRange {
    // SAFETY: C's caller promises that these bytes are there for the time of the call, and no Rust reference to them exists.
    unsafe { MemoryRange::from_raw(addr, len, trunkline_mem::MemoryKind::Host) }
}
