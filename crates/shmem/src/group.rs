//! Who takes part in a collective: a team, or an active set of PEs with words that the program gives for it. An active set that is all
//! PEs is the world's team.

use trunkline_proto::rma::atomic::{Action, Type};
use trunkline_proto::wire::rma::word::Width;

use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::place::Place;
use crate::team::{Team, WORLD};
use crate::wait::Whom;

/// Words of 8 bytes that an active set needs: as many rounds as a sync may have, and one for the length of what is collected.
pub(crate) const SYNC_WORDS: usize = 32;
/// That one.
const LENGTH: i64 = 24;

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Group {
    /// A team.
    Team(Team),
    /// An active set, and its words, which are 0 between calls.
    Set(Team, Place),
}

impl Group {
    /// Its PEs.
    #[inline]
    pub(crate) fn team(&self) -> &Team {
        match self {
            Self::Team(team) | Self::Set(team, _) => team,
        }
    }
}

impl Pe {
    /// The active set of these PEs, with its words at an address.
    pub(crate) fn set(&self, (start, log_stride, size): (i32, i32, i32), words: usize) -> Result<Group> {
        let world = self.teams.at(WORLD).ok_or_else(Error::not_running)?;
        let wrong = Error::Argument("there is no such active set: see PE_start, logPE_stride and PE_size");
        let (Ok(first), Ok(count), 0..20) = (usize::try_from(start), usize::try_from(size), log_stride)
        else {
            return Err(wrong);
        };
        let stride = 1_i64 << if crate::planted("shmem-sets-have-no-gaps") { 0 } else { log_stride };
        let last = first as i64 + (count as i64 - 1) * stride;
        if count == 0 || last >= self.size as i64 {
            return Err(wrong);
        }
        if count == self.size {
            return Ok(Group::Team(world));
        }
        let place = self.place(words, SYNC_WORDS * 8)?;
        Ok(Group::Set(Team { slot: usize::MAX, start: first, stride, size: count }, place))
    }

    /// Comes back when all of a group have called it.
    pub(crate) fn sync_group(&self, group: &Group) -> Result<()> {
        let Group::Set(team, words) = group else { return self.sync(group.team()) };
        let me = self.index(team)?;
        let mut round = 0;
        let mut step = 1;
        while step < team.size {
            let word = words.plus(round * 8);
            let to = team.pe((me + step) % team.size);
            let from = team.pe((me + team.size - step) % team.size);
            self.change(0, to, word, Type::U64, Action::Add(1))?;
            let whom = Whom::Member(*team, from);
            self.until(whom, || Ok((self.look_at(word, Width::Eight)? > 0).then_some(())))?;
            // Who is ahead may have told of the next time already.
            if !crate::planted("shmem-sets-keep-their-words") {
                self.change(0, self.me, word, Type::U64, Action::Add(u64::MAX))?;
            }
            (round, step) = (round + 1, step * 2);
        }
        Ok(())
    }

    /// Calls `each` with a number of each PE of a group, in the order of their indices.
    pub(crate) fn numbers(&self, group: &Group, mine: u64, mut each: impl FnMut(usize, u64)) -> Result<()> {
        let team = group.team();
        match group {
            Group::Team(team) => self.exchange_words(team, [mine], |index, [number]| each(index, number)),
            Group::Set(_, words) => {
                let word = words.plus(LENGTH * 8);
                self.fetch(0, self.me, word, Type::U64, Action::Set(mine))?;
                self.sync_group(group)?;
                for index in 0..team.size {
                    each(index, self.fetch(0, team.pe(index), word, Type::U64, Action::Fetch)?);
                }
                self.sync_group(group)?;
                self.fetch(0, self.me, word, Type::U64, Action::Set(0)).map(drop)
            }
        }
    }
}
