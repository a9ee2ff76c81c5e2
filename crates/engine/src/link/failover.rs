//! The links of a comm with several, over time. They are made one after another. Both ends leave a failed link before its lost
//! operations are sent over the others, and a new link is requested later. Called when a lane is polled; its frames are sent on
//! the control stream.

use std::sync::atomic::Ordering;

use trunkline_fabric::{
    Fabric, Host, LinkAddress, LinkControl as _, LinkError, LinkId, LogLevel, Op, OpSource, PassedFd, Rail,
    RemoteLocation,
};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::link::{DownStep, LinkOpenStep, LinkStep};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::frame::{ControlFrame, LinkDown, LinkOpen, LinkResult, RemoteRegion};

use crate::comm::CommSlot;
use crate::comm::request::RequestTable;
use crate::control::peer_check::LOOKS_AT_END;
use crate::engine::core::locked_member_of;
use crate::engine::driver::CommDriver;
use crate::link::link_frames::LinkFrame;
use crate::link::links::SharedLinks;
use crate::link::path::{LAST_FLUSH, LinkDownReport, LinkProbe, NO_LINK, PROBE};
use crate::link::rails::GroupRails;
use crate::pool::groups::{GroupContext, LockedMember};
use crate::pool::member::{CommSide, FailureTimer, OpenComm};
use crate::{CommFault, CommId};

/// Polls per read of the clock, for a comm whose links are all up, because reading the clock costs more than such a
/// poll.
const TURNS: u32 = 64;

/// Checks of a link per `rail_time`, the time after which a link without progress counts as failed.
const LOOKS_IN_RAIL_TIME: u64 = 16;

/// The interval at which links that are down are driven. Not with each poll, because driving them costs more than a
/// poll.
const TEND_EVERY: Duration = Duration::from_micros(500);

impl<F: Fabric, H: Host> CommDriver<F, H> {
    /// Returns whether all links of a comm have been down for longer than a peer may be silent. Until then operations wait and
    /// links are made, because the control streams show that the peer is alive.
    fn check_stranded(&self, open: &mut OpenComm, now: Instant) -> bool {
        let core = &self.setup.core;
        if open.life.is_link_lost() || open.side.paths_mut().any_carries() {
            open.adrift = None;
            return false;
        }
        if open.adrift.is_none() {
            // All links at once, because waiting for the regular retry would lengthen an outage.
            let paths = open.side.paths_mut();
            (0..paths.len()).for_each(|at| paths.get_mut(at).life.expedite_retry(now));
        }
        // Counted in steps, so that a stopped process does not fail its comms when it continues.
        let step = Duration(core.params.peer_time.0 / LOOKS_AT_END);
        let waited = FailureTimer::advance_timer(&mut open.adrift, now, step);
        waited > core.params.peer_time
    }

    /// Fails a comm all of whose links are lost.
    #[cold]
    fn fail_stranded(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        let LockedMember { open, rails, .. } = turn;
        // Links that were being made may hold a flush.
        open.life.lose_link();
        if !open.is_grouped() {
            open.side.paths_mut().fail_links(rails);
        }
        open.side.mark_gone();
        let fault = CommFault::Link(open.ended_by);
        self.give_up_peer(slot, turn, fault);
    }

    /// Drives the links of a comm with several.
    pub(crate) fn drive_links(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        let core = &self.setup.core;
        let open = &mut *turn.open;
        // A failed comm has no links to drive.
        if !open.many || open.fault.is_some() {
            return;
        }
        open.turns = open.turns.wrapping_add(1);
        let settled = open.side.paths_mut().all_carry() && open.words.is_empty();
        // Fast path: with all links up, nothing is done for most polls.
        if settled && !slot.news.has_some() && !open.turns.is_multiple_of(TURNS) {
            return;
        }
        let now = core.host.now();
        if self.check_stranded(open, now) {
            return self.fail_stranded(slot, turn);
        }
        let LockedMember { open, rails, .. } = turn;
        let went_on = if open.life.is_link_lost() {
            // Without any link left, LINK_DOWN is still sent for each link, so that the peer need not detect the loss itself.
            open.end_all_leaving(rails, &slot.requests, now)
        } else {
            self.advance_links(slot, turn, now)
        };
        if let Err(fault) = went_on {
            self.fail_comm(slot, turn, fault);
        }
        let open = &mut *turn.open;
        // Published for test calls, because they poll a comm whose links are being made even if its requests
        // end elsewhere.
        slot.joining.store(open.is_grouped() && !open.side.paths_mut().all_carry(), Ordering::Relaxed);
        if let Some((left, taken)) = slot.requests.row.update_links(open.side.paths_mut().carrying_mask()) {
            core.status.add_tally(ProcessTally::LinksLeft, left.into());
            core.status.add_tally(ProcessTally::LinksTaken, taken.into());
            core.show_usage();
        }
        if !open.words.is_empty()
            && let Some(mut control) = self.setup.try_lock_control()
        {
            // Sent here and not where they are made, because the control plane may be locked by
            // another thread.
            let stream = open.ends.stream;
            open.words.drain(..).for_each(|(frame, fd)| control.send_frame(stream, &frame, fd));
        }
    }

    /// Drives the links of a comm whose requests complete while other members are polled.
    #[cold]
    pub(crate) fn drive_unpolled_links(&self, slot: &CommSlot, comm: CommId) {
        let core = &self.setup.core;
        let seat = slot.member_location();
        if let Some(mut lane) = core.groups.try_lock_group(seat)
            && let Some(mut turn) = locked_member_of(&mut lane, seat, comm)
        {
            self.drive_comm(slot, &mut turn);
        }
    }

    fn advance_links(
        &self,
        slot: &CommSlot,
        turn: &mut LockedMember<'_, F::Rail>,
        now: Instant,
    ) -> Result<(), CommFault> {
        let LockedMember { open, rails, .. } = turn;
        if let CommSide::Send(lane) = &mut open.side {
            // Frames below may post operations, and the balancer needs the time of each.
            lane.set_time(now);
        }
        while let Some(word) = slot.news.pop_frame() {
            open.on_link_frame(rails, &slot.requests, word, now)?;
        }
        open.end_all_leaving(rails, &slot.requests, now)?;
        // Everything below is periodic, because it costs more than a poll.
        if now - open.tended < TEND_EVERY {
            return Ok(());
        }
        open.tended = now;
        turn.let_go_of_spent_links();
        let LockedMember { open, .. } = turn;
        // The peer has a new control connection, so links over that network path may work again.
        let joins = open.peer.joins.load(Ordering::Relaxed);
        if std::mem::replace(&mut open.joins, joins) != joins {
            let paths = open.side.paths_mut();
            (0..paths.len()).for_each(|at| paths.get_mut(at).life.expedite_retry(now));
        }
        for at in 0..open.side.paths_mut().len() {
            self.on_time(turn, at, now);
        }
        if now - turn.open.asked >= Duration(self.setup.core.params.rail_time.0 / LOOKS_IN_RAIL_TIME) {
            // Rarer still, because a check of the network may be a system call.
            turn.open.asked = now;
            self.check_links(turn);
        }
        // The peer's replies arrive on the control stream, which waiting lanes also have to read.
        if let Some(mut control) = self.setup.try_lock_control() {
            self.setup.progress_control(&mut control);
        }
        Ok(())
    }

    /// Checks with the network whether each link still carries traffic, because posted operations may never complete.
    pub(crate) fn check_links(&self, turn: &mut LockedMember<'_, F::Rail>) {
        let core = &self.setup.core;
        let paths = turn.open.side.paths_mut();
        for at in 0..paths.len() {
            let path = turn.open.side.paths_mut().get(at);
            if !path.is_carrying() {
                continue;
            }
            let number = path.rail;
            let link = path.link;
            if let Err(error) = turn.rails.get_mut(number).check_link(link) {
                // With several links, the comm survives the loss of one.
                if turn.open.many {
                    self.give_up_link(turn, at, &error);
                } else {
                    // A state error means that the link was failed before, and that was logged
                    // then.
                    if !matches!(error, LinkError::State) {
                        let over = core.nic_name(turn.open.side.paths_mut().get(at).nic);
                        core.host.log(
                            LogLevel::Warn,
                            &format!("the link of a connection over {over} failed: {error}"),
                        );
                    }
                    // The link's flushed completions report its end too, if there are any.
                    turn.rails.fail_link(number, link);
                    // In a group, `tell_ended` notifies all members of the link together.
                    if turn.shared.is_none() {
                        turn.open.on_link_lost(turn.rails, at);
                    }
                }
            }
        }
    }

    fn on_time(&self, turn: &mut LockedMember<'_, F::Rail>, at: usize, now: Instant) {
        let LockedMember { open, rails, .. } = turn;
        let path = open.side.paths_mut().get_mut(at);
        // A path that is being left has no time steps; its drain ends it.
        if path.leaving.is_some() {
            return;
        }
        let step = path.life.on_time(now, self.setup.core.params.rail_time);
        match step {
            LinkStep::Wait => {}
            LinkStep::SayDown => return open.say_down(at, true),
            // Another member knows that the link works; only this end, or the peer's, has not been polled for long.
            LinkStep::Fence if rails.carries_for_others(path.rail, path.link) => {}
            LinkStep::Fence => return open.side.drain_path(rails, at),
            LinkStep::Ask(epoch) => {
                if let Err(error) = open.request_link(rails, at, epoch) {
                    self.log_of_link(open, at, &error);
                    open.step_back(rails, at, now);
                }
            }
        }
        let LockedMember { open, rails, .. } = turn;
        match open.prove_link(rails, at) {
            Ok(true) => {
                rails.mark_carrying(open.side.paths_mut().get(at));
                self.enable_link(open, at, now);
            }
            Ok(false) => {}
            Err(error) => self.give_up_link(turn, at, &error),
        }
    }

    /// Gives up a link that fails, until a new one is made.
    fn give_up_link(&self, turn: &mut LockedMember<'_, F::Rail>, at: usize, error: &LinkError) {
        self.log_of_link(turn.open, at, error);
        turn.open.side.drain_path(turn.rails, at);
    }

    fn log_of_link(&self, open: &mut OpenComm, at: usize, error: &LinkError) {
        let core = &self.setup.core;
        let over = core.nic_name(open.side.paths_mut().get(at).nic);
        core.host.log(LogLevel::Info, &format!("link {at} of a connection over {over} failed: {error}"));
    }

    /// Enables a link at the sending end.
    fn enable_link(&self, open: &mut OpenComm, at: usize, now: Instant) {
        let id = open.ends.remote;
        let CommSide::Send(lane) = &mut open.side else { return };
        let path = lane.paths.get_mut(at);
        let epoch = path.life.connection_epoch();
        // LINK_READY of an older connection of the link.
        if !path.life.on_carries(epoch, now) {
            return;
        }
        let nic = path.nic;
        // The first link that is up carries records, so the choice may change.
        lane.paths.choose_lead();
        let (speed, latency) = self.setup.core.nic_speed(nic);
        lane.link_up(at, speed, latency, now);
        // The receiver enables the link when this arrives, because only the sender knows that it works in this
        // direction.
        open.words.push((ControlFrame::LinkReady { id, link: at as u8, epoch }, None));
    }
}

impl<R: Rail> LockedMember<'_, R> {
    /// Releases links that have ended and reported all completions, for all members at once. Their NIC may have no room for a
    /// replacement otherwise, and some members may not be driven for long.
    fn let_go_of_spent_links(&mut self) {
        let Self { open, rails, shared, .. } = self;
        let Some(GroupContext { others, .. }) = shared else { return };
        for (rail, link) in rails.shared.as_ref().map_or_else(Vec::new, SharedLinks::spent_links) {
            // Its bytes may still be hidden; one flush makes them visible for all members.
            let shown = open.has_seen_all_of(rail, link)
                || others.iter_mut().any(|other| other.has_seen_all_of(rail, link));
            if shown && rails.get_mut(rail).poll_link_quiet(link) {
                open.let_go(rails, rail, link);
                others.iter_mut().for_each(|other| other.let_go(rails, rail, link));
            }
        }
    }
}

impl OpenComm {
    /// Returns whether this member uses a link that has ended, and knows that no bytes from it are hidden.
    fn has_seen_all_of(&mut self, rail: usize, link: LinkId) -> bool {
        let hides = matches!(&self.side, CommSide::Recv(lane) if lane.plan.needs_flush);
        let paths = self.side.paths_mut();
        let Some(path) = paths.of_link(rail, link).map(|at| paths.get(at)) else { return false };
        !hides || path.leaving.as_ref().is_none_or(|leaving| leaving.flushed)
    }

    /// Releases a link of this member. Its delivery report is still to be sent.
    fn let_go(&mut self, rails: &mut GroupRails<impl Rail>, rail: usize, link: LinkId) {
        let paths = self.side.paths_mut();
        if let Some(at) = paths.of_link(rail, link) {
            paths.get_mut(at).link = NO_LINK;
            rails.release_link(rail, link);
        }
    }

    /// Processes a frame of the peer.
    fn on_link_frame(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        (frame, fd): LinkFrame,
        now: Instant,
    ) -> Result<(), CommFault> {
        if matches!(frame, ControlFrame::Stop { .. }) {
            self.life.on_stop();
        }
        let paths = self.side.paths_mut().len();
        // The peer names the link, so the number is checked.
        let about = frame.about_link().map(|(_, link)| usize::from(link));
        let Some(at) = about.filter(|&at| at < paths) else { return Ok(()) };
        match frame {
            ControlFrame::LinkDown(down) => self.on_down(rails, requests, at, down, now),
            ControlFrame::LinkOpen(asked) => {
                self.on_open(rails, at, asked, fd, now);
                Ok(())
            }
            ControlFrame::LinkResult(result) => {
                self.on_result(rails, at, result, fd);
                Ok(())
            }
            ControlFrame::LinkReady { epoch, .. } => {
                let receives = matches!(self.side, CommSide::Recv(_));
                let paths = self.side.paths_mut();
                let path = paths.get_mut(at);
                // The receiver may use the link from now on, if it is not being left at the same
                // time.
                if receives && path.leaving.is_none() && path.life.on_carries(epoch, now) {
                    rails.mark_carrying(path);
                    paths.choose_lead();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_down(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        at: usize,
        down: LinkDown,
        now: Instant,
    ) -> Result<(), CommFault> {
        let told = LinkDownReport { epoch: down.epoch, next: down.next, standing: down.standing };
        let path = self.side.paths_mut().get_mut(at);
        if let Some(leaving) = &mut path.leaving {
            // Both ends leave at the same time: the peer's report is kept until this end has
            // drained.
            if path.life.connection_epoch() == told.epoch {
                leaving.told = Some(told);
            }
            return Ok(());
        }
        let unanswered = path.life.is_asking();
        match path.life.on_down(told.epoch, now) {
            DownStep::Stale => Ok(()),
            DownStep::Known | DownStep::Past => {
                // The peer waits for this end's LINK_DOWN, so it is sent again.
                if down.answer {
                    self.say_down_of(at, told.epoch, false);
                }
                Ok(())
            }
            DownStep::Down => self.recover_path(rails, requests, at, &told),
            // The other end of this member could not take part; nothing was posted for it here, so nothing has to be fenced.
            DownStep::Fence if unanswered && self.quits_unused(rails, at) => {
                self.say_down(at, false);
                self.recover_path(rails, requests, at, &told)
            }
            DownStep::Fence => {
                self.side.drain_path(rails, at);
                if let Some(leaving) = &mut self.side.paths_mut().get_mut(at).leaving {
                    leaving.told = Some(told);
                }
                Ok(())
            }
        }
    }

    fn end_all_leaving(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        now: Instant,
    ) -> Result<(), CommFault> {
        (0..self.side.paths_mut().len()).try_for_each(|at| self.end_leaving(rails, requests, at, now))
    }

    /// Completes the drain of a path once its link has reported all completions.
    fn end_leaving(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        at: usize,
        now: Instant,
    ) -> Result<(), CommFault> {
        let tag = self.side.wr_id_tag();
        let flush = match &self.side {
            CommSide::Send(_) => None,
            CommSide::Recv(lane) => lane.last_flush(at),
        };
        let path = self.side.paths_mut().get_mut(at);
        let Some(leaving) = &mut path.leaving else { return Ok(()) };
        // The link still reports completions, and each of them may be of a message that has
        // arrived.
        if !rails.get_mut(path.rail).poll_link_quiet(path.link) {
            return Ok(());
        }
        // Its bytes may still be hidden.
        if let Some(flush) = flush
            && path.link != NO_LINK
            && !leaving.flushed
        {
            // Posted once; its completion sets `flushed`.
            if !leaving.flushing {
                let rail = rails.get_mut(path.rail);
                leaving.flushing = rail.post(path.link, tag | LAST_FLUSH, flush, true).is_ok();
            }
            return Ok(());
        }
        let Some(leaving) = path.leaving.take() else { return Ok(()) };
        // The link state changes only after the drain, so no frame of the peer can restart the link
        // before.
        path.life.on_fault(now);
        // The peer's report has arrived already, or this end reports first.
        match leaving.told {
            None => {
                self.say_down(at, true);
                Ok(())
            }
            Some(told) => {
                path.life.on_down(told.epoch, now);
                self.say_down(at, false);
                self.recover_path(rails, requests, at, &told)
            }
        }
    }

    /// Makes progress on a link that is being made; true, at the sending end, once something has arrived over it.
    fn prove_link(&mut self, rails: &mut GroupRails<impl Rail>, at: usize) -> Result<bool, LinkError> {
        let tag = self.side.wr_id_tag();
        let (fins, arrives) = match &self.side {
            CommSide::Send(lane) => (lane.fins_of(at), lane.plan.arrives),
            CommSide::Recv(_) => (None, true),
        };
        let path = self.side.paths_mut().get_mut(at);
        let rail = rails.get_mut(path.rail);
        // A link that is up may still not carry, because on some networks only a transferred operation proves that.
        if !path.life.is_joining() || !rail.poll_link_up(path.link)? {
            return Ok(false);
        }
        // The receiving end needs no probe, because the sender's LINK_READY reports the result.
        let Some(RemoteRegion { key, addr }) = fins else { return Ok(false) };
        if path.proof == LinkProbe::None {
            let to = RemoteLocation::for_records(key, addr);
            let nothing = Op::Write { from: OpSource::Inline(&[]), to, imm: None };
            // Where completion does not mean arrival, a second operation proves the arrival of the first.
            let posted = rail.post(path.link, tag | PROBE, nothing, arrives).is_ok()
                && (arrives || rail.post(path.link, tag | PROBE, Op::Nop, true).is_ok());
            if posted {
                rail.flush();
                path.proof = LinkProbe::Posted;
            }
        }
        Ok(path.proof == LinkProbe::Done)
    }

    /// Handles the completion of a path's last flush, or of the probe of a new link.
    #[cold]
    pub(crate) fn on_link_sign(&mut self, at: usize, wr_id: u64) {
        let path = self.side.paths_mut().get_mut(at);
        match &mut path.leaving {
            Some(leaving) if wr_id == LAST_FLUSH => leaving.flushed = true,
            // A probe of a link that is being left proves nothing.
            None if wr_id == PROBE => path.proof = LinkProbe::Done,
            _ => {}
        }
    }

    /// Recovers a path after both ends have fenced it.
    fn recover_path(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        at: usize,
        told: &LinkDownReport,
    ) -> Result<(), CommFault> {
        match &mut self.side {
            CommSide::Send(lane) => lane.repost_lost_ops(rails, requests, at, told.standing.as_ref()),
            CommSide::Recv(lane) => lane.rewrite_lost_records(rails, requests, at, told.next),
        }
    }

    fn say_down(&mut self, at: usize, answer: bool) {
        let epoch = self.side.paths_mut().get(at).life.connection_epoch();
        self.say_down_of(at, epoch, answer);
    }

    /// Queues LINK_DOWN for a connection of a link.
    fn say_down_of(&mut self, at: usize, epoch: u32, answer: bool) {
        let (next, standing) = match &self.side {
            CommSide::Send(lane) => (lane.sender.next_number(), None),
            CommSide::Recv(lane) => (0, Some(lane.delivery_report())),
        };
        let down = LinkDown { id: self.ends.remote, link: at as u8, epoch, answer, next, standing };
        self.words.push((ControlFrame::LinkDown(down), None));
    }

    /// Makes this end of a new link, and requests the other end.
    fn request_link(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        at: usize,
        epoch: u32,
    ) -> Result<(), LinkError> {
        let id = self.ends.remote;
        let CommSide::Send(lane) = &mut self.side else { return Ok(()) };
        let mailbox = lane.mailbox_region(at);
        let path = lane.paths.get_mut(at);
        // The old link is released first, because the NIC may have no room for two.
        rails.release_link(path.rail, std::mem::replace(&mut path.link, NO_LINK));
        path.proof = LinkProbe::None;
        path.link = rails.make_link(at, path.rail)?;
        let address = rails.get(path.rail).link_address(path.link)?;
        let open = LinkOpen { id, link: at as u8, epoch, mailbox, address: address.bytes };
        self.words.push((ControlFrame::LinkOpen(open), address.fd));
        Ok(())
    }

    fn on_open(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        at: usize,
        asked: LinkOpen,
        fd: Option<PassedFd>,
        now: Instant,
    ) {
        // The sender opens links; a LINK_OPEN to a sender violates the protocol, and is ignored.
        let CommSide::Recv(lane) = &mut self.side else { return };
        let path = lane.paths.get_mut(at);
        if path.leaving.is_some() {
            return;
        }
        let step = path.life.on_open(asked.epoch, now);
        let made = match step {
            LinkOpenStep::Ignore => return,
            LinkOpenStep::Repeat => Ok(()),
            LinkOpenStep::Make => {
                lane.mailboxes[at] = asked.mailbox;
                lane.make_link(rails, at, LinkAddress { bytes: asked.address, fd })
            }
        };
        let path = lane.paths.get(at);
        match made.and_then(|()| rails.get(path.rail).link_address(path.link)) {
            Ok(address) => {
                let id = self.ends.remote;
                let link = at as u8;
                let epoch = asked.epoch;
                let fins = lane.fin_region(at);
                let result = LinkResult { id, link, epoch, fins, address: address.bytes };
                self.words.push((ControlFrame::LinkResult(result), address.fd));
            }
            // The request got its reply before.
            Err(_) if step == LinkOpenStep::Repeat => {}
            Err(_) => self.step_back(rails, at, now),
        }
    }

    /// Gives up a link that this member was about to use, because this end cannot make it.
    fn step_back(&mut self, rails: &mut GroupRails<impl Rail>, at: usize, now: Instant) {
        // Other members keep the link, so it must not be put into error.
        if !self.quits_unused(rails, at) {
            return self.side.drain_path(rails, at);
        }
        self.side.paths_mut().get_mut(at).life.on_fault(now);
        self.say_down(at, true);
    }

    /// Leaves a link to other members if nothing was posted on it for this member, so that nothing has to be fenced; false if no
    /// other member uses it.
    fn quits_unused(&mut self, rails: &mut GroupRails<impl Rail>, at: usize) -> bool {
        let path = self.side.paths_mut().get_mut(at);
        if !rails.serves_others(path.rail, path.link) {
            return false;
        }
        rails.release_link(path.rail, std::mem::replace(&mut path.link, NO_LINK));
        true
    }

    fn on_result(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        at: usize,
        result: LinkResult,
        fd: Option<PassedFd>,
    ) {
        let CommSide::Send(lane) = &mut self.side else { return };
        let path = lane.paths.get_mut(at);
        // A result of an older request, or for a link that is being left meanwhile.
        if path.leaving.is_some() || !path.life.on_result(result.epoch) {
            return;
        }
        let address = LinkAddress { bytes: result.address, fd };
        if rails.connect_link(path.rail, path.link, address).is_err() {
            return self.side.drain_path(rails, at);
        }
        lane.set_fins(at, result.fins);
    }
}
