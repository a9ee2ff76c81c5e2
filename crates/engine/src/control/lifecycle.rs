//! How comms begin and end: listen, connect, accept, close, shut down. None of it is on a message's path.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, Rail};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::pool::GroupPlace;
use trunkline_proto::pool::config::TrafficHint;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::fabric::ChosenFabric;
use trunkline_proto::wire::frame::{ControlFrame, OpenAnswer};
use trunkline_proto::wire::handle::{self, ConnectionHandle};

use crate::comm::CommSlot;
use crate::comm::request::RequestTable;
use crate::control::ControlPlane;
use crate::control::linger::LingeringComm;
use crate::control::refusal::refusal_frame;
use crate::pool::groups::{LockedMember, MemberLocation};
use crate::pool::member::{CommNames, CommSide};
use crate::pool::membership::new_control;
use crate::status::CommStatusRow;
use crate::{CommId, CommNics, Engine, EngineError, ListenId};

/// Peer times that a closed comm stays for what its peer has yet to take, where completions do not tell of arrival: a peer that lives
/// and makes no call for minutes finds it, one that never does is not waited for without end.
const LINGER_TIMES: u64 = 60;
/// How long [`Engine::shutdown`] waits for what was sent to arrive.
const SHUTDOWN_TIME: Duration = Duration::from_millis(200);

/// What is left of a comm that was taken out of the table.
struct DetachedComm {
    lingers: Option<LingeringComm>,
    place: Option<GroupPlace>,
    /// What the peer may still wait for.
    messages: u64,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Listens for connections to these NICs; the handle goes to the connecting process.
    ///
    /// # Errors
    /// [`EngineError::Argument`] for an unknown NIC; [`EngineError::Oob`] if the system refuses; [`EngineError::Exhausted`].
    pub fn listen(&self, nics: impl Into<CommNics>) -> Result<(ListenId, [u8; handle::BYTES]), EngineError> {
        let nics = nics.into();
        self.check_nics(&nics)?;
        let first =
            self.params.mutant.is_planted("engine-tells-one-nic").then(|| CommNics::from(nics.first_nic()));
        let told =
            first.unwrap_or(nics).to_wire().ok_or(EngineError::Argument("a NIC's number is too large"))?;
        let nonce = self.host.random_bytes();
        let mut control = self.control.lock();
        let address = control.listen_address(&self.host)?.0;
        let id = control.add_listener(nics, nonce)?;
        let process = self.process;
        let listen = id.to_bits();
        let near = self.fabric.intra_host_nic().is_some();
        let hidden = self.params.mutant.is_planted("handle-hides-fabric");
        let fabric = if hidden { ChosenFabric::default() } else { self.fabric.chosen_fabric() };
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

    /// [`Engine::connect`], for a comm that is part of such traffic. What the first call says counts.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect_in(
        &self,
        traffic: TrafficHint,
        nics: impl Into<CommNics>,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, EngineError> {
        let nics = nics.into();
        self.check_nics(&nics)?;
        let parsed = ConnectionHandle::from_bytes(handle)?;
        self.check_fabric(&parsed)?;
        let mut control = self.control.lock();
        control.reset_attempt_age(SlotId::from_bits(parsed.attempt));
        self.progress_control(&mut control);
        let id = if parsed.attempt == 0 {
            let Some(id) = self.begin_connect(&mut control, nics, &parsed, traffic)? else { return Ok(None) };
            ConnectionHandle::set_attempt(handle, id.to_bits());
            id
        } else {
            SlotId::from_bits(parsed.attempt)
        };
        let advanced = self.advance_connect(&mut control, id);
        match advanced {
            Ok(None) => {}
            Ok(Some(_)) => ConnectionHandle::set_attempt(handle, 0),
            Err(_) => {
                let mutant = self.params.mutant.is_planted("engine-keeps-failed-attempts-to-itself");
                let answered = control.attempts.get_mut(id).and_then(|a| Some((a.stream, a.reply.take()?)));
                self.forget_attempt(&mut control, id);
                if let Some((stream, (reply, _))) = answered
                    && reply.answer == OpenAnswer::Accepted
                    && !mutant
                {
                    // Who accepted may hear of it in no other way, if this process makes no more calls.
                    control.refuse_reply(stream, &reply, 0);
                }
                ConnectionHandle::set_attempt(handle, 0);
            }
        }
        drop(control);
        if !self.params.mutant.is_planted("ride-forgets-closed-members") {
            self.progress_lingering();
        }
        advanced
    }

    /// Before anything is asked of the listener, whose answer would only say that a link cannot be made.
    fn check_fabric(&self, handle: &ConnectionHandle) -> Result<(), EngineError> {
        let process = handle.process;
        let theirs = handle.fabric;
        let ours = self.fabric.chosen_fabric();
        if ours.can_connect(&theirs) || self.params.mutant.is_planted("engine-connects-other-fabrics") {
            return Ok(());
        }
        Err(EngineError::Fabric { process, theirs, ours })
    }

    /// Accepts a connection. `None` means call again.
    ///
    /// # Errors
    /// [`EngineError::Comm`] if the connecting process died meanwhile; others if resources are missing here. The listener
    /// goes on.
    pub fn accept(&self, listen: ListenId) -> Result<Option<CommId>, EngineError> {
        let mut control = self.control.lock();
        self.progress_control(&mut control);
        let advanced = self.advance_accept(&mut control, listen.0);
        drop(control);
        if !self.params.mutant.is_planted("ride-forgets-closed-members") {
            self.progress_lingering();
        }
        advanced
    }

    /// Stops listening; connections under way are refused.
    ///
    /// # Errors
    /// [`EngineError::Unknown`].
    pub fn close_listen(&self, listen: ListenId) -> Result<(), EngineError> {
        let mut control = self.control.lock();
        let Some(closed) = control.listens.remove(listen.0) else {
            return Err(EngineError::Unknown("listener"));
        };
        for asked in closed.pending {
            control.send_frame(asked.stream, &refusal_frame(&asked.open, OpenAnswer::Refused), None);
        }
        drop(control);
        match closed.current {
            Some(current) => self.close(current.comm),
            None => Ok(()),
        }
    }

    /// Closes a comm, in whatever state. Its requests and regions are gone; what was sent still arrives.
    ///
    /// # Errors
    /// [`EngineError::Unknown`].
    pub fn close(&self, comm: CommId) -> Result<(), EngineError> {
        let slot = self.comms.get(comm).ok_or(EngineError::Unknown("connection"))?;
        let seat = slot.member_location();
        let closed = slot.peer_closed.load(Ordering::Acquire);
        let mut held = self.groups.lock_group(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.locked_member_of(seat, comm)) else {
            return Err(EngineError::Unknown("connection"));
        };
        if !self.comms.remove(comm) {
            return Err(EngineError::Unknown("connection"));
        }
        self.status.add_tally(ProcessTally::CommsClosed, 1);
        let ends = turn.open.ends;
        let gone = turn.open.is_grouped() && self.peer_is_gone(&turn);
        let DetachedComm { lingers, place, messages } = self.detach_comm(seat, turn, gone);
        match lingers {
            Some(last) => {
                drop(held);
                self.control.lock().left.add_comm(last.name, ends.stream, closed);
                self.send_close(ends, messages, None);
                self.lingering.lock().push(last);
            }
            None => {
                drop(self.groups.remove(seat.lane, held));
                self.send_close(ends, messages, place);
            }
        }
        self.progress_lingering();
        self.show_usage();
        Ok(())
    }

    /// Ends a comm that was taken out of the table: how it lingers, if it does, and its place in the pool. `gone`: nothing of
    /// its peer's will land any more.
    fn detach_comm(&self, seat: MemberLocation, turn: LockedMember<'_, F::Rail>, gone: bool) -> DetachedComm {
        let LockedMember { open, rails, shared, .. } = turn;
        // What has completed without having arrived is lost with the link, so it stays as long as a slow peer may take.
        let arrives = rails.iter().all(|rail| rail.caps().arrives)
            || self.params.mutant.is_planted("engine-lingers-briefly");
        let peer_time = self.params.peer_time;
        let slow = if arrives { peer_time } else { Duration(peer_time.0.saturating_mul(LINGER_TIMES)) };
        let until = self.host.now() + peer_time;
        let until_closed = self.host.now() + slow;
        let ends = open.ends;
        let name = open.remote_name();
        let place = open.place;
        let rides = shared.is_some();
        let last = LingeringComm { seat, until, until_closed, ends, name, place, rides };
        let mutant = self.params.mutant;
        if shared.is_some() {
            open.withdraw_requests(rails);
            open.down = None;
            let gone = gone
                && matches!(open.side, CommSide::Recv(_))
                && !mutant.is_planted("ride-close-forgets-gone");
            if !open.gives_memory_back(rails) && !gone {
                // The caller may unmap it as soon as this returns: then nothing must use the links any more.
                rails.fail_all();
            }
            if mutant.is_planted("ride-ends-links-it-had-not-joined") && !open.side.paths_mut().all_carry() {
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
                self.status.add_tally(ProcessTally::CompletionsDropped, lane.dropped);
                return DetachedComm { lingers: None, place, messages: open.message_count() };
            }
            CommSide::Send(lane) => {
                let reads = lane.reads_user_memory(rails) && !mutant.is_planted("engine-close-keeps-reading");
                if open.fault.is_none() && reads {
                    // The caller may unmap it as soon as this returns.
                    lane.paths.fail_links(rails);
                } else if open.fault.is_none() && !mutant.is_planted("engine-forgets-last-messages") {
                    lane.end_sending(rails);
                }
            }
        }
        // What still completes was counted, or given up, with the comm.
        open.closed = Some(Box::new(RequestTable::of_closed_comm(CommStatusRow::without_page, mutant)));
        DetachedComm { lingers: Some(last), place, messages: open.message_count() }
    }

    /// Ends a comm that nobody was given, as if it had never been.
    pub(crate) fn drop_comm(&self, control: &mut ControlPlane<H, F::Rail>, comm: CommId) {
        let Some(seat) = self.comms.get(comm).map(CommSlot::member_location) else { return };
        let mut held = self.groups.lock_group(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.locked_member_of(seat, comm)) else { return };
        if !self.comms.remove(comm) {
            return;
        }
        let gone = control.is_gone(turn.open.remote_name());
        let DetachedComm { lingers, place, .. } = self.detach_comm(seat, turn, gone);
        match lingers {
            Some(last) => {
                drop(held);
                self.lingering.lock().push(last);
            }
            None => {
                drop(self.groups.remove(seat.lane, held));
                if let Some(place) = place {
                    self.leave_pool(control, place);
                }
            }
        }
    }

    /// The NICs have more or less in use than before.
    #[cold]
    pub(crate) fn show_usage(&self) {
        if !self.params.mutant.is_planted("status-forgets-usage") {
            self.status.show_usage(&self.fabric);
        }
    }

    /// Closes everything: comms, listeners, control streams. What was sent has a moment to arrive. The engine can be
    /// used again afterwards, as if new.
    pub fn shutdown(&self) {
        let all: Vec<_> = self.comms.open_comms().map(|(id, _)| id).collect();
        for id in all {
            // An id that vanished meanwhile is closed already.
            let _ = self.close(id);
        }
        let until = self.host.now() + SHUTDOWN_TIME.min(self.params.peer_time);
        while self.host.now() < until && !self.lingering.lock().is_empty() {
            self.progress_all();
            std::thread::yield_now();
        }
        let mut control = self.control.lock();
        for last in self.lingering.lock().drain(..) {
            let held = self.groups.lock_group(last.seat);
            self.let_go(&mut control, &last, held);
        }
        let fresh = new_control(&self.fabric, &self.host, &self.params, self.process);
        let old = std::mem::replace(&mut *control, fresh);
        // Those that are left had seats of attempts, which have gone with it.
        if !self.params.mutant.is_planted("ride-keeps-groups-of-attempts") {
            old.riding.values().for_each(|&lane| self.end_group(lane));
        }
        drop((old, control));
        self.show_usage();
    }

    /// [`Engine::shutdown`], and nobody sees this engine's status page any more: its code is about to go. A call that
    /// comes all the same still works.
    pub fn shutdown_for_unload(&self) {
        self.shutdown();
        self.status.retire_page();
    }

    /// Tells the peer that our end is closed, and after how many messages; they may still be under way.
    fn send_close(&self, ends: CommNames, messages: u64, place: Option<GroupPlace>) {
        let messages =
            if self.params.mutant.is_planted("engine-close-counts-nothing") { 0 } else { messages };
        let mut control = self.control.lock();
        control.send_frame(ends.stream, &ControlFrame::Close { id: ends.remote, messages }, None);
        if let Some(attempt) = ends.attempt {
            control.attempts.remove(attempt);
        }
        if let Some(place) = place {
            self.leave_pool(&mut control, place);
        }
    }
}
