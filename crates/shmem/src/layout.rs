//! The layout of a PE's inner memory: words and slots that PEs write to each other, then the stages of lanes. It is
//! the same in every PE of a job.

use crate::fabric_transport::{LANES, STAGE};

/// The largest number of teams, including the two predefined ones.
pub(crate) const TEAMS: usize = 64;
/// Rounds of a barrier: one per bit of the number of PEs.
pub(crate) const ROUNDS: usize = 20;
/// Words that different threads wait for are on different cache lines.
const LINE: u64 = 64;
/// The word with the reason of this PE's end: 1 after a common finalize; the number of another PE plus [`OF_ANOTHER`]
/// if this PE ended because of that one. It stays 0 if this PE dies by itself.
pub(crate) const LEFT: u64 = 0;
/// The offset of PE numbers in that word.
pub(crate) const OF_ANOTHER: u64 = 2;
/// The word that ends the program: [`ENDS`], and the exit status in the lower half.
pub(crate) const EXIT: u64 = LINE;
/// The bit that marks the end of the program.
pub(crate) const ENDS: u64 = 1 << 32;
const TEAMS_AT: u64 = 2 * LINE;

/// The layout for a number of PEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InnerLayout {
    size: u64,
    /// Bytes of a slot after its flag.
    pub(crate) slot: u64,
}

impl InnerLayout {
    /// Returns the layout for `size` PEs.
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

    /// Returns the offset of the flag of a round of a team's barrier.
    pub(crate) const fn flag_offset(&self, team: usize, round: usize) -> u64 {
        self.team_offset(team) + round as u64 * LINE
    }

    /// Returns the offset of the flag of the slot to which the PE of an index writes in an exchange of a team; the
    /// bytes begin at [`InnerLayout::slot_bytes`].
    pub(crate) const fn slot_offset(&self, team: usize, turn: u64, index: usize) -> u64 {
        let at = (turn & 1) * self.size + index as u64;
        self.team_offset(team) + ROUNDS as u64 * LINE + at * (LINE + self.slot)
    }

    /// Returns the offset of the bytes of a slot, from its flag's.
    pub(crate) const fn slot_bytes(flag: u64) -> u64 {
        flag + LINE
    }

    /// Returns the offset of the first stage.
    pub(crate) const fn stages_offset(&self) -> u64 {
        self.team_offset(TEAMS).next_multiple_of(4096)
    }

    /// Returns the total number of bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.stages_offset() + LANES as u64 * STAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_ranges_do_not_overlap() {
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
