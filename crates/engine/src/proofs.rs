//! Operations of a sending lane with several links that have completed, where that does not tell that they have arrived: each
//! path keeps them until an operation behind them has proven it, as they are needed again if its link is lost. Part of the
//! sending lane; never used where completed means arrived.

use std::collections::VecDeque;

use trunkline_fabric::{Op, Rail};
use trunkline_proto::limits::LINKS_MAX;

use crate::CommFault;
use crate::rails::Rails;
use crate::request::Requests;
use crate::send::SendLane;

/// In the `wr_id` of what proves, besides its path; above the numbers of flights.
pub(crate) const PROOF: u64 = 1 << 32;

/// Operations of a path that have completed and may be unproven. It takes no more until some are proven.
const UNPROVEN_MAX: usize = 256;

/// Those of one path.
#[derive(Debug, Default)]
struct OfPath {
    /// Their numbers, in the order in which they completed.
    told: VecDeque<u64>,
    /// How many of them, the first, are proven by what is under way; 0 if nothing is.
    covered: usize,
}

/// Those of all paths.
#[derive(Debug, Default)]
pub(crate) struct Proofs([OfPath; LINKS_MAX]);

impl Proofs {
    /// An operation has completed on a path.
    pub(crate) fn enter(&mut self, path: usize, number: u64) {
        self.0[path].told.push_back(number);
    }

    /// Whether a path takes one more operation.
    pub(crate) fn takes(&self, path: usize) -> bool {
        self.0[path].told.len() < UNPROVEN_MAX
    }

    /// Whether a path has something to prove, and nothing under way that does.
    fn is_due(&self, path: usize) -> bool {
        let OfPath { told, covered } = &self.0[path];
        *covered == 0 && !told.is_empty()
    }

    /// Whether any has.
    pub(crate) fn any_due(&self) -> bool {
        (0..LINKS_MAX).any(|path| self.is_due(path))
    }

    /// What was posted behind all of a path proves them.
    fn posted(&mut self, path: usize) {
        self.0[path].covered = self.0[path].told.len();
    }

    /// That has completed: the next of those that it proves.
    fn next_proven(&mut self, path: usize) -> Option<u64> {
        let OfPath { told, covered } = &mut self.0[path];
        *covered = covered.checked_sub(1)?;
        told.pop_front()
    }

    /// What a path has not proven goes again, or is known to have arrived in another way.
    pub(crate) fn forget(&mut self, path: usize) {
        self.0[path] = OfPath::default();
    }
}

impl SendLane {
    /// Posts what proves that operations which have completed have arrived, on each path where nothing does that yet.
    pub(crate) fn post_proofs(&mut self, rails: &mut Rails<impl Rail>) {
        for path in 0..self.paths.len() {
            let due = self.many.as_ref().is_some_and(|many| many.proofs.is_due(path));
            if !due || self.paths.credits(rails, path) == 0 {
                continue;
            }
            let (rail, link) = (self.paths.get(path).rail, self.paths.get(path).link);
            let wr_id = self.part.tag | PROOF | path as u64;
            match rails.get_mut(rail).post(link, wr_id, Op::Nop, true) {
                Ok(()) => {
                    if let Some(many) = &mut self.many {
                        many.proofs.posted(path);
                    }
                }
                // It carries nothing any more.
                Err(_) => self.lose(rails, path),
            }
        }
    }

    /// What proves has completed on a path: what it was posted behind has arrived.
    pub(crate) fn proven(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        path: usize,
    ) -> Result<(), CommFault> {
        let all = self.plan.mutant.is("engine-proves-one-link");
        for path in if all { 0..LINKS_MAX } else { path..path + 1 } {
            while let Some(many) = &mut self.many
                && let Some(number) = many.proofs.next_proven(path)
            {
                if let Some(posted) = many.flights.remove(number) {
                    self.arrived(requests, posted.flight.slot);
                }
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
        let mut proofs = Proofs::default();
        assert!(!proofs.any_due() && proofs.next_proven(1).is_none());
        proofs.enter(1, 7);
        proofs.enter(1, 3);
        assert!(proofs.is_due(1) && !proofs.is_due(0) && proofs.any_due());
        proofs.posted(1);
        proofs.enter(1, 5);
        assert!(!proofs.any_due(), "one is under way");
        let proven: Vec<u64> = std::iter::from_fn(|| proofs.next_proven(1)).collect();
        assert_eq!((proven, proofs.any_due()), (vec![7, 3], true));
        proofs.posted(1);
        proofs.forget(1);
        assert!(proofs.next_proven(1).is_none() && !proofs.any_due());
    }

    #[test]
    fn a_path_takes_no_more_than_it_can_prove() {
        let mut proofs = Proofs::default();
        (0..UNPROVEN_MAX as u64).for_each(|number| proofs.enter(2, number));
        assert!(!proofs.takes(2) && proofs.takes(1));
        proofs.posted(2);
        assert_eq!(proofs.next_proven(2), Some(0));
        assert!(proofs.takes(2));
    }
}
