//! Checks of the peer of a waiting comm, and the cause of a comm's failure. Called when a waiting lane has time, and once for
//! each fault; never for single messages.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, LogLevel};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::time::Duration;

use crate::CommFault;
use crate::comm::CommSlot;
use crate::engine::driver::CommDriver;
use crate::pool::groups::LockedMember;
use crate::pool::member::{FailureTimer, OpenComm};

/// Fruitless polls of a lane per read of the clock, so that most polls read none.
const CLOCK_POLLS: u32 = 16;

/// The minimum number of checks of a waiting lane's control stream per peer time limit.
const LOOKS_IN_PEER_TIME: u64 = 100;

/// The minimum number of checks of a closed peer, or of an ended link, before the peer time limit is reached, because a
/// process that was stopped meanwhile must first process the messages that have arrived.
pub(crate) const LOOKS_AT_END: u64 = 8;

impl<F: Fabric, H: Host> CommDriver<F, H> {
    /// Returns whether a waiting lane should check its peer's control stream: after many polls, or after a while. The
    /// latter is needed because many polls take too long for callers that yield the processor between polls.
    pub(crate) fn schedule_peer_check(&self, open: &mut OpenComm) -> bool {
        let core = &self.setup.core;
        if open.idle >= core.params.idle_polls {
            return true;
        }
        if !open.idle.is_multiple_of(CLOCK_POLLS) {
            return false;
        }
        let now = core.host.now();
        let due = (now - *open.looked.get_or_insert(now)).0 >= core.params.peer_time.0 / LOOKS_IN_PEER_TIME;
        if due {
            open.looked = Some(now);
        }
        due
    }

    /// Checks whether the peer of a waiting lane is still alive.
    #[cold]
    pub(crate) fn check_peer(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        let core = &self.setup.core;
        self.progress_all();
        if !turn.open.many && !turn.open.life.is_link_lost() {
            self.check_links(turn);
        }
        let LockedMember { open, .. } = turn;
        let process = open.peer.process;
        let closed = slot.peer_closed.load(Ordering::Acquire);
        let fault = if open.peer.dead.load(Ordering::Acquire) {
            CommFault::PeerDead(process)
        } else if closed || open.life.is_link_lost() {
            // Messages and completions may arrive after the control frame, and the end of a link before it. So the comm fails
            // only after a delay.
            let now = core.host.now();
            let step = core.params.peer_time.0 / LOOKS_AT_END;
            let late =
                FailureTimer::advance_timer(&mut open.down, now, Duration(step)) > core.params.peer_time;
            let messages = slot.peer_messages.load(Ordering::Relaxed);
            let settled = closed && open.on_peer_closed(&slot.requests, messages);
            if !late && !settled {
                return;
            }
            if closed { CommFault::PeerClosed(process) } else { CommFault::Link(open.ended_by) }
        } else {
            return;
        };
        self.give_up_peer(slot, turn, fault);
    }

    /// Processes the peer's frames, and fails requests that can never complete.
    #[cold]
    pub(crate) fn give_up_peer(
        &self,
        slot: &CommSlot,
        turn: &mut LockedMember<'_, F::Rail>,
        fault: CommFault,
    ) {
        let core = &self.setup.core;
        let shares = turn.shared.is_some();
        let LockedMember { open, rails, batch, .. } = turn;
        let failed = match shares {
            false => open.on_peer_gone(rails, batch, &slot.requests, fault),
            true => turn.on_peer_gone(&core.comms, &slot.requests, fault),
        };
        let open = &mut *turn.open;
        core.status.add_tally(ProcessTally::RequestsFailed, failed as u64);
        core.status.comm_fault(&slot.requests.row, open.fault.is_some(), fault, core.host.now());
        if failed > 0 {
            let over = core.nic_name(open.side.paths_mut().lead_path().nic);
            core.host.log(LogLevel::Warn, &format!("{failed} requests over {over} failed: {fault}"));
        }
    }

    #[cold]
    pub(crate) fn fail_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>, fault: CommFault) {
        self.fail_and_count(slot, turn, fault);
        self.on_fault(slot, turn);
    }

    /// Fails a comm, and counts its failed requests.
    #[cold]
    pub(crate) fn fail_and_count(
        &self,
        slot: &CommSlot,
        turn: &mut LockedMember<'_, F::Rail>,
        fault: CommFault,
    ) {
        let core = &self.setup.core;
        let failed = turn.open.fail_requests(turn.rails, &slot.requests, fault);
        core.status.add_tally(ProcessTally::RequestsFailed, failed as u64);
        core.status.comm_fault(&slot.requests.row, true, turn.open.fault.unwrap_or(fault), core.host.now());
    }

    /// Determines the cause of a fault as well as possible now, and logs it once.
    #[cold]
    pub(crate) fn on_fault(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        let core = &self.setup.core;
        self.progress_all();
        let open = &mut *turn.open;
        if let Some(CommFault::Link(_)) = open.fault {
            let process = open.peer.process;
            if open.peer.dead.load(Ordering::Acquire) {
                open.fault = Some(CommFault::PeerDead(process));
            } else if slot.peer_closed.load(Ordering::Acquire) {
                open.fault = Some(CommFault::PeerClosed(process));
            }
        }
        if let Some(fault) = open.fault {
            core.status.comm_fault(&slot.requests.row, true, fault, core.host.now());
            let over = core.nic_name(open.side.paths_mut().lead_path().nic);
            let text = format!("connection with process {} over {over} failed: {fault}", open.peer.process);
            core.host.log(LogLevel::Warn, &text);
        }
    }
}
