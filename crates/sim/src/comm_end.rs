//! One end of a connection, driven as an application would: opens, posts, tests, closes, and feeds the checkers. It
//! behaves as NCCL's proxy does: it retries with the same arguments, never waits, and tests in any order.

use trunkline_engine::{CommId, Engine, EngineError, ListenId, MrId, RequestId};
use trunkline_mem::MemoryRange;

use crate::checkers::PropertyViolation;
use crate::checkers::bounded::{CommFate, FailureCause};
use crate::checkers::bytes::{GUARD, ReclaimedMemory};
use crate::checkers::once::OnceChecker;
use crate::checkers::order::OrderChecker;
use crate::close_mode::CloseMode;
use crate::receiver::ReceiveSchedule;
use crate::scenario::{CommPlan, PlannedEnd, SidePlan};
use crate::sender::SendSchedule;
use crate::{SimFabric, SimHost, SimRng, SimWorld};

/// Registrations of an end, at most, so that all ends of a process stay within a NIC's limit.
const OWN_REGIONS_MAX: usize = 16;

/// The engine of a simulated process.
pub(crate) type SimEngine = Engine<SimFabric, SimHost>;

/// Whether a step changed anything.
pub(crate) type StepResult = Result<bool, PropertyViolation>;

/// The inputs of a step.
pub(crate) struct StepContext<'a> {
    pub(crate) engine: &'a SimEngine,
    pub(crate) world: &'a SimWorld,
    pub(crate) plan: &'a CommPlan,
    pub(crate) order: &'a mut OrderChecker,
    pub(crate) once: &'a mut OnceChecker,
    pub(crate) graves: &'a mut Vec<ReclaimedMemory>,
    pub(crate) dice: &'a mut SimRng,
    /// The listener's handle, once it exists.
    pub(crate) handle: Option<[u8; 128]>,
    /// Flushes are needed before bytes may be read.
    pub(crate) needs_flush: bool,
    /// Longest message that a NIC copies, so that it does not need the memory later.
    pub(crate) copied_max: u64,
    /// Virtual time within which a request of a failed comm must end.
    pub(crate) limit: u64,
    /// Whether processes have few queue pairs, so that opening may fail.
    pub(crate) short: bool,
    /// Whether a stuck copy is the network's, which ends it after a while.
    pub(crate) drains: bool,
    /// Whether control frames get lost, so that the end of a comm may remain unknown.
    pub(crate) lossy: bool,
    /// Whether the process at the other end has nothing left to do, and makes no calls.
    pub(crate) peer_idle: bool,
    /// The other end of the comm has closed.
    pub(crate) peer_closed: bool,
    pub(crate) look_again: u32,
}

/// The phase of an end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndPhase {
    /// Before its start.
    Idle,
    /// Connecting or accepting.
    Opening,
    /// Posting and testing.
    Running,
    /// Collecting the errors of its requests.
    Failing,
    /// Ending its registrations; closes afterwards.
    Releasing,
    /// Closed.
    Closed,
}

/// A pending request.
pub(crate) struct PendingRequest {
    pub(crate) request: RequestId,
    /// The message or group that it is for.
    pub(crate) item: usize,
    /// For a flush: the sizes that were received.
    pub(crate) flush: Option<[u64; 8]>,
}

/// The buffer of an item.
#[derive(Clone)]
pub(crate) struct ItemBuffer {
    pub(crate) memory: MemoryRange,
    pub(crate) offset: u64,
    pub(crate) mr: MrId,
    /// Whether the registration ends with the item.
    pub(crate) own: bool,
}

/// Whether an end sends or receives, with its schedule.
pub(crate) enum EndRole {
    Send(SendSchedule),
    Recv(ReceiveSchedule),
}

/// One end of a connection.
pub(crate) struct SimCommEnd {
    pub(crate) comm: usize,
    pub(crate) process: usize,
    pub(crate) plan: SidePlan,
    pub(crate) phase: EndPhase,
    pub(crate) fate: CommFate,
    pub(crate) id: Option<CommId>,
    pub(crate) listen: Option<ListenId>,
    /// The connecting end's own copy, which keeps the attempt's state.
    handle: Option<[u8; 128]>,
    pub(crate) role: EndRole,
    pub(crate) flights: Vec<PendingRequest>,
    /// Requests of messages that are done.
    pub(crate) completed: usize,
    opened_at: u64,
    idle_since: Option<u64>,
    arena: Option<(MemoryRange, MrId)>,
    arena_used: u64,
    pub(crate) regions: Vec<MrId>,
    /// Calls of connect that returned "call again".
    asked: usize,
    /// Requests that have ended; a further test must not find them.
    pub(crate) past: Vec<RequestId>,
    /// The action of this end that makes the other one fail, until the cluster has passed it on.
    pub(crate) news: Option<FailureCause>,
    pub(crate) leaving: CloseMode,
    /// Registrations that must end before it continues.
    pub(crate) leaving_regions: Vec<MrId>,
    /// Whether a copy is stuck in some of those, and it closes without them.
    pub(crate) given_up: bool,
    /// Since when it waits to deregister or close without harm to other comms.
    pub(crate) drains: Option<u64>,
    /// How long its process has slept since then.
    pub(crate) slept: u64,
    /// When it was closed.
    pub(crate) closed: Option<u64>,
    /// Requests whose memory was deregistered.
    pub(crate) revoked: Vec<PendingRequest>,
}

impl SimCommEnd {
    pub(crate) fn new(comm: usize, process: usize, plan: SidePlan, role: EndRole) -> Self {
        Self {
            comm,
            process,
            plan,
            phase: EndPhase::Idle,
            fate: CommFate::default(),
            id: None,
            listen: None,
            handle: None,
            role,
            flights: Vec::new(),
            completed: 0,
            opened_at: 0,
            idle_since: None,
            arena: None,
            arena_used: 0,
            regions: Vec::new(),
            asked: 0,
            past: Vec::new(),
            news: None,
            leaving: CloseMode::default(),
            leaving_regions: Vec::new(),
            given_up: false,
            drains: None,
            slept: 0,
            closed: None,
            revoked: Vec::new(),
        }
    }

    /// Returns the name of the end for messages.
    pub(crate) fn display_name(&self) -> String {
        let role = if matches!(self.role, EndRole::Send(_)) { "sender" } else { "receiver" };
        format!("comm {} {role} p{}", self.comm, self.process)
    }

    /// Makes one step.
    pub(crate) fn run_step(&mut self, around: &mut StepContext<'_>) -> StepResult {
        let now = around.world.now();
        match self.phase {
            EndPhase::Idle => {
                let begins = now >= self.plan.start;
                if begins {
                    self.phase = EndPhase::Opening;
                }
                Ok(begins)
            }
            EndPhase::Opening => self.open_comm(around, now),
            EndPhase::Running => self.step_running(around, now),
            EndPhase::Failing => self.collect_errors(around, now),
            EndPhase::Releasing => self.release_regions(around),
            EndPhase::Closed => Ok(false),
        }
    }

    fn open_comm(&mut self, around: &mut StepContext<'_>, now: u64) -> StepResult {
        let opened = match (&self.role, self.listen) {
            (EndRole::Send(_), _) => {
                let Some(handle) = self.handle.as_mut().or(around.handle.as_mut()) else { return Ok(false) };
                let opened = around.engine.connect(crate::scenario::nic_set(&around.plan.from_nics), handle);
                let kept = *handle;
                self.handle = Some(kept);
                opened
            }
            (EndRole::Recv(_), Some(listen)) => around.engine.accept(listen),
            (EndRole::Recv(_), None) => return Ok(false),
        };
        match opened {
            Ok(Some(id)) => {
                around.world.note_trace(format_args!("{} is open", self.display_name()));
                (self.id, self.opened_at, self.phase) = (Some(id), now, EndPhase::Running);
                if around.plan.close_listen_early {
                    self.close_listen(around)?;
                }
                Ok(true)
            }
            Ok(None) => self.open_later(around, now),
            Err(error) => {
                if around.short && matches!(error, EngineError::NoPlace(_) | EngineError::PeerExhausted) {
                    self.fate.expect_failure(now, FailureCause::Abort);
                }
                self.fate.check_failure(&self.display_name(), &error.to_string())?;
                around.world.note_trace(format_args!("{} does not open: {error}", self.display_name()));
                self.news = Some(FailureCause::Abort);
                self.begin_close()
            }
        }
    }

    fn open_later(&mut self, around: &mut StepContext<'_>, now: u64) -> StepResult {
        let sends = matches!(self.role, EndRole::Send(_));
        self.asked += 1;
        if matches!(self.plan.ending, PlannedEnd::Abandon(after) if sends && self.asked >= after) {
            return self.abandon_attempt(around);
        }
        // The last frames of a process that makes no more calls may have been lost.
        let unheard = around.lossy && around.peer_idle;
        if self.fate.cause().is_none() && !unheard {
            return Ok(false);
        }
        // No frame reports to an accepting end that its peer has given up. A connecting end gets a reply from any
        // process that makes calls.
        if !sends && around.dice.chance(20) {
            around.world.note_trace(format_args!("{} gives up", self.display_name()));
            return self.begin_close();
        }
        if sends && (around.peer_idle || around.lossy) && around.dice.chance(20) {
            return self.abandon_attempt(around);
        }
        if sends && self.fate.cause() == Some(FailureCause::Death) {
            self.fate.check_pending(&self.display_name(), now, around.limit)?;
        }
        Ok(false)
    }

    fn step_running(&mut self, around: &mut StepContext<'_>, now: u64) -> StepResult {
        if now < self.opened_at + self.plan.pause {
            return Ok(false);
        }
        let ending = self.plan.ending;
        let quits = match ending {
            PlannedEnd::Abort(after) if self.completed >= after => return self.abort_comm(around),
            PlannedEnd::Revoke(after) if self.completed >= after && !self.flights.is_empty() => {
                return self.revoke_memory(around);
            }
            PlannedEnd::Quit(after) => self.completed >= after,
            _ => false,
        };
        if self.fate.cause().is_some() && around.lossy && around.dice.chance(20) {
            return self.abort_comm(around);
        }
        let done = self.is_done(around.plan);
        if (done || quits) && self.flights.is_empty() {
            // A message arrives without further calls once its test has returned done. Lost control frames need
            // further calls.
            let rests = done && self.plan.rests && matches!(self.role, EndRole::Send(_)) && !around.lossy;
            if rests && !around.peer_closed && self.fate.cause().is_none() {
                return Ok(false);
            }
            let since = *self.idle_since.get_or_insert(now);
            if now < since + self.plan.linger {
                return Ok(false);
            }
            self.news = (!done).then_some(FailureCause::Quit);
            return self.begin_close();
        }
        if !quits && self.flights.len() < self.plan.in_flight && around.dice.coin() {
            return match self.role {
                EndRole::Send(_) => self.send_message(around),
                EndRole::Recv(_) => self.post_receive(around),
            };
        }
        self.test_request(around, now)
    }

    fn is_done(&self, plan: &CommPlan) -> bool {
        match &self.role {
            EndRole::Send(sending) => sending.is_done(),
            EndRole::Recv(receiving) => receiving.is_done(plan),
        }
    }

    fn test_request(&mut self, around: &mut StepContext<'_>, now: u64) -> StepResult {
        if self.flights.is_empty() {
            return Ok(false);
        }
        let at = around.dice.below(self.flights.len() as u64) as usize;
        let request = self.flights[at].request;
        let mut sizes = [u64::MAX; 8];
        match around.engine.test(request, &mut sizes) {
            Ok(false) => self.not_yet(around, now),
            Ok(true) => {
                let flight = self.flights.swap_remove(at);
                self.finish_request(around, request)?;
                match self.role {
                    EndRole::Send(_) => self.finish_send(around, flight.item)?,
                    EndRole::Recv(_) => self.finish_receive(around, &flight, sizes)?,
                }
                Ok(true)
            }
            Err(error) => {
                let flight = self.flights.swap_remove(at);
                self.finish_request(around, request)?;
                let is_sent = self.is_sent(around, &flight);
                self.check_deserved_failure(around, flight.item, is_sent, &error)?;
                self.fail_comm(around, &error)
            }
        }
    }

    /// Handles "call again", which must end within the limit on a comm that is expected to fail.
    pub(crate) fn not_yet(&mut self, around: &StepContext<'_>, now: u64) -> StepResult {
        let may_go_on = matches!(self.fate.cause(), Some(FailureCause::Flap | FailureCause::Neighbour));
        let excused = around.lossy && self.fate.cause().is_some();
        if !may_go_on && !excused {
            self.fate.check_pending(&self.display_name(), now, around.limit)?;
        }
        Ok(false)
    }

    /// Records the end of a request; a further test must not find it, now or later.
    pub(crate) fn finish_request(
        &mut self,
        around: &mut StepContext<'_>,
        request: RequestId,
    ) -> Result<(), PropertyViolation> {
        around.once.record_ended(&self.display_name(), request.to_bits())?;
        self.past.push(request);
        let old = self.past[around.dice.below(self.past.len() as u64) as usize];
        if around.dice.chance(around.look_again)
            && let Ok(done) = around.engine.test(old, &mut [0; 8])
        {
            let text =
                format!("{}: a request that had ended is valid again, done: {done}", self.display_name());
            return Err(PropertyViolation { checker: "once", text });
        }
        Ok(())
    }

    /// Handles a failed call: from now on this end only collects pending requests.
    pub(crate) fn fail_comm(&mut self, around: &mut StepContext<'_>, error: &EngineError) -> StepResult {
        self.fate.check_failure(&self.display_name(), &error.to_string())?;
        around.world.note_trace(format_args!("{} fails: {error}", self.display_name()));
        self.news = Some(FailureCause::Abort);
        self.phase = EndPhase::Failing;
        Ok(true)
    }

    fn collect_errors(&mut self, around: &mut StepContext<'_>, now: u64) -> StepResult {
        if self.flights.is_empty() {
            return self.begin_close();
        }
        self.test_request(around, now)
    }

    /// Reports a failed call without a cause.
    pub(crate) fn unexpected_failure(&self, text: &str) -> PropertyViolation {
        PropertyViolation { checker: "bounded", text: format!("{}: {text}", self.display_name()) }
    }

    fn allocate_memory(&self, bytes: u64) -> Result<MemoryRange, PropertyViolation> {
        MemoryRange::try_heap(bytes as usize).map_err(|error| self.unexpected_failure(&error.to_string()))
    }

    /// Allocates and registers `len` bytes and their guard for an item.
    pub(crate) fn allocate_buffer(
        &mut self,
        around: &mut StepContext<'_>,
        len: u64,
    ) -> Result<Option<ItemBuffer>, PropertyViolation> {
        let Some(id) = self.id else { return Ok(None) };
        if self.plan.own_regions && self.regions.len() < OWN_REGIONS_MAX {
            let offset = around.dice.below(32);
            let memory = self.allocate_memory(offset + len + GUARD)?;
            let mr = self.register_memory(around, id, &memory)?;
            return Ok(Some(ItemBuffer { memory, offset, mr, own: true }));
        }
        if self.arena.is_none() {
            let items = around.plan.groups.iter().flatten();
            let bytes: u64 = items.map(|m| m.room.max(m.size) + GUARD + 32).sum();
            let memory = self.allocate_memory(bytes)?;
            let mr = self.register_memory(around, id, &memory)?;
            self.arena = Some((memory, mr));
        }
        let Some((memory, mr)) = self.arena.clone() else { return Ok(None) };
        let offset = self.arena_used + around.dice.below(32);
        self.arena_used = offset + len + GUARD;
        Ok(Some(ItemBuffer { memory, offset, mr, own: false }))
    }

    fn register_memory(
        &mut self,
        around: &mut StepContext<'_>,
        id: CommId,
        memory: &MemoryRange,
    ) -> Result<MrId, PropertyViolation> {
        let registered = around.engine.register(id, memory.clone());
        let mr = registered.map_err(|error| self.unexpected_failure(&format!("register: {error}")))?;
        self.regions.push(mr);
        Ok(mr)
    }
}
