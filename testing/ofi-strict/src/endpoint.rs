//! Endpoints: their connections and receives, and the progress that they make during calls.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use trunkline_sys::ofi::errno;

use crate::incoming::{ConnectionEnd, IncomingConnection, RequestTarget};
use crate::matching::{MatchQueues, WaitingReceive};
use crate::outgoing::{OutgoingConnection, PendingOperation};
use crate::registry::BrokenRule;
use crate::socket;
use crate::state::{EndpointContext, EndpointTerms};
use crate::wire::{StrictAddress, WireAnswer};

/// Most connections accepted per call.
const ACCEPTS_AT_ONCE: usize = 64;

/// The address and sockets of an enabled endpoint.
struct EndpointListener {
    address: StrictAddress,
    listener: OwnedFd,
    watcher: OwnedFd,
}

/// An endpoint.
#[derive(Default)]
pub(crate) struct StrictEndpoint {
    pub(crate) terms: EndpointTerms,
    place: Option<EndpointListener>,
    plain: MatchQueues,
    tagged: MatchQueues,
    outgoing: BTreeMap<u64, OutgoingConnection>,
    by_peer: BTreeMap<StrictAddress, u64>,
    incoming: BTreeMap<u64, IncomingConnection>,
    /// Operations that have not completed.
    outstanding: usize,
    connections: u64,
    ready: Vec<u64>,
}

impl StrictEndpoint {
    pub(crate) fn new(terms: EndpointTerms) -> Self {
        Self { terms, ..Self::default() }
    }

    /// Enables the endpoint: opens its sockets.
    ///
    /// # Errors
    /// The missing object, or an error of the kernel.
    pub(crate) fn enable(&mut self) -> Result<(), BrokenRule> {
        if self.place.is_some() {
            return Err(BrokenRule::with_rule(errno::EOPBADSTATE, "enable of an endpoint that is enabled"));
        }
        if self.terms.vector.is_none() {
            return Err(BrokenRule::with_rule(
                errno::ENOAV,
                "enable of an endpoint without an address vector",
            ));
        }
        if self.terms.tx.is_none() || self.terms.rx.is_none() {
            return Err(BrokenRule::with_rule(
                errno::ENOCQ,
                "enable of an endpoint without completion queues",
            ));
        }
        let open = || {
            let address = socket::random_address()?;
            let listener = socket::listen_at(&address)?;
            let watcher = socket::new_watcher()?;
            socket::watch_socket(&watcher, &listener, socket::LISTENER)?;
            std::io::Result::Ok(EndpointListener { address, listener, watcher })
        };
        self.place = Some(
            open().map_err(|error| BrokenRule::without_rule(error.raw_os_error().unwrap_or(errno::EIO)))?,
        );
        Ok(())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.place.is_some()
    }

    pub(crate) fn own_address(&self) -> Option<StrictAddress> {
        self.place.as_ref().map(|place| place.address)
    }

    /// The descriptor that is readable when the endpoint can make progress.
    pub(crate) fn ready_watcher(&self) -> Option<&OwnedFd> {
        self.place.as_ref().map(|place| &place.watcher)
    }

    /// Whether progress is possible that [`Self::ready_watcher`] does not report.
    pub(crate) fn is_restless(&self) -> bool {
        self.outgoing.values().any(OutgoingConnection::is_restless)
            || self.incoming.values().any(IncomingConnection::is_restless)
    }

    pub(crate) fn outstanding_ops(&self) -> usize {
        self.outstanding
    }

    /// Returns the number of posted receives.
    pub(crate) fn posted_receives(&self, is_tagged: bool) -> usize {
        if is_tagged { self.tagged.posted_receives() } else { self.plain.posted_receives() }
    }

    /// Starts an operation. Later errors are reported by its completion.
    pub(crate) fn post_operation(
        &mut self,
        peer: StrictAddress,
        operation: PendingOperation,
        world: &mut EndpointContext<'_>,
    ) {
        self.outstanding += 1;
        world.memory.update_uses(&operation.uses, true);
        let token = match self.connect_to(peer) {
            Ok(token) => token,
            Err(error) => {
                self.outstanding -= 1;
                return world.complete_operation(&operation, error);
            }
        };
        let reorder = world.config.reorder;
        let delay = world.config.delay;
        let passes = reorder > 0.0 && world.rng.f64() < reorder;
        if let Some(connection) = self.outgoing.get_mut(&token) {
            let passes = passes.then_some((&mut *world.rng, self.terms.order));
            connection.push(operation, Instant::now() + delay, passes);
        }
        // With reordering or a delay, operations stay in the queue, so that later ones can overtake them.
        if reorder == 0.0 && delay.is_zero() {
            self.flush_outgoing(token, world);
        }
    }

    fn connect_to(&mut self, peer: StrictAddress) -> Result<u64, i32> {
        if let Some(token) = self.by_peer.get(&peer) {
            return Ok(*token);
        }
        let place = self.place.as_ref().ok_or(errno::EOPBADSTATE)?;
        self.connections += 1;
        let token = self.connections;
        let made = OutgoingConnection::new(&place.watcher, token, place.address, peer);
        self.outgoing.insert(token, made.map_err(|error| error.raw_os_error().unwrap_or(errno::EIO))?);
        self.by_peer.insert(peer, token);
        Ok(token)
    }

    /// Posts a receive.
    pub(crate) fn post_receive(
        &mut self,
        receive: WaitingReceive,
        is_tagged: bool,
        world: &mut EndpointContext<'_>,
    ) {
        world.memory.update_uses(&receive.uses, true);
        let matching = if is_tagged { &mut self.tagged } else { &mut self.plain };
        if let Some((receive, message)) = matching.post_receive(receive) {
            let mut answers = Vec::new();
            world.deliver_message(receive, &message, &mut answers);
            self.hand_on(answers);
        }
    }

    /// Cancels the posted receive with this context; returns `false` if there is none, or if its message has begun to
    /// arrive. Sends cannot be cancelled, as with most providers.
    pub(crate) fn cancel_receive(&mut self, context: usize, world: &mut EndpointContext<'_>) -> bool {
        for (matching, is_tagged) in [(&mut self.plain, false), (&mut self.tagged, true)] {
            if let Some(receive) = matching.cancel_receive(context) {
                world.complete_cancelled(&receive, is_tagged);
                return true;
            }
        }
        false
    }

    /// Makes all progress that is possible without waiting.
    pub(crate) fn progress(&mut self, world: &mut EndpointContext<'_>) {
        let Some(place) = &self.place else { return };
        let mut ready = std::mem::take(&mut self.ready);
        socket::ready_tokens(&place.watcher, &mut ready);
        if ready.contains(&socket::LISTENER) {
            self.accept_connections(&mut ready);
        }
        let restless = self.outgoing.iter().filter(|(_, connection)| connection.is_restless());
        ready.extend(restless.map(|(token, _)| *token));
        let restless = self.incoming.iter().filter(|(_, connection)| connection.is_restless());
        ready.extend(restless.map(|(token, _)| *token));
        for token in &ready {
            self.flush_outgoing(*token, world);
            self.take_answers(*token, world);
            self.serve_connection(*token, world);
        }
        ready.clear();
        self.ready = ready;
    }

    fn accept_connections(&mut self, ready: &mut Vec<u64>) {
        let Some(place) = &self.place else { return };
        for _ in 0..ACCEPTS_AT_ONCE {
            let Ok(socket) = socket::accept_socket(&place.listener) else { break };
            self.connections += 1;
            let token = self.connections;
            if socket::watch_socket(&place.watcher, &socket, token).is_ok() {
                self.incoming.insert(token, IncomingConnection::new(socket, token));
                ready.push(token);
            }
        }
    }

    fn flush_outgoing(&mut self, token: u64, world: &mut EndpointContext<'_>) {
        let Some(place) = &self.place else { return };
        let Some(connection) = self.outgoing.get_mut(&token) else { return };
        if let Err(end) = connection.flush_requests(&place.watcher) {
            self.drop_connection(token, &end, world);
        }
    }

    fn take_answers(&mut self, token: u64, world: &mut EndpointContext<'_>) {
        let Some(connection) = self.outgoing.get_mut(&token) else { return };
        let mut ended = Vec::new();
        let result = connection.read_answers(&mut ended);
        self.outstanding -= ended.len();
        for (operation, error) in &ended {
            world.complete_operation(operation, *error);
        }
        if let Err(end) = result {
            self.drop_connection(token, &end, world);
        }
    }

    /// Removes a failed connection and completes its operations with the error.
    fn drop_connection(
        &mut self,
        token: u64,
        end: &crate::outgoing::ConnectionFailure,
        world: &mut EndpointContext<'_>,
    ) {
        if let Some(line) = end.line {
            world.report_violation(line);
        }
        let Some(mut connection) = self.outgoing.remove(&token) else { return };
        self.by_peer.remove(&connection.peer);
        for operation in connection.drain_operations() {
            self.outstanding -= 1;
            world.complete_operation(&operation, end.error);
        }
    }

    fn serve_connection(&mut self, token: u64, world: &mut EndpointContext<'_>) {
        let Some(place) = &self.place else { return };
        let Some(connection) = self.incoming.get_mut(&token) else { return };
        let mut answers = Vec::new();
        let mut target =
            RequestTarget { plain: &mut self.plain, tagged: &mut self.tagged, answers: &mut answers };
        let mut result = connection.serve_requests(&mut target, world);
        if result.is_ok() {
            result = connection.flush_answers(&place.watcher, world);
        }
        if let Err(end) = result {
            if matches!(end, ConnectionEnd::Malformed) {
                world.report_violation("a peer sent a malformed request");
            }
            connection.abandon_request(&mut target);
            self.incoming.remove(&token);
        }
        self.hand_on(answers);
    }

    /// Queues replies on their connections.
    fn hand_on(&mut self, answers: Vec<(u64, WireAnswer)>) {
        for (token, answer) in answers {
            if let Some(connection) = self.incoming.get_mut(&token) {
                connection.queue_answer(answer);
            }
        }
    }

    /// Closes the endpoint without further completions, and ends its uses of registrations.
    pub(crate) fn close(&mut self, world: &mut EndpointContext<'_>) {
        let Some(place) = self.place.take() else { return };
        for connection in self.incoming.values_mut() {
            // Best effort: the peer also detects the end of the connection.
            let _ = connection.flush_answers(&place.watcher, world);
        }
        for connection in self.outgoing.values_mut() {
            for operation in connection.drain_operations() {
                world.memory.update_uses(&operation.uses, false);
            }
        }
        for receive in self.plain.drain_receives().into_iter().chain(self.tagged.drain_receives()) {
            world.memory.update_uses(&receive.uses, false);
        }
    }
}
