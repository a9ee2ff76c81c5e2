//! Checks shared queue pairs: their number is within the limits of both ends, all accounts balance, and all of them
//! are freed.

use trunkline_engine::{SharingParams, SharingUsage};
use trunkline_proto::limits::GROUPS_OF_KEY_MAX;
use trunkline_proto::pool::config::SharingMode;

use crate::SimPid;
use crate::checkers::{PropertyResult, PropertyViolation};
use crate::scenario::CommPlan;

/// Steps between two checks of an engine's accounts.
const STEPS: u64 = 16;

/// The state of the checker.
#[derive(Debug, Default)]
pub(crate) struct GroupChecker {
    steps: u64,
    /// Whether a comm has ended or failed: groups may be left and made again, and late completions have no owner.
    pub(crate) disturbed: bool,
}

fn groups_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "groups", text }
}

impl GroupChecker {
    /// Whether a check is due.
    pub(crate) fn is_due(&mut self) -> bool {
        self.steps += 1;
        self.steps.is_multiple_of(STEPS)
    }

    /// Checks that an engine's accounts balance.
    pub(crate) fn check_engine(&self, riding: &SharingUsage, process: SimPid) -> PropertyResult {
        if let Some(wrong) = &riding.wrong {
            return Err(groups_violation(format!("{process}: {wrong}")));
        }
        if riding.dropped > 0 && !self.disturbed {
            return Err(groups_violation(format!(
                "{process}: {} completions belong to no member",
                riding.dropped
            )));
        }
        Ok(())
    }

    /// Checks that a process has no more links than its comms need, as long as no comm has ended; `all`: all of them
    /// are open.
    pub(crate) fn check_links(
        &self,
        process: SimPid,
        links: usize,
        all: bool,
        comms: &[CommPlan],
        sharing: &[SharingParams],
    ) -> PropertyResult {
        let single = |comm: &CommPlan| comm.from_nics.len() == 1 && comm.to_nics.len() == 1;
        if self.disturbed || !comms.iter().all(single) {
            return Ok(());
        }
        let (most, exact) = links_of(process, comms, sharing);
        if links > most || (all && exact && links < most) {
            return Err(groups_violation(format!("{process} has {links} links, but needs only {most}")));
        }
        Ok(())
    }
}

/// Returns the links that a process needs, and whether it needs all of them.
fn links_of(process: SimPid, comms: &[CommPlan], sharing: &[SharingParams]) -> (usize, bool) {
    let mut most = 0;
    let mut exact = true;
    let key = |comm: &CommPlan| (comm.from, comm.to, comm.from_nics.clone(), comm.to_nics.clone());
    for (at, comm) in comms.iter().enumerate() {
        let earlier = comms[..at].iter().filter(|other| key(other) == key(comm)).count();
        let ends = [sharing[comm.from], sharing[comm.to]];
        let off = ends.iter().any(|end| end.sharing == SharingMode::Off);
        let least = ends.iter().map(groups_of).min();
        let groups = least.filter(|_| !off).unwrap_or(usize::MAX);
        exact &= ends.iter().all(|end| end.budget == 0 && end.sharing == SharingMode::On);
        let times = usize::from(comm.from == process.0) + usize::from(comm.to == process.0);
        most += times * usize::from(earlier < groups);
    }
    (most, exact)
}

/// Returns the number of groups of a key that an end makes at most.
fn groups_of(end: &SharingParams) -> usize {
    match end.sharing {
        SharingMode::Off => 0,
        SharingMode::On => end.groups.into(),
        SharingMode::Auto => GROUPS_OF_KEY_MAX.into(),
    }
}

/// Checks that no group is left after everything was closed.
pub(crate) fn check_empty(riding: &SharingUsage, process: SimPid) -> PropertyResult {
    let pool = &riding.pool;
    let counts = [
        pool.groups,
        pool.alone,
        pool.members,
        pool.keys,
        pool.conns,
        riding.lanes,
        riding.seats,
        riding.riders,
        riding.attempts,
    ];
    let queues = [pool.queue_pairs, pool.completion_queues];
    let budgets = pool.budgets.iter().any(|budget| budget.in_use > 0);
    if counts.iter().all(|&count| count == 0) && queues == [0, 0] && !budgets {
        return Ok(());
    }
    Err(groups_violation(format!("{process} holds {riding:?} after closing everything")))
}
