//! Where what is in a PE's inner memory: words and slots that PEs write into each other, then the stages of lanes. The same in every
//! PE of a job.

use crate::fabric_transport::{LANES, STAGE};

/// Teams that there may be, with the two that always are.
pub(crate) const TEAMS: usize = 64;
/// Rounds of a barrier: as many as the number of PEs has bits.
pub(crate) const ROUNDS: usize = 20;
/// What one thread waits for shares no cache line with others'.
const LINE: u64 = 64;
/// Where it says how this PE has ended: 1 if with all others, and if because another one did so without them, that one's number and
/// [`OF_ANOTHER`]. 0 is all that one says that dies itself.
pub(crate) const LEFT: u64 = 0;
/// What the number of the first one that ended is added to.
pub(crate) const OF_ANOTHER: u64 = 2;
/// Where it says that the program is to end, and with which status, in the lower half.
pub(crate) const EXIT: u64 = LINE;
/// It is to end.
pub(crate) const ENDS: u64 = 1 << 32;
const TEAMS_AT: u64 = 2 * LINE;

/// The layout for so many PEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InnerLayout {
    size: u64,
    /// Bytes of a slot behind its flag.
    pub(crate) slot: u64,
}

impl InnerLayout {
    /// For a job of so many.
    pub(crate) const fn new(size: usize) -> Self {
        let slot = 32_768 / size as u64;
        let slot = if slot > 1024 {
            1024
        } else if slot < LINE {
            LINE
        } else {
            slot & !(LINE - 1)
        };
        Self { size: size as u64, slot }
    }

    const fn team_bytes(&self) -> u64 {
        ROUNDS as u64 * LINE + 2 * self.size * (LINE + self.slot)
    }

    const fn team_offset(&self, team: usize) -> u64 {
        TEAMS_AT + team as u64 * self.team_bytes()
    }

    /// The word by which a PE hears of a round of a team's barrier.
    pub(crate) const fn flag_offset(&self, team: usize, round: usize) -> u64 {
        self.team_offset(team) + round as u64 * LINE
    }

    /// The flag of what the PE of that index writes in an exchange of a team; its bytes are [`InnerLayout::slot_bytes`] further on.
    pub(crate) const fn slot_offset(&self, team: usize, turn: u64, index: usize) -> u64 {
        let at = (turn & 1) * self.size + index as u64;
        self.team_offset(team) + ROUNDS as u64 * LINE + at * (LINE + self.slot)
    }

    /// From a slot's flag to its bytes.
    pub(crate) const fn slot_bytes(flag: u64) -> u64 {
        flag + LINE
    }

    /// Where the stages begin.
    pub(crate) const fn stages_offset(&self) -> u64 {
        self.team_offset(TEAMS).next_multiple_of(4096)
    }

    /// Bytes of all.
    pub(crate) const fn len(&self) -> u64 {
        self.stages_offset() + LANES as u64 * STAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_on_anything_else() {
        for size in [1, 2, 3, 4, 31, 100, 1000, 100_000] {
            let layout = InnerLayout::new(size);
            assert!(layout.slot.is_multiple_of(64) && (64..=1024).contains(&layout.slot), "{size}");
            let mut at = EXIT + 8;
            for team in [0, 1, TEAMS - 1] {
                for round in 0..ROUNDS {
                    assert!(
                        layout.flag_offset(team, round) >= at
                            && layout.flag_offset(team, round).is_multiple_of(64)
                    );
                    at = layout.flag_offset(team, round) + 8;
                }
                for turn in [4, 5] {
                    for index in [0, size - 1] {
                        let flag = layout.slot_offset(team, turn, index);
                        assert!(flag >= at || index == size - 1, "{size} {team} {turn} {index}");
                        at = InnerLayout::slot_bytes(flag) + layout.slot;
                    }
                }
            }
            assert!(
                layout.stages_offset() >= at && layout.len() == layout.stages_offset() + LANES as u64 * STAGE
            );
        }
    }
}
