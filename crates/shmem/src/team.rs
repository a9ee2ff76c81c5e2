//! Teams and their handles in C. Look-ups take no lock; `collective::split` creates and destroys teams.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Result, ShmemError};
use crate::layout::TEAMS;

/// The slot of the team of all PEs.
pub(crate) const WORLD: usize = 0;
/// The slot of the team of PEs that share memory with this one.
pub(crate) const SHARED: usize = 1;

const PE_BITS: u32 = 20;
const MASK: u64 = (1 << PE_BITS) - 1;
/// The largest number of PEs of a job.
pub(crate) const PES_MAX: usize = 1 << (PE_BITS - 1);
const LIVE: u64 = 1 << 63;

/// PEs at equal distances.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Team {
    /// The slot of the team, equal in all its PEs.
    pub(crate) slot: usize,
    /// The number of its first PE in the world.
    pub(crate) start: usize,
    /// The distance from one PE to the next.
    pub(crate) stride: i64,
    /// The number of PEs.
    pub(crate) size: usize,
}

impl Team {
    /// Returns the PE of an index.
    #[inline]
    pub(crate) fn pe_at(&self, index: usize) -> usize {
        (self.start as i64 + index as i64 * self.stride) as usize
    }

    /// Returns the index of a PE.
    #[inline]
    pub(crate) fn index(&self, pe: usize) -> Option<usize> {
        let from = pe as i64 - self.start as i64;
        let index = if self.stride == 0 { from } else { from / self.stride };
        let is_in = (0..self.size as i64).contains(&index) && index * self.stride == from;
        is_in.then_some(index as usize)
    }

    /// Returns the PE of an index that the program passed.
    #[inline]
    pub(crate) fn checked_pe(&self, index: i64) -> Result<usize> {
        match usize::try_from(index) {
            Ok(at) if at < self.size => Ok(self.pe_at(at)),
            _ => Err(ShmemError::NoPe { pe: index, size: self.size }),
        }
    }

    fn to_bits(self) -> u64 {
        LIVE | self.start as u64
            | (self.size as u64) << PE_BITS
            | (self.stride as u64 & MASK) << (2 * PE_BITS)
    }

    fn from_bits(slot: usize, word: u64) -> Option<Self> {
        let stride = ((word >> (2 * PE_BITS)) & MASK) as i64;
        let stride = if stride >= 1 << (PE_BITS - 1) { stride - (1 << PE_BITS) } else { stride };
        let start = (word & MASK) as usize;
        let size = (word >> PE_BITS & MASK) as usize;
        (word & LIVE != 0).then_some(Self { slot, start, stride, size })
    }
}

/// The teams of this PE.
#[derive(Debug)]
pub(crate) struct TeamTable {
    shapes: [AtomicU64; TEAMS],
    /// The use count of each slot.
    uses: [AtomicU32; TEAMS],
    /// The number of syncs and exchanges per team, which all its PEs count alike.
    turns: [AtomicU64; TEAMS],
    /// The number of contexts that the program announced; informational.
    contexts: [AtomicU32; TEAMS],
}

impl TeamTable {
    /// Returns a table with the world and the shared team.
    pub(crate) fn new(size: usize, shared: Team) -> Self {
        let teams = Self {
            shapes: [const { AtomicU64::new(0) }; TEAMS],
            uses: [const { AtomicU32::new(0) }; TEAMS],
            turns: [const { AtomicU64::new(0) }; TEAMS],
            contexts: [const { AtomicU32::new(0) }; TEAMS],
        };
        teams.store_team(Team { slot: WORLD, start: 0, stride: 1, size }, 0);
        teams.store_team(Team { slot: SHARED, ..shared }, 0);
        teams
    }

    fn store_team(&self, team: Team, turn: u64) {
        self.turns[team.slot].store(turn, Ordering::Relaxed);
        self.shapes[team.slot].store(team.to_bits(), Ordering::Release);
    }

    /// Returns the team of a slot.
    #[inline]
    pub(crate) fn team_at(&self, slot: usize) -> Option<Team> {
        Team::from_bits(slot, self.shapes.get(slot)?.load(Ordering::Acquire))
    }

    /// Returns the free slots of this PE, as bits.
    pub(crate) fn free_slots(&self) -> u64 {
        let free = |slot: &usize| self.shapes[*slot].load(Ordering::Relaxed) == 0;
        (0..TEAMS).filter(free).fold(0, |bits, slot| bits | 1 << slot)
    }

    /// Returns the next turn of a team.
    pub(crate) fn next_turn(&self, slot: usize) -> u64 {
        self.turns[slot].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the current turn of a slot.
    pub(crate) fn current_turn(&self, slot: usize) -> u64 {
        self.turns[slot].load(Ordering::Relaxed)
    }

    /// Installs a team in a slot that is free in all its PEs, with the agreed turn. Returns its handle.
    pub(crate) fn install_team(&self, team: Team, turn: u64, contexts: u32) -> usize {
        self.contexts[team.slot].store(contexts, Ordering::Relaxed);
        self.store_team(team, turn);
        make_handle(team.slot, self.uses[team.slot].fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns the team of a handle.
    #[inline]
    pub(crate) fn find_team(&self, of: usize) -> Result<Team> {
        let slot = (of & 0xff).wrapping_sub(1);
        let is_now = || of == make_handle(slot, self.uses[slot].load(Ordering::Relaxed));
        let live = self.team_at(slot).filter(|_| is_now());
        live.ok_or_else(|| ShmemError::no_such("team"))
    }

    /// Returns the announced number of contexts of a team.
    pub(crate) fn context_count(&self, team: &Team) -> u32 {
        self.contexts[team.slot].load(Ordering::Relaxed)
    }

    /// Returns the handle of the team that has a slot now.
    pub(crate) fn team_handle(&self, slot: usize) -> usize {
        make_handle(slot, self.uses[slot].load(Ordering::Relaxed))
    }

    /// Translates an index of one team to the index of the same PE in another.
    pub(crate) fn translate_index(&self, from: usize, index: i64, to: usize) -> Result<Option<usize>> {
        let from = self.find_team(from)?;
        let to = self.find_team(to)?;
        match from.checked_pe(index) {
            Ok(pe) => Ok(to.index(pe)),
            Err(ShmemError::NoPe { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Destroys a team.
    pub(crate) fn destroy(&self, of: usize) -> Result<()> {
        let team = self.find_team(of)?;
        if team.slot <= SHARED {
            return Err(ShmemError::Argument("SHMEM_TEAM_WORLD and SHMEM_TEAM_SHARED cannot be destroyed"));
        }
        self.shapes[team.slot].store(0, Ordering::Release);
        Ok(())
    }
}

/// Returns the handle of a team for C, which is never 0.
fn make_handle(slot: usize, uses: u32) -> usize {
    (slot + 1) | (uses as usize) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_packed_and_unpacked() {
        for (start, stride, size) in
            [(0, 1, 1), (5, 0, 1), (7, -2, 4), (PES_MAX - 1, -1, PES_MAX), (3, 400_000, 2)]
        {
            let team = Team { slot: 9, start, stride, size };
            assert_eq!(Team::from_bits(9, team.to_bits()), Some(team));
        }
        assert_eq!(Team::from_bits(9, 0), None);
    }

    #[test]
    fn indices_and_pes_are_each_others_inverse() {
        let team = Team { slot: 0, start: 7, stride: -2, size: 4 };
        assert_eq!((0..4).map(|index| team.pe_at(index)).collect::<Vec<_>>(), [7, 5, 3, 1]);
        assert_eq!(
            (0..9).map(|pe| team.index(pe)).collect::<Vec<_>>(),
            [None, Some(3), None, Some(2), None, Some(1), None, Some(0), None]
        );
        assert!(team.checked_pe(3).is_ok() && team.checked_pe(4).is_err() && team.checked_pe(-1).is_err());
    }

    #[test]
    fn team_handles_are_single_use() {
        let teams = TeamTable::new(4, Team { slot: 1, start: 0, stride: 1, size: 4 });
        assert_eq!((teams.find_team(1).unwrap().size, teams.find_team(2).unwrap().slot), (4, SHARED));
        let team = Team { slot: 5, start: 1, stride: 2, size: 2 };
        let first = teams.install_team(team, 9, 3);
        assert_eq!(
            (teams.find_team(first).unwrap(), teams.next_turn(5), teams.context_count(&team)),
            (team, 10, 3)
        );
        assert_eq!(teams.free_slots() & 0x3f, 0b01_1100);
        teams.destroy(first).unwrap();
        assert!(teams.find_team(first).is_err() && teams.destroy(first).is_err());
        let second = teams.install_team(team, 20, 0);
        assert!(second != first && teams.find_team(first).is_err() && teams.find_team(second).is_ok());
        for wrong in [0, 3, 255, usize::MAX] {
            assert!(teams.find_team(wrong).is_err(), "{wrong}");
        }
        assert!(teams.destroy(1).is_err());
    }
}
