//! Closed sending lanes whose last operations are still under way. They are let go when everything arrived, when the
//! peer is gone, or when their time is up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{Completion, Done, LinkId, Rail, Status};
use trunkline_proto::time::Instant;

use crate::comm::Peer;
use crate::send::SendLane;

/// A closed lane.
pub(crate) struct Lingering<R: Rail> {
    pub(crate) lane: SendLane<R>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) until: Instant,
    pub(crate) requests: crate::request::Requests,
}

impl<R: Rail> Lingering<R> {
    /// Goes on; true when the lane may go.
    pub(crate) fn finished(&mut self, now: Instant) -> bool {
        let idle = Completion {
            wr_id: 0,
            link: LinkId(0),
            done: Done::Posted,
            status: Status::Ok,
            imm: None,
            len: 0,
        };
        self.lane.post_last();
        let mut batch = [idle; 16];
        let mut failed = false;
        for path in 0..self.lane.paths.len() {
            let taken = self.lane.paths.poll(path, &mut batch);
            for completion in &batch[..taken] {
                failed |= self.lane.on_completion(&self.requests, completion).is_err();
            }
        }
        let late = now >= self.until && !self.lane.plan.mutant.is("engine-lingers-for-ever");
        failed || !self.lane.busy() || late || self.peer.dead.load(Ordering::Relaxed)
    }
}
