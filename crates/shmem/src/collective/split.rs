//! Making teams out of teams. All PEs of the parent take part, and agree upon a slot that all have free.

use crate::error::Result;
use crate::team::Team;

use super::TeamMember;
use super::group::CollectiveGroup;

/// PEs of a parent, by index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TeamPart {
    pub(crate) start: i64,
    pub(crate) stride: i64,
    pub(crate) size: i64,
    /// Contexts that the new team is said to have.
    pub(crate) contexts: u32,
}

impl TeamMember {
    /// The team of some PEs of a parent: its handle, or 0 if this PE is not in it. `None` if there cannot be such a team, or none has room.
    pub(crate) fn split_strided(&self, parent: usize, part: TeamPart) -> Result<Option<usize>> {
        let parent = self.teams.find_team(parent)?;
        let me = self.index(&parent)? as i64;
        let last = part.size.checked_sub(1).and_then(|steps| steps.checked_mul(part.stride));
        let last = last.and_then(|steps| steps.checked_add(part.start));
        let inside = |index: i64| (0..parent.size as i64).contains(&index);
        let fits = part.size > 0 && inside(part.start) && last.is_some_and(inside);
        if !fits || (part.stride == 0 && part.size > 1) {
            return Ok(None);
        }
        let Some((slot, turn)) = self.free_slot(&parent)? else { return Ok(None) };
        Ok(Some(self.join_team(&parent, me, part, slot, turn)))
    }

    /// A slot that all PEs of a parent have free, and the turn that a new team in it begins with. `None` if there is none.
    fn free_slot(&self, parent: &Team) -> Result<Option<(usize, u64)>> {
        let group = CollectiveGroup::Team(*parent);
        let mut free = u64::MAX;
        let mut turn = 0;
        self.exchange_numbers(&group, self.teams.free_slots(), |_, one| free &= one)?;
        if free == 0 {
            return Ok(None);
        }
        let slot = free.trailing_zeros() as usize;
        // Flags of an earlier team stay below.
        self.exchange_numbers(&group, self.teams.current_turn(slot), |_, one| turn = turn.max(one))?;
        Ok(Some((slot, turn + 1)))
    }

    /// Makes a team of that part, of which PEs the parent's index `me` may be one: its handle, or 0.
    /// The team takes `slot` and begins with `turn`.
    fn join_team(&self, parent: &Team, me: i64, part: TeamPart, slot: usize, turn: u64) -> usize {
        let stride = if part.size == 1 { 1 } else { part.stride };
        let index = (me - part.start) / stride;
        if (me - part.start) % stride != 0 || !(0..part.size).contains(&index) {
            return 0;
        }
        let start = parent.pe_at(part.start as usize);
        let step = parent.stride * stride;
        let team = Team { slot, start, stride: step, size: part.size as usize };
        self.teams.install_team(team, turn, part.contexts)
    }

    /// This PE's team of parts that have no PE in common, and so one slot. `None` if there is none free.
    fn split_apart(&self, parent: &Team, parts: impl Iterator<Item = TeamPart>) -> Result<Option<usize>> {
        let me = self.index(parent)? as i64;
        let Some((slot, turn)) = self.free_slot(parent)? else { return Ok(None) };
        let mut mine = 0;
        for part in parts {
            mine = mine.max(self.join_team(parent, me, part, slot, turn));
        }
        Ok(Some(mine))
    }

    /// Rows and columns of a parent, whose PEs stand in rows of `width`: this PE's handles of both. `None` if there is no room for both.
    /// A row's team is said to have `row_contexts` contexts, a column's `column_contexts`.
    pub(crate) fn split_2d(
        &self,
        parent: usize,
        width: i64,
        row_contexts: u32,
        column_contexts: u32,
    ) -> Result<Option<(usize, usize)>> {
        let parent = self.teams.find_team(parent)?;
        let all = parent.size as i64;
        if width <= 0 {
            return Ok(None);
        }
        let width = width.min(all);
        let rows = (0..all).step_by(width as usize).map(|start| TeamPart {
            start,
            stride: 1,
            size: width.min(all - start),
            contexts: row_contexts,
        });
        let columns = (0..width).map(|start| TeamPart {
            start,
            stride: width,
            size: (all - start + width - 1) / width,
            contexts: column_contexts,
        });
        let Some(row) = self.split_apart(&parent, rows)? else { return Ok(None) };
        let column = self.split_apart(&parent, columns)?;
        if column.is_none() {
            self.teams.destroy(row)?;
        }
        Ok(column.map(|column| (row, column)))
    }
}
