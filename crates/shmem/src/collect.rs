//! Collectives that move bytes as they are: broadcast, collect, all-to-all. What is little is pushed to where it belongs; what is much
//! is pulled, by all at once.

use trunkline_mem::Memory;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::pe::Pe;
use crate::place::Place;
use crate::rma::{When, inside};

/// Bytes that one PE pushes to all others by itself.
const PUSHED: usize = 64 << 10;

/// Elements of each PE that go to each other one, and how far apart they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Bytes of an element.
    pub(crate) element: usize,
    /// Elements for each PE.
    pub(crate) count: usize,
    /// Elements from one to the next where they go.
    pub(crate) to: usize,
    /// And where they come from.
    pub(crate) from: usize,
}

impl Pe {
    /// Bytes of one PE, by its index, to all others, and to itself if `own`.
    pub(crate) fn broadcast(
        &self,
        group: &Group,
        (dest, source): (Place, Place),
        len: usize,
        (root, own): (i64, bool),
    ) -> Result<()> {
        let team = group.team();
        let from = team.named(root)?;
        let me = self.index(team)?;
        let mine = |place: Place| self.local(place, len);
        let pushes = len * (team.size - 1) <= PUSHED;
        if !pushes {
            self.sync_group(group)?;
        }
        if self.me != from {
            if !pushes {
                self.get(0, from, source, &mine(dest)?, When::Local)?;
            }
            return self.sync_group(group);
        }
        let bytes = mine(source)?;
        if pushes && len > 0 {
            for step in 1..team.size {
                self.put(0, team.pe((me + step) % team.size), dest, &bytes, When::Now)?;
            }
            self.complete()?;
        }
        if own && dest != source && len > 0 {
            inside(mine(dest)?.copy_from(0, &bytes, 0, len as u64))?;
        }
        self.sync_group(group)
    }

    /// Bytes of every PE to all, one after the other; `len` may differ.
    pub(crate) fn collect(&self, group: &Group, dest: usize, source: &Memory) -> Result<()> {
        let me = self.index(group.team())?;
        let mut total = Some(0_u64);
        let mut before = 0;
        self.numbers(group, source.len() as u64, |index, len| {
            if index == me {
                before = total.unwrap_or(0);
            }
            total = total.and_then(|sum| sum.checked_add(len));
        })?;
        let total = total.ok_or(Error::Argument("no memory has so many elements"))?;
        if crate::planted("shmem-collects-evenly") {
            before = (source.len() * me) as u64;
        }
        let dest = if total > 0 { self.place(dest, total as usize)? } else { Place::inner(0) };
        self.push_to_all(group, dest.plus(before as i64), source)
    }

    /// The same, where all have as many.
    pub(crate) fn fcollect(&self, group: &Group, dest: usize, source: &Memory) -> Result<()> {
        let team = group.team();
        let len = source.len();
        let me = self.index(team)?;
        let dest = if len > 0 { self.place(dest, len.saturating_mul(team.size))? } else { Place::inner(0) };
        self.push_to_all(group, dest.plus((me * len) as i64), source)
    }

    fn push_to_all(&self, group: &Group, to: Place, source: &Memory) -> Result<()> {
        let team = group.team();
        let me = self.index(team)?;
        if !source.is_empty() {
            for step in 0..team.size {
                self.put(0, team.pe((me + step) % team.size), to, source, When::Now)?;
            }
            self.complete()?;
        }
        self.sync_group(group)
    }

    /// The block for each PE, of every PE.
    pub(crate) fn alltoall(&self, group: &Group, dest: Place, source: usize, how: Blocks) -> Result<()> {
        let team = group.team();
        let me = self.index(team)?;
        for step in 0..team.size {
            let to = (me + step) % team.size;
            let first = |block: usize, stride: usize| block * how.count * stride * how.element;
            let there = dest.plus(first(me, how.to) as i64);
            let here = source + first(to, how.from);
            if how.to == 1 && how.from == 1 {
                self.put(0, team.pe(to), there, &memory(here, how.count * how.element), When::Now)?;
                continue;
            }
            for at in 0..how.count {
                let from = memory(here + at * how.from * how.element, how.element);
                let to_at = there.plus((at * how.to * how.element) as i64);
                self.put(0, team.pe(to), to_at, &from, When::Now)?;
            }
        }
        self.complete()?;
        self.sync_group(group)
    }

    /// Bytes of this PE at a place.
    pub(crate) fn local(&self, place: Place, len: usize) -> Result<Memory> {
        if len == 0 {
            return Ok(memory(0, 0));
        }
        let of = &self.segments.0[place.segment];
        let addr =
            of.checked(place.offset, len as u64).map_err(|_| Error::Argument("outside of the memory"))?;
        Ok(memory(addr, len))
    }
}

/// Memory of the program.
pub(crate) fn memory(addr: usize, len: usize) -> Memory {
    // SAFETY: C's caller promises that these bytes are there for the time of the call, and no Rust reference to them exists.
    unsafe { Memory::from_raw(addr, len, trunkline_mem::Kind::Host) }
}
