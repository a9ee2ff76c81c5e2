//! The paths from a context to one peer, at the initiator: the state of each, and when a lost path is settled. A path is lost when either end of its
//! link fails. Both ends leave it before any of its operations are posted again. The initiator puts its link into error and waits until all
//! completions have arrived. The target sends a delivery report once no operation of that link can land any more. The engine calls it for each event
//! of a link and each control message about one; it returns the next step and performs none itself.

use crate::limits::LINKS_MAX;
use crate::rma::PathId;
use crate::rma::incoming::PathDeliveryReport;

/// The state of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PathStage {
    /// The other end has been requested.
    Asked,
    /// Both ends exist; posted operations wait until both are up.
    Made,
    /// Operations can be posted on it.
    Up,
    /// It is lost: completions of this end, or the report of the target, are outstanding.
    Leaving,
    /// It is settled, was refused, or was never requested.
    Gone,
}

/// The next step for a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PathStep {
    /// No step.
    Nothing,
    /// Put the link into error, and notify the target if `say`. Its operations wait for [`PeerPaths::take_delivery_report`].
    Leave {
        /// Whether the target does not know of the loss yet.
        say: bool,
    },
    /// It was the last path: the peer cannot be reached any more.
    Last,
}

#[derive(Clone, Debug)]
struct PathRecord {
    stage: PathStage,
    standing: Option<PathDeliveryReport>,
}

/// All paths to a peer.
#[derive(Clone, Debug)]
pub struct PeerPaths {
    ways: [PathRecord; LINKS_MAX],
}

impl PeerPaths {
    /// Creates the state of `count` requested paths; at most [`LINKS_MAX`].
    #[must_use]
    pub fn new(count: usize) -> Self {
        let stage = |at| if at < count { PathStage::Asked } else { PathStage::Gone };
        let ways = core::array::from_fn(|at| PathRecord { stage: stage(at), standing: None });
        Self { ways }
    }

    /// Returns the state of a path.
    #[inline]
    #[must_use]
    pub const fn path_stage(&self, path: PathId) -> PathStage {
        self.ways[path.index()].stage
    }

    /// Returns whether operations can be posted on a path.
    #[inline]
    #[must_use]
    pub fn is_up(&self, path: PathId) -> bool {
        self.path_stage(path) == PathStage::Up
    }

    /// Returns the number of paths in a state.
    #[must_use]
    pub fn count_in_stage(&self, stage: PathStage) -> usize {
        self.ways.iter().filter(|way| way.stage == stage).count()
    }

    /// Returns whether no path can be posted on yet, but one is being set up.
    #[must_use]
    pub fn are_coming(&self) -> bool {
        self.count_in_stage(PathStage::Up) == 0 && !self.are_gone()
    }

    /// Returns whether no path is up or being set up.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        self.ways.iter().all(|way| matches!(way.stage, PathStage::Leaving | PathStage::Gone))
    }

    /// Records that the other end of a path exists. Returns false if the path did not wait for it.
    #[must_use]
    pub fn on_taken(&mut self, path: PathId) -> bool {
        let way = &mut self.ways[path.index()];
        let waits = way.stage == PathStage::Asked;
        if waits {
            way.stage = PathStage::Made;
        }
        waits
    }

    /// Records that both ends are up.
    pub fn on_up(&mut self, path: PathId) {
        let way = &mut self.ways[path.index()];
        if way.stage == PathStage::Made {
            way.stage = PathStage::Up;
        }
    }

    /// Records that the peer refused the other end. [`PathStep::Leave`] then means that nothing was posted and no report is outstanding.
    pub fn on_refused(&mut self, path: PathId) -> PathStep {
        if self.path_stage(path) != PathStage::Asked {
            return PathStep::Nothing;
        }
        self.ways[path.index()].stage = PathStage::Gone;
        if self.are_gone() { PathStep::Last } else { PathStep::Leave { say: false } }
    }

    /// Records that the link has failed at this end, or is of no use. Only for a path whose other end exists.
    pub fn on_failed(&mut self, path: PathId) -> PathStep {
        self.leave_path(path, true)
    }

    fn leave_path(&mut self, path: PathId, say: bool) -> PathStep {
        let way = &mut self.ways[path.index()];
        if matches!(way.stage, PathStage::Leaving | PathStage::Gone) {
            return PathStep::Nothing;
        }
        way.stage = PathStage::Leaving;
        if self.are_gone() { PathStep::Last } else { PathStep::Leave { say } }
    }

    /// Records the delivery report of the target, which has left the path.
    pub fn on_delivery_report(&mut self, path: PathId, standing: PathDeliveryReport) -> PathStep {
        let way = &mut self.ways[path.index()];
        if way.stage == PathStage::Gone || way.standing.is_some() {
            return PathStep::Nothing;
        }
        way.standing = Some(standing);
        self.leave_path(path, false)
    }

    /// Returns the target's report of a path that both ends have left, once. `is_quiet`: the link of this end is in error and all its completions
    /// have arrived; returns `None` before that.
    pub fn take_delivery_report(&mut self, path: PathId, is_quiet: bool) -> Option<PathDeliveryReport> {
        let way = &mut self.ways[path.index()];
        if way.stage != PathStage::Leaving || !is_quiet {
            return None;
        }
        let standing = way.standing.take()?;
        way.stage = PathStage::Gone;
        Some(standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(place: u8) -> PathId {
        PathId::new(place).unwrap()
    }

    fn up(count: u8) -> PeerPaths {
        let mut paths = PeerPaths::new(count.into());
        for at in (0..count).map(path) {
            assert!(paths.on_taken(at) && !paths.on_taken(at));
            paths.on_up(at);
            assert!(paths.is_up(at));
        }
        paths
    }

    fn standing(applied: u64) -> PathDeliveryReport {
        PathDeliveryReport { applied, ..PathDeliveryReport::default() }
    }

    #[test]
    fn failed_path_is_left_after_both_ends_reported() {
        let mut paths = up(2);
        assert_eq!(paths.on_failed(path(0)), PathStep::Leave { say: true });
        assert_eq!(paths.on_failed(path(0)), PathStep::Nothing, "a repeated failure was reported");
        assert_eq!(
            paths.take_delivery_report(path(0), true),
            None,
            "the target may still process late arrivals"
        );
        assert_eq!(paths.on_delivery_report(path(0), standing(1)), PathStep::Nothing);
        assert_eq!(paths.take_delivery_report(path(0), false), None, "completions may still arrive");
        assert_eq!(paths.take_delivery_report(path(0), true), Some(standing(1)));
        assert_eq!(
            (paths.take_delivery_report(path(0), true), paths.path_stage(path(0))),
            (None, PathStage::Gone)
        );
        assert_eq!(
            paths.on_delivery_report(path(0), standing(2)),
            PathStep::Nothing,
            "the path was left before"
        );
        assert!(paths.is_up(path(1)) && !paths.are_coming());
    }

    #[test]
    fn target_may_report_a_lost_path_first() {
        let mut paths = up(3);
        assert_eq!(paths.on_delivery_report(path(2), standing(4)), PathStep::Leave { say: false });
        assert_eq!(
            paths.on_delivery_report(path(2), standing(5)),
            PathStep::Nothing,
            "LINK_DOWN was sent twice"
        );
        assert_eq!(paths.on_failed(path(2)), PathStep::Nothing);
        assert_eq!(paths.take_delivery_report(path(2), true), Some(standing(4)));
    }

    #[test]
    fn loss_of_the_last_path_is_reported() {
        let mut paths = up(2);
        assert_eq!(paths.on_failed(path(1)), PathStep::Leave { say: true });
        assert_eq!(paths.on_failed(path(0)), PathStep::Last, "a path that is being left carries nothing");
        let mut paths = PeerPaths::new(3);
        assert!(paths.are_coming() && paths.on_taken(path(0)) && paths.are_coming());
        assert_eq!(paths.on_refused(path(1)), PathStep::Leave { say: false });
        assert_eq!(paths.on_refused(path(0)), PathStep::Nothing, "the path was accepted before");
        assert_eq!(paths.on_failed(path(0)), PathStep::Leave { say: true }, "another path is being made");
        assert!(paths.are_coming() && !paths.are_gone());
        assert_eq!(paths.on_refused(path(2)), PathStep::Last);
        assert!(!paths.are_coming() && paths.are_gone());
    }
}
