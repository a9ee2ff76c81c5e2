//! Memory of a comm that shares its queue pairs is given back before the caller reuses it, without harm to the others: what
//! was posted completes, or goes nowhere, or the peer says that nothing more comes; and if none of these happens in time,
//! the queue pairs are given up. Called when memory in use is deregistered and when a comm closes or is stopped.

use trunkline_fabric::{Fabric, Host};
use trunkline_proto::wire::frame::ControlFrame;

use crate::comm::CommSlot;
use crate::engine::driver::CommDriver;
use crate::pool::groups::LockedMember;
use crate::pool::member::CommSide;
use crate::{CommFault, CommId, EngineError, MrId};

impl<F: Fabric, H: Host> CommDriver<F, H> {
    /// Whether no operation can use the memory of a failed comm's region any more.
    pub(crate) fn is_revoked(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>, mr: MrId) -> bool {
        self.drive_comm(slot, turn);
        if let CommSide::Recv(lane) = &turn.open.side {
            if lane.can_retire_memory(turn.rails) {
                return true;
            }
            self.stop_peer(turn);
        }
        let used = match &turn.open.side {
            CommSide::Send(lane) => lane.regions.in_use(mr) || lane.copies_wait(turn.rails, mr),
            CommSide::Recv(_) => !self.peer_is_gone(turn),
        };
        !used || self.gives_up(turn)
    }

    /// Whether what was posted may still come to memory that is given back now: its keys are named on links that were given up.
    /// What was in use and is in use no more, or whose peer has said GONE, is named by nobody.
    pub(crate) fn is_named(&self, turn: &mut LockedMember<'_, F::Rail>, used: bool) -> bool {
        if !turn.open.is_grouped() {
            return turn.open.fault.is_some();
        }
        let retires = match &turn.open.side {
            CommSide::Recv(lane) => lane.can_retire_memory(turn.rails),
            CommSide::Send(_) => false,
        };
        used && (retires || turn.rails.all_quiet())
    }

    /// Whether no small message is still to be copied out of a sender's region. Such a message goes on and does well, and
    /// so does its comm: there is only something to wait for.
    pub(crate) fn has_copied(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>, mr: MrId) -> bool {
        let waits = |turn: &LockedMember<'_, F::Rail>| match &turn.open.side {
            CommSide::Send(lane) => lane.copies_wait(turn.rails, mr),
            CommSide::Recv(_) => false,
        };
        if !waits(turn) {
            return true;
        }
        self.drive_comm(slot, turn);
        if waits(turn) {
            return self.gives_up(turn);
        }
        turn.open.revoking = None;
        true
    }

    /// Whether nothing that the peer has posted for this comm can land any more, as far as it has said so.
    pub(crate) fn peer_is_gone(&self, turn: &LockedMember<'_, F::Rail>) -> bool {
        // Who has the control plane tells later.
        self.setup.try_lock_control().is_some_and(|mut control| {
            self.setup.progress_control(&mut control);
            control.is_gone(turn.open.remote_name())
        })
    }

    /// Asks the peer, once, to say when nothing more comes.
    fn stop_peer(&self, turn: &mut LockedMember<'_, F::Rail>) {
        if turn.open.life.has_requested_stop() {
            return;
        }
        if let Some(mut control) = self.setup.try_lock_control() {
            turn.open.life.request_stop();
            control.send_frame(
                turn.open.ends.stream,
                &ControlFrame::Stop { id: turn.open.ends.remote },
                None,
            );
        }
    }

    /// After the peer time limit the link is given up, with all who ride on it. Whether it has told all.
    pub(crate) fn gives_up(&self, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        let core = &self.setup.core;
        let late = core.advance_timer(&mut turn.open.revoking) > core.params.peer_time;
        if late {
            turn.rails.fail_all();
        }
        turn.rails.all_quiet()
    }

    /// [`Engine::prepare_close`](crate::Engine::prepare_close).
    ///
    /// # Errors
    /// [`EngineError::Unknown`].
    pub(crate) fn prepare_close(&self, comm: CommId) -> Result<bool, EngineError> {
        let core = &self.setup.core;
        let Some(slot) = core.comms.get(comm) else { return Err(EngineError::Unknown("connection")) };
        let settled = core.with_member(comm, |turn| {
            if !turn.open.is_grouped() {
                return true;
            }
            self.drive_comm(slot, turn);
            if turn.open.fault.is_none() && turn.open.side.waits_in_nic() {
                // For its other half, perhaps for ever: it is taken back.
                self.fail_and_count(slot, turn, CommFault::Revoked);
            }
            let (retires, used) = match &turn.open.side {
                CommSide::Recv(lane) => (lane.can_retire_memory(turn.rails), lane.regions.any_in_use()),
                CommSide::Send(_) => (false, false),
            };
            if retires && used {
                // What else comes goes nowhere.
                if turn.open.fault.is_none() {
                    self.fail_and_count(slot, turn, CommFault::Revoked);
                }
                turn.open.side.regions_mut().retire_all();
            }
            let LockedMember { open, rails, .. } = &mut *turn;
            let uses = match &mut open.side {
                CommSide::Send(lane) => lane.reads_user_memory(rails),
                CommSide::Recv(lane) if retires => !lane.regions.retry_closing(),
                CommSide::Recv(lane) => lane.regions.any_in_use(),
            };
            if uses && !retires && matches!(turn.open.side, CommSide::Recv(_)) {
                self.stop_peer(turn);
                return self.peer_is_gone(turn) || self.gives_up(turn);
            }
            !uses || self.gives_up(turn)
        });
        settled.ok_or(EngineError::Unknown("connection"))
    }

    /// The peer waits to hear that nothing of this end will land any more.
    pub(crate) fn end_stopped(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        if turn.open.fault.is_none() {
            let process = turn.open.peer.process;
            self.fail_comm(slot, turn, CommFault::PeerClosed(process));
        }
        if let CommSide::Send(lane) = &mut turn.open.side
            && turn.open.life.begin_proof()
        {
            lane.end_sending(turn.rails);
        }
        if turn.is_drained()
            && let Some(mut control) = self.setup.try_lock_control()
        {
            turn.open.life.finish_drain();
            control.send_frame(
                turn.open.ends.stream,
                &ControlFrame::Gone { id: turn.open.ends.remote },
                None,
            );
        }
        let waits = turn.open.life.is_stop_pending();
        slot.stopping.store(waits, std::sync::atomic::Ordering::Release);
        if waits {
            self.setup.core.comms.news.store(true, std::sync::atomic::Ordering::Release);
        }
    }
}
