//! The bytes that operations keep until they have ended, because the provider sends them from registered memory, or had no
//! room when they were posted. One registration a rail and role, of which each operation that needs it has a place; used by the
//! rail, and by its poll, which gives places back.

use std::ops::Range;
use std::sync::Arc;

use trunkline_mem::Memory;
use trunkline_proto::reserve::{try_collect, try_filled};

use crate::domain::Domain;
use crate::rail::COPIED_MAX;
use crate::region::{Local, Model, Mr, RegisterError, Wanted, register};
use crate::rights::Duty;
use crate::role::{Ctrl, Data, Role};

/// Most operations of a rail that have a place at once, for each role.
const PLACES_MAX: u32 = 2048;
/// An operation without one.
const NONE: u32 = u32::MAX;
/// Set for those of records.
const RECORD: u32 = 1 << 31;

/// The places of a role.
struct Slab<R: Role> {
    mr: Arc<Mr<R>>,
    free: Vec<u32>,
}

/// The places.
pub(crate) struct Heads {
    data: Slab<Data>,
    records: Slab<Ctrl>,
    /// By slot of the rail's queue.
    of: Box<[u32]>,
}

impl<R: Role> Slab<R> {
    fn new(domain: &Arc<Domain>, model: &Model<R>, duty: Duty, places: u32) -> Result<Self, RegisterError> {
        let memory = Memory::try_heap(places as usize * COPIED_MAX)?;
        let free = try_collect((0..places).rev())?;
        let mr = register(domain, model, &Wanted::host(&memory, duty))?;
        Ok(Self { mr: Arc::new(mr), free })
    }

    #[inline]
    fn local(&self, place: u32, len: usize) -> Option<Local<'_, R>> {
        self.mr.place().local(at(place), len as u64)
    }
}

impl Heads {
    /// For a rail with so many slots.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        (data, records): (&Model<Data>, &Model<Ctrl>),
        slots: u32,
    ) -> Result<Self, RegisterError> {
        let places = slots.min(PLACES_MAX);
        Ok(Self {
            data: Slab::new(domain, data, Duty::Heads, places)?,
            records: Slab::new(domain, records, Duty::Records, places)?,
            of: try_filled(NONE, slots as usize)?,
        })
    }

    /// Operations that can have one, whatever they are.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.data.free.len().min(self.records.free.len()) as u32
    }

    /// Keeps bytes, at most [`COPIED_MAX`], for the operation of a slot that has no place. Nothing happens if none is left.
    #[inline]
    pub(crate) fn keep(&mut self, slot: u32, record: bool, bytes: &[u8]) {
        // A place has room for all that may be copied.
        if record {
            let Some(place) = self.records.free.pop() else { return };
            let _ = self.records.mr.memory().write(at(place), bytes);
            self.of[slot as usize] = place | RECORD;
        } else {
            let Some(place) = self.data.free.pop() else { return };
            let _ = self.data.mr.memory().write(at(place), bytes);
            self.of[slot as usize] = place;
        }
    }

    /// What was kept.
    pub(crate) fn bytes<'b>(&self, slot: u32, buffer: &'b mut [u8]) -> &'b [u8] {
        let place = self.of[slot as usize];
        if place != NONE {
            let memory = if place & RECORD == 0 { self.data.mr.memory() } else { self.records.mr.memory() };
            let _ = memory.read(at(place & !RECORD), buffer);
        }
        buffer
    }

    /// The same for the provider, of payload.
    #[inline]
    pub(crate) fn payload(&self, slot: u32, len: usize) -> Option<Local<'_, Data>> {
        let place = self.of[slot as usize];
        if place & RECORD == 0 { self.data.local(place, len) } else { None }
    }

    /// The same of a record.
    #[inline]
    pub(crate) fn record(&self, slot: u32, len: usize) -> Option<Local<'_, Ctrl>> {
        let place = self.of[slot as usize];
        if place != NONE && place & RECORD != 0 { self.records.local(place & !RECORD, len) } else { None }
    }

    /// The operation of a slot has ended, or was never given.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        match std::mem::replace(&mut self.of[slot as usize], NONE) {
            NONE => {}
            place if place & RECORD == 0 => self.data.free.push(place),
            place => self.records.free.push(place & !RECORD),
        }
    }

    /// The registrations, for operations that last longer than the rail.
    pub(crate) fn registrations(&self) -> (Arc<Mr<Data>>, Arc<Mr<Ctrl>>) {
        (Arc::clone(&self.data.mr), Arc::clone(&self.records.mr))
    }

    /// Endpoints that stay open may still use the places of these slots, of which nobody will hear: they are not given again.
    #[cold]
    pub(crate) fn lose(&mut self, slots: Range<u32>) {
        self.of[slots.start as usize..slots.end as usize].fill(NONE);
    }
}

#[inline]
fn at(place: u32) -> u64 {
    u64::from(place) * COPIED_MAX as u64
}
