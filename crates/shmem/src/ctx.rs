//! Contexts, by C's handles. A context has a team, whose indices name PEs, and a lane for operations over the fabric.
//! Look-ups take no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_proto::reserve::try_filled_with;

use crate::error::{Result, ShmemError};
use crate::fabric_transport::LANES;
use crate::team::{Team, TeamTable, WORLD};

/// Contexts in addition to the default one.
const CTXS: usize = 1024;
/// The handle of the default context.
pub(crate) const DEFAULT: usize = 1;

const LIVE: u64 = 1 << 63;
/// The context's team was destroyed.
const ORPHAN: u64 = 1 << 62;

/// The lane and the team of a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextTarget {
    pub(crate) lane: usize,
    pub(crate) team: Team,
}

/// The contexts of this PE.
#[derive(Debug)]
pub(crate) struct ContextTable {
    /// One word per context: whether it is live, whether its team was destroyed, the team's slot, the lane, and a use
    /// count.
    words: Box<[AtomicU64]>,
    made: AtomicU64,
}

/// Returns the handle of a context for C.
const fn make_handle(at: usize, word: u64) -> usize {
    (at + 2) | ((word & 0xffff_ffff) as usize) << 16
}

const fn slot_of(word: u64) -> usize {
    (word >> 40 & 0xff) as usize
}

const fn fabric_context_of(word: u64) -> usize {
    (word >> 48 & 0xf) as usize
}

impl ContextTable {
    /// Returns an empty table.
    ///
    /// # Errors
    /// [`ShmemError::Allocate`].
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { words: try_filled_with(CTXS, AtomicU64::default)?, made: AtomicU64::new(0) })
    }

    /// Returns the lane and the team of a handle.
    #[inline]
    pub(crate) fn find_context(&self, of: usize, teams: &TeamTable) -> Result<ContextTarget> {
        if of == DEFAULT {
            let team = teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
            return Ok(ContextTarget { lane: 0, team });
        }
        let (_, word) = self.find_live(of)?;
        // The slot of a destroyed team may have another one.
        let team = if word & ORPHAN == 0 { teams.team_at(slot_of(word)) } else { None };
        Ok(ContextTarget {
            lane: fabric_context_of(word),
            team: team.ok_or_else(|| ShmemError::no_such("team of the context"))?,
        })
    }

    /// Returns the lane of a context, whose team may have been destroyed.
    pub(crate) fn fabric_context(&self, of: usize) -> Result<usize> {
        if of == DEFAULT { Ok(0) } else { Ok(fabric_context_of(self.find_live(of)?.1)) }
    }

    /// Marks the contexts of a destroyed team: their PE indices are invalid, even if another team gets the slot.
    pub(crate) fn lose_team(&self, slot: usize) {
        for place in &self.words {
            let word = place.load(Ordering::Acquire);
            if word & LIVE != 0 && slot_of(word) == slot {
                // A failed exchange means that the context was destroyed meanwhile.
                let _ = place.compare_exchange(word, word | ORPHAN, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    fn find_live(&self, of: usize) -> Result<(usize, u64)> {
        let at = (of & 0xffff).wrapping_sub(2);
        let word = self.words.get(at).map_or(0, |word| word.load(Ordering::Acquire));
        let is_it = word & LIVE != 0 && of == make_handle(at, word);
        if is_it { Ok((at, word)) } else { Err(ShmemError::Handle("context")) }
    }

    /// Creates a context of a team. Returns its handle and its lane.
    pub(crate) fn create_context(&self, team: usize) -> Result<(usize, usize)> {
        // Lane 0 belongs to the default context. More contexts than lanes share the others.
        let lane = 1 + self.made.fetch_add(1, Ordering::Relaxed) as usize % (LANES - 1);
        for (at, word) in self.words.iter().enumerate() {
            let old = word.load(Ordering::Relaxed);
            let uses = (old + 1) & 0xffff_ffff;
            let new = LIVE | (lane as u64) << 48 | (team as u64) << 40 | uses;
            let takes = || word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if old & LIVE == 0 && takes() {
                return Ok((make_handle(at, new), lane));
            }
        }
        Err(ShmemError::Exhausted { what: "contexts", limit: CTXS })
    }

    /// Destroys a context.
    pub(crate) fn destroy(&self, of: usize) -> Result<()> {
        let (at, word) = self.find_live(of)?;
        self.words[at].store(word & 0xffff_ffff, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_handles_are_single_use_and_share_lanes() {
        let shared = Team { slot: 1, start: 0, stride: 1, size: 4 };
        let teams = TeamTable::new(4, shared);
        let ctxs = ContextTable::new().unwrap();
        assert_eq!(ctxs.find_context(DEFAULT, &teams).unwrap().lane, 0);
        assert!(ctxs.find_context(0, &teams).is_err());
        let made: Vec<_> = (0..CTXS).map(|_| ctxs.create_context(WORLD).unwrap()).collect();
        assert!(matches!(ctxs.create_context(WORLD), Err(ShmemError::Exhausted { limit: CTXS, .. })));
        assert_eq!(made.iter().map(|(_, lane)| *lane).take(4).collect::<Vec<_>>(), [1, 2, 3, 1]);
        let (first, lane) = made[7];
        let on = ctxs.find_context(first, &teams).unwrap();
        assert_eq!((on.lane, on.team.size), (lane, 4));
        ctxs.destroy(first).unwrap();
        assert!(ctxs.find_context(first, &teams).is_err() && ctxs.destroy(first).is_err());
        ctxs.lose_team(WORLD);
        assert!(
            ctxs.find_context(made[8].0, &teams).is_err()
                && ctxs.fabric_context(made[8].0).unwrap() == made[8].1
        );
        ctxs.destroy(made[8].0).unwrap();
        assert!(ctxs.fabric_context(made[8].0).is_err());
        let (again, _) = ctxs.create_context(WORLD).unwrap();
        assert!(
            again != first
                && ctxs.find_context(again, &teams).is_ok()
                && ctxs.find_context(first, &teams).is_err()
        );
    }
}
