//! A token bucket that limits the work for processes that have not authenticated, and the links that one member of a
//! job may request. Called by the code that accepts and reads control streams; reads no clock.

use crate::limits::{DIALS_BURST, DIALS_PERIOD, STRANGER_BURST, STRANGER_PERIOD};
use crate::time::{Duration, Instant};

/// A budget of work: at most its burst at once, and one unit per period in the long run.
#[derive(Clone, Copy, Debug)]
pub struct WorkBudget {
    /// Units that remain.
    room: u32,
    burst: u32,
    period: Duration,
    /// Time up to which elapsed periods have been added to `room`.
    since: Instant,
}

impl WorkBudget {
    /// Returns a listener's budget for all streams that have not authenticated: a unit per accepted stream, and per
    /// frame that is read from one.
    #[must_use]
    pub const fn for_strangers() -> Self {
        Self::new(STRANGER_BURST, STRANGER_PERIOD)
    }

    /// Returns the budget for the dials of one member of a job: a unit per dial. A dial is a member's request for a
    /// link.
    #[must_use]
    pub const fn for_dials() -> Self {
        Self::new(DIALS_BURST, DIALS_PERIOD)
    }

    const fn new(burst: u32, period: Duration) -> Self {
        Self { room: burst, burst, period, since: Instant(0) }
    }

    /// Adds the units of elapsed periods, then returns whether a unit remains at `now`.
    pub fn check_room(&mut self, now: Instant) -> bool {
        let periods = (now - self.since).0 / self.period.0;
        if periods > 0 {
            self.room = self.room.saturating_add(u32::try_from(periods).unwrap_or(u32::MAX)).min(self.burst);
            self.since = self.since + Duration(periods.saturating_mul(self.period.0));
        }
        self.room > 0
    }

    /// Spends units. If the cost exceeds the remaining units, none remain.
    pub fn spend_units(&mut self, units: u32) {
        self.room = self.room.saturating_sub(units);
    }

    /// Returns units to the budget, after the stream that they were spent for has authenticated.
    pub fn refund_units(&mut self, units: u32) {
        self.room = self.room.saturating_add(units).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_allows_a_burst_then_its_rate() {
        let mut budget = WorkBudget::for_strangers();
        let mut spend_all = |now: Instant| {
            let mut spent = 0_u32;
            while budget.check_room(now) {
                budget.spend_units(1);
                spent += 1;
            }
            spent
        };
        assert_eq!(spend_all(Instant(1)), STRANGER_BURST);
        assert_eq!(spend_all(Instant(STRANGER_PERIOD.0 - 1)), 0);
        assert_eq!(spend_all(Instant(3 * STRANGER_PERIOD.0)), 3);
        assert_eq!(spend_all(Instant(u64::MAX / 2)), STRANGER_BURST, "a pause allows one burst only");
    }

    #[test]
    fn refunded_work_costs_nothing() {
        let mut budget = WorkBudget::for_dials();
        (0..DIALS_BURST).for_each(|_| budget.spend_units(1));
        assert!(!budget.check_room(Instant(1)));
        budget.refund_units(2);
        assert!(budget.check_room(Instant(1)));
        budget.refund_units(u32::MAX);
        (0..DIALS_BURST).for_each(|_| budget.spend_units(1));
        assert!(!budget.check_room(Instant(1)), "a refund exceeded the burst");
    }
}
