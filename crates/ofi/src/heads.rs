//! Bytes that operations keep until they complete, because the provider sends them from registered memory, or had no room when they were
//! posted. One registration per rail and role, divided into places for operations; used by the rail, and by its poll, which frees places.

use std::ops::Range;
use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::{try_collect, try_filled};

use crate::domain::OfiDomain;
use crate::rail::COPIED_MAX;
use crate::region::{LocalSlice, MrEnabled, MrRequest, MrScope, OfiRegisterError, register_memory};
use crate::rights::MemoryDuty;
use crate::role::{ControlTraffic, EndpointRole, PayloadTraffic};

/// The maximum number of operations of a rail with a place, per role.
const PLACES_MAX: u32 = 2048;
/// Marks an operation without a place.
const NONE: u32 = u32::MAX;
/// Flag of places for records.
const RECORD: u32 = 1 << 31;

/// The places of a role.
struct HeadSlab<R: EndpointRole> {
    mr: Arc<MrEnabled<R>>,
    free: Vec<u32>,
}

/// The places of a rail.
pub(crate) struct HeadBuffers {
    data: HeadSlab<PayloadTraffic>,
    records: HeadSlab<ControlTraffic>,
    /// The place of each slot of the rail's queue.
    of: Box<[u32]>,
}

impl<R: EndpointRole> HeadSlab<R> {
    fn new(
        domain: &Arc<OfiDomain>,
        model: &MrScope<R>,
        duty: MemoryDuty,
        places: u32,
    ) -> Result<Self, OfiRegisterError> {
        let memory = MemoryRange::try_heap(places as usize * COPIED_MAX)?;
        let free = try_collect((0..places).rev())?;
        let mr = register_memory(domain, model, &MrRequest::for_host(&memory, duty))?;
        Ok(Self { mr: Arc::new(mr), free })
    }

    #[inline]
    fn local_slice(&self, place: u32, len: usize) -> Option<LocalSlice<'_, R>> {
        self.mr.whole_extent().local_slice(place_offset(place), len as u64)
    }
}

impl HeadBuffers {
    /// Allocates places for a rail with that many slots.
    pub(crate) fn new(
        domain: &Arc<OfiDomain>,
        data: &MrScope<PayloadTraffic>,
        records: &MrScope<ControlTraffic>,
        slots: u32,
    ) -> Result<Self, OfiRegisterError> {
        // Fewer places than slots, because most operations use registered memory or are injected.
        let places = slots.min(PLACES_MAX);
        Ok(Self {
            data: HeadSlab::new(domain, data, MemoryDuty::Heads, places)?,
            records: HeadSlab::new(domain, records, MemoryDuty::Records, places)?,
            of: try_filled(NONE, slots as usize)?,
        })
    }

    /// Returns how many operations can get a place, of either role.
    #[inline]
    pub(crate) fn free_count(&self) -> u32 {
        self.data.free.len().min(self.records.free.len()) as u32
    }

    /// Keeps bytes, at most [`COPIED_MAX`], for the operation of a slot without a place. Does nothing if no place is free.
    #[inline]
    pub(crate) fn keep_bytes(&mut self, slot: u32, record: bool, bytes: &[u8]) {
        // The writes cannot fail, because a place has `COPIED_MAX` bytes.
        if record {
            // Does not fail for posted work, which is admitted only while `free_count` is not 0.
            let Some(place) = self.records.free.pop() else { return };
            let _ = self.records.mr.memory().write(place_offset(place), bytes);
            self.of[slot as usize] = place | RECORD;
        } else {
            let Some(place) = self.data.free.pop() else { return };
            let _ = self.data.mr.memory().write(place_offset(place), bytes);
            self.of[slot as usize] = place;
        }
    }

    /// Reads kept bytes.
    pub(crate) fn read_bytes<'b>(&self, slot: u32, buffer: &'b mut [u8]) -> &'b [u8] {
        let place = self.of[slot as usize];
        if place != NONE {
            let memory = if place & RECORD == 0 { self.data.mr.memory() } else { self.records.mr.memory() };
            let _ = memory.read(place_offset(place & !RECORD), buffer);
        }
        buffer
    }

    /// Returns kept payload for the provider.
    #[inline]
    pub(crate) fn payload_slice(&self, slot: u32, len: usize) -> Option<LocalSlice<'_, PayloadTraffic>> {
        let place = self.of[slot as usize];
        if place & RECORD == 0 { self.data.local_slice(place, len) } else { None }
    }

    /// Returns a kept record for the provider.
    #[inline]
    pub(crate) fn record_slice(&self, slot: u32, len: usize) -> Option<LocalSlice<'_, ControlTraffic>> {
        let place = self.of[slot as usize];
        if place != NONE && place & RECORD != 0 {
            self.records.local_slice(place & !RECORD, len)
        } else {
            None
        }
    }

    /// Frees the place of a slot whose operation has completed or was never submitted.
    #[inline]
    pub(crate) fn release_slot(&mut self, slot: u32) {
        match std::mem::replace(&mut self.of[slot as usize], NONE) {
            NONE => {}
            place if place & RECORD == 0 => self.data.free.push(place),
            place => self.records.free.push(place & !RECORD),
        }
    }

    /// Returns the registrations, for operations that outlive the rail.
    pub(crate) fn clone_registrations(
        &self,
    ) -> (Arc<MrEnabled<PayloadTraffic>>, Arc<MrEnabled<ControlTraffic>>) {
        (Arc::clone(&self.data.mr), Arc::clone(&self.records.mr))
    }

    /// Abandons the places of these slots: endpoints that stay open may still use them, and no completion will report their end.
    #[cold]
    pub(crate) fn forget_slots(&mut self, slots: Range<u32>) {
        self.of[slots.start as usize..slots.end as usize].fill(NONE);
    }
}

#[inline]
fn place_offset(place: u32) -> u64 {
    u64::from(place) * COPIED_MAX as u64
}
