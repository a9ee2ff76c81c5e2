//! Revocation of memory of a comm that shares its queue pairs, before the caller reuses the memory, without harm to other
//! members. Posted operations complete or land nowhere, or the peer reports that it sends no more. If none of these happens in
//! time, the queue pairs are ended. Called when memory in use is deregistered, and when a comm closes or is stopped.

use trunkline_fabric::{Fabric, Host};
use trunkline_proto::wire::frame::ControlFrame;

use crate::comm::CommSlot;
use crate::engine::driver::CommDriver;
use crate::pool::groups::LockedMember;
use crate::pool::member::CommSide;
use crate::{CommFault, CommId, EngineError, MrId};

impl<F: Fabric, H: Host> CommDriver<F, H> {
    /// Drives the revocation of a failed comm's region. Returns whether no operation can use its memory any more.
    pub(crate) fn is_revoked(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>, mr: MrId) -> bool {
        // A poll may complete the operations, and then nothing has to be revoked.
        self.drive_comm(slot, turn);
        if let CommSide::Recv(lane) = &turn.open.side {
            if lane.can_retire_memory(turn.rails) {
                // The NIC drops later writes to retired memory, so the peer need not stop first.
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

    /// Returns whether posted operations may still name memory whose deregistration ends now: those on links that were given up
    /// do. No operation names memory that is unused, or whose peer has sent GONE.
    pub(crate) fn is_named(&self, turn: &mut LockedMember<'_, F::Rail>, used: bool) -> bool {
        if !turn.open.is_grouped() {
            return turn.open.fault.is_some();
        }
        let retires = match &turn.open.side {
            CommSide::Recv(lane) => lane.can_retire_memory(turn.rails),
            CommSide::Send(_) => false,
        };
        // Unused memory is named by no operation, whatever the state of the links.
        used && (retires || turn.rails.all_quiet())
    }

    /// Waits for small messages that are still to be copied out of a sender's region. Returns whether none is left. Such messages
    /// succeed, and their comm is intact, so nothing is failed here.
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
        // The timer measures one revocation; the next one starts again.
        turn.open.revoking = None;
        true
    }

    /// Returns whether nothing that the peer has posted for this comm can land any more, as far as it has reported that.
    pub(crate) fn peer_is_gone(&self, turn: &LockedMember<'_, F::Rail>) -> bool {
        // While another thread holds the control plane, the answer is "not yet", because waiting for it under a
        // group's lock could deadlock.
        self.setup.try_lock_control().is_some_and(|mut control| {
            self.setup.progress_control(&mut control);
            control.is_gone(turn.open.remote_name())
        })
    }

    /// Sends STOP to the peer, once, because it replies with GONE when it writes nothing more.
    fn stop_peer(&self, turn: &mut LockedMember<'_, F::Rail>) {
        // Sent once, because the peer remembers it until it has replied.
        if turn.open.life.has_requested_stop() {
            return;
        }
        if let Some(mut control) = self.setup.try_lock_control() {
            // Only if the frame is sent now: otherwise a later call repeats the attempt.
            turn.open.life.request_stop();
            control.send_frame(
                turn.open.ends.stream,
                &ControlFrame::Stop { id: turn.open.ends.remote },
                None,
            );
        }
    }

    /// Ends the links after the peer time limit, for all members. Returns whether they have reported all completions.
    pub(crate) fn gives_up(&self, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        let core = &self.setup.core;
        let late = core.advance_timer(&mut turn.open.revoking) > core.params.peer_time;
        // The last resort, because ending the links harms all members, but the memory is about to be reused.
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
                // Its link can be put into error at the close, without harm to others.
                return true;
            }
            self.drive_comm(slot, turn);
            if turn.open.fault.is_none() && turn.open.side.waits_in_nic() {
                // A message that waits for its other half may wait forever, so it is revoked.
                self.fail_and_count(slot, turn, CommFault::Revoked);
            }
            let (retires, used) = match &turn.open.side {
                CommSide::Recv(lane) => (lane.can_retire_memory(turn.rails), lane.regions.any_in_use()),
                CommSide::Send(_) => (false, false),
            };
            if retires && used {
                // Later writes of the peer land nowhere.
                if turn.open.fault.is_none() {
                    self.fail_and_count(slot, turn, CommFault::Revoked);
                }
                // Retired before the close, so that the caller may free the memory afterwards.
                turn.open.side.regions_mut().retire_all();
            }
            let LockedMember { open, rails, .. } = &mut *turn;
            let uses = match &mut open.side {
                CommSide::Send(lane) => lane.reads_user_memory(rails),
                CommSide::Recv(lane) if retires => !lane.regions.retry_closing(),
                CommSide::Recv(lane) => lane.regions.any_in_use(),
            };
            if uses && !retires && matches!(turn.open.side, CommSide::Recv(_)) {
                // The NIC cannot retire this memory, so only the peer can guarantee that no write
                // arrives.
                self.stop_peer(turn);
                return self.peer_is_gone(turn) || self.gives_up(turn);
            }
            !uses || self.gives_up(turn)
        });
        settled.ok_or(EngineError::Unknown("connection"))
    }

    /// Drives a comm whose peer has sent STOP, and replies with GONE when nothing of this end can land any more.
    pub(crate) fn end_stopped(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        if turn.open.fault.is_none() {
            // The peer has ended the connection, so requests of this end cannot complete any more.
            let process = turn.open.peer.process;
            self.fail_comm(slot, turn, CommFault::PeerClosed(process));
        }
        if let CommSide::Send(lane) = &mut turn.open.side
            && turn.open.life.begin_proof()
        {
            // The proof is posted once, because it covers all operations before it.
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
        // Polled by other calls of the process from now on, because its owner may make none.
        slot.stopping.store(waits, std::sync::atomic::Ordering::Release);
        if waits {
            self.setup.core.comms.news.store(true, std::sync::atomic::Ordering::Release);
        }
    }
}
