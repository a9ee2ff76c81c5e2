//! Collectives that move bytes unchanged: broadcast, collect and all-to-all. Short data is pushed to its destination;
//! long data is pulled, by all PEs at the same time.

use trunkline_mem::MemoryRange;

use crate::error::{Result, ShmemError};
use crate::memory::raw_memory;
use crate::memory::rma::{ReturnPoint, map_bounds_error};
use crate::symmetric_segments::SymmetricPlace;

use super::TeamMember;
use super::group::CollectiveGroup;

/// Bytes that one PE pushes to all others by itself.
const PUSHED: usize = 64 << 10;

/// The blocks of an all-to-all, and the strides of their elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementBlocks {
    /// Bytes per element.
    pub(crate) element: usize,
    /// Elements for each PE.
    pub(crate) count: usize,
    /// The stride at the destination, in elements.
    pub(crate) to: usize,
    /// The stride at the source, in elements.
    pub(crate) from: usize,
}

impl TeamMember {
    /// Copies `len` bytes of the PE with the index `root` to all other PEs of the group, and to that PE itself
    /// if `own`.
    pub(crate) fn broadcast(
        &self,
        group: &CollectiveGroup,
        dest: SymmetricPlace,
        source: SymmetricPlace,
        len: usize,
        root: i64,
        own: bool,
    ) -> Result<()> {
        let team = group.group_team();
        let from = team.checked_pe(root)?;
        let me = self.index(team)?;
        let mine = |place: SymmetricPlace| self.memory.local_memory(place, len);
        let pushes = len * (team.size - 1) <= PUSHED;
        if !pushes {
            self.sync_group(group)?;
        }
        if self.memory.own_pe() != from {
            if !pushes {
                self.memory.get(0, from, source, &mine(dest)?, ReturnPoint::Local)?;
            }
            return self.sync_group(group);
        }
        let bytes = mine(source)?;
        if pushes && len > 0 {
            for step in 1..team.size {
                self.memory.put(0, team.pe_at((me + step) % team.size), dest, &bytes, ReturnPoint::Now)?;
            }
            self.memory.quiet_all()?;
        }
        if own && dest != source && len > 0 {
            map_bounds_error(mine(dest)?.copy_from(0, &bytes, 0, len as u64))?;
        }
        self.sync_group(group)
    }

    /// Collects the bytes of every PE at all PEs, one after another. Lengths may differ.
    pub(crate) fn collect(&self, group: &CollectiveGroup, dest: usize, source: &MemoryRange) -> Result<()> {
        let me = self.index(group.group_team())?;
        let mut total = Some(0_u64);
        let mut before = 0;
        self.exchange_numbers(group, source.len() as u64, |index, len| {
            if index == me {
                before = total.unwrap_or(0);
            }
            total = total.and_then(|sum| sum.checked_add(len));
        })?;
        let total = total.ok_or(ShmemError::Argument("the elements exceed the address space"))?;
        let dest = if total > 0 {
            self.memory.find_place(dest, total as usize)?
        } else {
            SymmetricPlace::in_inner(0)
        };
        self.push_to_all(group, dest.offset_by(before as i64), source)
    }

    /// Collects the bytes of every PE at all PEs, one after another. All PEs pass the same length.
    pub(crate) fn fcollect(&self, group: &CollectiveGroup, dest: usize, source: &MemoryRange) -> Result<()> {
        let team = group.group_team();
        let len = source.len();
        let me = self.index(team)?;
        let dest = if len > 0 {
            self.memory.find_place(dest, len.saturating_mul(team.size))?
        } else {
            SymmetricPlace::in_inner(0)
        };
        self.push_to_all(group, dest.offset_by((me * len) as i64), source)
    }

    fn push_to_all(&self, group: &CollectiveGroup, to: SymmetricPlace, source: &MemoryRange) -> Result<()> {
        let team = group.group_team();
        let me = self.index(team)?;
        if !source.is_empty() {
            for step in 0..team.size {
                self.memory.put(0, team.pe_at((me + step) % team.size), to, source, ReturnPoint::Now)?;
            }
            self.memory.quiet_all()?;
        }
        self.sync_group(group)
    }

    /// Sends each PE its block of every PE.
    pub(crate) fn alltoall(
        &self,
        group: &CollectiveGroup,
        dest: SymmetricPlace,
        source: usize,
        how: ElementBlocks,
    ) -> Result<()> {
        let team = group.group_team();
        let me = self.index(team)?;
        for step in 0..team.size {
            let to = (me + step) % team.size;
            let first = |block: usize, stride: usize| block * how.count * stride * how.element;
            let there = dest.offset_by(first(me, how.to) as i64);
            let here = source + first(to, how.from);
            if how.to == 1 && how.from == 1 {
                self.memory.put(
                    0,
                    team.pe_at(to),
                    there,
                    &raw_memory(here, how.count * how.element),
                    ReturnPoint::Now,
                )?;
                continue;
            }
            for at in 0..how.count {
                let from = raw_memory(here + at * how.from * how.element, how.element);
                let to_at = there.offset_by((at * how.to * how.element) as i64);
                self.memory.put(0, team.pe_at(to), to_at, &from, ReturnPoint::Now)?;
            }
        }
        self.memory.quiet_all()?;
        self.sync_group(group)
    }
}
