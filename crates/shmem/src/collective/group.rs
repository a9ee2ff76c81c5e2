//! The participants of a collective: a team, or an active set of PEs with words that the program provides. An active
//! set of all PEs is the world's team.

use crate::symmetric_segments::SymmetricPlace;
use crate::team::Team;

/// The participants of a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CollectiveGroup {
    /// A team.
    Team(Team),
    /// An active set and its words, which are 0 between calls.
    Set(Team, SymmetricPlace),
}

impl CollectiveGroup {
    /// Returns the PEs of the group.
    #[inline]
    pub(crate) fn group_team(&self) -> &Team {
        match self {
            Self::Team(team) | Self::Set(team, _) => team,
        }
    }
}
