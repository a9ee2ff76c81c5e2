//! Closed comms of which something is still under way. They keep their seat, and are let go when everything arrived, when
//! the peer is gone, or when their time is up; those that share their link, when the peer also says that nothing more comes.

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

/// Where a closed comm still is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LingeringComm {
    pub(crate) seat: MemberLocation,
    pub(crate) until: Instant,
    /// The same while its peer has not closed its end.
    pub(crate) until_closed: Instant,
    pub(crate) ends: CommNames,
    /// What the peer calls it.
    pub(crate) name: u64,
    pub(crate) place: Option<GroupPlace>,
    /// Others ride on its link.
    pub(crate) rides: bool,
}

impl LingeringComm {
    /// Goes on with a comm that has its link to itself; true when it may go. `closed`: its peer takes nothing more.
    pub(super) fn drain_unshared<R: Rail>(
        &self,
        turn: LockedMember<'_, R>,
        now: Instant,
        closed: bool,
    ) -> bool {
        let LockedMember { open, rails, batch, .. } = turn;
        let Some(requests) = open.closed.take() else { return true };
        if let CommSide::Send(lane) = &mut open.side {
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
        let until = if closed { self.until } else { self.until_closed };
        let late = now >= until;
        let busy = matches!(&open.side, CommSide::Send(lane) if lane.has_unfinished());
        failed || !busy || late || open.peer.dead.load(Ordering::Relaxed)
    }

    /// Goes on with a closed comm whose link others share; true when it may go.
    pub(super) fn drain_shared<F: Fabric, H: Host>(
        &self,
        core: &EngineCore<F, H>,
        control: &mut ControlPlane<H, F::Rail>,
        mut turn: LockedMember<'_, F::Rail>,
    ) -> bool {
        let Some(requests) = turn.open.closed.take() else { return true };
        turn.take_shared(&core.comms, &requests);
        turn.open.closed = Some(requests);
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
            // What it has posted may land for ever: then better for nobody.
            rails.fail_all();
        }
        drained && (control.is_gone(self.name) || ended || dead)
    }
}

impl RecvLane {
    /// Whether memory may be taken away although the peer still writes to it: not from receives that the NIC itself has.
    pub(crate) fn can_retire_memory(&self, rails: &GroupRails<impl Rail>) -> bool {
        self.matched_posted == 0 && rails.iter().all(|rail| rail.caps().retires)
    }

    /// Gives bounce buffers back whose messages nobody will ask for.
    pub(crate) fn forget_eager(&mut self, rails: &mut GroupRails<impl Rail>) {
        let held: Vec<u32> = self.receiver.bounces_held().collect();
        *self.receiver = MessageReceiver::new();
        for bounce in held {
            // A link that takes none has ended, which it says by itself.
            let _ = self.post_bounce(rails, bounce);
        }
    }

    /// Nothing more will be posted: whether all that was has completed, which an operation behind it on each link proves.
    pub(crate) fn poll_drained(&mut self, rails: &mut GroupRails<impl Rail>) -> bool {
        if self.matched_posted > 0 && !self.gone {
            return false;
        }
        if self.end == DrainProof::Not {
            self.post_ends(rails);
        }
        let path = self.paths.lead_path();
        // A link that takes none has ended, and may have nothing to tell of it.
        self.end == DrainProof::Proven && !self.records_land()
            || self.gone && rails.get_mut(path.rail).poll_link_quiet(path.link)
    }

    fn post_ends(&mut self, rails: &mut GroupRails<impl Rail>) {
        let carrying =
            |lane: &Self| (0..lane.paths.len()).filter(|&at| lane.paths.get(at).is_carrying()).collect();
        let paths: Vec<usize> = carrying(self);
        if paths.iter().any(|&at| self.paths.path_credits(rails, at) == 0) {
            return;
        }
        self.ends = self.ends.wrapping_add(1);
        let wr_id = LAST | u64::from(self.ends);
        let left =
            paths.into_iter().filter(|&at| self.post_op(rails, at, wr_id, Op::Nop, true).is_ok()).count();
        // At most four.
        self.end = if left > 0 { DrainProof::Posted(left as u8) } else { DrainProof::Proven };
        rails.flush();
    }

    /// One of the operations behind all others has completed.
    pub(crate) fn on_end(&mut self, wr_id: u64) {
        if let DrainProof::Posted(left) = self.end
            && wr_id == LAST | u64::from(self.ends)
        {
            self.end = if left > 1 { DrainProof::Posted(left - 1) } else { DrainProof::Proven };
        }
    }

    /// A link has ended, and with it perhaps what was to prove the end.
    pub(crate) fn forget_end(&mut self) {
        self.end = DrainProof::Not;
    }
}

impl<R: Rail> LockedMember<'_, R> {
    /// Whether nothing that this member has posted can land any more.
    pub(crate) fn is_drained(&mut self) -> bool {
        let Self { open, rails, .. } = self;
        if rails.shared.as_ref().is_some_and(SharedLinks::all_ended) {
            return rails.all_quiet();
        }
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
