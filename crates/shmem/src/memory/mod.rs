//! The symmetric memory of all PEs, as this PE accesses it: by loads and stores where it is mapped, else over the
//! fabric. Called by `pe`, `collective` and `abi`. It knows neither turns of teams, nor handles of C, nor
//! allocations.

pub(crate) mod atomics;
pub(crate) mod rma;
pub(crate) mod wait;

use trunkline_engine::WaitPolicy;
use trunkline_mem::MemoryRange;

use crate::error::{Result, ShmemError};
use crate::fabric_transport::FabricTransport;
use crate::pe_access::PeAccess;
use crate::symmetric_segments::{SegmentIndex, SymmetricPlace, SymmetricSegments};

use self::wait::{EAGER_POLLS, TestBackoff};

/// The symmetric memory of all PEs, as this PE accesses it, and the waits for changes of this PE's part.
///
/// `Pe::start` creates it. `abi` calls it for puts, gets, atomics, signals and waits, and `TeamMember` to move the
/// data of collectives. It never allocates symmetric memory, and knows no handle of C.
///
/// - `near` has one entry per PE of the job, in their order; the entry `me` is this PE, all of whose memory is
///   mapped.
/// - `segments` is this PE's own memory. Every PE has the same segments, so a [`SymmetricPlace`] names a place in
///   each of them.
/// - `parted` is true if some PE has both mapped and unmapped memory.
/// - `far` is present if any PE of the job reaches another one over the fabric.
pub(crate) struct SymmetricMemory {
    me: usize,
    segments: SymmetricSegments,
    near: Box<[PeAccess]>,
    parted: bool,
    far: Option<FabricTransport>,
    /// The times for which a thread spins and yields before it sleeps in a wait.
    policy: WaitPolicy,
    /// Polls of a wait before anything else is done, as the change is often on its way.
    eager_polls: u32,
    tests: TestBackoff,
}

impl SymmetricMemory {
    /// Returns the memory of the PEs in `near`, of which this PE is number `me`. `policy` is for waits for their
    /// changes.
    pub(crate) fn new(
        me: usize,
        segments: SymmetricSegments,
        near: Box<[PeAccess]>,
        far: Option<FabricTransport>,
        policy: WaitPolicy,
    ) -> Self {
        let parted = near.iter().any(PeAccess::is_parted);
        // A change over the fabric may need progress, and with more threads than processors the writer may need this
        // one.
        let is_crowded = policy.spins < WaitPolicy::CHANGE.spins;
        let eager_polls = if far.is_some() || is_crowded { 0 } else { EAGER_POLLS };
        Self { me, segments, near, parted, far, policy, eager_polls, tests: TestBackoff::default() }
    }

    /// Returns the number of this PE.
    #[inline]
    pub(crate) fn own_pe(&self) -> usize {
        self.me
    }

    /// Returns the number of PEs of the job.
    #[inline]
    pub(crate) fn pe_count(&self) -> usize {
        self.near.len()
    }

    /// Returns the memory of this PE.
    #[inline]
    pub(crate) fn own_segments(&self) -> &SymmetricSegments {
        &self.segments
    }

    /// Returns the fabric, if any PE needs it.
    #[inline]
    pub(crate) fn find_fabric(&self) -> Option<&FabricTransport> {
        self.far.as_ref()
    }

    /// Returns the place in symmetric memory of bytes of this process.
    ///
    /// # Errors
    /// [`ShmemError::NotSymmetric`].
    #[inline]
    pub(crate) fn find_place(&self, addr: usize, len: usize) -> Result<SymmetricPlace> {
        self.segments.find_place(addr, len).ok_or_else(|| ShmemError::not_symmetric(addr, len))
    }

    /// Returns the mapped memory of a PE and the offset of the bytes; `None` if the PE is out of range, or the bytes
    /// are not mapped.
    #[inline(always)]
    pub(crate) fn find_mapped(&self, addr: usize, len: usize, pe: usize) -> Option<(&MemoryRange, u64)> {
        let near = self.near.get(pe)?;
        let place = self.segments.find_place(addr, len)?;
        Some((near.segment_memory(place.segment)?, place.offset))
    }

    /// Returns a segment of a PE, if it is mapped here.
    #[inline]
    pub(crate) fn mapped_memory(&self, pe: usize, segment: SegmentIndex) -> Option<&MemoryRange> {
        self.near[pe].segment_memory(segment)
    }

    /// Returns the address in this process of a place of a PE, if it is mapped.
    pub(crate) fn mapped_address(&self, place: SymmetricPlace, pe: usize) -> Option<usize> {
        let memory = self.mapped_memory(pe, place.segment)?;
        Some(memory.addr() + place.offset as usize)
    }

    /// Returns the fabric, which is present if any memory is not mapped.
    #[inline]
    fn fabric_transport(&self) -> Result<&FabricTransport> {
        self.far.as_ref().ok_or_else(ShmemError::not_running)
    }

    /// Returns bytes of this PE at a place.
    pub(crate) fn local_memory(&self, place: SymmetricPlace, len: usize) -> Result<MemoryRange> {
        if len == 0 {
            return Ok(raw_memory(0, 0));
        }
        let of = &self.segments.0[place.segment];
        let addr = of
            .checked_address(place.offset, len as u64)
            .map_err(|_| ShmemError::Argument("the word is outside of the symmetric memory"))?;
        Ok(raw_memory(addr, len))
    }
}

/// Returns a range of the program's memory.
pub(crate) fn raw_memory(addr: usize, len: usize) -> MemoryRange {
    // SAFETY: C's caller guarantees that these bytes are valid during the call, and no Rust reference to them exists.
    unsafe { MemoryRange::from_raw(addr, len, trunkline_mem::MemoryKind::Host) }
}
