//! Making teams out of teams. All PEs of the parent take part, and agree upon a slot that all have free.

use crate::error::{Error, Result};
use crate::group::Group;
use crate::pe::Pe;
use crate::team::Team;

/// PEs of a parent, by index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) start: i64,
    pub(crate) stride: i64,
    pub(crate) size: i64,
    /// Contexts that the new team is said to have.
    pub(crate) contexts: u32,
}

impl Pe {
    /// The team of some PEs of a parent: its handle, or 0 if this PE is not in it. `None` if there cannot be such a team, or none has room.
    pub(crate) fn split(&self, parent: usize, part: Part) -> Result<Option<usize>> {
        let parent = self.teams.named(parent)?;
        let me = self.index(&parent)? as i64;
        let last = part.size.checked_sub(1).and_then(|steps| steps.checked_mul(part.stride));
        let last = last.and_then(|steps| steps.checked_add(part.start));
        let inside = |index: i64| (0..parent.size as i64).contains(&index);
        let fits = part.size > 0 && inside(part.start) && last.is_some_and(inside);
        if !fits || (part.stride == 0 && part.size > 1) {
            return Ok(None);
        }
        let group = Group::Team(parent);
        let free = self.numbers(&group, self.teams.free())?.into_iter().fold(u64::MAX, |all, one| all & one);
        if free == 0 {
            return Ok(None);
        }
        let slot = free.trailing_zeros() as usize;
        // Flags of an earlier team stay below.
        let turn = self.numbers(&group, self.teams.turned(slot))?.into_iter().max().unwrap_or(0);
        let stride = if part.size == 1 { 1 } else { part.stride };
        let index = (me - part.start) / stride;
        if (me - part.start) % stride != 0 || !(0..part.size).contains(&index) {
            return Ok(Some(0));
        }
        let start = parent.pe(part.start as usize);
        let team = Team { slot, start, stride: parent.stride * stride, size: part.size as usize };
        Ok(Some(self.teams.make(
            team,
            if crate::planted("shmem-teams-begin-anew") { 0 } else { turn + 1 },
            part.contexts,
        )))
    }

    /// Rows and columns of a parent, whose PEs stand in rows of `width`: this PE's handles of both.
    pub(crate) fn split_2d(
        &self,
        parent: usize,
        width: i64,
        contexts: (u32, u32),
    ) -> Result<Option<(usize, usize)>> {
        let all = self.teams.named(parent)?.size as i64;
        if width <= 0 {
            return Ok(None);
        }
        let width = width.min(all);
        let (mut row, mut column) = (0, 0);
        for start in (0..all).step_by(width as usize) {
            let size = width.min(all - start);
            match self.split(parent, Part { start, stride: 1, size, contexts: contexts.0 })? {
                Some(0) => {}
                Some(team) => row = team,
                None => return Ok(None),
            }
        }
        for start in 0..width {
            let size = (all - start + width - 1) / width;
            match self.split(parent, Part { start, stride: width, size, contexts: contexts.1 })? {
                Some(0) => {}
                Some(team) => column = team,
                None => return Ok(None),
            }
        }
        Ok(Some((row, column)))
    }

    /// The index in one team of who has an index in another.
    pub(crate) fn translate(&self, from: usize, index: i64, to: usize) -> Result<Option<usize>> {
        let (from, to) = (self.teams.named(from)?, self.teams.named(to)?);
        match from.named(index) {
            Ok(pe) => Ok(to.index(pe)),
            Err(Error::NoPe { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
