//! Completed operations of a sending lane with several links, where completion does not mean arrival. Their requests are done,
//! because the peer may make no call for long. But each path records them until a later operation has proven their arrival, so
//! that a loss with the link is detected. Part of the sending lane; never used where completion means arrival.

use std::collections::VecDeque;

use trunkline_fabric::{Op, Rail};
use trunkline_proto::limits::LINKS_MAX;

use crate::CommFault;
use crate::comm::request::RequestTable;
use crate::comm::send::SendLane;
use crate::link::rails::GroupRails;

/// Marks the `wr_id` of a proof, in addition to its path; above the numbers of operations in flight.
pub(crate) const PROOF: u64 = 1 << 32;

/// The maximum number of completed and unproven operations of a path. It is bounded because each of them stays in a
/// table until a proof covers it.
const UNPROVEN_MAX: usize = 256;

/// The number of them from which on a proof is posted even if no message waits for it, so that the table of unproven
/// operations does not fill up.
const PROVEN_FROM: usize = 64;

/// The unproven operations of a path.
#[derive(Debug, Default)]
struct PathProofs {
    /// Their numbers, in the order in which they completed, and whether their message waits for the proof.
    told: VecDeque<(u64, bool)>,
    /// The number of them whose message waits.
    waits: usize,
    /// The number of them, from the first on, that the posted proof covers; 0 if none is posted.
    covered: usize,
}

/// The unproven operations of all paths.
#[derive(Debug, Default)]
pub(crate) struct ArrivalProofs {
    paths: [PathProofs; LINKS_MAX],
    /// The lane waits for all of them.
    pub(crate) ends: bool,
}

impl ArrivalProofs {
    /// Adds an operation that has completed on a path.
    pub(crate) fn add_completed(&mut self, path: usize, number: u64, waits: bool) {
        let path = &mut self.paths[path];
        path.told.push_back((number, waits));
        path.waits += usize::from(waits);
    }

    /// Returns whether one more operation may be posted on a path.
    pub(crate) fn has_room(&self, path: usize) -> bool {
        self.paths[path].told.len() < UNPROVEN_MAX
    }

    /// Returns whether a path needs a proof, and none is posted.
    fn is_due(&self, path: usize) -> bool {
        let PathProofs { told, waits, covered } = &self.paths[path];
        let enough = *waits > 0 || told.len() >= PROVEN_FROM || self.ends && !told.is_empty();
        // One proof at a time per path, because a second one would cover the same operations.
        *covered == 0 && enough
    }

    /// Returns whether any path needs one.
    pub(crate) fn any_due(&self) -> bool {
        (0..LINKS_MAX).any(|path| self.is_due(path))
    }

    /// Records that a proof was posted after all completed operations of a path.
    fn mark_proof_posted(&mut self, path: usize) {
        // All completed so far, because the proof was posted after them.
        self.paths[path].covered = self.paths[path].told.len();
    }

    /// Returns the next operation that a completed proof covers, and whether its message waits.
    fn next_proven(&mut self, path: usize) -> Option<(u64, bool)> {
        let PathProofs { told, waits, covered } = &mut self.paths[path];
        *covered = covered.checked_sub(1)?;
        // Operations complete in posting order on a path, so the oldest are covered.
        let proven = told.pop_front()?;
        *waits -= usize::from(proven.1);
        Some(proven)
    }

    /// Drops the records of a path that is left, because the delivery report covers its operations.
    pub(crate) fn forget_path(&mut self, path: usize) {
        self.paths[path] = PathProofs::default();
    }
}

impl SendLane {
    /// Posts a proof on each path that needs one.
    pub(crate) fn post_proofs(&mut self, rails: &mut GroupRails<impl Rail>) {
        for path in 0..self.paths.len() {
            let due = self.many.as_ref().is_some_and(|many| many.proofs.is_due(path));
            // A proof needs credit as any other operation; a later poll tries again.
            if !due || self.paths.path_credits(rails, path) == 0 {
                continue;
            }
            let rail = self.paths.get(path).rail;
            let link = self.paths.get(path).link;
            let wr_id = self.part.tag | PROOF | path as u64;
            match rails.get_mut(rail).post(link, wr_id, Op::Nop, true) {
                Ok(()) => {
                    if let Some(many) = &mut self.many {
                        many.proofs.mark_proof_posted(path);
                    }
                }
                // The path is unusable.
                Err(_) => self.drain_path(rails, path),
            }
        }
    }

    /// Handles a completed proof of a path: the operations that it covers have arrived.
    pub(crate) fn on_path_proven(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        path: usize,
    ) -> Result<(), CommFault> {
        while let Some(many) = &mut self.many
            && let Some((number, waits)) = many.proofs.next_proven(path)
        {
            // Only messages that waited for the proof end here; the others ended at their
            // completion.
            if let Some(posted) = many.flights.remove(number).filter(|_| waits) {
                self.on_op_arrived(requests, posted.flight.slot);
            }
        }
        self.post_spread(rails)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_after_a_proof_waits_for_the_next() {
        let mut proofs = ArrivalProofs::default();
        assert!(!proofs.any_due() && proofs.next_proven(1).is_none());
        proofs.add_completed(1, 7, false);
        assert!(!proofs.any_due(), "no request waits for a proof");
        proofs.add_completed(1, 3, true);
        assert!(proofs.is_due(1) && !proofs.is_due(0) && proofs.any_due());
        proofs.mark_proof_posted(1);
        proofs.add_completed(1, 5, true);
        assert!(!proofs.any_due(), "one proof is in flight");
        let proven: Vec<_> = std::iter::from_fn(|| proofs.next_proven(1)).collect();
        assert_eq!((proven, proofs.any_due()), (vec![(7, false), (3, true)], true));
        proofs.mark_proof_posted(1);
        proofs.forget_path(1);
        assert!(proofs.next_proven(1).is_none() && !proofs.any_due());
        proofs.add_completed(1, 8, false);
        proofs.ends = true;
        assert!(proofs.any_due(), "a comm that ends needs a proof without waiting requests");
    }

    #[test]
    fn path_has_no_room_beyond_its_unproven_limit() {
        let mut proofs = ArrivalProofs::default();
        (0..UNPROVEN_MAX as u64).for_each(|number| proofs.add_completed(2, number, false));
        assert!(!proofs.has_room(2) && proofs.has_room(1) && proofs.is_due(2));
        proofs.mark_proof_posted(2);
        assert_eq!(proofs.next_proven(2), Some((0, false)));
        assert!(proofs.has_room(2));
    }
}
