//! Limits how often one kind of line is logged. The code whose lines a peer can cause calls it; it reads no clock and writes no line.

use crate::time::{Duration, Instant};

/// Lines that may follow one another without a pause.
pub const BURST: u32 = 64;

/// Time after which a further line is allowed.
pub const PERIOD: Duration = Duration::from_secs(1);

/// Counts the lines of one kind: at most [`BURST`] at once, and one per [`PERIOD`] in the long run.
#[derive(Debug)]
pub struct LogRate {
    /// Lines that may be logged now.
    room: u32,
    /// Time up to which elapsed periods have been added to `room`.
    since: Instant,
    left_out: u64,
}

impl LogRate {
    /// Returns a limit that allows the whole burst.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { room: BURST, since: now, left_out: 0 }
    }

    /// Requests one line at `now`. Returns `None` if it must be left out, else the number of lines that were left out since the last one.
    pub fn admit_line(&mut self, now: Instant) -> Option<u64> {
        let periods = (now - self.since).0 / PERIOD.0;
        if periods > 0 {
            self.room = self.room.saturating_add(u32::try_from(periods).unwrap_or(u32::MAX)).min(BURST);
            self.since = self.since + Duration(periods.saturating_mul(PERIOD.0));
        }
        match self.room.checked_sub(1) {
            Some(room) => {
                self.room = room;
                Some(core::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn log_lines_are_bounded_and_omitted_ones_counted() {
        let mut rate = LogRate::new(Instant(5));
        let burst = (0..1000).filter(|_| rate.admit_line(Instant(6)).is_some()).count();
        assert_eq!(burst, BURST as usize);
        assert_eq!(
            rate.admit_line(Instant(5 + SECOND - 1)),
            None,
            "a line was admitted before the period had passed"
        );
        assert_eq!(rate.admit_line(Instant(5 + SECOND)), Some(1000 - u64::from(BURST) + 1));
        assert_eq!(rate.admit_line(Instant(5 + SECOND)), None);
        assert_eq!(rate.admit_line(Instant(5 + 2 * SECOND)), Some(1));
    }

    #[test]
    fn long_pause_allows_one_burst_only() {
        let mut rate = LogRate::new(Instant(0));
        assert_eq!(rate.admit_line(Instant(1)), Some(0));
        let far = Instant(u64::MAX / 2);
        assert_eq!((0..1000).filter(|_| rate.admit_line(far).is_some()).count(), BURST as usize);
    }
}
