//! How comms begin and end: listen, connect, accept, close, shut down. None of it is on a message's path.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::pool::config::TrafficHint;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::frame::OpenAnswer;
use trunkline_proto::wire::handle::{self, ConnectionHandle};

use crate::control::refusal::refusal_frame;
use crate::control::setup::DetachedComm;
use crate::{CommId, CommNics, Engine, EngineError, ListenId};

/// The time for which [`Engine::shutdown`] waits until sent messages have arrived.
const SHUTDOWN_TIME: Duration = Duration::from_millis(200);

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Listens for connections to these NICs; the caller passes the handle to the connecting process.
    ///
    /// # Errors
    /// [`EngineError::Argument`] for an unknown NIC; [`EngineError::Oob`] if the system refuses; [`EngineError::Exhausted`].
    pub fn listen(&self, nics: impl Into<CommNics>) -> Result<(ListenId, [u8; handle::BYTES]), EngineError> {
        let setup = &self.driver.setup;
        let core = &setup.core;
        let nics = nics.into();
        core.check_nics(&nics)?;
        let told = nics.to_wire().ok_or(EngineError::Argument("a NIC number does not fit in 16 bits"))?;
        // Unpredictable, because it proves that a connecting process has the handle.
        let nonce = core.host.random_bytes();
        let mut control = setup.lock_control();
        let address = control.listen_address(&core.host)?.0;
        let id = control.add_listener(nics, nonce)?;
        let process = self.process;
        let listen = id.to_bits();
        let near = core.fabric.intra_host_nic().is_some();
        let fabric = core.fabric.chosen_fabric();
        let handle = ConnectionHandle {
            process,
            nonce,
            nics: told,
            listen,
            address,
            attempt: 0,
            p2p: false,
            near,
            fabric,
        };
        Ok((ListenId(id), handle.to_bytes()))
    }

    /// Connects to a listener. `None` means call again with the same handle bytes, which keep the attempt's state. An
    /// attempt that is not called again for `connect_time` is given up.
    ///
    /// # Errors
    /// [`EngineError::Fabric`] if the two processes chose different fabrics. Any [`EngineError`] ends the attempt; nothing of it stays.
    pub fn connect(
        &self,
        nics: impl Into<CommNics>,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, EngineError> {
        self.connect_in(TrafficHint::default(), nics, handle)
    }

    /// [`Engine::connect`], for a comm of this traffic kind. The hint of the first call counts.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect_in(
        &self,
        traffic: TrafficHint,
        nics: impl Into<CommNics>,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, EngineError> {
        let setup = &self.driver.setup;
        let core = &setup.core;
        let nics = nics.into();
        core.check_nics(&nics)?;
        let parsed = ConnectionHandle::from_bytes(handle)?;
        self.check_fabric(&parsed)?;
        let mut control = setup.lock_control();
        // The caller has not forgotten the attempt, so its age starts again.
        control.reset_attempt_age(SlotId::from_bits(parsed.attempt));
        setup.progress_control(&mut control);
        let id = if parsed.attempt == 0 {
            let Some(id) = setup.begin_connect(&mut control, nics, &parsed, traffic)? else {
                return Ok(None);
            };
            // The caller keeps the attempt's id in its handle bytes.
            ConnectionHandle::set_attempt(handle, id.to_bits());
            id
        } else {
            SlotId::from_bits(parsed.attempt)
        };
        let advanced = setup.advance_connect(&mut control, id);
        match advanced {
            Ok(None) => {}
            Ok(Some(_)) => ConnectionHandle::set_attempt(handle, 0),
            Err(_) => {
                // Taken out before the attempt is freed, because the reply names the accepting side's comm.
                let answered = control.attempts.get_mut(id).and_then(|a| Some((a.stream, a.reply.take()?)));
                setup.forget_attempt(&mut control, id);
                if let Some((stream, (reply, _))) = answered
                    && reply.answer == OpenAnswer::Accepted
                {
                    // If this process makes no more calls, the accepting side gets no other notification.
                    control.refuse_reply(stream, &reply, 0);
                }
                // Cleared, so that the handle can be used for another attempt.
                ConnectionHandle::set_attempt(handle, 0);
            }
        }
        // Unlocked first, because draining tries this lock again.
        drop(control);
        self.driver.progress_lingering();
        advanced
    }

    /// Checked before OPEN is sent: the listener's reply would only state that a link cannot be made, not why.
    fn check_fabric(&self, handle: &ConnectionHandle) -> Result<(), EngineError> {
        let core = &self.driver.setup.core;
        let process = handle.process;
        let theirs = handle.fabric;
        let ours = core.fabric.chosen_fabric();
        if ours.can_connect(&theirs) {
            return Ok(());
        }
        Err(EngineError::Fabric { process, theirs, ours })
    }

    /// Accepts a connection. `None` means call again.
    ///
    /// # Errors
    /// [`EngineError::Comm`] if the connecting process died meanwhile; others if resources are missing here. The listener
    /// continues.
    pub fn accept(&self, listen: ListenId) -> Result<Option<CommId>, EngineError> {
        let setup = &self.driver.setup;
        let mut control = setup.lock_control();
        setup.progress_control(&mut control);
        let advanced = setup.advance_accept(&mut control, listen.0);
        // Unlocked first, because draining tries this lock again.
        drop(control);
        self.driver.progress_lingering();
        advanced
    }

    /// Stops listening; pending connections are refused.
    ///
    /// # Errors
    /// [`EngineError::Unknown`].
    pub fn close_listen(&self, listen: ListenId) -> Result<(), EngineError> {
        let mut control = self.driver.setup.lock_control();
        let Some(closed) = control.listens.remove(listen.0) else {
            return Err(EngineError::Unknown("listener"));
        };
        for asked in closed.pending {
            // The connecting sides need not wait for their time limit.
            control.send_frame(asked.stream, &refusal_frame(&asked.open, OpenAnswer::Refused), None);
        }
        drop(control);
        // It was never returned to the caller, so it is closed here.
        match closed.current {
            Some(current) => self.close(current.comm),
            None => Ok(()),
        }
    }

    /// Closes a comm in any state. Frees its requests and regions; sent messages still arrive.
    ///
    /// # Errors
    /// [`EngineError::Unknown`].
    pub fn close(&self, comm: CommId) -> Result<(), EngineError> {
        let setup = &self.driver.setup;
        let core = &setup.core;
        let slot = core.comms.get(comm).ok_or(EngineError::Unknown("connection"))?;
        let seat = slot.member_location();
        // Read before the close, because the slot may be reused afterwards.
        let closed = slot.peer_closed.load(Ordering::Acquire);
        let mut held = core.groups.lock_group(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.locked_member_of(seat, comm)) else {
            return Err(EngineError::Unknown("connection"));
        };
        // One of several concurrent closes continues.
        if !core.comms.remove(comm) {
            return Err(EngineError::Unknown("connection"));
        }
        core.status.add_tally(ProcessTally::CommsClosed, 1);
        let ends = turn.open.ends;
        // Checked before the lane is detached, while the member still exists.
        let gone = turn.open.is_grouped() && self.driver.peer_is_gone(&turn);
        let DetachedComm { lingers, place, messages } = setup.detach_comm(seat, turn, gone);
        match lingers {
            Some(last) => {
                // Unlocked before the control plane is locked, because its holders wait for group locks.
                drop(held);
                // Registered before CLOSE is sent, because the peer's own CLOSE may arrive at once.
                setup.lock_control().left.add_comm(last.name, ends.stream, closed);
                setup.send_close(ends, messages, None);
                setup.add_lingering(last);
            }
            None => {
                drop(core.groups.remove(seat.lane, held));
                setup.send_close(ends, messages, place);
            }
        }
        self.driver.progress_lingering();
        core.show_usage();
        Ok(())
    }

    /// Closes everything: comms, listeners, control streams. Waits a moment for sent messages to arrive. The engine can be used
    /// again afterwards, as if new.
    pub fn shutdown(&self) {
        let setup = &self.driver.setup;
        // Collected first, because closing changes the table.
        let all: Vec<_> = setup.core.comms.open_comms().map(|(id, _)| id).collect();
        for id in all {
            // An id that vanished meanwhile is closed already.
            let _ = self.close(id);
        }
        // Bounded, because a peer that makes no calls must not delay the end of this process.
        let until = setup.core.host.now() + SHUTDOWN_TIME.min(setup.core.params.peer_time);
        while setup.core.host.now() < until && setup.lingering_count() > 0 {
            self.progress_all();
            std::thread::yield_now();
        }
        setup.reset_control(self.process);
        setup.core.show_usage();
    }

    /// [`Engine::shutdown`], and removes the engine's status page, because the engine's code is about to be unloaded. A later
    /// call still works.
    pub fn shutdown_for_unload(&self) {
        self.shutdown();
        self.driver.setup.core.status.retire_page();
    }
}
