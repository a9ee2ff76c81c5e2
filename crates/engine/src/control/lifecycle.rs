//! How comms begin and end: listen, connect, accept, close, shut down. None of it is on a message's path.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, Rail};
use trunkline_proto::counters::Tally;
use trunkline_proto::pool::Place;
use trunkline_proto::pool::config::Traffic;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::fabric::ChosenFabric;
use trunkline_proto::wire::frame::{Answer, Frame};
use trunkline_proto::wire::handle::{self, Handle};

use crate::comm::Comm;
use crate::comm::request::Requests;
use crate::control::Control;
use crate::control::linger::Lingering;
use crate::control::refusal::refusal;
use crate::pool::groups::{Seat, Turn};
use crate::pool::member::{Ends, Side};
use crate::pool::ride::new_control;
use crate::status::Row;
use crate::{CommId, Engine, Error, ListenId, Nics};

/// Peer times that a closed comm stays for what its peer has yet to take, where completions do not tell of arrival: a peer that lives
/// and makes no call for minutes finds it, one that never does is not waited for without end.
const LINGER_TIMES: u64 = 60;
/// How long [`Engine::shutdown`] waits for what was sent to arrive.
const SHUTDOWN_TIME: Duration = Duration::millis(200);

/// What is left of a comm that was taken out of the table.
struct Ended {
    lingers: Option<Lingering>,
    place: Option<Place>,
    /// What the peer may still wait for.
    messages: u64,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Listens for connections to these NICs; the handle goes to the connecting process.
    ///
    /// # Errors
    /// [`Error::Argument`] for an unknown NIC; [`Error::Oob`] if the system refuses; [`Error::Exhausted`].
    pub fn listen(&self, nics: impl Into<Nics>) -> Result<(ListenId, [u8; handle::BYTES]), Error> {
        let nics = nics.into();
        self.check_nics(&nics)?;
        let first = self.params.mutant.is("engine-tells-one-nic").then(|| Nics::from(nics.first()));
        let told = first.unwrap_or(nics).told().ok_or(Error::Argument("a NIC's number is too large"))?;
        let nonce = self.host.random();
        let mut control = self.control.claim();
        let address = control.address(&self.host)?.0;
        let id = control.listen(nics, nonce)?;
        let process = self.process;
        let listen = id.to_bits();
        let near = self.fabric.near().is_some();
        let hidden = self.params.mutant.is("handle-hides-fabric");
        let fabric = if hidden { ChosenFabric::default() } else { self.fabric.chosen() };
        let handle =
            Handle { process, nonce, nics: told, listen, address, attempt: 0, p2p: false, near, fabric };
        Ok((ListenId(id), handle.to_bytes()))
    }

    /// Connects to a listener. `None` means call again with the same handle bytes, which keep the attempt's state. An
    /// attempt that is not called again for `connect_time` is given up.
    ///
    /// # Errors
    /// [`Error::Fabric`] if the two processes chose different fabrics. Any [`Error`] ends the attempt; nothing of it stays.
    pub fn connect(
        &self,
        nics: impl Into<Nics>,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, Error> {
        self.connect_in(Traffic::default(), nics, handle)
    }

    /// [`Engine::connect`], for a comm that is part of such traffic. What the first call says counts.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect_in(
        &self,
        traffic: Traffic,
        nics: impl Into<Nics>,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, Error> {
        let nics = nics.into();
        self.check_nics(&nics)?;
        let parsed = Handle::from_bytes(handle)?;
        self.check_fabric(&parsed)?;
        let mut control = self.control.claim();
        control.asked(SlotId::from_bits(parsed.attempt));
        self.progress_control(&mut control);
        let id = if parsed.attempt == 0 {
            let Some(id) = self.begin_connect(&mut control, nics, &parsed, traffic)? else { return Ok(None) };
            Handle::set_attempt(handle, id.to_bits());
            id
        } else {
            SlotId::from_bits(parsed.attempt)
        };
        let advanced = self.advance_connect(&mut control, id);
        match advanced {
            Ok(None) => {}
            Ok(Some(_)) => Handle::set_attempt(handle, 0),
            Err(_) => {
                let mutant = self.params.mutant.is("engine-keeps-failed-attempts-to-itself");
                let answered = control.attempts.get_mut(id).and_then(|a| Some((a.stream, a.reply.take()?)));
                self.forget_attempt(&mut control, id);
                if let Some((stream, (reply, _))) = answered
                    && reply.answer == Answer::Accepted
                    && !mutant
                {
                    // Who accepted may hear of it in no other way, if this process makes no more calls.
                    control.refuse_reply(stream, &reply, 0);
                }
                Handle::set_attempt(handle, 0);
            }
        }
        drop(control);
        if !self.params.mutant.is("ride-forgets-closed-members") {
            self.progress_lingering();
        }
        advanced
    }

    /// Before anything is asked of the listener, whose answer would only say that a link cannot be made.
    fn check_fabric(&self, handle: &Handle) -> Result<(), Error> {
        let process = handle.process;
        let theirs = handle.fabric;
        let ours = self.fabric.chosen();
        if ours.meets(&theirs) || self.params.mutant.is("engine-connects-other-fabrics") {
            return Ok(());
        }
        Err(Error::Fabric { process, theirs, ours })
    }

    /// Accepts a connection. `None` means call again.
    ///
    /// # Errors
    /// [`Error::Comm`] if the connecting process died meanwhile; others if resources are missing here. The listener
    /// goes on.
    pub fn accept(&self, listen: ListenId) -> Result<Option<CommId>, Error> {
        let mut control = self.control.claim();
        self.progress_control(&mut control);
        let advanced = self.advance_accept(&mut control, listen.0);
        drop(control);
        if !self.params.mutant.is("ride-forgets-closed-members") {
            self.progress_lingering();
        }
        advanced
    }

    /// Stops listening; connections under way are refused.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn close_listen(&self, listen: ListenId) -> Result<(), Error> {
        let mut control = self.control.claim();
        let Some(closed) = control.listens.remove(listen.0) else { return Err(Error::Unknown("listener")) };
        for asked in closed.pending {
            control.send(asked.stream, &refusal(&asked.open, Answer::Refused), None);
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
    /// [`Error::Unknown`].
    pub fn close(&self, comm: CommId) -> Result<(), Error> {
        let slot = self.comms.get(comm).ok_or(Error::Unknown("connection"))?;
        let seat = slot.seat();
        let closed = slot.peer_closed.load(Ordering::Acquire);
        let mut held = self.groups.claim(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.turn_of(seat, comm)) else {
            return Err(Error::Unknown("connection"));
        };
        if !self.comms.remove(comm) {
            return Err(Error::Unknown("connection"));
        }
        self.status.add(Tally::CommsClosed, 1);
        let ends = turn.open.ends;
        let gone = turn.open.rides() && self.peer_is_gone(&turn);
        let Ended { lingers, place, messages } = self.end(seat, turn, gone);
        match lingers {
            Some(last) => {
                drop(held);
                self.control.claim().left.enter(last.name, ends.stream, closed);
                self.farewell(ends, messages, None);
                self.lingering.claim().push(last);
            }
            None => {
                drop(self.groups.remove(seat.lane, held));
                self.farewell(ends, messages, place);
            }
        }
        self.progress_lingering();
        self.show_usage();
        Ok(())
    }

    /// Ends a comm that was taken out of the table: how it lingers, if it does, and its place in the pool. `gone`: nothing of
    /// its peer's will land any more.
    fn end(&self, seat: Seat, turn: Turn<'_, F::Rail>, gone: bool) -> Ended {
        let Turn { open, rails, shared, .. } = turn;
        // What has completed without having arrived is lost with the link, so it stays as long as a slow peer may take.
        let arrives =
            rails.iter().all(|rail| rail.caps().arrives) || self.params.mutant.is("engine-lingers-briefly");
        let peer_time = self.params.peer_time;
        let slow = if arrives { peer_time } else { Duration(peer_time.0.saturating_mul(LINGER_TIMES)) };
        let until = self.host.now() + peer_time;
        let until_closed = self.host.now() + slow;
        let ends = open.ends;
        let name = open.name();
        let place = open.place;
        let rides = shared.is_some();
        let last = Lingering { seat, until, until_closed, ends, name, place, rides };
        let mutant = self.params.mutant;
        if shared.is_some() {
            open.withdraw(rails);
            open.down = None;
            let gone = gone && matches!(open.side, Side::Recv(_)) && !mutant.is("ride-close-forgets-gone");
            if !open.gives_memory_back(rails) && !gone {
                // The caller may unmap it as soon as this returns: then nothing must use the links any more.
                rails.fail_all();
            }
            if mutant.is("ride-ends-links-it-had-not-joined") && !open.side.paths().all_carry() {
                rails.fail_all();
            }
            if let Side::Send(lane) = &mut open.side {
                lane.end(rails);
            }
            return Ended { lingers: Some(last), place, messages: open.messages() };
        }
        match &mut open.side {
            Side::Recv(lane) => {
                lane.paths.destroy(rails);
                self.status.add(Tally::CompletionsDropped, lane.dropped);
                return Ended { lingers: None, place, messages: open.messages() };
            }
            Side::Send(lane) => {
                let reads = lane.reads_user_memory(rails) && !mutant.is("engine-close-keeps-reading");
                if open.fault.is_none() && reads {
                    // The caller may unmap it as soon as this returns.
                    lane.paths.fail(rails);
                } else if open.fault.is_none() && !mutant.is("engine-forgets-last-messages") {
                    lane.end(rails);
                }
            }
        }
        // What still completes was counted, or given up, with the comm.
        open.closed = Some(Box::new(Requests::closed(Row::unseen, mutant)));
        Ended { lingers: Some(last), place, messages: open.messages() }
    }

    /// Ends a comm that nobody was given, as if it had never been.
    pub(crate) fn drop_comm(&self, control: &mut Control<H, F::Rail>, comm: CommId) {
        let Some(seat) = self.comms.get(comm).map(Comm::seat) else { return };
        let mut held = self.groups.claim(seat);
        let Some(turn) = held.as_mut().and_then(|group| group.turn_of(seat, comm)) else { return };
        if !self.comms.remove(comm) {
            return;
        }
        let gone = control.is_gone(turn.open.name());
        let Ended { lingers, place, .. } = self.end(seat, turn, gone);
        match lingers {
            Some(last) => {
                drop(held);
                self.lingering.claim().push(last);
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
        if !self.params.mutant.is("status-forgets-usage") {
            self.status.used(&self.fabric);
        }
    }

    /// Closes everything: comms, listeners, control streams. What was sent has a moment to arrive. The engine can be
    /// used again afterwards, as if new.
    pub fn shutdown(&self) {
        let all: Vec<_> = self.comms.all().map(|(id, _)| id).collect();
        for id in all {
            // An id that vanished meanwhile is closed already.
            let _ = self.close(id);
        }
        let until = self.host.now() + SHUTDOWN_TIME.min(self.params.peer_time);
        while self.host.now() < until && !self.lingering.claim().is_empty() {
            self.progress_all();
            std::thread::yield_now();
        }
        let mut control = self.control.claim();
        for last in self.lingering.claim().drain(..) {
            let held = self.groups.claim(last.seat);
            self.let_go(&mut control, &last, held);
        }
        let fresh = new_control(&self.fabric, &self.host, &self.params, self.process);
        let old = std::mem::replace(&mut *control, fresh);
        // Those that are left had seats of attempts, which have gone with it.
        if !self.params.mutant.is("ride-keeps-groups-of-attempts") {
            old.riding.values().for_each(|&lane| self.end_group(lane));
        }
        drop((old, control));
        self.show_usage();
    }

    /// [`Engine::shutdown`], and nobody sees this engine's status page any more: its code is about to go. A call that
    /// comes all the same still works.
    pub fn unload(&self) {
        self.shutdown();
        self.status.retire();
    }

    /// Tells the peer that our end is closed, and after how many messages; they may still be under way.
    fn farewell(&self, ends: Ends, messages: u64, place: Option<Place>) {
        let messages = if self.params.mutant.is("engine-close-counts-nothing") { 0 } else { messages };
        let mut control = self.control.claim();
        control.send(ends.stream, &Frame::Close { id: ends.remote, messages }, None);
        if let Some(attempt) = ends.attempt {
            control.attempts.remove(attempt);
        }
        if let Some(place) = place {
            self.leave_pool(&mut control, place);
        }
    }
}
