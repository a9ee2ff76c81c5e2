//! Operations of a sending lane with several links that have completed, where that does not tell that they have arrived. Their
//! requests are done, as the peer may make no call for long; but each path remembers them until an operation behind them has
//! proven that they are there, so that one that is lost with its link is noticed. Part of the sending lane; never used where
//! completed means arrived.

use std::collections::VecDeque;

use trunkline_fabric::{Op, Rail};
use trunkline_proto::limits::LINKS_MAX;

use crate::CommFault;
use crate::comm::request::RequestTable;
use crate::comm::send::SendLane;
use crate::link::rails::GroupRails;

/// In the `wr_id` of what proves, besides its path; above the numbers of flights.
pub(crate) const PROOF: u64 = 1 << 32;

/// Operations of a path that have completed and may be unproven. It takes no more until some are proven.
const UNPROVEN_MAX: usize = 256;

/// How many there are before something proves them, if nobody waits for it.
const PROVEN_FROM: usize = 64;

/// Those of one path.
#[derive(Debug, Default)]
struct PathProofs {
    /// Their numbers, in the order in which they completed, and whether their message waits for the proof.
    told: VecDeque<(u64, bool)>,
    /// For how many of them a message waits.
    waits: usize,
    /// How many of them, the first, are proven by what is under way; 0 if nothing is.
    covered: usize,
}

/// Those of all paths.
#[derive(Debug, Default)]
pub(crate) struct ArrivalProofs {
    paths: [PathProofs; LINKS_MAX],
    /// The lane waits for all of them.
    pub(crate) ends: bool,
}

impl ArrivalProofs {
    /// An operation has completed on a path.
    pub(crate) fn add_completed(&mut self, path: usize, number: u64, waits: bool) {
        let path = &mut self.paths[path];
        path.told.push_back((number, waits));
        path.waits += usize::from(waits);
    }

    /// Whether a path takes one more operation.
    pub(crate) fn has_room(&self, path: usize) -> bool {
        self.paths[path].told.len() < UNPROVEN_MAX
    }

    /// Whether a path has something to prove, and nothing under way that does.
    fn is_due(&self, path: usize) -> bool {
        let PathProofs { told, waits, covered } = &self.paths[path];
        let enough = *waits > 0 || told.len() >= PROVEN_FROM || self.ends && !told.is_empty();
        *covered == 0 && enough
    }

    /// Whether any has.
    pub(crate) fn any_due(&self) -> bool {
        (0..LINKS_MAX).any(|path| self.is_due(path))
    }

    /// What was posted behind all of a path proves them.
    fn mark_proof_posted(&mut self, path: usize) {
        self.paths[path].covered = self.paths[path].told.len();
    }

    /// That has completed: the next of those that it proves, and whether its message waits.
    fn next_proven(&mut self, path: usize) -> Option<(u64, bool)> {
        let PathProofs { told, waits, covered } = &mut self.paths[path];
        *covered = covered.checked_sub(1)?;
        let proven = told.pop_front()?;
        *waits -= usize::from(proven.1);
        Some(proven)
    }

    /// A path is left: what becomes of its operations is known in another way.
    pub(crate) fn forget_path(&mut self, path: usize) {
        self.paths[path] = PathProofs::default();
    }
}

impl SendLane {
    /// Posts what proves that operations which have completed have arrived, on each path where nothing does that yet.
    pub(crate) fn post_proofs(&mut self, rails: &mut GroupRails<impl Rail>) {
        for path in 0..self.paths.len() {
            let due = self.many.as_ref().is_some_and(|many| many.proofs.is_due(path));
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
                // It carries nothing any more.
                Err(_) => self.drain_path(rails, path),
            }
        }
    }

    /// What proves has completed on a path: what it was posted behind has arrived.
    pub(crate) fn on_path_proven(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        path: usize,
    ) -> Result<(), CommFault> {
        while let Some(many) = &mut self.many
            && let Some((number, waits)) = many.proofs.next_proven(path)
        {
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
    fn what_completes_after_a_proof_was_posted_waits_for_the_next() {
        let mut proofs = ArrivalProofs::default();
        assert!(!proofs.any_due() && proofs.next_proven(1).is_none());
        proofs.add_completed(1, 7, false);
        assert!(!proofs.any_due(), "nobody waits for it");
        proofs.add_completed(1, 3, true);
        assert!(proofs.is_due(1) && !proofs.is_due(0) && proofs.any_due());
        proofs.mark_proof_posted(1);
        proofs.add_completed(1, 5, true);
        assert!(!proofs.any_due(), "one is under way");
        let proven: Vec<_> = std::iter::from_fn(|| proofs.next_proven(1)).collect();
        assert_eq!((proven, proofs.any_due()), (vec![(7, false), (3, true)], true));
        proofs.mark_proof_posted(1);
        proofs.forget_path(1);
        assert!(proofs.next_proven(1).is_none() && !proofs.any_due());
        proofs.add_completed(1, 8, false);
        proofs.ends = true;
        assert!(proofs.any_due(), "nothing comes after it");
    }

    #[test]
    fn a_path_takes_no_more_than_it_can_prove() {
        let mut proofs = ArrivalProofs::default();
        (0..UNPROVEN_MAX as u64).for_each(|number| proofs.add_completed(2, number, false));
        assert!(!proofs.has_room(2) && proofs.has_room(1) && proofs.is_due(2));
        proofs.mark_proof_posted(2);
        assert_eq!(proofs.next_proven(2), Some((0, false)));
        assert!(proofs.has_room(2));
    }
}
