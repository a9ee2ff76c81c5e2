//! This PE as a member of its teams: how their PEs hear from each other, and the collectives, which `pe` and `abi` call. Never called by what
//! moves the bytes, which is `memory`.
//!
//! A sync is by dissemination: in each round a PE sends a flag to the one twice as far away as in the round before. Exchanged bytes are
//! put into slots of all PEs, two in turn: a PE that begins the next exchange but one has heard from every PE that the first is read.

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

/// Words of 8 bytes that an active set needs: as many rounds as a sync may have, and one for the length of what is collected.
pub(crate) const SYNC_WORDS: usize = 32;
/// That one.
const LENGTH: i64 = 24;

/// This PE as a member of its teams.
///
/// `Pe::start` makes it; `abi` calls it for syncs, collectives and splits, and the calls of the heap for the exchange of their arguments. It
/// knows no context, and allocates no symmetric memory.
///
/// - `memory` is how this PE reaches the others; all flags and slots are in its inner segment, where `layout` has them.
/// - `teams` has the world and the team of those who share memory from the start. The turns of a team count its syncs and exchanges, and
///   every PE of the team makes these in the same order.
pub(crate) struct TeamMember {
    memory: SymmetricMemory,
    teams: TeamTable,
    layout: InnerLayout,
}

impl TeamMember {
    /// A PE that reaches others by `memory`, and `shared` of them by loads and stores.
    pub(crate) fn new(memory: SymmetricMemory, shared: Team, layout: InnerLayout) -> Self {
        let teams = TeamTable::new(memory.pe_count(), shared);
        Self { memory, teams, layout }
    }

    /// The symmetric memory of all PEs.
    #[inline]
    pub(crate) fn symmetric_memory(&self) -> &SymmetricMemory {
        &self.memory
    }

    /// The teams that this PE is in.
    #[inline]
    pub(crate) fn team_table(&self) -> &TeamTable {
        &self.teams
    }

    /// This PE's index in a team.
    pub(crate) fn index(&self, team: &Team) -> Result<usize> {
        team.index(self.memory.own_pe()).ok_or(ShmemError::Argument("this PE is not in the team"))
    }

    /// Comes back when all PEs of a team have called it.
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

    /// Waits for a word of this PE's inner memory, which the PE of that index writes.
    fn wait_flag(&self, team: &Team, from: usize, flag: u64, turn: u64) -> Result<()> {
        let inner = &self.memory.own_segments().0[INNER];
        let whom = ExpectedPe::Member(*team, team.pe_at(from));
        self.memory.wait_until(whom, || Ok((map_bounds_error(inner.load(flag))? >= turn).then_some(())))
    }

    /// All that this PE has begun is complete, and all PEs have come.
    pub(crate) fn barrier_all(&self) -> Result<()> {
        let world = self.teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        self.memory.quiet_all()?;
        self.sync_team(&world)
    }

    /// Gives bytes to all PEs of a team, no more than a slot has, and calls `each` with those of every PE, in their order.
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
        // What is not copied is the caller's again.
        self.memory.find_fabric().map_or(Ok(()), |far| far.quiet(0))
    }

    /// Gives words to all PEs of a team, and calls `each` with those of every PE, in their order. Needs no memory that it may not find: this PE
    /// then need not leave the others waiting.
    pub(crate) fn exchange_words<const N: usize>(
        &self,
        team: &Team,
        mine: [u64; N],
        mut each: impl FnMut(usize, [u64; N]),
    ) -> Result<()> {
        let mine = mine.map(u64::to_le);
        // They are copied before the exchange returns, whether it fails or not.
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

    /// Whether so many bytes fit into a slot.
    pub(crate) fn fits_slot(&self, bytes: usize) -> bool {
        bytes as u64 <= self.layout.slot
    }

    /// The active set of these PEs, with its words at an address.
    pub(crate) fn active_set(
        &self,
        start: i32,
        log_stride: i32,
        size: i32,
        words: usize,
    ) -> Result<CollectiveGroup> {
        let world = self.teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        let wrong =
            ShmemError::Argument("there is no such active set: see PE_start, logPE_stride and PE_size");
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

    /// Comes back when all of a group have called it.
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
            // Who is ahead may have told of the next time already.
            memory.post_atomic(0, memory.own_pe(), word, AtomicType::U64, AtomicAction::Add(u64::MAX))?;
            (round, step) = (round + 1, step * 2);
        }
        Ok(())
    }

    /// Calls `each` with a number of each PE of a group, in the order of their indices.
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
