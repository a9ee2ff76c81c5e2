//! One end of a connection as an application drives it: opens, posts, tests, closes, and feeds the checkers. It
//! behaves as NCCL's proxy does: retries with the same arguments, never waits, tests in any order.

use trunkline_engine::{CommId, Engine, Error, ListenId, MrId, RequestId};
use trunkline_mem::Memory;

use crate::checkers::Violation;
use crate::checkers::bounded::{Cause, Fate};
use crate::checkers::bytes::{GUARD, Grave};
use crate::checkers::once::Once;
use crate::checkers::order::Order;
use crate::receiver::Receiving;
use crate::scenario::{CommPlan, SidePlan};
use crate::sender::Sending;
use crate::{Dice, Mutant, SimFabric, SimHost, World};

/// The engine of a simulated process.
pub(crate) type SimEngine = Engine<SimFabric, SimHost>;

/// Whether a step changed anything.
pub(crate) type Step = Result<bool, Violation>;

/// Everything a step may use.
pub(crate) struct Around<'a> {
    pub(crate) engine: &'a SimEngine,
    pub(crate) world: &'a World,
    pub(crate) plan: &'a CommPlan,
    pub(crate) order: &'a mut Order,
    pub(crate) once: &'a mut Once,
    pub(crate) graves: &'a mut Vec<Grave>,
    pub(crate) dice: &'a mut Dice,
    /// The listener's handle, once there is one.
    pub(crate) handle: Option<[u8; 128]>,
    /// Flushes are needed before bytes may be read.
    pub(crate) needs_flush: bool,
    /// Virtual time within which a doomed request must end.
    pub(crate) limit: u64,
    /// Control frames get lost, so that the end of a comm may stay unknown.
    pub(crate) lossy: bool,
    pub(crate) look_again: u32,
    pub(crate) mutant: Mutant,
}

/// How far an end is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Before its start.
    Idle,
    /// Connects or accepts.
    Opening,
    /// Posts and tests.
    Running,
    /// Collects the errors of its requests.
    Failing,
    /// Closed.
    Closed,
}

/// A request under way.
pub(crate) struct Flight {
    pub(crate) request: RequestId,
    /// The message or group it is for.
    pub(crate) item: usize,
    /// A flush, with the sizes that were received.
    pub(crate) flush: Option<[u64; 8]>,
}

/// Bytes an item lies in.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) memory: Memory,
    pub(crate) offset: u64,
    pub(crate) mr: MrId,
    /// The registration ends with the item.
    pub(crate) own: bool,
}

/// What an end does with messages.
pub(crate) enum Role {
    Send(Sending),
    Recv(Receiving),
}

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) comm: usize,
    pub(crate) process: usize,
    pub(crate) plan: SidePlan,
    pub(crate) phase: Phase,
    pub(crate) fate: Fate,
    pub(crate) id: Option<CommId>,
    pub(crate) listen: Option<ListenId>,
    /// The connecting end's own copy, which keeps the attempt's state.
    handle: Option<[u8; 128]>,
    pub(crate) role: Role,
    pub(crate) flights: Vec<Flight>,
    /// Requests of messages that are done.
    pub(crate) completed: usize,
    opened_at: u64,
    idle_since: Option<u64>,
    arena: Option<(Memory, MrId)>,
    arena_used: u64,
    regions: Vec<MrId>,
    /// The end was closed with work in flight.
    pub(crate) aborted: bool,
}

impl Side {
    pub(crate) fn new(comm: usize, process: usize, plan: SidePlan, role: Role) -> Self {
        Self {
            comm,
            process,
            plan,
            phase: Phase::Idle,
            fate: Fate::default(),
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
            aborted: false,
        }
    }

    /// The end in the words of a message.
    pub(crate) fn name(&self) -> String {
        let role = if matches!(self.role, Role::Send(_)) { "sender" } else { "receiver" };
        format!("comm {} {role} p{}", self.comm, self.process)
    }

    /// Makes one move.
    pub(crate) fn step(&mut self, around: &mut Around<'_>) -> Step {
        let now = around.world.now();
        match self.phase {
            Phase::Idle => {
                let begins = now >= self.plan.start;
                if begins {
                    self.phase = Phase::Opening;
                }
                Ok(begins)
            }
            Phase::Opening => self.open(around, now),
            Phase::Running => self.run(around, now),
            Phase::Failing => self.collect(around, now),
            Phase::Closed => Ok(false),
        }
    }

    fn open(&mut self, around: &mut Around<'_>, now: u64) -> Step {
        let opened = match (&self.role, self.listen) {
            (Role::Send(_), _) => {
                let Some(handle) = self.handle.as_mut().or(around.handle.as_mut()) else { return Ok(false) };
                let opened = around.engine.connect(around.plan.from_nic, handle);
                let kept = *handle;
                self.handle = Some(kept);
                opened
            }
            (Role::Recv(_), Some(listen)) => around.engine.accept(listen),
            (Role::Recv(_), None) => return Ok(false),
        };
        match opened {
            Ok(Some(id)) => {
                around.world.note(format_args!("{} is open", self.name()));
                (self.id, self.opened_at, self.phase) = (Some(id), now, Phase::Running);
                if around.plan.close_listen_early {
                    self.close_listen(around)?;
                }
                Ok(true)
            }
            Ok(None) => self.open_later(around, now),
            Err(error) => {
                self.fate.failed(&self.name(), &error.to_string())?;
                around.world.note(format_args!("{} does not open: {error}", self.name()));
                self.close(around)?;
                Ok(true)
            }
        }
    }

    fn open_later(&mut self, around: &mut Around<'_>, now: u64) -> Step {
        let sends = matches!(self.role, Role::Send(_));
        if self.fate.cause().is_none() {
            return Ok(false);
        }
        // Nobody tells an accepting end that nothing will come; a connecting end is always told.
        if !sends && around.dice.chance(20) {
            around.world.note(format_args!("{} gives up", self.name()));
            self.close(around)?;
            return Ok(true);
        }
        if sends && self.fate.cause() == Some(Cause::Death) {
            self.fate.pending(&self.name(), now, around.limit)?;
        }
        Ok(false)
    }

    fn run(&mut self, around: &mut Around<'_>, now: u64) -> Step {
        if now < self.opened_at + self.plan.pause {
            return Ok(false);
        }
        if self.plan.abort.is_some_and(|after| self.completed >= after) {
            return self.abort(around);
        }
        if self.fate.cause().is_some() && around.lossy && around.dice.chance(20) {
            return self.abort(around);
        }
        let done = match &self.role {
            Role::Send(sending) => sending.is_done(),
            Role::Recv(receiving) => receiving.is_done(around.plan),
        };
        if done && self.flights.is_empty() {
            let since = *self.idle_since.get_or_insert(now);
            if now < since + self.plan.linger {
                return Ok(false);
            }
            self.close(around)?;
            return Ok(true);
        }
        if self.flights.len() < self.plan.in_flight && around.dice.coin() {
            return match self.role {
                Role::Send(_) => self.send(around),
                Role::Recv(_) => self.receive(around),
            };
        }
        self.test(around, now)
    }

    fn test(&mut self, around: &mut Around<'_>, now: u64) -> Step {
        if self.flights.is_empty() {
            return Ok(false);
        }
        let at = around.dice.below(self.flights.len() as u64) as usize;
        let request = self.flights[at].request;
        let mut sizes = [u64::MAX; 8];
        match around.engine.test(request, &mut sizes) {
            Ok(false) => {
                if self.fate.cause() != Some(Cause::Flap) && !(around.lossy && self.fate.cause().is_some()) {
                    self.fate.pending(&self.name(), now, around.limit)?;
                }
                Ok(false)
            }
            Ok(true) => {
                let flight = self.flights.swap_remove(at);
                self.ended(around, request)?;
                if around.mutant == Mutant::DuplicateCompletion && around.dice.chance(100) {
                    self.ended(around, request)?;
                }
                match self.role {
                    Role::Send(_) => self.sent(around, flight.item)?,
                    Role::Recv(_) => self.received(around, &flight, sizes)?,
                }
                Ok(true)
            }
            Err(error) => {
                self.flights.swap_remove(at);
                self.ended(around, request)?;
                self.failed(around, &error)
            }
        }
    }

    /// A request has ended; a second look must find nothing.
    fn ended(&mut self, around: &mut Around<'_>, request: RequestId) -> Result<(), Violation> {
        around.once.ended(&self.name(), request.to_bits())?;
        if around.dice.chance(around.look_again)
            && let Ok(done) = around.engine.test(request, &mut [0; 8])
        {
            let text = format!("{}: a request that had ended is there again, done: {done}", self.name());
            return Err(Violation { checker: "once", text });
        }
        Ok(())
    }

    /// A call failed: from now on this end only collects what is outstanding.
    pub(crate) fn failed(&mut self, around: &mut Around<'_>, error: &Error) -> Step {
        self.fate.failed(&self.name(), &error.to_string())?;
        around.world.note(format_args!("{} fails: {error}", self.name()));
        self.phase = Phase::Failing;
        Ok(true)
    }

    fn collect(&mut self, around: &mut Around<'_>, now: u64) -> Step {
        if self.flights.is_empty() {
            self.close(around)?;
            return Ok(true);
        }
        self.test(around, now)
    }

    /// Closes with work in flight.
    fn abort(&mut self, around: &mut Around<'_>) -> Step {
        around.world.note(format_args!("{} aborts", self.name()));
        self.aborted = true;
        let release = around.dice.coin();
        if release {
            self.release_regions(around)?;
        }
        let flights = std::mem::take(&mut self.flights);
        for flight in &flights {
            around.once.dropped(flight.request.to_bits());
        }
        if release {
            self.bury_everything(around);
        }
        self.close_comm(around)?;
        self.finish(around)
    }

    fn close(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.release_regions(around)?;
        self.close_comm(around)?;
        self.finish(around)?;
        Ok(())
    }

    fn close_comm(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(id) = self.id.take() else { return Ok(()) };
        let closed = around.engine.close(id);
        closed.map_err(|error| self.surprise(&format!("close: {error}")))
    }

    fn finish(&mut self, around: &mut Around<'_>) -> Step {
        self.close_listen(around)?;
        around.world.note(format_args!("{} is closed", self.name()));
        self.phase = Phase::Closed;
        Ok(true)
    }

    fn close_listen(&mut self, around: &Around<'_>) -> Result<(), Violation> {
        let Some(listen) = self.listen.take() else { return Ok(()) };
        let closed = around.engine.close_listen(listen);
        closed.map_err(|error| self.surprise(&format!("close_listen: {error}")))
    }

    fn release_regions(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(id) = self.id else { return Ok(()) };
        for mr in std::mem::take(&mut self.regions) {
            let released = around.engine.deregister(id, mr);
            released.map_err(|error| self.surprise(&format!("deregister: {error}")))?;
        }
        Ok(())
    }

    /// A call failed that has no reason to.
    pub(crate) fn surprise(&self, text: &str) -> Violation {
        Violation { checker: "bounded", text: format!("{}: {text}", self.name()) }
    }

    /// Bytes for an item of `len` bytes and its guard, registered.
    pub(crate) fn place(&mut self, around: &mut Around<'_>, len: u64) -> Result<Option<Place>, Violation> {
        let Some(id) = self.id else { return Ok(None) };
        if self.plan.own_regions {
            let offset = around.dice.below(32);
            let memory = Memory::heap((offset + len + GUARD) as usize);
            let Some(mr) = self.register(around, id, &memory)? else { return Ok(None) };
            return Ok(Some(Place { memory, offset, mr, own: true }));
        }
        if self.arena.is_none() {
            let items = around.plan.groups.iter().flatten();
            let bytes: u64 = items.map(|m| m.room.max(m.size) + GUARD + 32).sum();
            let memory = Memory::heap(bytes as usize);
            let Some(mr) = self.register(around, id, &memory)? else { return Ok(None) };
            self.arena = Some((memory, mr));
        }
        let Some((memory, mr)) = self.arena.clone() else { return Ok(None) };
        let offset = self.arena_used + around.dice.below(32);
        self.arena_used = offset + len + GUARD;
        Ok(Some(Place { memory, offset, mr, own: false }))
    }

    fn register(
        &mut self,
        around: &mut Around<'_>,
        id: CommId,
        memory: &Memory,
    ) -> Result<Option<MrId>, Violation> {
        match around.engine.register(id, memory.clone()) {
            Ok(mr) => {
                self.regions.push(mr);
                Ok(Some(mr))
            }
            // A limit of the NIC: the application waits until it has released some.
            Err(Error::Register(trunkline_fabric::RegisterError::Exhausted(_))) => Ok(None),
            Err(error) => Err(self.surprise(&format!("register: {error}"))),
        }
    }

    /// The application uses the bytes for something else from now on.
    pub(crate) fn bury(&mut self, around: &mut Around<'_>, place: &Place, len: u64, what: String) -> Step {
        if place.own
            && let Some(id) = self.id
        {
            self.regions.retain(|mr| *mr != place.mr);
            let released = around.engine.deregister(id, place.mr);
            released.map_err(|error| self.surprise(&format!("deregister: {error}")))?;
        }
        let seed = around.dice.draw();
        around.graves.push(Grave::dig(&place.memory, place.offset, len, seed, what));
        Ok(true)
    }

    fn bury_everything(&mut self, around: &mut Around<'_>) {
        let what = format!("{} after its abort", self.name());
        let places: Vec<(Place, u64)> = match &self.role {
            Role::Send(sending) => sending.places(),
            Role::Recv(receiving) => receiving.places(),
        };
        for (place, len) in places {
            let seed = around.dice.draw();
            around.graves.push(Grave::dig(&place.memory, place.offset, len, seed, what.clone()));
        }
    }
}
