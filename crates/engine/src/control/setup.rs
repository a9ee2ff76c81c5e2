//! The control plane with its lock, and the parts of a comm's life that depend on it: setup, linger after close, and places in
//! the pool. Called by the calls that set up and close, and periodically by lanes that wait; never for single messages.

use trunkline_fabric::{Fabric, Host, LogLevel, Rail};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::id::ProcessId;
use trunkline_proto::pool::{GroupPlace, RemainingMembers};
use trunkline_proto::time::Duration;
use trunkline_proto::wire::frame::ControlFrame;

use crate::CommId;
use crate::comm::CommSlot;
use crate::comm::request::RequestTable;
use crate::control::ControlPlane;
use crate::control::linger::LingeringComm;
use crate::engine::core::EngineCore;
use crate::lane::OwnerLock;
use crate::pool::broken_groups::BrokenGroups;
use crate::pool::groups::{GroupGuard, LockedMember, MemberLocation};
use crate::pool::member::{CommNames, CommSide};
use crate::pool::membership::new_control;
use crate::status::CommStatusRow;
use crate::sync::Guard;

/// Peer times for which a closed comm stays where completions do not prove arrival. A live peer that makes no call for minutes still finds
/// its messages; the wait for one that never calls is bounded.
const LINGER_TIMES: u64 = 60;

/// The control plane of a process, locked.
pub(crate) type ControlGuard<'a, H, R> = Guard<'a, ControlPlane<H, R>>;

/// Sets comms up and ends them: the control plane with its handshakes and its pool, and the closed comms that linger.
///
/// [`CommDriver`](crate::engine::driver::CommDriver) owns it and drives it, and so do the calls of front ends. It never drives an
/// open comm. Methods with a [`ControlPlane`] argument require that the caller has locked it. A thread that holds the lock of a
/// group only tries that lock, and never waits for it, which excludes a deadlock. A comm in `lingering` is not in the table of
/// comms, and keeps its membership in its group. A thread that waits for the lock of `lingering` holds at most the lock of the
/// control plane.
pub(crate) struct ConnectionSetup<F: Fabric, H: Host> {
    control: OwnerLock<ControlPlane<H, F::Rail>>,
    lingering: OwnerLock<Vec<LingeringComm>>,
    /// Groups whose links have ended, not yet reported to the pool.
    pub(crate) broken: BrokenGroups,
    /// Declared last: the rails of attempts must be dropped before their fabric.
    pub(crate) core: EngineCore<F, H>,
}

/// The remains of a comm that was removed from the table.
pub(super) struct DetachedComm {
    pub(super) lingers: Option<LingeringComm>,
    pub(super) place: Option<GroupPlace>,
    /// The number of messages that the peer may still wait for.
    pub(super) messages: u64,
}

impl<F: Fabric, H: Host> ConnectionSetup<F, H> {
    /// Creates the setup of a process, without listeners and attempts.
    pub(crate) fn new(core: EngineCore<F, H>, process: ProcessId) -> Self {
        let control = new_control(&core.fabric, &core.host, &core.params, process);
        Self {
            control: OwnerLock::new(control),
            lingering: OwnerLock::new(Vec::new()),
            broken: BrokenGroups::new(),
            core,
        }
    }

    /// Locks the control plane; waits for other holders.
    pub(crate) fn lock_control(&self) -> ControlGuard<'_, H, F::Rail> {
        self.control.lock()
    }

    /// Locks the control plane, unless another thread holds it or waits for it.
    #[inline]
    pub(crate) fn try_lock_control(&self) -> Option<ControlGuard<'_, H, F::Rail>> {
        self.control.try_lock()
    }

    /// Returns how many closed comms linger.
    pub(crate) fn lingering_count(&self) -> usize {
        self.lingering.lock().len()
    }

    /// Adds a closed comm that lingers.
    pub(super) fn add_lingering(&self, last: LingeringComm) {
        self.lingering.lock().push(last);
    }

    /// Processes frames of the control streams, reports broken groups to the pool, and frees abandoned attempts.
    pub(crate) fn progress_control(&self, control: &mut ControlPlane<H, F::Rail>) {
        // First, because frames may abandon attempts and break groups.
        control.progress_streams(&self.core.control_context());
        self.report_broken(control);
        while let Some(id) = control.abandoned.pop() {
            self.forget_attempt(control, id);
        }
        // Last, because lanes that were in use above may be free now.
        self.clear_leftovers(control);
    }

    /// Reports groups whose links have ended, so that the pool adds no comm to them any more.
    fn report_broken(&self, control: &mut ControlPlane<H, F::Rail>) {
        self.broken.drain_groups(|group| {
            let members = control.pool.on_broken(group).len();
            let text = format!("a group of shared queue pairs has ended, with {members} connections on it");
            self.core.host.log(LogLevel::Warn, &text);
        });
    }

    /// Makes progress on the closed comms that linger; true if some or all of them were skipped because a lock was held.
    pub(crate) fn drain_lingering(&self) -> bool {
        // Another thread drains already; waiting for it would not help.
        let Some(mut lingering) = self.lingering.try_lock() else { return false };
        if lingering.is_empty() {
            return false;
        }
        // Only tried, because this call may hold the lock of a group, and control plane holders wait for those.
        let Some(mut control) = self.control.try_lock() else { return true };
        let now = self.core.host.now();
        let mut at = 0;
        let mut owes = false;
        while at < lingering.len() {
            let last = lingering[at];
            let Some(mut held) = self.core.groups.try_lock_group(last.seat) else {
                // Skipped, because its group is in use, and the driver repeats the call later.
                (at, owes) = (at + 1, true);
                continue;
            };
            let finished = match held.as_mut().and_then(|group| group.locked_member(last.seat)) {
                // The group has ended, so nothing is left to wait for.
                None => true,
                Some(turn) if last.rides => last.drain_shared(&self.core, &mut control, turn),
                Some(turn) => last.drain_unshared(turn, now, control.left.is_closed(last.name)),
            };
            if finished {
                // Swapped in place of the removed one, so `at` stays.
                lingering.swap_remove(at);
                self.let_go(&mut control, &last, held);
                self.core.show_usage();
            } else {
                at += 1;
            }
        }
        owes
    }

    /// Removes a closed comm from its group.
    fn let_go(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        last: &LingeringComm,
        mut held: GroupGuard<'_, F::Rail>,
    ) {
        if last.rides {
            if let Some(group) = held.as_mut() {
                group.remove_member(last.seat);
            }
            // Unlocked first, because freeing the membership below may lock the group again.
            drop(held);
            control.remove_grouped_comm(last.name);
        } else {
            if let Some(LockedMember { open, rails, .. }) =
                held.as_mut().and_then(|group| group.locked_member(last.seat))
            {
                open.side.paths_mut().release_links(rails);
            }
            drop(self.core.groups.remove(last.seat.lane, held));
        }
        control.left.remove_comm(last.name);
        // Last, because the pool may give the freed budget to the next comm at once.
        if let Some(place) = last.place {
            self.leave_pool(control, place);
        }
    }

    /// Frees a membership in the pool; the queue pairs of a group are freed with its last membership.
    pub(crate) fn leave_pool(&self, control: &mut ControlPlane<H, F::Rail>, place: GroupPlace) {
        // Other members remain, and so do the queue pairs.
        let Ok(RemainingMembers::Last(_)) = control.pool.remove_member(place.seat) else { return };
        if let Some(lane) = control.riding.remove(&place.group) {
            self.core.end_group(lane);
            self.core.show_usage();
        }
        // Reported after the queue pairs were destroyed, so that their budget is free again.
        control.pool.on_destroyed(place.group);
    }

    /// Ends a comm that was removed from the table. Returns how it lingers, if it does, and its place in the pool. `gone`:
    /// nothing of its peer will land any more.
    pub(super) fn detach_comm(
        &self,
        seat: MemberLocation,
        turn: LockedMember<'_, F::Rail>,
        gone: bool,
    ) -> DetachedComm {
        let EngineCore { host, params, status, .. } = &self.core;
        let LockedMember { open, rails, shared, .. } = turn;
        // Completed operations that have not arrived are lost with the link, so the link stays until a slow peer has
        // had its time.
        let arrives = rails.iter().all(|rail| rail.caps().arrives);
        let peer_time = params.peer_time;
        let slow = if arrives { peer_time } else { Duration(peer_time.0.saturating_mul(LINGER_TIMES)) };
        let until = host.now() + peer_time;
        let until_closed = host.now() + slow;
        let ends = open.ends;
        let name = open.remote_name();
        let place = open.place;
        let rides = shared.is_some();
        let last = LingeringComm { seat, until, until_closed, ends, name, place, rides };
        if shared.is_some() {
            // The caller's requests end with the close.
            open.withdraw_requests(rails);
            // The timer of the peer's end is used for the linger time from here on.
            open.down = None;
            let gone = gone && matches!(open.side, CommSide::Recv(_));
            if !open.gives_memory_back(rails) && !gone {
                // The caller may unmap its memory as soon as this returns: then nothing may use the links any more.
                rails.fail_all();
            }
            if let CommSide::Send(lane) = &mut open.side {
                lane.end_sending(rails);
            }
            return DetachedComm { lingers: Some(last), place, messages: open.message_count() };
        }
        match &mut open.side {
            CommSide::Recv(lane) => {
                // A receiver has nothing to deliver, so it does not linger.
                lane.paths.release_links(rails);
                status.add_tally(ProcessTally::CompletionsDropped, lane.dropped);
                return DetachedComm { lingers: None, place, messages: open.message_count() };
            }
            CommSide::Send(lane) => {
                let reads = lane.reads_user_memory(rails);
                if open.fault.is_none() && reads {
                    // The caller may unmap its memory as soon as this returns.
                    lane.paths.fail_links(rails);
                } else if open.fault.is_none() {
                    lane.end_sending(rails);
                }
            }
        }
        // Later completions belong to requests that were counted, or given up, with the comm.
        open.closed = Some(Box::new(RequestTable::of_closed_comm(CommStatusRow::without_page)));
        DetachedComm { lingers: Some(last), place, messages: open.message_count() }
    }

    /// Ends a comm that was not returned to a caller, without a trace.
    pub(super) fn drop_comm(&self, control: &mut ControlPlane<H, F::Rail>, comm: CommId) {
        let Some(seat) = self.core.comms.get(comm).map(CommSlot::member_location) else { return };
        let mut held = self.core.groups.lock_group(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.locked_member_of(seat, comm)) else { return };
        // Another thread has closed it meanwhile.
        if !self.core.comms.remove(comm) {
            return;
        }
        let gone = control.is_gone(turn.open.remote_name());
        let DetachedComm { lingers, place, .. } = self.detach_comm(seat, turn, gone);
        match lingers {
            Some(last) => {
                // Unlocked first, because a thread that waits for the lock of the list must hold no group lock.
                drop(held);
                self.add_lingering(last);
            }
            None => {
                drop(self.core.groups.remove(seat.lane, held));
                if let Some(place) = place {
                    self.leave_pool(control, place);
                }
            }
        }
    }

    /// Sends CLOSE to the peer, with the number of sent messages; some of them may still be in flight.
    pub(super) fn send_close(&self, ends: CommNames, messages: u64, place: Option<GroupPlace>) {
        let mut control = self.control.lock();
        control.send_frame(ends.stream, &ControlFrame::Close { id: ends.remote, messages }, None);
        if let Some(attempt) = ends.attempt {
            // RESULTs that arrive later find no attempt, and get a CLOSE.
            control.attempts.remove(attempt);
        }
        if let Some(place) = place {
            self.leave_pool(&mut control, place);
        }
    }

    /// Drops all comms that linger, whatever is in flight, and replaces the control plane with one without listeners, streams and
    /// attempts.
    pub(super) fn reset_control(&self, process: ProcessId) {
        let EngineCore { fabric, host, params, .. } = &self.core;
        let mut control = self.control.lock();
        for last in self.lingering.lock().drain(..) {
            let held = self.core.groups.lock_group(last.seat);
            self.let_go(&mut control, &last, held);
        }
        let fresh = new_control(fabric, host, params, process);
        // Replaced while locked, so that no thread sees an intermediate state.
        let old = std::mem::replace(&mut *control, fresh);
        // The remaining groups belong to attempts, which were dropped with the old control plane.
        old.riding.values().for_each(|&lane| self.core.end_group(lane));
        drop((old, control));
    }
}
