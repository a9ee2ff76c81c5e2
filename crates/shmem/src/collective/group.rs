//! Who takes part in a collective: a team, or an active set of PEs with words that the program gives for it. An active set that is all
//! PEs is the world's team.

use crate::symmetric_segments::SymmetricPlace;
use crate::team::Team;

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
