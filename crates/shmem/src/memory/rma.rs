//! Puts and gets, whole and strided, with fences and quiets. Mapped memory is copied at once; other operations are
//! posted on a lane.

use std::sync::atomic::{Ordering, fence};

use trunkline_mem::MemoryRange;

use crate::ctx::ContextTarget;
use crate::error::{Result, ShmemError};
use crate::fabric_transport::FabricTransport;
use crate::neighbour_statics::{NeighbourStatics, STEP};
use crate::symmetric_segments::{STATICS, SegmentIndex, SymmetricPlace};

use super::{SymmetricMemory, raw_memory};

/// The condition for a call to return.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReturnPoint {
    /// Local memory may be used again.
    Local,
    /// The operation was posted. Local memory must not change until a quiet.
    Now,
}

/// The strides of elements in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteStrides {
    /// Bytes from one element to the next at the other PE.
    pub(crate) there: i64,
    /// Bytes from one element to the next at this PE.
    pub(crate) here: i64,
    /// Bytes of the local memory before the first element.
    pub(crate) first: i64,
    /// Bytes per element.
    pub(crate) element: usize,
    /// The number of elements.
    pub(crate) count: usize,
}

/// Converts an error that earlier checks exclude.
pub(crate) fn map_bounds_error<T>(done: std::result::Result<T, trunkline_mem::OutOfBounds>) -> Result<T> {
    done.map_err(|_| ShmemError::Argument("the bytes are outside of the symmetric memory"))
}

impl SymmetricMemory {
    /// Returns the place of local memory, if it is symmetric.
    fn own_place(&self, memory: &MemoryRange) -> Option<SymmetricPlace> {
        self.segments.find_place(memory.addr(), memory.len())
    }

    /// Returns a PE's static variables, if the system copies from them.
    #[inline]
    fn neighbour_statics(&self, pe: usize, segment: SegmentIndex) -> Option<&NeighbourStatics> {
        self.near[pe].behind.as_ref().filter(|_| segment == STATICS)
    }

    /// Puts bytes to a place of a PE.
    #[inline]
    pub(crate) fn put(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        when: ReturnPoint,
    ) -> Result<()> {
        if let Some(memory) = self.mapped_memory(pe, to.segment) {
            return map_bounds_error(memory.copy_from(to.offset, from, 0, from.len() as u64));
        }
        let far = self.fabric_transport()?;
        match when {
            ReturnPoint::Local => far.put(lane, pe, to, from, self.own_place(from)),
            ReturnPoint::Now => far.put_nbi(lane, pe, to, from, self.own_place(from)),
        }
    }

    /// Gets bytes from a place of a PE.
    #[inline]
    pub(crate) fn get(
        &self,
        lane: usize,
        pe: usize,
        from: SymmetricPlace,
        into: &MemoryRange,
        when: ReturnPoint,
    ) -> Result<()> {
        if let Some(memory) = self.mapped_memory(pe, from.segment) {
            return map_bounds_error(into.copy_from(0, memory, from.offset, into.len() as u64));
        }
        if let Some(behind) = self.neighbour_statics(pe, from.segment).filter(|_| into.len() <= STEP) {
            return behind.get(pe, from.offset, into);
        }
        let far = self.fabric_transport()?;
        match when {
            ReturnPoint::Local => far.get(lane, pe, from, into, self.own_place(into)),
            ReturnPoint::Now => far.get_nbi(lane, pe, from, into, self.own_place(into)),
        }
    }

    /// Copies bytes of a PE. They have arrived when the call returns.
    pub(crate) fn read_pe(&self, pe: usize, from: SymmetricPlace, into: &mut [u8]) -> Result<()> {
        if let Some(memory) = self.mapped_memory(pe, from.segment) {
            return map_bounds_error(memory.read(from.offset, into));
        }
        let into = raw_memory(into.as_mut_ptr().expose_provenance(), into.len());
        self.get(0, pe, from, &into, ReturnPoint::Local)
    }

    /// Puts strided elements. `from` contains the bytes from the lowest to the highest one.
    pub(crate) fn put_strided(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        how: ByteStrides,
    ) -> Result<()> {
        self.for_each_element(from, how, |at, element| {
            self.put(lane, pe, to.offset_by(at), element, ReturnPoint::Local)
        })
    }

    /// Gets strided elements.
    pub(crate) fn get_strided(
        &self,
        lane: usize,
        pe: usize,
        from: SymmetricPlace,
        into: &MemoryRange,
        how: ByteStrides,
    ) -> Result<()> {
        self.for_each_element(into, how, |at, element| {
            self.get(lane, pe, from.offset_by(at), element, ReturnPoint::Local)
        })
    }

    fn for_each_element(
        &self,
        here: &MemoryRange,
        how: ByteStrides,
        mut each: impl FnMut(i64, &MemoryRange) -> Result<()>,
    ) -> Result<()> {
        for at in 0..how.count as i64 {
            let part = map_bounds_error(sub_memory(here, (how.first + at * how.here) as u64, how.element))?;
            each(at * how.there, &part)?;
        }
        Ok(())
    }

    /// Orders later operations of a lane after its earlier ones, per PE.
    #[inline]
    pub(crate) fn fence(&self, on: &ContextTarget) -> Result<()> {
        fence(Ordering::SeqCst);
        match &self.far {
            // A store is not ordered after operations in flight to other memory of the same PE, unless those are
            // complete.
            Some(far) if self.parted => far.quiet(on.lane),
            Some(far) => far.fence(on.lane),
            None => Ok(()),
        }
    }

    /// Waits until all operations of a lane are complete and visible.
    #[inline]
    pub(crate) fn quiet(&self, lane: usize) -> Result<()> {
        fence(Ordering::SeqCst);
        match &self.far {
            Some(far) => far.quiet(lane),
            None => Ok(()),
        }
    }

    /// Waits until all operations of this PE are complete.
    pub(crate) fn quiet_all(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        self.far.as_ref().map_or(Ok(()), FabricTransport::quiet_all)
    }

    /// Returns whether all operations of this PE are complete.
    pub(crate) fn poll_quiet_all(&self) -> Result<bool> {
        self.far.as_ref().map_or(Ok(true), FabricTransport::is_quiet)
    }
}

/// Returns bytes inside local memory.
fn sub_memory(
    of: &MemoryRange,
    offset: u64,
    len: usize,
) -> std::result::Result<MemoryRange, trunkline_mem::OutOfBounds> {
    of.checked_address(offset, len as u64)?;
    // SAFETY: bytes of memory whose owner promised the same of all of it, for the time of the call.
    Ok(unsafe { MemoryRange::from_raw(of.addr() + offset as usize, len, of.kind()) })
}
