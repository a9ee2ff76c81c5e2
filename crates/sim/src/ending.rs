//! How an end leaves its connection: in order, with work in flight, by taking memory away, or without a word. Called
//! by the end's own steps; never decides when.

use trunkline_engine::{Error, MrId, RequestId};
use trunkline_fabric::DeregisterError;

use crate::checkers::bounded::Cause;
use crate::checkers::bytes::Grave;
use crate::checkers::{Check, Violation};
use crate::side::{Around, Flight, Phase, Place, Role, Side, Step};

/// What an end does once its registrations have ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Leaving {
    /// It closes; nothing is in flight.
    #[default]
    Close,
    /// It closes, whatever is in flight.
    Abort,
    /// It looks at what became of its requests, and closes then.
    Revoke,
}

impl Side {
    /// Closes in order.
    pub(crate) fn close(&mut self) -> Step {
        (self.phase, self.leaving) = (Phase::Releasing, Leaving::Close);
        self.leaving_regions = self.regions.clone();
        Ok(true)
    }

    /// Closes with work in flight, sometimes after taking the memory away.
    pub(crate) fn abort(&mut self, around: &mut Around<'_>) -> Step {
        around.world.note(format_args!("{} aborts", self.name()));
        self.news = Some(Cause::Abort);
        if around.dice.coin() {
            self.fate.doom(around.world.now(), Cause::Abort);
            (self.phase, self.leaving) = (Phase::Releasing, Leaving::Abort);
            self.leaving_regions = self.regions.clone();
            return Ok(true);
        }
        self.leave(around)
    }

    /// Takes memory of a request in flight away.
    pub(crate) fn revoke(&mut self, around: &mut Around<'_>) -> Step {
        let at = around.dice.below(self.flights.len() as u64) as usize;
        let mut regions: Vec<MrId> =
            self.places_of(&self.flights[at]).iter().map(|(place, _)| place.mr).collect();
        regions.dedup();
        if self.flights[at].flush.is_some() || regions.is_empty() {
            return self.abort(around);
        }
        around.world.note(format_args!("{} revokes memory of {}", self.name(), self.flights[at].item));
        self.news = Some(Cause::Abort);
        self.fate.doom(around.world.now(), Cause::Abort);
        (self.phase, self.leaving) = (Phase::Releasing, Leaving::Revoke);
        self.leaving_regions = regions;
        Ok(true)
    }

    /// Goes away without having connected, and without telling anybody.
    pub(crate) fn abandon(&mut self, around: &Around<'_>) -> Step {
        around.world.note(format_args!("{} abandons its attempt", self.name()));
        self.news = Some(Cause::Abort);
        self.phase = Phase::Closed;
        Ok(true)
    }

    /// Ends registrations, as often as it takes, then goes on.
    pub(crate) fn release(&mut self, around: &mut Around<'_>) -> Step {
        let Some(id) = self.id.filter(|_| !self.given_up) else { return self.leave(around) };
        let mut stuck = Vec::new();
        let mut drains = false;
        let mut copies = false;
        for mr in std::mem::take(&mut self.leaving_regions) {
            match around.engine.deregister(id, mr) {
                Ok(()) => self.regions.retain(|known| *known != mr),
                Err(Error::Deregister(DeregisterError::InUse { .. } | DeregisterError::Draining)) => {
                    copies = true;
                    stuck.push(mr);
                }
                Err(Error::Draining) => {
                    drains = true;
                    stuck.push(mr);
                }
                Err(error) => return Err(self.surprise(&format!("deregister: {error}"))),
            }
            self.check_revoked(around, mr)?;
        }
        self.leaving_regions = stuck;
        if drains {
            self.wait_to_leave(around)?;
        }
        if copies && !drains && around.plan.gives_up {
            around.world.note(format_args!("{} gives up memory that a copy is stuck in", self.name()));
            self.bury_revoked(around);
            // Settling may end registrations by itself.
            self.given_up = true;
            return self.leave(around);
        }
        if !self.leaving_regions.is_empty() {
            return Ok(false);
        }
        self.bury_revoked(around);
        match self.leaving {
            Leaving::Close | Leaving::Abort => self.leave(around),
            Leaving::Revoke => {
                self.phase = Phase::Failing;
                Ok(true)
            }
        }
    }

    /// Whatever was using a region has ended before its owner learns that the registration has, or cannot yet.
    fn check_revoked(&mut self, around: &mut Around<'_>, mr: MrId) -> Check {
        let mut at = 0;
        while at < self.flights.len() {
            let flight = &self.flights[at];
            let request = flight.request;
            if self.places_of(flight).iter().all(|(place, _)| place.mr != mr) {
                at += 1;
                continue;
            }
            if flight.flush.is_some() {
                // What was received there cannot be looked at any more.
                around.once.dropped(request.to_bits());
                self.revoked.push(self.flights.swap_remove(at));
                continue;
            }
            if let Ok(false) = around.engine.test(request, &mut [0; 8]) {
                if self.is_copied(around, at) {
                    self.bury_copied(around, at);
                    at += 1;
                    continue;
                }
                let text =
                    format!("{}: {} is under way in memory that was taken away", self.name(), flight.item);
                return Err(Violation { checker: "bounded", text });
            }
            let flight = self.flights.swap_remove(at);
            self.ended(around, request)?;
            self.revoked.push(flight);
        }
        Ok(())
    }

    /// Whether a message may have been copied out of its memory although it has not left.
    fn is_copied(&self, around: &Around<'_>, flight: usize) -> bool {
        let Role::Send(sending) = &self.role else { return false };
        sending.size_of(self.flights[flight].item) <= around.copied_max
    }

    /// The memory of such a message is used for something else once its registration has ended.
    fn bury_copied(&mut self, around: &mut Around<'_>, flight: usize) {
        let mut places = self.places_of(&self.flights[flight]);
        places.retain(|(place, _)| !self.regions.contains(&place.mr));
        if let Role::Send(sending) = &mut self.role {
            sending.forget(self.flights[flight].item, &self.regions);
        }
        bury(around, places, &format!("{} buffer of a copied message", self.name()));
    }

    /// The memory that was taken away is used for something else.
    fn bury_revoked(&mut self, around: &mut Around<'_>) {
        for flight in std::mem::take(&mut self.revoked) {
            let what = format!("{} buffer of {} after its registration", self.name(), flight.item);
            let mut places = self.places_of(&flight);
            // Other buffers of the same receive may lie in regions that are still there.
            places.retain(|(place, _)| !self.regions.contains(&place.mr));
            match &mut self.role {
                Role::Send(sending) => sending.forget(flight.item, &self.regions),
                Role::Recv(receiving) => receiving.forget(flight.item, &self.regions),
            }
            bury(around, places, &what);
        }
    }

    /// Closes the comm and the listener; its memory is the application's again.
    fn leave(&mut self, around: &mut Around<'_>) -> Step {
        if let Some(id) = self.id
            && around.plan.settles
        {
            let settled = around.engine.settle(id);
            if !settled.map_err(|error| self.surprise(&format!("settle: {error}")))? {
                self.phase = Phase::Releasing;
                self.wait_to_leave(around)?;
                return Ok(false);
            }
        }
        self.drains = None;
        for flight in std::mem::take(&mut self.flights) {
            around.once.dropped(flight.request.to_bits());
        }
        if let Some(id) = self.id.take() {
            self.closed = Some(around.world.now());
            let closed = around.engine.close(id);
            closed.map_err(|error| self.surprise(&format!("close: {error}")))?;
            let past = std::mem::take(&mut self.past);
            self.check_names(around, &past)?;
        }
        let mut places = match &self.role {
            Role::Send(sending) => sending.places(),
            Role::Recv(receiving) => {
                receiving.check_guards(&self.name())?;
                receiving.places()
            }
        };
        // What a copy is stuck in is nobody's for now.
        places.retain(|(place, _)| !self.leaving_regions.contains(&place.mr));
        bury(around, places, &format!("{} after its end", self.name()));
        self.close_listen(around)?;
        around.world.note(format_args!("{} is closed", self.name()));
        self.phase = Phase::Closed;
        Ok(true)
    }

    /// Others that share its queue pairs go on; what it waits for has a limit.
    fn wait_to_leave(&mut self, around: &Around<'_>) -> Check {
        let now = around.world.now();
        let name = self.name();
        if self.drains.is_none() {
            self.slept = 0;
        }
        let since = *self.drains.get_or_insert(now);
        self.fate.draining(&name, since + self.slept, now, around.limit)
    }

    /// Names of a closed comm mean nothing.
    fn check_names(&self, around: &Around<'_>, past: &[RequestId]) -> Check {
        let Some(last) = past.last() else { return Ok(()) };
        match around.engine.test(*last, &mut [0; 8]) {
            Err(Error::Unknown(_)) => Ok(()),
            other => Err(self.surprise(&format!("a request of a closed comm: {other:?}"))),
        }
    }

    pub(crate) fn close_listen(&mut self, around: &Around<'_>) -> Check {
        let Some(listen) = self.listen.take() else { return Ok(()) };
        let closed = around.engine.close_listen(listen);
        closed.map_err(|error| self.surprise(&format!("close_listen: {error}")))
    }

    /// The bytes a request lies in, with their lengths.
    fn places_of(&self, flight: &Flight) -> Vec<(Place, u64)> {
        match &self.role {
            Role::Send(sending) => sending.places_of(flight.item),
            Role::Recv(receiving) => receiving.places_of(flight.item),
        }
    }

    /// The application uses the bytes for something else from now on; their own registration ends.
    pub(crate) fn bury(&mut self, around: &mut Around<'_>, place: Place, len: u64, what: &str) -> Step {
        if place.own
            && let Some(id) = self.id
        {
            match around.engine.deregister(id, place.mr) {
                Ok(()) => self.regions.retain(|mr| *mr != place.mr),
                // It has failed with small messages that are still to be copied: they go with the others, when it leaves.
                Err(Error::Draining) if self.phase == Phase::Failing || around.drains => return Ok(true),
                // A copy is stuck in it: as above.
                Err(Error::Deregister(DeregisterError::InUse { .. } | DeregisterError::Draining)) => {
                    return Ok(true);
                }
                Err(error) => return Err(self.surprise(&format!("deregister: {error}"))),
            }
        }
        bury(around, vec![(place, len)], what);
        Ok(true)
    }

    /// A receive fails because its peer closed in order: then its messages were never sent.
    pub(crate) fn deserved(&self, around: &Around<'_>, item: usize, is_sent: bool, why: &Error) -> Check {
        if self.fate.cause() != Some(Cause::Quit) || around.lossy || !is_sent {
            return Ok(());
        }
        Err(self.surprise(&format!("{item} was sent before its peer closed, and failed: {why}")))
    }

    /// Whether everything a receive or flush waits for was sent.
    pub(crate) fn is_sent(&self, around: &Around<'_>, flight: &Flight) -> bool {
        let Role::Recv(receiving) = &self.role else { return false };
        flight.flush.is_some() || receiving.is_sent(flight.item, around.order)
    }
}

fn bury(around: &mut Around<'_>, places: Vec<(Place, u64)>, what: &str) {
    for (place, len) in places {
        let seed = around.dice.draw();
        around.graves.push(Grave::dig(&place.memory, place.offset, len, seed, what.to_owned()));
        around.world.tempt(&place.memory, place.offset, len);
    }
}
