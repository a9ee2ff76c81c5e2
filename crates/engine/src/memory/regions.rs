//! Memory registered with one comm, and how many outstanding messages use each piece.

use trunkline_fabric::{DeregisterError, PayloadRole, RegionExtent, RegisteredRegion};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_proto::slots::{SlotId, SlotTable};

use crate::{MrId, OffsetBase, RecvBuf};

/// Memory registered on each rail of a comm.
#[derive(Debug)]
pub(crate) struct RailRegistrations {
    first: Option<RegisteredRegion<PayloadRole>>,
    /// On the rails after the first.
    more: Box<[RegisteredRegion<PayloadRole>]>,
    /// Peers may still write to it when it is deregistered.
    named: bool,
}

impl RailRegistrations {
    /// Creates the registration from that on the first rail and those on the others.
    pub(crate) fn new(
        first: RegisteredRegion<PayloadRole>,
        more: Vec<RegisteredRegion<PayloadRole>>,
    ) -> Self {
        Self { first: Some(first), more: more.into(), named: false }
    }

    /// Returns the registration on one rail.
    #[inline]
    pub(crate) fn on_rail(&self, path: usize) -> Option<&RegisteredRegion<PayloadRole>> {
        if path == 0 { self.first.as_ref() } else { self.more.get(path - 1) }
    }

    #[inline]
    fn memory(&self) -> Option<&MemoryRange> {
        self.first.as_ref().map(RegisteredRegion::memory)
    }

    fn is_of_device(&self) -> bool {
        self.memory().is_some_and(|memory| memory.kind() != MemoryKind::Host)
    }

    /// Ends the registration on every rail.
    ///
    /// # Errors
    /// The registrations that cannot be ended yet, with the first cause.
    pub(crate) fn close(self) -> Result<(), (Self, DeregisterError)> {
        if self.named {
            self.end_each(RegisteredRegion::retire)
        } else {
            self.end_each(RegisteredRegion::close)
        }
    }

    /// As [`RailRegistrations::close`], although peers may still write.
    ///
    /// # Errors
    /// As [`RailRegistrations::close`].
    pub(crate) fn retire(self) -> Result<(), (Self, DeregisterError)> {
        Self { named: true, ..self }.close()
    }

    fn end_each(
        self,
        how: impl Fn(
            RegisteredRegion<PayloadRole>,
        ) -> Result<(), (RegisteredRegion<PayloadRole>, DeregisterError)>,
    ) -> Result<(), (Self, DeregisterError)> {
        let mut left = Vec::new();
        let mut why = None;
        for mr in self.first.into_iter().chain(self.more) {
            if let Err((mr, error)) = how(mr) {
                left.push(mr);
                why.get_or_insert(error);
            }
        }
        match why {
            None => Ok(()),
            Some(error) => Err((Self { first: None, more: left.into(), named: self.named }, error)),
        }
    }
}

/// A comm's regions.
#[derive(Debug)]
pub(crate) struct CommRegions {
    slots: SlotTable<CountedRegion>,
    limit: usize,
    /// Regions that could not be deregistered yet: no new message uses them, but their names stay valid.
    closing: Vec<(MrId, RailRegistrations)>,
}

#[derive(Debug)]
struct CountedRegion {
    memory: RailRegistrations,
    uses: u32,
}

impl CommRegions {
    pub(crate) fn new(limit: usize) -> Self {
        Self { slots: SlotTable::new(limit), limit, closing: Vec::new() }
    }

    pub(crate) fn insert(&mut self, memory: RailRegistrations) -> Result<MrId, RailRegistrations> {
        if self.len() >= self.limit {
            return Err(memory);
        }
        self.slots.insert(CountedRegion { memory, uses: 0 }).map(MrId).map_err(|region| region.memory)
    }

    /// Returns the region on the rail of a path, if it contains `len` bytes at `offset`.
    #[inline]
    pub(crate) fn find_extent(
        &self,
        id: MrId,
        path: usize,
        offset: u64,
        len: u64,
    ) -> Option<(&RegisteredRegion<PayloadRole>, RegionExtent)> {
        let mr = self.slots.get(id.0)?.memory.on_rail(path)?;
        mr.memory().checked_address(offset, len).ok()?;
        Some((mr, mr.extent_at(offset, len)))
    }

    /// Returns the buffer relative to the start of its region, if the region contains it. An empty buffer may be anywhere.
    #[inline]
    pub(crate) fn locate_buffer(&self, base: OffsetBase, buffer: RecvBuf) -> Option<RecvBuf> {
        let memory = self.slots.get(buffer.mr.0)?.memory.memory()?;
        let offset = match base {
            OffsetBase::Region => buffer.offset,
            OffsetBase::Address if buffer.len == 0 => 0,
            OffsetBase::Address => buffer.offset.checked_sub(memory.addr() as u64)?,
        };
        memory.checked_address(offset, buffer.len).ok()?;
        Some(RecvBuf { offset, ..buffer })
    }

    /// Returns whether a region is device memory.
    pub(crate) fn is_of_device(&self, id: MrId) -> bool {
        self.slots.get(id.0).is_some_and(|region| region.memory.is_of_device())
    }

    /// Returns a region of device memory, if there is one.
    pub(crate) fn any_of_device(&self) -> Option<MrId> {
        self.slots.iter().find(|(_, region)| region.memory.is_of_device()).map(|(id, _)| MrId(id))
    }

    /// Returns the region on the rail of a path.
    #[inline]
    pub(crate) fn rail_mr(&self, id: MrId, path: usize) -> Option<&RegisteredRegion<PayloadRole>> {
        self.slots.get(id.0)?.memory.on_rail(path)
    }

    #[inline]
    pub(crate) fn hold_region(&mut self, id: MrId) {
        if let Some(region) = self.slots.get_mut(id.0) {
            region.uses += 1;
        }
    }

    #[inline]
    pub(crate) fn release_region(&mut self, id: MrId) {
        if let Some(region) = self.slots.get_mut(id.0) {
            region.uses = region.uses.saturating_sub(1);
        }
    }

    /// Returns whether outstanding messages use the region.
    pub(crate) fn in_use(&self, id: MrId) -> bool {
        self.slots.get(id.0).is_some_and(|region| region.uses > 0)
    }

    /// Returns whether outstanding messages use any region.
    pub(crate) fn any_in_use(&self) -> bool {
        self.slots.iter().any(|(_, region)| region.uses > 0)
    }

    /// Ends all registrations, although peers may still write. Returns whether all have ended; the caller repeats the call for
    /// the others.
    pub(crate) fn retire_all(&mut self) -> bool {
        let names: Vec<_> = self.slots.iter().map(|(id, region)| (MrId(id), region.uses > 0)).collect();
        for (id, used) in names {
            let Some(region) = self.remove(id) else { continue };
            if let Err((region, _)) = if used { region.retire() } else { region.close() } {
                self.keep_closing(id, region);
            }
        }
        self.retry_closing()
    }

    /// Tries again to end the remaining registrations. Returns whether all have ended.
    pub(crate) fn retry_closing(&mut self) -> bool {
        for (id, region) in std::mem::take(&mut self.closing) {
            if let Err((region, _)) = region.close() {
                self.keep_closing(id, region);
            }
        }
        self.closing.is_empty()
    }

    /// Removes a region; `None` if there is no such region.
    pub(crate) fn remove(&mut self, id: MrId) -> Option<RailRegistrations> {
        if let Some(at) = self.closing.iter().position(|(known, _)| *known == id) {
            return Some(self.closing.swap_remove(at).1);
        }
        self.slots.remove(id.0).map(|region| region.memory)
    }

    /// Returns whether the deregistration of a region is pending.
    pub(crate) fn is_closing(&self, id: MrId) -> bool {
        self.closing.iter().any(|(known, _)| *known == id)
    }

    /// Keeps a removed region that could not be deregistered under its name, for another try.
    pub(crate) fn keep_closing(&mut self, id: MrId, memory: RailRegistrations) {
        self.closing.push((id, memory));
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.closing.len()
    }
}

/// No region: the value of an unused slot.
pub(crate) const NO_MR: MrId = MrId(SlotId { slot: u32::MAX, generation: 0 });
