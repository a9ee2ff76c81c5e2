//! Closed sending comms whose last operations are still under way. They keep their seat, and are let go when everything
//! arrived, when the peer is gone, or when their time is up.

use std::sync::atomic::Ordering;

use trunkline_fabric::Rail;
use trunkline_proto::time::Instant;

use crate::groups::{Seat, Turn};
use crate::member::Side;

/// Where a closed comm still is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lingering {
    pub(crate) seat: Seat,
    pub(crate) until: Instant,
}

impl Lingering {
    /// Goes on; true when the comm may go.
    pub(crate) fn finished<R: Rail>(&self, turn: Turn<'_, R>, now: Instant) -> bool {
        let Turn { open, rails, batch, .. } = turn;
        let Some(requests) = open.closed.take() else { return true };
        if let Side::Send(lane) = &mut open.side {
            lane.post_last(rails);
        }
        let mut failed = false;
        for rail in 0..rails.len() {
            let taken = rails.poll(rail, batch);
            for completion in &batch[..taken] {
                failed |= open.side.on_completion(rails, &requests, 0, completion).is_err();
            }
        }
        open.closed = Some(requests);
        let late = now >= self.until && !open.side.mutant().is("engine-lingers-for-ever");
        let busy = matches!(&open.side, Side::Send(lane) if lane.busy());
        failed || !busy || late || open.peer.dead.load(Ordering::Relaxed)
    }
}
