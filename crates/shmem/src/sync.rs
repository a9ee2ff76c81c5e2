//! Syncs and exchanges of a team: how its PEs hear from each other. A sync is by dissemination: in each round a PE tells the one twice
//! as far away as in the round before. What is exchanged goes into slots of all, two in turn: who begins the next but one has heard from
//! everybody that the first is read.

use trunkline_mem::MemoryRange;
use trunkline_proto::wire::rma::signal::UpdateOp;

use crate::atomics::SymmetricSignal;
use crate::collect::raw_memory;
use crate::error::{Result, ShmemError};
use crate::layout::InnerLayout;
use crate::pe::Pe;
use crate::rma::{ReturnPoint, map_bounds_error};
use crate::symmetric_segments::{INNER, SymmetricPlace};
use crate::team::{Team, WORLD};
use crate::wait::ExpectedPe;

impl Pe {
    /// This PE's index in a team.
    pub(crate) fn index(&self, team: &Team) -> Result<usize> {
        team.index(self.me).ok_or(ShmemError::Argument("this PE is not in the team"))
    }

    /// Comes back when all PEs of a team have called it.
    pub(crate) fn sync_team(&self, team: &Team) -> Result<()> {
        let me = self.index(team)?;
        let turn = self.teams.next_turn(team.slot);
        let mut round = 0;
        let mut step = 1;
        let heard = if crate::is_planted("shmem-syncs-early") { team.size / 2 } else { team.size };
        while step < heard {
            let flag = self.layout.flag_offset(team.slot, round);
            self.put_word(team.pe_at((me + step) % team.size), flag, turn)?;
            self.wait_flag(team, (me + team.size - step) % team.size, flag, turn)?;
            (round, step) = (round + 1, step * 2);
        }
        Ok(())
    }

    /// Waits for a word of this PE's inner memory, which the PE of that index writes.
    fn wait_flag(&self, team: &Team, from: usize, flag: u64, turn: u64) -> Result<()> {
        let inner = &self.segments.0[INNER];
        let whom = ExpectedPe::Member(*team, team.pe_at(from));
        self.wait_until(whom, || Ok((map_bounds_error(inner.load(flag))? >= turn).then_some(())))
    }

    /// All that this PE has begun is complete, and all PEs have come.
    pub(crate) fn barrier_all(&self) -> Result<()> {
        let world = self.teams.team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        self.quiet_all()?;
        self.sync_team(&world)
    }

    /// All that this PE has begun is complete.
    pub(crate) fn quiet_all(&self) -> Result<()> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if crate::is_planted("shmem-barriers-complete-nothing") {
            return Ok(());
        }
        self.far.as_ref().map_or(Ok(()), crate::fabric_transport::FabricTransport::quiet_all)
    }

    /// Whether all that this PE has begun is complete by now.
    pub(crate) fn poll_quiet_all(&self) -> Result<bool> {
        self.far.as_ref().map_or(Ok(true), crate::fabric_transport::FabricTransport::is_quiet)
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
            self.put_signal(0, pe, to, mine, signal, ReturnPoint::Now)?;
        }
        for index in 0..team.size {
            if index == me {
                each(index, mine, 0)?;
                continue;
            }
            let flag = self.layout.slot_offset(team.slot, turn, index);
            self.wait_flag(team, index, flag, turn)?;
            each(index, &self.segments.0[INNER], InnerLayout::slot_bytes(flag))?;
        }
        // What is not copied is the caller's again.
        self.far.as_ref().map_or(Ok(()), |far| far.quiet(0))
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
}
