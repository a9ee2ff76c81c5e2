//! The simulated processes with their engines, and the loop that runs them: one call at a time, in an order drawn
//! from the seed, until everything is closed. Stops at the first violation.

use trunkline_engine::{EngineParams, MatchBy};
use trunkline_proto::time::Duration;

use crate::checkers::bounded::FailureCause;
use crate::checkers::bytes::ReclaimedMemory;
use crate::checkers::groups::GroupChecker;
use crate::checkers::once::OnceChecker;
use crate::checkers::order::OrderChecker;
use crate::checkers::{PropertyResult, PropertyViolation, groups, leaks};
use crate::comm_end::{EndPhase, EndRole, SimCommEnd, SimEngine, StepContext};
use crate::receiver::ReceiveSchedule;
use crate::rogue_peer::RoguePeer;
use crate::scenario::{CommPlan, InjectedFault, RunScenario, nic_set};
use crate::sender::SendSchedule;
use crate::{HeldResources, ProcessNic, SimFabric, SimHost, SimPid, SimRng, SimWorld};

/// The peer time limit of the engines.
const PEER_TIME: Duration = Duration::from_secs(10);

/// The connect time limit of the engines.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Virtual time without any progress that counts as a hang.
const HANG: u64 = 120_000_000_000;

/// Calls after which a run counts as endless.
const STEPS_MAX: u64 = 3_000_000;

/// Longest jump of the clock when no process has work.
const JUMP_MAX: u64 = 500_000_000;

/// Jumps from this length on do not stop at events.
const JUMP_OVER: u64 = 1_000_000;

/// Progress calls of an engine between two jumps of the clock when all is closed.
const SETTLING_LOOKS: usize = 8;

/// Time that passes with each poll of an engine that is being dropped.
const ENDING: u64 = 1_000_000;

struct EngineProcess {
    pid: SimPid,
    engine: Option<SimEngine>,
    alive: bool,
    silent_until: u64,
    once: OnceChecker,
    before: HeldResources,
}

/// All processes of a run.
pub(crate) struct SimCluster {
    world: SimWorld,
    scenario: RunScenario,
    dice: SimRng,
    processes: Vec<EngineProcess>,
    sides: Vec<SimCommEnd>,
    orders: Vec<OrderChecker>,
    handles: Vec<Option<[u8; 128]>>,
    graves: Vec<ReclaimedMemory>,
    groups: GroupChecker,
    strangers: Vec<RoguePeer>,
    /// The process of the rogue peers.
    outside: SimPid,
    pub(crate) steps: u64,
    fruitless: u64,
    jump: u64,
    last_progress: u64,
}

impl SimCluster {
    pub(crate) fn new(world: SimWorld, scenario: RunScenario, seed: u64) -> Result<Self, PropertyViolation> {
        let choice = scenario.engine;
        let params = EngineParams {
            match_by: if choice.by_nic { MatchBy::Nic } else { MatchBy::Mailbox },
            eager_max: choice.eager_max,
            eager_credits: choice.eager_credits,
            peer_time: PEER_TIME,
            connect_time: CONNECT_TIME,
            depth: choice.depth,
            idle_polls: choice.idle_polls,
            links_per_rail: choice.links_per_rail,
            stripe_min: choice.stripe_min,
            rail_time: Duration(choice.rail_time),
            ..EngineParams::default()
        };
        let mut processes = Vec::new();
        for _ in 0..scenario.processes {
            let pid = world.add_process();
            let before = world.held_resources(pid);
            let params = EngineParams { sharing: scenario.sharing[pid.0], ..params.clone() };
            let engine = SimEngine::new(SimFabric::new(&world, pid), SimHost::new(&world, pid), params);
            let engine = Some(engine.map_err(|error| setup_violation(&error.to_string()))?);
            let once = OnceChecker::default();
            processes.push(EngineProcess { pid, engine, alive: true, silent_until: 0, once, before });
        }
        let outside = world.add_process();
        let mut cluster = Self {
            world,
            dice: SimRng::new(seed, 3),
            processes,
            sides: Vec::new(),
            orders: Vec::new(),
            handles: Vec::new(),
            graves: Vec::new(),
            groups: GroupChecker::default(),
            strangers: Vec::new(),
            outside,
            steps: 0,
            fruitless: 0,
            jump: 1_000,
            last_progress: 0,
            scenario,
        };
        cluster.listen_all()?;
        Ok(cluster)
    }

    fn listen_all(&mut self) -> PropertyResult {
        for (comm, plan) in self.scenario.comms.iter().enumerate() {
            let Some(engine) = &self.processes[plan.to].engine else { continue };
            let (listen, handle) =
                engine.listen(nic_set(&plan.to_nics)).map_err(|error| setup_violation(&error.to_string()))?;
            let sending = EndRole::Send(SendSchedule::new(plan, comm));
            self.sides.push(SimCommEnd::new(comm, plan.from, plan.sender.clone(), sending));
            let receiving = EndRole::Recv(ReceiveSchedule::new());
            let mut receiver = SimCommEnd::new(comm, plan.to, plan.receiver.clone(), receiving);
            receiver.listen = Some(listen);
            self.sides.push(receiver);
            self.orders.push(OrderChecker::default());
            self.handles.push(Some(handle));
        }
        Ok(())
    }

    /// Runs until every end is closed.
    pub(crate) fn run_to_end(&mut self) -> PropertyResult {
        while self.sides.iter().any(|side| side.phase != EndPhase::Closed) {
            self.steps += 1;
            self.inject_due_faults();
            if self.scenario.has_sharing() {
                self.check_groups()?;
            }
            let progress = self.step_random_end()?;
            self.pass_time(progress)?;
        }
        self.check_settled()?;
        for grave in &self.graves {
            grave.check_untouched()?;
        }
        Ok(())
    }

    /// Returns the number of requests that have ended.
    pub(crate) fn ended_requests(&self) -> u64 {
        self.processes.iter().map(|process| process.once.ended).sum()
    }

    fn step_random_end(&mut self) -> Result<bool, PropertyViolation> {
        let at = self.dice.below(self.sides.len() as u64) as usize;
        let comm = self.sides[at].comm;
        let plan = &self.scenario.comms[comm];
        let peer = plan.from + plan.to - self.sides[at].process;
        let peer_idle = self.sides.iter().all(|s| s.process != peer || s.phase == EndPhase::Closed);
        let role = std::mem::discriminant(&self.sides[at].role);
        let other = self.sides.iter().find(|s| s.comm == comm && std::mem::discriminant(&s.role) != role);
        let peer_closed = other.is_some_and(|other| other.phase == EndPhase::Closed);
        let side = &mut self.sides[at];
        let process = &mut self.processes[side.process];
        let now = self.world.now();
        let Some(engine) = process.engine.as_ref().filter(|_| process.alive && now >= process.silent_until)
        else {
            return Ok(false);
        };
        if self.dice.chance(self.scenario.tend) {
            engine.drive_unpolled();
        }
        let mut around = StepContext {
            engine,
            world: &self.world,
            plan,
            order: &mut self.orders[comm],
            once: &mut process.once,
            graves: &mut self.graves,
            dice: &mut self.dice,
            handle: self.handles[comm],
            needs_flush: self.scenario.weather.caps.needs_flush,
            copied_max: self.scenario.weather.copied_max.max(self.scenario.weather.caps.inline_max.into()),
            limit: PEER_TIME.0,
            short: [plan.from, plan.to].iter().any(|&end| self.scenario.sharing[end].budget > 0),
            drains: self.scenario.weather.drains,
            lossy: self.scenario.weather.stream_lost > 0,
            peer_idle,
            peer_closed,
            look_again: self.scenario.look_again,
        };
        let progress = side.run_step(&mut around)?;
        let rude = side.phase == EndPhase::Closed && side.closed == Some(now) && !plan.settles;
        if let Some(cause) = side.news.take() {
            // The other end of the same comm has lost its peer.
            let role = std::mem::discriminant(&side.role);
            let ends = self.sides.iter_mut().filter(|end| end.comm == comm);
            for other in ends.filter(|end| std::mem::discriminant(&end.role) != role) {
                other.fate.expect_failure(now, cause);
            }
        }
        // A loss may be reported after the end has closed; its messages are then not sent again.
        let plan = &self.scenario.comms[comm];
        let nics = plan.from_nics.len().max(plan.to_nics.len()) as u32;
        let loses = !self.scenario.weather.caps.arrives && nics * self.scenario.engine.links_per_rail > 1;
        if loses && self.sides[at].phase == EndPhase::Closed {
            let ends = self.sides.iter_mut().filter(|end| end.comm == comm);
            ends.for_each(|end| end.fate.expect_failure(now, FailureCause::Flap));
        }
        if rude {
            self.expect_failure_of_sharers(comm, now);
        }
        Ok(progress)
    }

    fn pass_time(&mut self, progress: bool) -> PropertyResult {
        if progress {
            (self.fruitless, self.jump) = (0, 1_000);
            self.last_progress = self.world.now();
        } else {
            self.fruitless += 1;
        }
        if self.fruitless >= 3 * self.sides.len() as u64 {
            self.fruitless = 0;
            let asleep = self.processes.iter().map(|process| process.silent_until).max().unwrap_or(0);
            self.last_progress = self.last_progress.max(asleep.min(self.world.now()));
            if self.jump < JUMP_OVER {
                self.world.advance_to_event(self.jump);
            } else {
                self.world.advance_by(self.jump);
            }
            self.jump = (self.jump * 3 / 2).min(JUMP_MAX);
        } else {
            self.world.advance_by(self.dice.below(self.scenario.pace));
        }
        let stuck = self.world.now().saturating_sub(self.last_progress);
        if stuck <= HANG && self.steps <= STEPS_MAX {
            return Ok(());
        }
        let open: Vec<String> = self
            .sides
            .iter()
            .filter(|side| side.phase != EndPhase::Closed)
            .map(|side| {
                let name = side.display_name();
                let phase = side.phase;
                format!("{name} {phase:?}, {} done, {} in flight", side.completed, side.flights.len())
            })
            .collect();
        for process in self.processes.iter().filter(|_| self.scenario.has_sharing()) {
            if let Some(engine) = &process.engine {
                self.world.note_trace(format_args!("{}: {:?}", process.pid, engine.sharing_usage()));
            }
        }
        let text =
            format!("no progress for {} s, {} steps: {}", stuck / 1_000_000_000, self.steps, open.join("; "));
        Err(PropertyViolation { checker: "bounded", text })
    }

    /// Injects the faults that are due.
    fn inject_due_faults(&mut self) {
        let now = self.world.now();
        for (one, other) in self.world.take_unreachable() {
            self.expect_failure_between(one, other, now);
        }
        while let Some(at) = self.scenario.faults.iter().position(|fault| fault.at <= now) {
            let fault = self.scenario.faults.remove(at);
            match fault.fault {
                InjectedFault::Kill(process) => self.kill_process(process, now),
                InjectedFault::Silence(process, time) => {
                    self.world.note_trace(format_args!("p{process} falls silent for {} us", time / 1000));
                    self.processes[process].silent_until = now + time;
                    let own = self.sides.iter_mut().filter(|side| side.process == process);
                    own.for_each(|side| {
                        side.slept += time;
                        side.fate.extend_sleep(now + time);
                    });
                    if self.scenario.has_sharing() {
                        let comms = &self.scenario.comms;
                        let of = |side: &&mut SimCommEnd| {
                            let plan = &comms[side.comm];
                            side.process != process && (plan.from == process || plan.to == process)
                        };
                        self.sides.iter_mut().filter(of).for_each(|side| side.fate.peer_sleeps(now + time));
                    }
                }
                InjectedFault::Stranger(seed) => {
                    self.world.note_trace(format_args!("a rogue peer connects"));
                    let engines = self.processes.iter().filter_map(|process| process.engine.as_ref());
                    let names: Vec<_> = engines.map(SimEngine::process_id).collect();
                    self.strangers.extend(RoguePeer::connect_and_send(
                        &self.world,
                        self.outside,
                        seed,
                        &names,
                    ));
                }
                InjectedFault::Flap => self.flap_link(now),
                InjectedFault::Cut(process, nic, time) => self.cut_nic(process, nic, time, now),
            }
        }
    }

    fn kill_process(&mut self, process: usize, now: u64) {
        if !std::mem::replace(&mut self.processes[process].alive, false) {
            return;
        }
        self.world.kill_process(self.processes[process].pid);
        for side in &mut self.sides {
            let plan = &self.scenario.comms[side.comm];
            if side.process == process {
                side.phase = EndPhase::Closed;
            } else if plan.from == process || plan.to == process {
                side.fate.expect_failure(now, FailureCause::Death);
            }
        }
    }

    /// Cuts a NIC off. A comm survives if a link is left that both its ends use.
    fn cut_nic(&mut self, process: usize, nic: usize, time: u64, now: u64) {
        self.world.cut_nic(self.processes[process].pid, nic, time);
        let doomed: Vec<usize> =
            (0..self.scenario.comms.len()).filter(|&comm| self.is_hit(comm, process, nic)).collect();
        for side in self.sides.iter_mut().filter(|side| doomed.contains(&side.comm)) {
            side.fate.expect_failure(now, FailureCause::Flap);
        }
    }

    /// Whether a comm is expected to fail by the cut of a NIC: it uses the NIC, and has no other link that certainly
    /// carries, or completed operations may be lost with the NIC.
    fn is_hit(&self, comm: usize, process: usize, nic: usize) -> bool {
        let plan = &self.scenario.comms[comm];
        let uses = (plan.from == process && plan.from_nics.contains(&nic))
            || (plan.to == process && plan.to_nics.contains(&nic));
        let ends: Vec<Option<Vec<bool>>> = self
            .sides
            .iter()
            .filter(|side| side.comm == comm)
            .map(|side| self.processes[side.process].engine.as_ref()?.carrying_links(side.id?))
            .collect();
        let carry =
            |at: usize| ends.iter().all(|end| end.as_ref().is_some_and(|links| links.get(at) == Some(&true)));
        let uncut = |at: usize| {
            let from = plan.from_nics[at % plan.from_nics.len()];
            let to = plan.to_nics[at % plan.to_nics.len()];
            let from = ProcessNic { process: SimPid(plan.from), nic: from };
            let to = ProcessNic { process: SimPid(plan.to), nic: to };
            let cut = self.world.is_cut(from.process, from.nic) || self.world.is_cut(to.process, to.nic);
            !cut && !self.world.is_stranded(from, to)
        };
        let links = plan.from_nics.len().max(plan.to_nics.len());
        let loses = !self.scenario.weather.caps.arrives;
        uses && (loses || !(0..links).any(|at| carry(at) && uncut(at)))
    }

    fn flap_link(&mut self, now: u64) {
        let Some((one, other)) = self.world.flap_link() else { return };
        self.expect_failure_between(one, other, now);
    }

    /// Expects failures of comms between two processes: a link between them fails, or cannot be made.
    fn expect_failure_between(&mut self, one: SimPid, other: SimPid, now: u64) {
        for side in &mut self.sides {
            let plan = &self.scenario.comms[side.comm];
            let ends = [SimPid(plan.from), SimPid(plan.to)];
            if ends == [one, other] || ends == [other, one] {
                side.fate.expect_failure(now, FailureCause::Flap);
            }
        }
    }

    /// Checks shared queue pairs: their accounts balance, and ends that cannot leave in time may make other members
    /// fail.
    fn check_groups(&mut self) -> PropertyResult {
        let now = self.world.now();
        for at in 0..self.sides.len() {
            let side = &self.sides[at];
            self.groups.disturbed |= side.phase == EndPhase::Closed || side.fate.cause().is_some();
            if side.drains.is_some_and(|since| now >= since + PEER_TIME.0) {
                self.expect_failure_of_sharers(self.sides[at].comm, now);
            }
            self.check_lingering(at, now);
        }
        if !self.groups.is_due() {
            return Ok(());
        }
        let all = self.sides.iter().all(|side| side.phase == EndPhase::Running);
        let single = self.scenario.engine.links_per_rail == 1;
        // With few queue pairs, comms share earlier.
        let all = all && self.scenario.weather.caps.links_max >= 4096;
        for process in self.processes.iter().filter(|process| process.alive) {
            let Some(engine) = &process.engine else { continue };
            self.groups.check_engine(&engine.sharing_usage(), process.pid)?;
            if !single {
                continue;
            }
            let links = self.world.held_resources(process.pid).links;
            let scenario = &self.scenario;
            let sharing = scenario.sharing_that_fits();
            self.groups.check_links(process.pid, links, all, &scenario.comms, &sharing)?;
        }
        Ok(())
    }

    /// Expects failures after a closed end that still has work in flight at the limit: it gives up its queue pairs.
    fn check_lingering(&mut self, at: usize, now: u64) {
        let Some(closed) = self.sides[at].closed else { return };
        let engine = self.processes[self.sides[at].process].engine.as_ref();
        if now >= closed + PEER_TIME.0 {
            self.expect_failure_of_sharers(self.sides[at].comm, now);
            self.sides[at].closed = None;
        } else if now > closed && engine.is_none_or(|engine| engine.in_use().1 == 0) {
            self.sides[at].closed = None;
        }
    }

    /// Expects failures of all comms with the same ends as this one: its queue pairs may be given up, and they may
    /// share them.
    fn expect_failure_of_sharers(&mut self, comm: usize, now: u64) {
        let key = |comm: &CommPlan| (comm.from, comm.to, comm.from_nics.clone(), comm.to_nics.clone());
        let comms = &self.scenario.comms;
        let of = key(&comms[comm]);
        for side in self.sides.iter_mut().filter(|side| key(&comms[side.comm]) == of) {
            side.fate.expect_failure(now, FailureCause::Neighbour);
        }
    }

    /// Checks that nothing is left after everything was closed.
    fn check_settled(&mut self) -> PropertyResult {
        self.strangers.clear();
        let until = self.world.now() + 2 * PEER_TIME.0;
        let mut jump = 10_000;
        loop {
            for process in self.processes.iter().filter(|process| process.alive) {
                if let Some(engine) = &process.engine {
                    // A completion queue of four entries needs many polls to report a hundred flushed receives.
                    (0..SETTLING_LOOKS).for_each(|_| engine.progress_all());
                }
            }
            self.call_registrars();
            let idle = self.processes.iter().filter(|process| process.alive).all(|process| {
                let counts = self.world.held_resources(process.pid);
                let engine = process.engine.as_ref().filter(|_| self.scenario.has_sharing());
                let attempts = engine.map_or(0, |engine| engine.sharing_usage().attempts);
                (counts.rails, counts.links, counts.regions, attempts) == (0, 0, 0, 0)
            });
            if idle || self.world.now() >= until {
                break;
            }
            self.world.advance_by(jump);
            jump = (jump * 2).min(JUMP_MAX);
        }
        for process in self.processes.iter().filter(|process| process.alive) {
            let now = self.world.held_resources(process.pid);
            let before = HeldResources { streams: now.streams, listeners: now.listeners, ..process.before };
            leaks::check_process(&self.world, process.pid, before, "after closing everything")?;
            if let Some(engine) = process.engine.as_ref().filter(|_| self.scenario.has_sharing()) {
                groups::check_empty(&engine.sharing_usage(), process.pid)?;
            }
            if let Some((comms, lanes, _)) = process.engine.as_ref().map(SimEngine::in_use)
                && (comms, lanes) != (0, 0)
            {
                let text = format!("{}: {comms} comms and {lanes} lanes after closing all", process.pid);
                return Err(PropertyViolation { checker: "leaks", text });
            }
        }
        self.world.free_run(ENDING);
        for process in &mut self.processes {
            process.engine = None;
            if process.alive {
                leaks::check_process(&self.world, process.pid, process.before, "without its engine")?;
            }
        }
        Ok(())
    }
}

impl SimCluster {
    /// Makes each NIC register something: a registrar then also ends regions that it could not end when their owner
    /// dropped them.
    fn call_registrars(&self) {
        for process in self.processes.iter().filter(|process| process.alive) {
            let (comms, lanes) = process.engine.as_ref().map_or((0, 0), |engine| {
                let (comms, lanes, _) = engine.in_use();
                (comms, lanes)
            });
            if (comms, lanes) == (0, 0) && self.world.held_resources(process.pid).regions > 0 {
                self.world.call_registrars(process.pid);
            }
        }
    }
}

impl Drop for SimCluster {
    fn drop(&mut self) {
        // A run that stopped early leaves engines with comms, which wait for a while when they are dropped.
        self.world.free_run(ENDING);
    }
}

fn setup_violation(text: &str) -> PropertyViolation {
    PropertyViolation { checker: "bounded", text: format!("set-up: {text}") }
}
