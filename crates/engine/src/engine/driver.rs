//! Drives open comms: polls their lanes, their links and their peers, and runs work that a driving thread had to defer. Called by
//! the calls that move messages, and by the helper thread; opens and closes no comm.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trunkline_fabric::{Fabric, Host, LogLevel, Rail, WaitMethod};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::frame::ControlFrame;

use crate::CommId;
use crate::comm::CommSlot;
use crate::control::setup::ConnectionSetup;
use crate::engine::core::{EngineCore, locked_member_of};
use crate::link::links::SharedLinks;
use crate::pool::groups::{GroupContext, LockedMember};
use crate::pool::member::CommSide;

/// Fruitless polls of a lane after which its thread also polls others, because its peer may wait for another comm of
/// the same thread.
const HELP_AFTER: u32 = 4;

/// Drives open comms, each under the lock of its group, and determines the cause when one fails.
///
/// [`Engine`](crate::Engine) owns it; its calls and the helper thread call it. While it holds the lock of a group
/// it waits for no other lock. Work that needs one is deferred: `owes` is true until a call without such a lock has done it.
pub(crate) struct CommDriver<F: Fabric, H: Host> {
    pub(crate) setup: ConnectionSetup<F, H>,
    /// Closed comms, or frames of peers, wait for a group that another thread had locked.
    owes: AtomicBool,
}

impl<F: Fabric, H: Host> CommDriver<F, H> {
    /// Creates the driver of a process, without comms.
    pub(super) fn new(core: EngineCore<F, H>, process: ProcessId) -> Self {
        Self { setup: ConnectionSetup::new(core, process), owes: AtomicBool::new(false) }
    }

    /// Makes progress on work outside any open comm: handshakes and closed comms.
    pub(crate) fn progress_all(&self) {
        if let Some(mut control) = self.setup.try_lock_control() {
            self.setup.progress_control(&mut control);
        }
        self.deliver_link_frames();
        self.progress_lingering();
    }

    /// Makes progress on the closed comms that linger.
    pub(crate) fn progress_lingering(&self) {
        if self.setup.drain_lingering() {
            self.owes.store(true, Ordering::Relaxed);
        }
    }

    /// Runs work that was deferred because the calling thread held a group's lock. For calls that return without one.
    #[inline]
    pub(crate) fn drain_deferred(&self) {
        if self.owes.load(Ordering::Relaxed) {
            self.run_deferred();
        }
    }

    #[cold]
    fn run_deferred(&self) {
        self.owes.store(false, Ordering::Relaxed);
        self.deliver_link_frames();
        self.progress_lingering();
    }

    /// Delivers frames of peers to comms whose callers make no calls, so that any call of the process processes them.
    fn deliver_link_frames(&self) {
        let EngineCore { comms, groups, .. } = &self.setup.core;
        if !comms.news.swap(false, Ordering::AcqRel) {
            return;
        }
        for (id, slot) in comms.open_comms().filter(|(_, slot)| slot.has_link_frames()) {
            let seat = slot.member_location();
            let Some(mut lane) = groups.try_lock_group(seat) else {
                // The lock holder may have passed its check for frames, or may be polling another member, so the delivery is
                // repeated later.
                self.owes.store(true, Ordering::Relaxed);
                comms.news.fetch_or(true, Ordering::Release);
                continue;
            };
            if let Some(mut turn) = locked_member_of(&mut lane, seat, id) {
                if turn.shared.is_some() {
                    self.drive_comm(slot, &mut turn);
                } else {
                    self.drive_links(slot, &mut turn);
                }
            }
        }
    }

    /// [`CommDriver::progress_comm`]; also reads records that have arrived, outside the path of any message.
    #[inline]
    pub(crate) fn progress_sends(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        self.progress_comm(slot, turn);
        if let CommSide::Send(side) = &mut turn.open.side {
            side.read_records(turn.rails);
            slot.send_due.store(side.is_due(turn.rails), Ordering::Relaxed);
        }
    }

    /// Polls a lane for its caller. A lane that waits polls others of its thread, and checks its peer.
    #[inline]
    pub(crate) fn progress_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        slot.mark_polled();
        self.drive_comm(slot, turn);
        let open = &mut *turn.open;
        if open.life.is_link_lost() && open.fault.is_none() {
            self.check_peer(slot, turn);
        } else if open.idle > HELP_AFTER {
            slot.set_driving_thread();
            let due = self.schedule_peer_check(open);
            if due {
                open.idle = 0;
            }
            self.help_other_comm(slot);
            if due {
                self.check_idle_comm(slot, turn);
            }
        }
    }

    /// Handles a lane that has waited for long.
    #[cold]
    fn check_idle_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        self.setup.core.rest_if_idle(turn);
        self.check_peer(slot, turn);
    }

    /// Polls a lane, and determines the cause if it fails. Returns whether anything moved.
    #[inline]
    pub(crate) fn drive_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        if turn.open.fault.is_some() {
            return self.drive_failed(slot, turn);
        }
        if turn.open.many
            && let CommSide::Send(lane) = &mut turn.open.side
        {
            lane.set_time(self.setup.core.host.now());
        }
        let moved = turn.progress_member(&self.setup.core.comms, &slot.requests);
        if turn.open.fault.is_some() {
            self.after_drive(slot, turn);
            self.on_fault(slot, turn);
        } else if turn.check_follow_up(slot) {
            self.after_drive(slot, turn);
        }
        moved
    }

    /// As [`Self::drive_comm`], for a comm that has failed. It still has work only if others share its links.
    #[cold]
    fn drive_failed(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        if turn.shared.is_none() {
            return false;
        }
        let moved = turn.progress_failed(&self.setup.core.comms, &slot.requests);
        if turn.check_follow_up(slot) {
            self.after_drive(slot, turn);
        }
        moved
    }

    /// Drives the links after a poll, and notifies other members of the group.
    fn after_drive(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        if turn.open.many {
            self.drive_links(slot, turn);
        }
        if turn.shared.is_some() {
            self.notify_members(slot, turn);
        }
    }

    /// Reports failures of other members of the group, and the end of its links, after a member was polled.
    fn notify_members(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        let EngineCore { comms, host, status, .. } = &self.setup.core;
        while !turn.open.many
            && slot.news.has_some()
            && let Some((frame, _)) = slot.news.pop_frame()
        {
            if matches!(frame, ControlFrame::Stop { .. }) {
                turn.open.life.on_stop();
            }
        }
        if turn.open.life.is_stop_pending() {
            self.end_stopped(slot, turn);
        }
        let Some(GroupContext { others, common }) = &mut turn.shared else { return };
        if !std::mem::take(&mut common.untold) {
            return;
        }
        let ended = turn.rails.shared.as_ref().is_some_and(SharedLinks::all_ended);
        if ended && !common.told {
            common.told = true;
            self.setup.broken.push_group(common.id);
        }
        for other in others.iter_mut() {
            if !other.life.take_report() {
                continue;
            }
            let (Some(fault), Some(comm)) = (other.fault, comms.get(other.id)) else { continue };
            status.comm_fault(&comm.requests.row, true, fault, host.now());
            let over = self.setup.core.nic_name(other.side.paths_mut().lead_path().nic);
            let text = format!("connection with process {} over {over} failed: {fault}", other.peer.process);
            host.log(LogLevel::Warn, &text);
        }
    }

    /// Polls another comm of the waiting thread. The awaited message may depend on it, because a comm that is not polled neither
    /// sends nor receives.
    fn help_other_comm(&self, than: &CommSlot) {
        let core = &self.setup.core;
        let Some((id, other)) = core.comms.next_of_thread(than) else { return };
        let seat = other.member_location();
        let Some(mut lane) = core.groups.try_lock_group(seat) else { return };
        let Some(mut turn) = locked_member_of(&mut lane, seat, id) else { return };
        self.drive_comm(other, &mut turn);
        if let CommSide::Send(side) = &mut turn.open.side {
            side.read_records(turn.rails);
        }
        core.may_rest(&mut turn);
    }

    /// Drives a comm that no caller has polled since the last call, for a helper thread. Returns whether anything moved, and how
    /// soon the fabric requests another poll. `None` if another thread drives it.
    pub(crate) fn drive_if_unpolled(&self, id: CommId, slot: &CommSlot) -> Option<(bool, Option<Duration>)> {
        if slot.polled.swap(false, Ordering::Relaxed) {
            return None;
        }
        let seat = slot.member_location();
        let mut lane = self.setup.core.groups.try_lock_group(seat)?;
        let mut turn = locked_member_of(&mut lane, seat, id).filter(|turn| turn.open.fault.is_none())?;
        let moved = self.drive_comm(slot, &mut turn);
        if turn.open.fault.is_none() && self.waits_long(&mut turn) {
            self.check_peer(slot, &mut turn);
        }
        let LockedMember { open, rails, .. } = turn;
        if let CommSide::Send(lane) = &mut open.side {
            lane.read_records(rails);
        }
        let rail = open.side.paths_mut().lead_path().rail;
        let WaitMethod::After(soon) = rails.get_mut(rail).arm_wait() else {
            // Waiting on the descriptors of all lanes at once is not implemented; a short sleep is sufficient.
            return Some((moved, None));
        };
        Some((moved, Some(Duration::from_nanos(soon.0))))
    }

    /// Returns whether the peer should be checked now.
    fn waits_long(&self, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        let due = self.schedule_peer_check(turn.open);
        let down = turn.open.life.is_link_lost();
        if due {
            turn.open.idle = 0;
            self.setup.core.rest_if_idle(turn);
        }
        due || down
    }
}
