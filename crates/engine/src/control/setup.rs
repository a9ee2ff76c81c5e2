//! The control plane behind its lock, and what begins and ends with it: comms that are set up, comms that linger after their close, and
//! places in the pool. Called by the calls that set up and close, and now and then by lanes that wait; never for single messages.

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
/// [`CommDriver`](crate::engine::driver::CommDriver) owns it and goes on with it, and so do the calls of front ends. It never drives an
/// open comm. Methods that take the [`ControlPlane`] as an argument expect that the caller has locked it; a thread that holds the lock
/// of a group only tries that lock, and never waits for it. A comm in `lingering` is in the table of comms no more, and keeps its seat
/// in its group. A thread that waits for the lock of `lingering` holds no lock but, at most, that of the control plane.
pub(crate) struct ConnectionSetup<F: Fabric, H: Host> {
    control: OwnerLock<ControlPlane<H, F::Rail>>,
    lingering: OwnerLock<Vec<LingeringComm>>,
    /// Groups whose links have ended, for the pool to know.
    pub(crate) broken: BrokenGroups,
    /// Declared last: the rails of attempts go before their fabric.
    pub(crate) core: EngineCore<F, H>,
}

/// What is left of a comm that was taken out of the table.
pub(super) struct DetachedComm {
    pub(super) lingers: Option<LingeringComm>,
    pub(super) place: Option<GroupPlace>,
    /// What the peer may still wait for.
    pub(super) messages: u64,
}

impl<F: Fabric, H: Host> ConnectionSetup<F, H> {
    /// The setup of that process, which neither listens nor has attempts.
    pub(crate) fn new(core: EngineCore<F, H>, process: ProcessId) -> Self {
        let control = new_control(&core.fabric, &core.host, &core.params, process);
        Self {
            control: OwnerLock::new(control),
            lingering: OwnerLock::new(Vec::new()),
            broken: BrokenGroups::new(),
            core,
        }
    }

    /// The control plane, when it is free.
    pub(crate) fn lock_control(&self) -> ControlGuard<'_, H, F::Rail> {
        self.control.lock()
    }

    /// The control plane, unless another thread has it or waits for it.
    #[inline]
    pub(crate) fn try_lock_control(&self) -> Option<ControlGuard<'_, H, F::Rail>> {
        self.control.try_lock()
    }

    /// How many closed comms linger.
    pub(crate) fn lingering_count(&self) -> usize {
        self.lingering.lock().len()
    }

    /// A closed comm lingers from now on.
    pub(super) fn add_lingering(&self, last: LingeringComm) {
        self.lingering.lock().push(last);
    }

    /// Takes the frames that have come on the control streams, tells the pool of broken groups, and clears away attempts that were given up.
    pub(crate) fn progress_control(&self, control: &mut ControlPlane<H, F::Rail>) {
        control.progress_streams(&self.core.control_context());
        self.report_broken(control);
        while let Some(id) = control.abandoned.pop() {
            self.forget_attempt(control, id);
        }
        self.clear_leftovers(control);
    }

    /// Groups whose links have ended take no comm any more.
    fn report_broken(&self, control: &mut ControlPlane<H, F::Rail>) {
        self.broken.drain_groups(|group| {
            let members = control.pool.on_broken(group).len();
            let text = format!("a group of shared queue pairs has ended, with {members} connections on it");
            self.core.host.log(LogLevel::Warn, &text);
        });
    }

    /// Goes on with the closed comms that linger; true when some of them, or all, had to be left out because a lock was taken.
    pub(crate) fn drain_lingering(&self) -> bool {
        let Some(mut lingering) = self.lingering.try_lock() else { return false };
        if lingering.is_empty() {
            return false;
        }
        let Some(mut control) = self.control.try_lock() else { return true };
        let now = self.core.host.now();
        let mut at = 0;
        let mut owes = false;
        while at < lingering.len() {
            let last = lingering[at];
            let Some(mut held) = self.core.groups.try_lock_group(last.seat) else {
                (at, owes) = (at + 1, true);
                continue;
            };
            let finished = match held.as_mut().and_then(|group| group.locked_member(last.seat)) {
                None => true,
                Some(turn) if last.rides => last.drain_shared(&self.core, &mut control, turn),
                Some(turn) => last.drain_unshared(turn, now, control.left.is_closed(last.name)),
            };
            if finished {
                lingering.swap_remove(at);
                self.let_go(&mut control, &last, held);
                self.core.show_usage();
            } else {
                at += 1;
            }
        }
        owes
    }

    /// A closed comm leaves its seat.
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
        if let Some(place) = last.place {
            self.leave_pool(control, place);
        }
    }

    /// A seat in the pool is of no use any more; with the last one of a group go its queue pairs.
    pub(crate) fn leave_pool(&self, control: &mut ControlPlane<H, F::Rail>, place: GroupPlace) {
        let Ok(RemainingMembers::Last(_)) = control.pool.remove_member(place.seat) else { return };
        if let Some(lane) = control.riding.remove(&place.group) {
            self.core.end_group(lane);
            self.core.show_usage();
        }
        control.pool.on_destroyed(place.group);
    }

    /// Ends a comm that was taken out of the table: how it lingers, if it does, and its place in the pool. `gone`: nothing of
    /// its peer's will land any more.
    pub(super) fn detach_comm(
        &self,
        seat: MemberLocation,
        turn: LockedMember<'_, F::Rail>,
        gone: bool,
    ) -> DetachedComm {
        let EngineCore { host, params, status, .. } = &self.core;
        let LockedMember { open, rails, shared, .. } = turn;
        // What has completed without having arrived is lost with the link, so it stays as long as a slow peer may take.
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
            open.withdraw_requests(rails);
            open.down = None;
            let gone = gone && matches!(open.side, CommSide::Recv(_));
            if !open.gives_memory_back(rails) && !gone {
                // The caller may unmap it as soon as this returns: then nothing must use the links any more.
                rails.fail_all();
            }
            if let CommSide::Send(lane) = &mut open.side {
                lane.end_sending(rails);
            }
            return DetachedComm { lingers: Some(last), place, messages: open.message_count() };
        }
        match &mut open.side {
            CommSide::Recv(lane) => {
                lane.paths.release_links(rails);
                status.add_tally(ProcessTally::CompletionsDropped, lane.dropped);
                return DetachedComm { lingers: None, place, messages: open.message_count() };
            }
            CommSide::Send(lane) => {
                let reads = lane.reads_user_memory(rails);
                if open.fault.is_none() && reads {
                    // The caller may unmap it as soon as this returns.
                    lane.paths.fail_links(rails);
                } else if open.fault.is_none() {
                    lane.end_sending(rails);
                }
            }
        }
        // What still completes was counted, or given up, with the comm.
        open.closed = Some(Box::new(RequestTable::of_closed_comm(CommStatusRow::without_page)));
        DetachedComm { lingers: Some(last), place, messages: open.message_count() }
    }

    /// Ends a comm that no caller was given, as if it had never been.
    pub(super) fn drop_comm(&self, control: &mut ControlPlane<H, F::Rail>, comm: CommId) {
        let Some(seat) = self.core.comms.get(comm).map(CommSlot::member_location) else { return };
        let mut held = self.core.groups.lock_group(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.locked_member_of(seat, comm)) else { return };
        if !self.core.comms.remove(comm) {
            return;
        }
        let gone = control.is_gone(turn.open.remote_name());
        let DetachedComm { lingers, place, .. } = self.detach_comm(seat, turn, gone);
        match lingers {
            Some(last) => {
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

    /// Tells the peer that our end is closed, and after how many messages; they may still be under way.
    pub(super) fn send_close(&self, ends: CommNames, messages: u64, place: Option<GroupPlace>) {
        let mut control = self.control.lock();
        control.send_frame(ends.stream, &ControlFrame::Close { id: ends.remote, messages }, None);
        if let Some(attempt) = ends.attempt {
            control.attempts.remove(attempt);
        }
        if let Some(place) = place {
            self.leave_pool(&mut control, place);
        }
    }

    /// Lets go of all comms that linger, whatever is under way, and begins anew with a control plane without listeners, streams and
    /// attempts.
    pub(super) fn reset_control(&self, process: ProcessId) {
        let EngineCore { fabric, host, params, .. } = &self.core;
        let mut control = self.control.lock();
        for last in self.lingering.lock().drain(..) {
            let held = self.core.groups.lock_group(last.seat);
            self.let_go(&mut control, &last, held);
        }
        let fresh = new_control(fabric, host, params, process);
        let old = std::mem::replace(&mut *control, fresh);
        // Those that are left had seats of attempts, which have gone with it.
        old.riding.values().for_each(|&lane| self.core.end_group(lane));
        drop((old, control));
    }
}
