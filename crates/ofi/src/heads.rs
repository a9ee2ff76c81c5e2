//! The bytes that operations keep until they have ended, because the provider sends them from registered memory, or had no
//! room when they were posted. One registration a rail, of which each operation that needs it has a place; used by the rail,
//! and by its poll, which gives places back.

use trunkline_mem::Memory;

use crate::domain::Domain;
use crate::rail::COPIED_MAX;
use crate::region::{Local, Model, Mr, RegisterError, Wanted, register};
use crate::rights::Duty;
use crate::role::Data;

/// Most operations of a rail that have a place at once.
const PLACES_MAX: u32 = 2048;
/// An operation without one.
const NONE: u32 = u32::MAX;

/// The places.
pub(crate) struct Heads {
    mr: Mr<Data>,
    free: Vec<u32>,
    /// By slot of the rail's queue.
    of: Box<[u32]>,
}

impl Heads {
    /// For a rail with so many slots.
    pub(crate) fn new(
        domain: &std::sync::Arc<Domain>,
        model: &Model<Data>,
        slots: u32,
    ) -> Result<Self, RegisterError> {
        let places = slots.min(PLACES_MAX);
        let memory = Memory::heap(places as usize * COPIED_MAX);
        let mr = register(domain, model, &Wanted::host(&memory, Duty::Heads))?;
        Ok(Self { mr, free: (0..places).rev().collect(), of: vec![NONE; slots as usize].into() })
    }

    /// Operations that can have one.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.free.len() as u32
    }

    /// Keeps bytes, at most [`COPIED_MAX`], for the operation of a slot that has no place. False: there is none left.
    #[inline]
    pub(crate) fn keep(&mut self, slot: u32, bytes: &[u8]) -> bool {
        let Some(place) = self.free.pop() else { return false };
        self.of[slot as usize] = place;
        // A place has room for all that may be copied.
        let _ = self.mr.memory().write(at(place), bytes);
        true
    }

    /// What was kept.
    pub(crate) fn bytes<'b>(&self, slot: u32, buffer: &'b mut [u8]) -> &'b [u8] {
        if self.of[slot as usize] != NONE {
            let _ = self.mr.memory().read(at(self.of[slot as usize]), buffer);
        }
        buffer
    }

    /// The same for the provider.
    #[inline]
    pub(crate) fn local(&self, slot: u32, len: usize) -> Option<Local<'_, Data>> {
        let place = self.of[slot as usize];
        if place == NONE { None } else { self.mr.place().local(at(place), len as u64) }
    }

    /// The operation of a slot has ended, or was never given.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.of[slot as usize], NONE);
        if place != NONE {
            self.free.push(place);
        }
    }

    /// Endpoints that stay open may still use the places of these slots, of which nobody will hear: they are not given again.
    #[cold]
    pub(crate) fn lose(&mut self, slots: std::ops::Range<u32>) {
        self.of[slots.start as usize..slots.end as usize].fill(NONE);
    }
}

#[inline]
fn at(place: u32) -> u64 {
    u64::from(place) * COPIED_MAX as u64
}
