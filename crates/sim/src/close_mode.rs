//! How an end closes its connection: in order, with work in flight, after deregistering memory, or silently. Called
//! by the end's own steps; never decides when.

use trunkline_engine::{EngineError, MrId, RequestId};
use trunkline_fabric::DeregisterError;

use crate::checkers::bounded::FailureCause;
use crate::checkers::bytes::ReclaimedMemory;
use crate::checkers::{PropertyResult, PropertyViolation};
use crate::comm_end::{EndPhase, EndRole, ItemBuffer, PendingRequest, SimCommEnd, StepContext, StepResult};

/// The action of an end after its registrations have ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum CloseMode {
    /// It closes; nothing is in flight.
    #[default]
    Close,
    /// It closes, with work in flight.
    Abort,
    /// It collects the results of its requests, and then closes.
    Revoke,
}

impl SimCommEnd {
    /// Closes in order.
    pub(crate) fn begin_close(&mut self) -> StepResult {
        (self.phase, self.leaving) = (EndPhase::Releasing, CloseMode::Close);
        self.leaving_regions = self.regions.clone();
        Ok(true)
    }

    /// Closes with work in flight, sometimes after deregistering the memory.
    pub(crate) fn abort_comm(&mut self, around: &mut StepContext<'_>) -> StepResult {
        around.world.note_trace(format_args!("{} aborts", self.display_name()));
        self.news = Some(FailureCause::Abort);
        if around.dice.coin() {
            self.fate.expect_failure(around.world.now(), FailureCause::Abort);
            (self.phase, self.leaving) = (EndPhase::Releasing, CloseMode::Abort);
            self.leaving_regions = self.regions.clone();
            return Ok(true);
        }
        self.close_comm(around)
    }

    /// Deregisters memory of a request in flight.
    pub(crate) fn revoke_memory(&mut self, around: &mut StepContext<'_>) -> StepResult {
        let at = around.dice.below(self.flights.len() as u64) as usize;
        let mut regions: Vec<MrId> =
            self.buffers_of(&self.flights[at]).iter().map(|(place, _)| place.mr).collect();
        regions.dedup();
        if self.flights[at].flush.is_some() || regions.is_empty() {
            return self.abort_comm(around);
        }
        around.world.note_trace(format_args!(
            "{} revokes memory of {}",
            self.display_name(),
            self.flights[at].item
        ));
        self.news = Some(FailureCause::Abort);
        self.fate.expect_failure(around.world.now(), FailureCause::Abort);
        (self.phase, self.leaving) = (EndPhase::Releasing, CloseMode::Revoke);
        self.leaving_regions = regions;
        Ok(true)
    }

    /// Ends without having connected, and without notifying the peer.
    pub(crate) fn abandon_attempt(&mut self, around: &StepContext<'_>) -> StepResult {
        around.world.note_trace(format_args!("{} abandons its attempt", self.display_name()));
        self.news = Some(FailureCause::Abort);
        self.phase = EndPhase::Closed;
        Ok(true)
    }

    /// Ends registrations, repeatedly if needed, and then continues to close.
    pub(crate) fn release_regions(&mut self, around: &mut StepContext<'_>) -> StepResult {
        let Some(id) = self.id.filter(|_| !self.given_up) else { return self.close_comm(around) };
        let mut stuck = Vec::new();
        let mut drains = false;
        let mut copies = false;
        for mr in std::mem::take(&mut self.leaving_regions) {
            match around.engine.deregister(id, mr) {
                Ok(()) => self.regions.retain(|known| *known != mr),
                Err(EngineError::Deregister(DeregisterError::InUse { .. } | DeregisterError::Draining)) => {
                    copies = true;
                    stuck.push(mr);
                }
                Err(EngineError::Draining) => {
                    drains = true;
                    stuck.push(mr);
                }
                Err(error) => return Err(self.unexpected_failure(&format!("deregister: {error}"))),
            }
            self.check_revoked(around, mr)?;
        }
        self.leaving_regions = stuck;
        if drains {
            self.check_close_wait(around)?;
        }
        if copies && !drains && around.plan.gives_up {
            around
                .world
                .note_trace(format_args!("{} gives up memory with a stuck copy", self.display_name()));
            self.reclaim_revoked(around);
            // Settling the comm may end these registrations.
            self.given_up = true;
            return self.close_comm(around);
        }
        if !self.leaving_regions.is_empty() {
            return Ok(false);
        }
        self.reclaim_revoked(around);
        match self.leaving {
            CloseMode::Close | CloseMode::Abort => self.close_comm(around),
            CloseMode::Revoke => {
                self.phase = EndPhase::Failing;
                Ok(true)
            }
        }
    }

    /// Checks that all use of a region has ended when its deregistration succeeds, or that it cannot succeed yet.
    fn check_revoked(&mut self, around: &mut StepContext<'_>, mr: MrId) -> PropertyResult {
        let mut at = 0;
        while at < self.flights.len() {
            let flight = &self.flights[at];
            let request = flight.request;
            if self.buffers_of(flight).iter().all(|(place, _)| place.mr != mr) {
                at += 1;
                continue;
            }
            if flight.flush.is_some() {
                // The bytes that were received there cannot be checked any more.
                around.once.record_dropped(request.to_bits());
                self.revoked.push(self.flights.swap_remove(at));
                continue;
            }
            if let Ok(false) = around.engine.test(request, &mut [0; 8]) {
                if self.is_copied(around, at) {
                    self.reclaim_copied(around, at);
                    at += 1;
                    continue;
                }
                let text = format!(
                    "{}: {} still uses memory that was deregistered",
                    self.display_name(),
                    flight.item
                );
                return Err(PropertyViolation { checker: "bounded", text });
            }
            let flight = self.flights.swap_remove(at);
            self.finish_request(around, request)?;
            self.revoked.push(flight);
        }
        Ok(())
    }

    /// Whether the bytes of a message may have been copied although the message has not left.
    fn is_copied(&self, around: &StepContext<'_>, flight: usize) -> bool {
        let EndRole::Send(sending) = &self.role else { return false };
        sending.size_of(self.flights[flight].item) <= around.copied_max
    }

    /// Reuses the memory of such a message after its registration has ended.
    fn reclaim_copied(&mut self, around: &mut StepContext<'_>, flight: usize) {
        let mut places = self.buffers_of(&self.flights[flight]);
        places.retain(|(place, _)| !self.regions.contains(&place.mr));
        if let EndRole::Send(sending) = &mut self.role {
            sending.drop_buffer(self.flights[flight].item, &self.regions);
        }
        reclaim_buffers(around, places, &format!("{} buffer of a copied message", self.display_name()));
    }

    /// Reuses the memory that was deregistered.
    fn reclaim_revoked(&mut self, around: &mut StepContext<'_>) {
        for flight in std::mem::take(&mut self.revoked) {
            let what = format!("{} buffer of {} after its registration", self.display_name(), flight.item);
            let mut places = self.buffers_of(&flight);
            // Other buffers of the same receive may be in regions that are still registered.
            places.retain(|(place, _)| !self.regions.contains(&place.mr));
            match &mut self.role {
                EndRole::Send(sending) => sending.drop_buffer(flight.item, &self.regions),
                EndRole::Recv(receiving) => receiving.drop_buffers(flight.item, &self.regions),
            }
            reclaim_buffers(around, places, &what);
        }
    }

    /// Closes the comm and the listener; the application owns the memory again.
    fn close_comm(&mut self, around: &mut StepContext<'_>) -> StepResult {
        if let Some(id) = self.id
            && around.plan.settles
        {
            let settled = around.engine.prepare_close(id);
            if !settled.map_err(|error| self.unexpected_failure(&format!("settle: {error}")))? {
                self.phase = EndPhase::Releasing;
                self.check_close_wait(around)?;
                return Ok(false);
            }
        }
        self.drains = None;
        for flight in std::mem::take(&mut self.flights) {
            around.once.record_dropped(flight.request.to_bits());
        }
        if let Some(id) = self.id.take() {
            self.closed = Some(around.world.now());
            let closed = around.engine.close(id);
            closed.map_err(|error| self.unexpected_failure(&format!("close: {error}")))?;
            let past = std::mem::take(&mut self.past);
            self.check_names(around, &past)?;
        }
        let mut places = match &self.role {
            EndRole::Send(sending) => sending.used_buffers(),
            EndRole::Recv(receiving) => {
                receiving.check_guards(&self.display_name())?;
                receiving.used_buffers()
            }
        };
        // Memory with a stuck copy must not be reused yet.
        places.retain(|(place, _)| !self.leaving_regions.contains(&place.mr));
        reclaim_buffers(around, places, &format!("{} after its end", self.display_name()));
        self.close_listen(around)?;
        around.world.note_trace(format_args!("{} is closed", self.display_name()));
        self.phase = EndPhase::Closed;
        Ok(true)
    }

    /// Checks how long the close waits: comms that share its queue pairs continue, but the wait has a limit.
    fn check_close_wait(&mut self, around: &StepContext<'_>) -> PropertyResult {
        let now = around.world.now();
        let name = self.display_name();
        if self.drains.is_none() {
            self.slept = 0;
        }
        let since = *self.drains.get_or_insert(now);
        self.fate.check_draining(&name, since + self.slept, now, around.limit)
    }

    /// Checks that names of a closed comm are invalid.
    fn check_names(&self, around: &StepContext<'_>, past: &[RequestId]) -> PropertyResult {
        let Some(last) = past.last() else { return Ok(()) };
        match around.engine.test(*last, &mut [0; 8]) {
            Err(EngineError::Unknown(_)) => Ok(()),
            other => Err(self.unexpected_failure(&format!("a request of a closed comm: {other:?}"))),
        }
    }

    pub(crate) fn close_listen(&mut self, around: &StepContext<'_>) -> PropertyResult {
        let Some(listen) = self.listen.take() else { return Ok(()) };
        let closed = around.engine.close_listen(listen);
        closed.map_err(|error| self.unexpected_failure(&format!("close_listen: {error}")))
    }

    /// Returns the buffers of a request, with their lengths.
    fn buffers_of(&self, flight: &PendingRequest) -> Vec<(ItemBuffer, u64)> {
        match &self.role {
            EndRole::Send(sending) => sending.buffers_of(flight.item),
            EndRole::Recv(receiving) => receiving.buffers_of(flight.item),
        }
    }

    /// Reuses a buffer from now on, and ends its own registration.
    pub(crate) fn reclaim_buffer(
        &mut self,
        around: &mut StepContext<'_>,
        place: ItemBuffer,
        len: u64,
        what: &str,
    ) -> StepResult {
        if place.own
            && let Some(id) = self.id
        {
            match around.engine.deregister(id, place.mr) {
                Ok(()) => self.regions.retain(|mr| *mr != place.mr),
                // The failed comm still has small messages to copy from it: it is deregistered with the others, at
                // the close.
                Err(EngineError::Draining) if self.phase == EndPhase::Failing || around.drains => {
                    return Ok(true);
                }
                // A copy is stuck in it: as above.
                Err(EngineError::Deregister(DeregisterError::InUse { .. } | DeregisterError::Draining)) => {
                    return Ok(true);
                }
                Err(error) => return Err(self.unexpected_failure(&format!("deregister: {error}"))),
            }
        }
        reclaim_buffers(around, vec![(place, len)], what);
        Ok(true)
    }

    /// Checks a receive that fails because its peer closed in order: its messages must not have been sent.
    pub(crate) fn check_deserved_failure(
        &self,
        around: &StepContext<'_>,
        item: usize,
        is_sent: bool,
        why: &EngineError,
    ) -> PropertyResult {
        if self.fate.cause() != Some(FailureCause::Quit) || around.lossy || !is_sent {
            return Ok(());
        }
        Err(self.unexpected_failure(&format!("{item} was sent before its peer closed, and failed: {why}")))
    }

    /// Whether all messages of a receive or flush were sent.
    pub(crate) fn is_sent(&self, around: &StepContext<'_>, flight: &PendingRequest) -> bool {
        let EndRole::Recv(receiving) = &self.role else { return false };
        flight.flush.is_some() || receiving.is_sent(flight.item, around.order)
    }
}

fn reclaim_buffers(around: &mut StepContext<'_>, places: Vec<(ItemBuffer, u64)>, what: &str) {
    for (place, len) in places {
        let seed = around.dice.draw_u64();
        around.graves.push(ReclaimedMemory::overwrite_range(
            &place.memory,
            place.offset,
            len,
            seed,
            what.to_owned(),
        ));
        around.world.force_delayed_writes(&place.memory, place.offset, len);
    }
}
