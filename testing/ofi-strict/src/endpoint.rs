//! An endpoint: its connections, its receives, and the work that calls let it do.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use trunkline_sys::ofi::errno;

use crate::incoming::{Ended, Incoming, Target};
use crate::matching::{Matching, Receive};
use crate::outgoing::{Operation, Outgoing};
use crate::registry::Broken;
use crate::socket;
use crate::state::{Terms, World};
use crate::wire::{Address, Answer};

/// Connections that are taken at once.
const ACCEPTS_AT_ONCE: usize = 64;

/// Where an endpoint that is enabled is found.
struct Place {
    address: Address,
    listener: OwnedFd,
    watcher: OwnedFd,
}

/// An endpoint.
#[derive(Default)]
pub(crate) struct Endpoint {
    pub(crate) terms: Terms,
    place: Option<Place>,
    plain: Matching,
    tagged: Matching,
    outgoing: BTreeMap<u64, Outgoing>,
    by_peer: BTreeMap<Address, u64>,
    incoming: BTreeMap<u64, Incoming>,
    /// Operations that have not ended.
    outstanding: usize,
    connections: u64,
    ready: Vec<u64>,
}

impl Endpoint {
    pub(crate) fn new(terms: Terms) -> Self {
        Self { terms, ..Self::default() }
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn enable(&mut self) -> Result<(), Broken> {
        if self.place.is_some() {
            return Err(Broken::rule(errno::EOPBADSTATE, "enable of an endpoint that is enabled"));
        }
        if self.terms.vector.is_none() {
            return Err(Broken::rule(errno::ENOAV, "enable of an endpoint without an address vector"));
        }
        if self.terms.tx.is_none() || self.terms.rx.is_none() {
            return Err(Broken::rule(errno::ENOCQ, "enable of an endpoint without completion queues"));
        }
        let open = || {
            let address = socket::random_address()?;
            let listener = socket::listen(&address)?;
            let watcher = socket::watcher()?;
            socket::watch(&watcher, &listener, socket::LISTENER)?;
            std::io::Result::Ok(Place { address, listener, watcher })
        };
        self.place = Some(open().map_err(|error| Broken::plain(error.raw_os_error().unwrap_or(errno::EIO)))?);
        Ok(())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.place.is_some()
    }

    pub(crate) fn address(&self) -> Option<Address> {
        self.place.as_ref().map(|place| place.address)
    }

    /// Readable when there is something to do.
    pub(crate) fn watcher(&self) -> Option<&OwnedFd> {
        self.place.as_ref().map(|place| &place.watcher)
    }

    /// Whether there is something to do that [`Self::watcher`] does not tell.
    pub(crate) fn is_restless(&self) -> bool {
        self.outgoing.values().any(Outgoing::is_restless) || self.incoming.values().any(Incoming::is_restless)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Receives that wait.
    pub(crate) fn posted(&self, is_tagged: bool) -> usize {
        if is_tagged { self.tagged.posted() } else { self.plain.posted() }
    }

    /// Takes an operation. Whatever goes wrong from here on is told by its completion.
    pub(crate) fn post(&mut self, peer: Address, operation: Operation, world: &mut World<'_>) {
        self.outstanding += 1;
        world.memory.hold(&operation.uses, true);
        let token = match self.connection(peer) {
            Ok(token) => token,
            Err(error) => {
                self.outstanding -= 1;
                return world.ended(&operation, error);
            }
        };
        let reorder = world.config.reorder;
        let delay = world.config.delay;
        let passes = reorder > 0.0 && world.rng.f64() < reorder;
        if let Some(connection) = self.outgoing.get_mut(&token) {
            let passes = passes.then_some((&mut *world.rng, self.terms.order));
            connection.push(operation, Instant::now() + delay, passes);
        }
        // What is to be overtaken must wait for those that come.
        if reorder == 0.0 && delay.is_zero() {
            self.flush_outgoing(token, world);
        }
    }

    fn connection(&mut self, peer: Address) -> Result<u64, i32> {
        if let Some(token) = self.by_peer.get(&peer) {
            return Ok(*token);
        }
        let place = self.place.as_ref().ok_or(errno::EOPBADSTATE)?;
        self.connections += 1;
        let token = self.connections;
        let made = Outgoing::new(&place.watcher, token, place.address, peer);
        self.outgoing.insert(token, made.map_err(|error| error.raw_os_error().unwrap_or(errno::EIO))?);
        self.by_peer.insert(peer, token);
        Ok(token)
    }

    /// Posts a receive.
    pub(crate) fn receive(&mut self, receive: Receive, is_tagged: bool, world: &mut World<'_>) {
        world.memory.hold(&receive.uses, true);
        let matching = if is_tagged { &mut self.tagged } else { &mut self.plain };
        if let Some((receive, message)) = matching.post(receive) {
            let mut answers = Vec::new();
            world.deliver(receive, &message, &mut answers);
            self.hand_on(answers);
        }
    }

    /// Gives up the receive that has this context and no message yet; `false` if there is none. What has been sent goes its
    /// way, as with most providers.
    pub(crate) fn cancel(&mut self, context: usize, world: &mut World<'_>) -> bool {
        for (matching, is_tagged) in [(&mut self.plain, false), (&mut self.tagged, true)] {
            if let Some(receive) = matching.cancel(context) {
                world.cancelled(&receive, is_tagged);
                return true;
            }
        }
        false
    }

    /// Does what there is to do, as far as that goes without waiting.
    pub(crate) fn progress(&mut self, world: &mut World<'_>) {
        let Some(place) = &self.place else { return };
        let mut ready = std::mem::take(&mut self.ready);
        socket::ready(&place.watcher, &mut ready);
        if ready.contains(&socket::LISTENER) {
            self.accept(&mut ready);
        }
        let restless = self.outgoing.iter().filter(|(_, connection)| connection.is_restless());
        ready.extend(restless.map(|(token, _)| *token));
        let restless = self.incoming.iter().filter(|(_, connection)| connection.is_restless());
        ready.extend(restless.map(|(token, _)| *token));
        for token in &ready {
            self.flush_outgoing(*token, world);
            self.take_answers(*token, world);
            self.serve(*token, world);
        }
        ready.clear();
        self.ready = ready;
    }

    fn accept(&mut self, ready: &mut Vec<u64>) {
        let Some(place) = &self.place else { return };
        for _ in 0..ACCEPTS_AT_ONCE {
            let Ok(socket) = socket::accept(&place.listener) else { break };
            self.connections += 1;
            let token = self.connections;
            if socket::watch(&place.watcher, &socket, token).is_ok() {
                self.incoming.insert(token, Incoming::new(socket, token));
                ready.push(token);
            }
        }
    }

    fn flush_outgoing(&mut self, token: u64, world: &mut World<'_>) {
        let Some(place) = &self.place else { return };
        let Some(connection) = self.outgoing.get_mut(&token) else { return };
        if let Err(end) = connection.flush(&place.watcher) {
            self.lose(token, &end, world);
        }
    }

    fn take_answers(&mut self, token: u64, world: &mut World<'_>) {
        let Some(connection) = self.outgoing.get_mut(&token) else { return };
        let mut ended = Vec::new();
        let result = connection.answers(&mut ended);
        self.outstanding -= ended.len();
        for (operation, error) in &ended {
            world.ended(operation, *error);
        }
        if let Err(end) = result {
            self.lose(token, &end, world);
        }
    }

    /// A connection has ended: so do its operations.
    fn lose(&mut self, token: u64, end: &crate::outgoing::Ended, world: &mut World<'_>) {
        if let Some(line) = end.line {
            world.violation(line);
        }
        let Some(mut connection) = self.outgoing.remove(&token) else { return };
        self.by_peer.remove(&connection.peer);
        for operation in connection.drain() {
            self.outstanding -= 1;
            world.ended(&operation, end.error);
        }
    }

    fn serve(&mut self, token: u64, world: &mut World<'_>) {
        let Some(place) = &self.place else { return };
        let Some(connection) = self.incoming.get_mut(&token) else { return };
        let mut answers = Vec::new();
        let mut target = Target { plain: &mut self.plain, tagged: &mut self.tagged, answers: &mut answers };
        let mut result = connection.serve(&mut target, world);
        if result.is_ok() {
            result = connection.flush(&place.watcher, world);
        }
        if let Err(end) = result {
            if matches!(end, Ended::Malformed) {
                world.violation("a peer asks with what is no request");
            }
            connection.abandon(&mut target);
            self.incoming.remove(&token);
        }
        self.hand_on(answers);
    }

    /// Gives answers to their connections.
    fn hand_on(&mut self, answers: Vec<(u64, Answer)>) {
        for (token, answer) in answers {
            if let Some(connection) = self.incoming.get_mut(&token) {
                connection.answer(answer);
            }
        }
    }

    /// Ends it: nothing more is told, and what it used is free.
    pub(crate) fn close(&mut self, world: &mut World<'_>) {
        let Some(place) = self.place.take() else { return };
        for connection in self.incoming.values_mut() {
            // As far as it goes; the peer is told of the rest by the end of the connection.
            let _ = connection.flush(&place.watcher, world);
        }
        for connection in self.outgoing.values_mut() {
            for operation in connection.drain() {
                world.memory.hold(&operation.uses, false);
            }
        }
        for receive in self.plain.drain().into_iter().chain(self.tagged.drain()) {
            world.memory.hold(&receive.uses, false);
        }
    }
}
