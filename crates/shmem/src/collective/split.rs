//! Creates teams from teams. All PEs of the parent take part, and agree on a slot that is free in all of them.

use crate::error::Result;
use crate::team::Team;

use super::TeamMember;
use super::group::CollectiveGroup;

/// A selection of PEs of a parent team, by index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TeamPart {
    pub(crate) start: i64,
    pub(crate) stride: i64,
    pub(crate) size: i64,
    /// The announced number of contexts of the new team.
    pub(crate) contexts: u32,
}

impl TeamMember {
    /// Creates the team of some PEs of a parent. Returns its handle, or 0 if this PE is not in it; `None` if the
    /// selection is invalid or no slot is free.
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

    /// Returns a slot that is free in all PEs of a parent, and the first turn of a new team in it; `None` if there is
    /// none.
    fn free_slot(&self, parent: &Team) -> Result<Option<(usize, u64)>> {
        let group = CollectiveGroup::Team(*parent);
        let mut free = u64::MAX;
        let mut turn = 0;
        self.exchange_numbers(&group, self.teams.free_slots(), |_, one| free &= one)?;
        if free == 0 {
            return Ok(None);
        }
        let slot = free.trailing_zeros() as usize;
        // The turn continues that of earlier teams in the slot, so that their flags are below.
        self.exchange_numbers(&group, self.teams.current_turn(slot), |_, one| turn = turn.max(one))?;
        Ok(Some((slot, turn + 1)))
    }

    /// Installs the team of a selection in `slot`, with `turn` as its first turn, if the parent's index `me` belongs
    /// to it. Returns its handle, or 0.
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

    /// Creates disjoint teams of a parent, which share one slot. Returns this PE's team; `None` if no slot is free.
    fn split_apart(&self, parent: &Team, parts: impl Iterator<Item = TeamPart>) -> Result<Option<usize>> {
        let me = self.index(parent)? as i64;
        let Some((slot, turn)) = self.free_slot(parent)? else { return Ok(None) };
        let mut mine = 0;
        for part in parts {
            mine = mine.max(self.join_team(parent, me, part, slot, turn));
        }
        Ok(Some(mine))
    }

    /// Creates teams for the rows and columns of a parent with rows of `width` PEs. Returns this PE's handles of
    /// both; `None` if there are not two free slots. `row_contexts` and `column_contexts` are the announced numbers
    /// of contexts.
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
