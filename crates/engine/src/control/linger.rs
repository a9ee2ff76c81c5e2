//! Closed comms with operations in flight. They keep their membership. They are released when everything has arrived, when the
//! peer has ended, or after a time limit. Those that share their link also wait until the peer reports that no more writes
//! arrive.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, Op, Rail};
use trunkline_proto::comm::receiver::MessageReceiver;
use trunkline_proto::pool::GroupPlace;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::frame::ControlFrame;

use crate::comm::recv::{DrainProof, LAST, RecvLane};
use crate::control::ControlPlane;
use crate::engine::core::EngineCore;
use crate::link::links::SharedLinks;
use crate::link::rails::GroupRails;
use crate::pool::groups::{LockedMember, MemberLocation};
use crate::pool::member::{CommNames, CommSide};

/// A closed comm's membership and time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LingeringComm {
    pub(crate) seat: MemberLocation,
    pub(crate) until: Instant,
    /// The time limit while its peer has not closed its end.
    pub(crate) until_closed: Instant,
    pub(crate) ends: CommNames,
    /// The peer's name of it.
    pub(crate) name: u64,
    pub(crate) place: Option<GroupPlace>,
    /// Its link has other members.
    pub(crate) rides: bool,
}

impl LingeringComm {
    /// Makes progress on a closed comm with a link of its own; true when it may be released. `closed`: its peer receives nothing
    /// more.
    pub(super) fn drain_unshared<R: Rail>(
        &self,
        turn: LockedMember<'_, R>,
        now: Instant,
        closed: bool,
    ) -> bool {
        let LockedMember { open, rails, batch, .. } = turn;
        let Some(requests) = open.closed.take() else { return true };
        if let CommSide::Send(lane) = &mut open.side {
            // The final operation may not have had credit at the close.
            lane.post_last(rails);
        }
        let mut failed = false;
        for rail in 0..rails.len() {
            let taken = rails.poll(rail, batch);
            for completion in &batch[..taken] {
                // A failure means that the link has ended, and nothing more will arrive.
                failed |= open.side.on_completion(rails, &requests, 0, completion).is_err();
            }
        }
        open.closed = Some(requests);
        let until = if closed { self.until } else { self.until_closed };
        let late = now >= until;
        let busy = matches!(&open.side, CommSide::Send(lane) if lane.has_unfinished());
        failed || !busy || late || open.peer.dead.load(Ordering::Relaxed)
    }

    /// Makes progress on a closed comm with a shared link; true when it may be released.
    pub(super) fn drain_shared<F: Fabric, H: Host>(
        &self,
        core: &EngineCore<F, H>,
        control: &mut ControlPlane<H, F::Rail>,
        mut turn: LockedMember<'_, F::Rail>,
    ) -> bool {
        let Some(requests) = turn.open.closed.take() else { return true };
        turn.take_shared(&core.comms, &requests);
        turn.open.closed = Some(requests);
        // Tried at each call, because registrations in use could not be ended at the close.
        let ended = turn.open.side.regions_mut().retire_all();
        let drained = ended && turn.is_drained();
        if drained && turn.open.life.finish_drain() {
            control.send_frame(self.ends.stream, &ControlFrame::Gone { id: self.ends.remote }, None);
        }
        let late = core.advance_timer(&mut turn.open.down) > core.params.peer_time;
        let LockedMember { open, rails, .. } = turn;
        let ended = rails.shared.as_ref().is_some_and(SharedLinks::all_ended);
        let dead = open.peer.dead.load(Ordering::Relaxed);
        if (late && !drained || dead) && !ended {
            // Its posted operations may land at any time in the future, so the links are ended for all members.
            rails.fail_all();
        }
        drained && (control.is_gone(self.name) || ended || dead)
    }
}

impl RecvLane {
    /// Returns whether memory may be revoked although the peer still writes to it: not memory of receives that are posted in the
    /// NIC.
    pub(crate) fn can_retire_memory(&self, rails: &GroupRails<impl Rail>) -> bool {
        // A receive posted in the NIC can be filled at any time, so its memory cannot be revoked.
        self.matched_posted == 0 && rails.iter().all(|rail| rail.caps().retires)
    }

    /// Posts bounce buffers again whose messages no receive will match.
    pub(crate) fn forget_eager(&mut self, rails: &mut GroupRails<impl Rail>) {
        let held: Vec<u32> = self.receiver.bounces_held().collect();
        *self.receiver = MessageReceiver::new();
        for bounce in held {
            // A link that refuses it has ended, which its own completions report.
            let _ = self.post_bounce(rails, bounce);
        }
    }

    /// Returns whether all posted operations have completed; no more are posted. A final operation on each link proves that.
    pub(crate) fn poll_drained(&mut self, rails: &mut GroupRails<impl Rail>) -> bool {
        // The NIC may still fill matched receives.
        if self.matched_posted > 0 && !self.gone {
            return false;
        }
        if self.end == DrainProof::Not {
            self.post_ends(rails);
        }
        let path = self.paths.lead_path();
        // A link that refuses it has ended, and may have no completion to report.
        self.end == DrainProof::Proven && !self.records_land()
            || self.gone && rails.get_mut(path.rail).poll_link_quiet(path.link)
    }

    fn post_ends(&mut self, rails: &mut GroupRails<impl Rail>) {
        let carrying =
            |lane: &Self| (0..lane.paths.len()).filter(|&at| lane.paths.get(at).is_carrying()).collect();
        let paths: Vec<usize> = carrying(self);
        // All links or none, because a partial proof would have to be remembered.
        if paths.iter().any(|&at| self.paths.path_credits(rails, at) == 0) {
            return;
        }
        // A new number per proof, so that completions of an earlier proof are ignored.
        self.ends = self.ends.wrapping_add(1);
        let wr_id = LAST | u64::from(self.ends);
        let left =
            paths.into_iter().filter(|&at| self.post_op(rails, at, wr_id, Op::Nop, true).is_ok()).count();
        // At most four links, so the count fits.
        self.end = if left > 0 { DrainProof::Posted(left as u8) } else { DrainProof::Proven };
        rails.flush();
    }

    /// Handles the completion of a final operation.
    pub(crate) fn on_end(&mut self, wr_id: u64) {
        if let DrainProof::Posted(left) = self.end
            && wr_id == LAST | u64::from(self.ends)
        {
            self.end = if left > 1 { DrainProof::Posted(left - 1) } else { DrainProof::Proven };
        }
    }

    /// Discards the final operations: a link has ended, and perhaps one of them with it.
    pub(crate) fn forget_end(&mut self) {
        self.end = DrainProof::Not;
    }
}

impl<R: Rail> LockedMember<'_, R> {
    /// Returns whether nothing that this member has posted can land any more.
    pub(crate) fn is_drained(&mut self) -> bool {
        let Self { open, rails, .. } = self;
        // The links are in error: their completions are the proof.
        if rails.shared.as_ref().is_some_and(SharedLinks::all_ended) {
            return rails.all_quiet();
        }
        // A path that is being left may still have operations in flight.
        for path in open.side.paths_mut().iter().filter(|path| path.leaving.is_some()) {
            if !rails.get_mut(path.rail).poll_link_quiet(path.link) {
                return false;
            }
        }
        match &mut open.side {
            CommSide::Send(lane) => {
                lane.post_last(rails);
                !lane.has_unfinished()
            }
            CommSide::Recv(lane) => lane.poll_drained(rails),
        }
    }
}
