//! Who takes part in a collective: a team, or an active set of PEs with words that the program gives for it. An active set that is all
//! PEs is the world's team.

use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};
use trunkline_proto::wire::rma::word::WordWidth;

use crate::error::{Result, ShmemError};
use crate::pe::Pe;
use crate::symmetric_segments::SymmetricPlace;
use crate::team::{Team, WORLD};
use crate::wait::ExpectedPe;

/// Words of 8 bytes that an active set needs: as many rounds as a sync may have, and one for the length of what is collected.
pub(crate) const SYNC_WORDS: usize = 32;
/// That one.
const LENGTH: i64 = 24;

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CollectiveGroup {
    /// A team.
    Team(Team),
    /// An active set, and its words, which are 0 between calls.
    Set(Team, SymmetricPlace),
}

impl CollectiveGroup {
    /// Its PEs.
    #[inline]
    pub(crate) fn group_team(&self) -> &Team {
        match self {
            Self::Team(team) | Self::Set(team, _) => team,
        }
    }
}

impl Pe {
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
        let stride = 1_i64 << if crate::is_planted("shmem-sets-have-no-gaps") { 0 } else { log_stride };
        let last = first as i64 + (count as i64 - 1) * stride;
        if count == 0 || last >= self.size as i64 {
            return Err(wrong);
        }
        if count == self.size {
            return Ok(CollectiveGroup::Team(world));
        }
        let place = self.find_place(words, SYNC_WORDS * 8)?;
        Ok(CollectiveGroup::Set(Team { slot: usize::MAX, start: first, stride, size: count }, place))
    }

    /// Comes back when all of a group have called it.
    pub(crate) fn sync_group(&self, group: &CollectiveGroup) -> Result<()> {
        let CollectiveGroup::Set(team, words) = group else { return self.sync_team(group.group_team()) };
        let me = self.index(team)?;
        let mut round = 0;
        let mut step = 1;
        while step < team.size {
            let word = words.offset_by(round * 8);
            let to = team.pe_at((me + step) % team.size);
            let from = team.pe_at((me + team.size - step) % team.size);
            self.post_atomic(0, to, word, AtomicType::U64, AtomicAction::Add(1))?;
            let whom = ExpectedPe::Member(*team, from);
            self.wait_until(whom, || Ok((self.look_at(word, WordWidth::Eight)? > 0).then_some(())))?;
            // Who is ahead may have told of the next time already.
            if !crate::is_planted("shmem-sets-keep-their-words") {
                self.post_atomic(0, self.me, word, AtomicType::U64, AtomicAction::Add(u64::MAX))?;
            }
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
        let team = group.group_team();
        match group {
            CollectiveGroup::Team(team) => {
                self.exchange_words(team, [mine], |index, [number]| each(index, number))
            }
            CollectiveGroup::Set(_, words) => {
                let word = words.offset_by(LENGTH * 8);
                self.fetch_atomic(0, self.me, word, AtomicType::U64, AtomicAction::Set(mine))?;
                self.sync_group(group)?;
                for index in 0..team.size {
                    each(
                        index,
                        self.fetch_atomic(0, team.pe_at(index), word, AtomicType::U64, AtomicAction::Fetch)?,
                    );
                }
                self.sync_group(group)?;
                self.fetch_atomic(0, self.me, word, AtomicType::U64, AtomicAction::Set(0)).map(drop)
            }
        }
    }
}
