//! This PE as a member of its teams: synchronization, exchanges and collectives. Called by `pe` and `abi`; `memory`,
//! which moves the bytes, never calls it.
//!
//! A sync is a dissemination barrier: in each round a PE sends a flag to a PE twice as far away as in the round
//! before. Exchanged bytes are put into slots of all PEs, in two alternating sets. Before a PE begins the next
//! exchange but one, every PE has confirmed that it has read the first.

pub(crate) mod collect;
pub(crate) mod group;
pub(crate) mod reduce;
pub(crate) mod split;

use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};
use trunkline_proto::wire::rma::signal::UpdateOp;
use trunkline_proto::wire::rma::word::WordWidth;

use crate::error::{Result, ShmemError};
use crate::layout::InnerLayout;
use crate::memory::atomics::SymmetricSignal;
use crate::memory::rma::{ReturnPoint, map_bounds_error};
use crate::memory::wait::ExpectedPe;
use crate::memory::{SymmetricMemory, raw_memory};
use crate::symmetric_segments::{INNER, SymmetricPlace};
use crate::team::{Team, TeamTable, WORLD};

use self::group::CollectiveGroup;

/// Words of 8 bytes of an active set: one per round of a sync, and one for the length of collected data.
pub(crate) const SYNC_WORDS: usize = 32;
/// The index of the word for the length.
const LENGTH: i64 = 24;

/// This PE as a member of its teams.
///
/// `Pe::start` creates it. `abi` calls it for syncs, collectives and splits, and the calls of the heap for the
/// exchange of their arguments. It knows no context, and allocates no symmetric memory.
///
/// - `memory` accesses the other PEs. All flags and slots are in its inner segment, at the offsets of `layout`.
/// - `teams` contains the world and the shared team from the start. The turns of a team count its syncs and
///   exchanges, which every PE of the team makes in the same order.
pub(crate) struct TeamMember {
    memory: SymmetricMemory,
    teams: TeamTable,
    layout: InnerLayout,
}

impl TeamMember {
    /// Returns a member that accesses other PEs by `memory`; those of `shared` by loads and stores.
    pub(crate) fn new(memory: SymmetricMemory, shared: Team, layout: InnerLayout) -> Self {
        let teams = TeamTable::new(memory.pe_count(), shared);
        Self { memory, teams, layout }
    }

    /// Returns the symmetric memory of all PEs.
    #[inline]
    pub(crate) fn symmetric_memory(&self) -> &SymmetricMemory {
        &self.memory
    }

    /// Returns the teams of this PE.
    #[inline]
    pub(crate) fn team_table(&self) -> &TeamTable {
        &self.teams
    }

    /// Returns this PE's index in a team.
    pub(crate) fn index(&self, team: &Team) -> Result<usize> {
        team.index(self.memory.own_pe()).ok_or(ShmemError::Argument("this PE is not in the team"))
    }

    /// Returns when all PEs of a team have called it.
    pub(crate) fn sync_team(&self, team: &Team) -> Result<()> {
        let me = self.index(team)?;
        let turn = self.teams.next_turn(team.slot);
        let mut round = 0;
        let mut step = 1;
        while step < team.size {
            let flag = self.layout.flag_offset(team.slot, round);
            self.memory.put_word(team.pe_at((me + step) % team.size), flag, turn)?;
            self.wait_flag(team, (me + team.size - step) % team.size, flag, turn)?;
            (round, step) = (round + 1, step * 2);
        }
        Ok(())
    }

    /// Waits for a word of this PE's inner memory, which the PE of index `from` writes.
    fn wait_flag(&self, team: &Team, from: usize, flag: u64, turn: u64) -> Result<()> {
        let inner = &self.memory.own_segments().0[INNER];
        let whom = ExpectedPe::Member(*team, team.pe_at(from));
        self.memory.wait_until(whom, || Ok((map_bounds_error(inner.load(flag))? >= turn).then_some(())))
    }

    /// Completes all operations of this PE, and waits until all PEs have called it.
    pub(crate) fn barrier_all(&self) -> Result<()> {
        let world = self.teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        self.memory.quiet_all()?;
        self.sync_team(&world)
    }

    /// Sends bytes to all PEs of a team, at most the length of a slot, and calls `each` with the bytes of every PE,
    /// in order.
    pub(crate) fn exchange_bytes(
        &self,
        team: &Team,
        mine: &MemoryRange,
        mut each: impl FnMut(usize, &MemoryRange, u64) -> Result<()>,
    ) -> Result<()> {
        let me = self.index(team)?;
        let turn = self.teams.next_turn(team.slot);
        let flag = self.layout.slot_offset(team.slot, turn, me);
        for step in 1..team.size {
            let pe = team.pe_at((me + step) % team.size);
            let to = SymmetricPlace::in_inner(InnerLayout::slot_bytes(flag));
            let signal =
                SymmetricSignal { op: UpdateOp::Set, place: SymmetricPlace::in_inner(flag), value: turn };
            self.memory.put_signal(0, pe, to, mine, signal, ReturnPoint::Now)?;
        }
        for index in 0..team.size {
            if index == me {
                each(index, mine, 0)?;
                continue;
            }
            let flag = self.layout.slot_offset(team.slot, turn, index);
            self.wait_flag(team, index, flag, turn)?;
            each(index, &self.memory.own_segments().0[INNER], InnerLayout::slot_bytes(flag))?;
        }
        // Bytes that were put without a copy belong to the caller again when this returns.
        self.memory.find_fabric().map_or(Ok(()), |far| far.quiet(0))
    }

    /// Sends words to all PEs of a team, and calls `each` with the words of every PE, in order. It allocates no
    /// memory, so it cannot fail for lack of it and leave the other PEs waiting.
    pub(crate) fn exchange_words<const N: usize>(
        &self,
        team: &Team,
        mine: [u64; N],
        mut each: impl FnMut(usize, [u64; N]),
    ) -> Result<()> {
        let mine = mine.map(u64::to_le);
        // The words are copied before the exchange returns, also if it fails.
        let own = raw_memory(mine.as_ptr().expose_provenance(), size_of_val(&mine));
        self.exchange_bytes(team, &own, |index, memory, at| {
            let mut theirs = [0; N];
            for (at, word) in (at..).step_by(8).zip(&mut theirs) {
                *word = map_bounds_error(memory.load(at))?;
            }
            each(index, theirs);
            Ok(())
        })
    }

    /// Returns whether the bytes fit into a slot.
    pub(crate) fn fits_slot(&self, bytes: usize) -> bool {
        bytes as u64 <= self.layout.slot
    }

    /// Returns the active set of these PEs, whose words are at an address of the program.
    pub(crate) fn active_set(
        &self,
        start: i32,
        log_stride: i32,
        size: i32,
        words: usize,
    ) -> Result<CollectiveGroup> {
        let world = self.teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        let wrong =
            ShmemError::Argument("the active set is invalid; check PE_start, logPE_stride and PE_size");
        let (Ok(first), Ok(count), 0..20) = (usize::try_from(start), usize::try_from(size), log_stride)
        else {
            return Err(wrong);
        };
        let stride = 1_i64 << log_stride;
        let last = first as i64 + (count as i64 - 1) * stride;
        if count == 0 || last >= self.memory.pe_count() as i64 {
            return Err(wrong);
        }
        if count == self.memory.pe_count() {
            return Ok(CollectiveGroup::Team(world));
        }
        let place = self.memory.find_place(words, SYNC_WORDS * 8)?;
        Ok(CollectiveGroup::Set(Team { slot: usize::MAX, start: first, stride, size: count }, place))
    }

    /// Returns when all PEs of a group have called it.
    pub(crate) fn sync_group(&self, group: &CollectiveGroup) -> Result<()> {
        let CollectiveGroup::Set(team, words) = group else { return self.sync_team(group.group_team()) };
        let memory = &self.memory;
        let me = self.index(team)?;
        let mut round = 0;
        let mut step = 1;
        while step < team.size {
            let word = words.offset_by(round * 8);
            let to = team.pe_at((me + step) % team.size);
            let from = team.pe_at((me + team.size - step) % team.size);
            memory.post_atomic(0, to, word, AtomicType::U64, AtomicAction::Add(1))?;
            let whom = ExpectedPe::Member(*team, from);
            memory.wait_until(whom, || Ok((memory.look_at(word, WordWidth::Eight)? > 0).then_some(())))?;
            // Subtract instead of clearing: a faster PE may have incremented the word for the next call already.
            memory.post_atomic(0, memory.own_pe(), word, AtomicType::U64, AtomicAction::Add(u64::MAX))?;
            (round, step) = (round + 1, step * 2);
        }
        Ok(())
    }

    /// Calls `each` with the number that each PE of a group passes, in the order of indices.
    pub(crate) fn exchange_numbers(
        &self,
        group: &CollectiveGroup,
        mine: u64,
        mut each: impl FnMut(usize, u64),
    ) -> Result<()> {
        let memory = &self.memory;
        let team = group.group_team();
        match group {
            CollectiveGroup::Team(team) => {
                self.exchange_words(team, [mine], |index, [number]| each(index, number))
            }
            CollectiveGroup::Set(_, words) => {
                let word = words.offset_by(LENGTH * 8);
                memory.fetch_atomic(0, memory.own_pe(), word, AtomicType::U64, AtomicAction::Set(mine))?;
                self.sync_group(group)?;
                for index in 0..team.size {
                    each(
                        index,
                        memory.fetch_atomic(
                            0,
                            team.pe_at(index),
                            word,
                            AtomicType::U64,
                            AtomicAction::Fetch,
                        )?,
                    );
                }
                self.sync_group(group)?;
                memory.fetch_atomic(0, memory.own_pe(), word, AtomicType::U64, AtomicAction::Set(0)).map(drop)
            }
        }
    }
}
