//! Contexts: what C's handles stand for. A context is a team, whose indices name PEs, and a lane, over which it begins what goes over the
//! fabric. Looked up without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_proto::reserve::try_filled_with;

use crate::error::{Result, ShmemError};
use crate::fabric_transport::LANES;
use crate::team::{Team, TeamTable, WORLD};

/// Contexts beside the default one.
const CTXS: usize = 1024;
/// The handle of the default context.
pub(crate) const DEFAULT: usize = 1;

const LIVE: u64 = 1 << 63;
/// Its team is no more.
const ORPHAN: u64 = 1 << 62;

/// What a context stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextTarget {
    pub(crate) lane: usize,
    pub(crate) team: Team,
}

/// The contexts of this PE.
#[derive(Debug)]
pub(crate) struct ContextTable {
    /// Of each: whether it lives, and its team does not; its team's slot, its lane, and which use of its place it is.
    words: Box<[AtomicU64]>,
    made: AtomicU64,
}

/// What C holds.
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
    /// None yet.
    ///
    /// # Errors
    /// [`ShmemError::Allocate`].
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { words: try_filled_with(CTXS, AtomicU64::default)?, made: AtomicU64::new(0) })
    }

    /// What a handle stands for.
    #[inline]
    pub(crate) fn find_context(&self, of: usize, teams: &TeamTable) -> Result<ContextTarget> {
        if of == DEFAULT {
            let team = teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
            return Ok(ContextTarget { lane: 0, team });
        }
        let (_, word) = self.find_live(of)?;
        // Another team may have the slot.
        let team = if word & ORPHAN == 0 { teams.team_at(slot_of(word)) } else { None };
        Ok(ContextTarget {
            lane: fabric_context_of(word),
            team: team.ok_or_else(|| ShmemError::no_such("team of the context"))?,
        })
    }

    /// The lane of a context, of which the team may be gone.
    pub(crate) fn fabric_context(&self, of: usize) -> Result<usize> {
        if of == DEFAULT { Ok(0) } else { Ok(fabric_context_of(self.find_live(of)?.1)) }
    }

    /// A team is no more: its contexts name nobody from now on, whoever has its slot next.
    pub(crate) fn lose_team(&self, slot: usize) {
        for place in &self.words {
            let word = place.load(Ordering::Acquire);
            if word & LIVE != 0 && slot_of(word) == slot {
                // One that is destroyed meanwhile has no team to lose.
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

    /// A new context of a team; its handle and the lane that it is to use.
    pub(crate) fn create_context(&self, team: usize) -> Result<(usize, usize)> {
        // The first lane is the default context's; those that are more than lanes share the others.
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

    /// A context is no more.
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
    fn contexts_are_of_one_use_and_share_lanes() {
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
