//! The simulated processes with their engines, and the loop that lets them act: one call at a time, in an order drawn
//! from the seed, until everything is closed. Stops at the first violation.

use trunkline_engine::{MatchBy, Mutant as EngineMutant, Params};
use trunkline_proto::time::Duration;

use crate::checkers::bounded::Cause;
use crate::checkers::bytes::Grave;
use crate::checkers::groups::Groups;
use crate::checkers::once::Once;
use crate::checkers::order::Order;
use crate::checkers::{Check, Violation, groups, leaks};
use crate::receiver::Receiving;
use crate::scenario::{CommPlan, Fault, Scenario, nics};
use crate::sender::Sending;
use crate::side::{Around, Phase, Role, Side, SimEngine};
use crate::stranger::Stranger;
use crate::{Counts, Dice, Mutant, Pid, SimFabric, SimHost, World};

/// The limit the engines are given.
const PEER_TIME: Duration = Duration::secs(10);

/// How long an attempt may be left alone.
const CONNECT_TIME: Duration = Duration::secs(5);

/// Virtual time without any progress that counts as a hang.
const HANG: u64 = 120_000_000_000;

/// Calls after which a run counts as endless.
const STEPS_MAX: u64 = 3_000_000;

/// Longest jump of the clock when nobody has anything to do.
const JUMP_MAX: u64 = 500_000_000;

/// Jumps this long stop at no event any more.
const JUMP_OVER: u64 = 1_000_000;

/// Looks of an engine between two jumps of the clock when all is closed.
const SETTLING_LOOKS: usize = 8;

/// Time that passes with each look of an engine that ends.
const ENDING: u64 = 1_000_000;

struct Process {
    pid: Pid,
    engine: Option<SimEngine>,
    alive: bool,
    silent_until: u64,
    once: Once,
    before: Counts,
}

/// All processes of a run.
pub(crate) struct Cluster {
    world: World,
    scenario: Scenario,
    mutant: Mutant,
    dice: Dice,
    processes: Vec<Process>,
    sides: Vec<Side>,
    orders: Vec<Order>,
    handles: Vec<Option<[u8; 128]>>,
    graves: Vec<Grave>,
    groups: Groups,
    strangers: Vec<Stranger>,
    /// The process that strangers live in.
    outside: Pid,
    pub(crate) steps: u64,
    fruitless: u64,
    jump: u64,
    last_progress: u64,
}

impl Cluster {
    pub(crate) fn new(
        world: World,
        scenario: Scenario,
        seed: u64,
        mutant: Mutant,
        engine_mutant: EngineMutant,
    ) -> Result<Self, Violation> {
        let choice = scenario.engine;
        let params = Params {
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
            mutant: engine_mutant,
            ..Params::default()
        };
        let mut processes = Vec::new();
        for _ in 0..scenario.processes {
            let pid = world.add_process();
            let before = world.counts(pid);
            let params = Params { sharing: scenario.sharing[pid.0], ..params.clone() };
            let engine = SimEngine::new(SimFabric::new(&world, pid), SimHost::new(&world, pid), params);
            let engine = Some(engine.map_err(|error| setup(&error.to_string()))?);
            let once = Once::default();
            processes.push(Process { pid, engine, alive: true, silent_until: 0, once, before });
        }
        let outside = world.add_process();
        let mut cluster = Self {
            world,
            mutant,
            dice: Dice::new(seed, 3),
            processes,
            sides: Vec::new(),
            orders: Vec::new(),
            handles: Vec::new(),
            graves: Vec::new(),
            groups: Groups::default(),
            strangers: Vec::new(),
            outside,
            steps: 0,
            fruitless: 0,
            jump: 1_000,
            last_progress: 0,
            scenario,
        };
        cluster.listen()?;
        Ok(cluster)
    }

    fn listen(&mut self) -> Check {
        for (comm, plan) in self.scenario.comms.iter().enumerate() {
            let Some(engine) = &self.processes[plan.to].engine else { continue };
            let (listen, handle) =
                engine.listen(nics(&plan.to_nics)).map_err(|error| setup(&error.to_string()))?;
            let sending = Role::Send(Sending::new(plan, comm));
            self.sides.push(Side::new(comm, plan.from, plan.sender.clone(), sending));
            let receiving = Role::Recv(Receiving::new());
            let mut receiver = Side::new(comm, plan.to, plan.receiver.clone(), receiving);
            receiver.listen = Some(listen);
            self.sides.push(receiver);
            self.orders.push(Order::default());
            self.handles.push(Some(handle));
        }
        Ok(())
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) -> Check {
        while self.sides.iter().any(|side| side.phase != Phase::Closed) {
            self.steps += 1;
            self.strike();
            if self.scenario.shares() {
                self.look_at_groups()?;
            }
            let progress = self.step()?;
            self.pass_time(progress)?;
        }
        self.settle()?;
        for grave in &self.graves {
            grave.check()?;
        }
        Ok(())
    }

    /// What was received, in bytes of requests that ended.
    pub(crate) fn ended(&self) -> u64 {
        self.processes.iter().map(|process| process.once.ended).sum()
    }

    fn step(&mut self) -> Result<bool, Violation> {
        let at = self.dice.below(self.sides.len() as u64) as usize;
        let comm = self.sides[at].comm;
        let plan = &self.scenario.comms[comm];
        let peer = plan.from + plan.to - self.sides[at].process;
        let peer_idle = self.sides.iter().all(|s| s.process != peer || s.phase == Phase::Closed);
        let role = std::mem::discriminant(&self.sides[at].role);
        let other = self.sides.iter().find(|s| s.comm == comm && std::mem::discriminant(&s.role) != role);
        let peer_closed = other.is_some_and(|other| other.phase == Phase::Closed);
        let side = &mut self.sides[at];
        let process = &mut self.processes[side.process];
        let now = self.world.now();
        let Some(engine) = process.engine.as_ref().filter(|_| process.alive && now >= process.silent_until)
        else {
            return Ok(false);
        };
        if self.dice.chance(self.scenario.tend) {
            engine.tend();
        }
        let mut around = Around {
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
            mutant: self.mutant,
        };
        let progress = side.step(&mut around)?;
        let rude = side.phase == Phase::Closed && side.closed == Some(now) && !plan.settles;
        if let Some(cause) = side.news.take() {
            // The other end of the same comm has lost its peer.
            let role = std::mem::discriminant(&side.role);
            let ends = self.sides.iter_mut().filter(|end| end.comm == comm);
            for other in ends.filter(|end| std::mem::discriminant(&end.role) != role) {
                other.fate.doom(now, cause);
            }
        }
        // What it had sent and a link has lost, which says so later, is sent by nobody again.
        let plan = &self.scenario.comms[comm];
        let nics = plan.from_nics.len().max(plan.to_nics.len()) as u32;
        let loses = !self.scenario.weather.caps.arrives && nics * self.scenario.engine.links_per_rail > 1;
        if loses && self.sides[at].phase == Phase::Closed {
            let ends = self.sides.iter_mut().filter(|end| end.comm == comm);
            ends.for_each(|end| end.fate.doom(now, Cause::Flap));
        }
        if rude {
            self.doom_neighbours(comm, now);
        }
        Ok(progress)
    }

    fn pass_time(&mut self, progress: bool) -> Check {
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
                self.world.advance(self.jump);
            }
            self.jump = (self.jump * 3 / 2).min(JUMP_MAX);
        } else {
            self.world.advance(self.dice.below(self.scenario.pace));
        }
        let stuck = self.world.now().saturating_sub(self.last_progress);
        if stuck <= HANG && self.steps <= STEPS_MAX {
            return Ok(());
        }
        let open: Vec<String> = self
            .sides
            .iter()
            .filter(|side| side.phase != Phase::Closed)
            .map(|side| {
                let name = side.name();
                let phase = side.phase;
                format!("{name} {phase:?}, {} done, {} in flight", side.completed, side.flights.len())
            })
            .collect();
        for process in self.processes.iter().filter(|_| self.scenario.shares()) {
            if let Some(engine) = &process.engine {
                self.world.note(format_args!("{}: {:?}", process.pid, engine.riding()));
            }
        }
        let text =
            format!("no progress for {} s, {} steps: {}", stuck / 1_000_000_000, self.steps, open.join("; "));
        Err(Violation { checker: "bounded", text })
    }

    /// Lets the faults happen that are due.
    fn strike(&mut self) {
        let now = self.world.now();
        for (one, other) in self.world.take_unreachable() {
            self.doom_between(one, other, now);
        }
        while let Some(at) = self.scenario.faults.iter().position(|fault| fault.at <= now) {
            let fault = self.scenario.faults.remove(at);
            match fault.fault {
                Fault::Kill(process) => self.kill(process, now),
                Fault::Silence(process, time) => {
                    self.world.note(format_args!("p{process} falls silent for {} us", time / 1000));
                    self.processes[process].silent_until = now + time;
                    let own = self.sides.iter_mut().filter(|side| side.process == process);
                    own.for_each(|side| {
                        side.slept += time;
                        side.fate.sleeps(now + time);
                    });
                    if self.scenario.shares() {
                        let comms = &self.scenario.comms;
                        let of = |side: &&mut Side| {
                            let plan = &comms[side.comm];
                            side.process != process && (plan.from == process || plan.to == process)
                        };
                        self.sides.iter_mut().filter(of).for_each(|side| side.fate.peer_sleeps(now + time));
                    }
                }
                Fault::Stranger(seed) => {
                    self.world.note(format_args!("a stranger calls"));
                    let engines = self.processes.iter().filter_map(|process| process.engine.as_ref());
                    let names: Vec<_> = engines.map(SimEngine::process).collect();
                    self.strangers.extend(Stranger::call(&self.world, self.outside, seed, &names));
                }
                Fault::Flap => self.flap(now),
                Fault::Cut(process, nic, time) => self.cut(process, nic, time, now),
            }
        }
    }

    fn kill(&mut self, process: usize, now: u64) {
        if !std::mem::replace(&mut self.processes[process].alive, false) {
            return;
        }
        self.world.kill(self.processes[process].pid);
        for side in &mut self.sides {
            let plan = &self.scenario.comms[side.comm];
            if side.process == process {
                side.phase = Phase::Closed;
            } else if plan.from == process || plan.to == process {
                side.fate.doom(now, Cause::Death);
            }
        }
    }

    /// A comm lives on if a link is left that both its ends use.
    fn cut(&mut self, process: usize, nic: usize, time: u64, now: u64) {
        self.world.cut(self.processes[process].pid, nic, time);
        let doomed: Vec<usize> =
            (0..self.scenario.comms.len()).filter(|&comm| self.is_hit(comm, process, nic)).collect();
        for side in self.sides.iter_mut().filter(|side| doomed.contains(&side.comm)) {
            side.fate.doom(now, Cause::Flap);
        }
    }

    /// Whether a comm uses a NIC that was just cut off, and has no other link that surely carries; or what it had completed may
    /// be lost with the NIC.
    fn is_hit(&self, comm: usize, process: usize, nic: usize) -> bool {
        let plan = &self.scenario.comms[comm];
        let uses = (plan.from == process && plan.from_nics.contains(&nic))
            || (plan.to == process && plan.to_nics.contains(&nic));
        let ends: Vec<Option<Vec<bool>>> = self
            .sides
            .iter()
            .filter(|side| side.comm == comm)
            .map(|side| self.processes[side.process].engine.as_ref()?.links(side.id?))
            .collect();
        let carry =
            |at: usize| ends.iter().all(|end| end.as_ref().is_some_and(|links| links.get(at) == Some(&true)));
        let uncut = |at: usize| {
            let from = plan.from_nics[at % plan.from_nics.len()];
            let to = plan.to_nics[at % plan.to_nics.len()];
            let from = (Pid(plan.from), from);
            let to = (Pid(plan.to), to);
            let cut = self.world.is_cut(from.0, from.1) || self.world.is_cut(to.0, to.1);
            !cut && !self.world.is_stranded(from, to)
        };
        let links = plan.from_nics.len().max(plan.to_nics.len());
        let loses = !self.scenario.weather.caps.arrives;
        uses && (loses || !(0..links).any(|at| carry(at) && uncut(at)))
    }

    fn flap(&mut self, now: u64) {
        let Some((one, other)) = self.world.flap() else { return };
        self.doom_between(one, other, now);
    }

    /// A link between two processes fails, or cannot be made.
    fn doom_between(&mut self, one: Pid, other: Pid, now: u64) {
        for side in &mut self.sides {
            let plan = &self.scenario.comms[side.comm];
            let ends = [Pid(plan.from), Pid(plan.to)];
            if ends == [one, other] || ends == [other, one] {
                side.fate.doom(now, Cause::Flap);
            }
        }
    }

    /// Looks at shared queue pairs: who cannot leave them in time may take them from others, and the books balance.
    fn look_at_groups(&mut self) -> Check {
        let now = self.world.now();
        for at in 0..self.sides.len() {
            let side = &self.sides[at];
            self.groups.disturbed |= side.phase == Phase::Closed || side.fate.cause().is_some();
            if side.drains.is_some_and(|since| now >= since + PEER_TIME.0) {
                self.doom_neighbours(self.sides[at].comm, now);
            }
            self.look_at_lingering(at, now);
        }
        if !self.groups.is_due() {
            return Ok(());
        }
        let all = self.sides.iter().all(|side| side.phase == Phase::Running);
        let single = self.scenario.engine.links_per_rail == 1;
        // The fewer queue pairs a NIC has, the sooner comms share.
        let all = all && self.scenario.weather.caps.links_max >= 4096;
        for process in self.processes.iter().filter(|process| process.alive) {
            let Some(engine) = &process.engine else { continue };
            self.groups.check(&engine.riding(), process.pid)?;
            if !single {
                continue;
            }
            let links = self.world.counts(process.pid).links;
            let scenario = &self.scenario;
            let sharing = scenario.sharing_that_fits();
            self.groups.check_links(process.pid, links, all, &scenario.comms, &sharing)?;
        }
        Ok(())
    }

    /// A closed end of which something is under way for too long gives its queue pairs up.
    fn look_at_lingering(&mut self, at: usize, now: u64) {
        let Some(closed) = self.sides[at].closed else { return };
        let engine = self.processes[self.sides[at].process].engine.as_ref();
        if now >= closed + PEER_TIME.0 {
            self.doom_neighbours(self.sides[at].comm, now);
            self.sides[at].closed = None;
        } else if now > closed && engine.is_none_or(|engine| engine.in_use().1 == 0) {
            self.sides[at].closed = None;
        }
    }

    /// Queue pairs may be given up that comms of the same ends share with this one.
    fn doom_neighbours(&mut self, comm: usize, now: u64) {
        let key = |comm: &CommPlan| (comm.from, comm.to, comm.from_nics.clone(), comm.to_nics.clone());
        let comms = &self.scenario.comms;
        let of = key(&comms[comm]);
        for side in self.sides.iter_mut().filter(|side| key(&comms[side.comm]) == of) {
            side.fate.doom(now, Cause::Neighbour);
        }
    }

    /// Everything is closed: nothing may stay behind.
    fn settle(&mut self) -> Check {
        self.strangers.clear();
        let until = self.world.now() + 2 * PEER_TIME.0;
        let mut jump = 10_000;
        loop {
            for process in self.processes.iter().filter(|process| process.alive) {
                if let Some(engine) = &process.engine {
                    // A completion queue of four tells of a hundred flushed receives in many looks.
                    (0..SETTLING_LOOKS).for_each(|_| engine.progress_all());
                }
            }
            self.call_registrars();
            let idle = self.processes.iter().filter(|process| process.alive).all(|process| {
                let counts = self.world.counts(process.pid);
                let engine = process.engine.as_ref().filter(|_| self.scenario.shares());
                let attempts = engine.map_or(0, |engine| engine.riding().attempts);
                (counts.rails, counts.links, counts.regions, attempts) == (0, 0, 0, 0)
            });
            if idle || self.world.now() >= until {
                break;
            }
            self.world.advance(jump);
            jump = (jump * 2).min(JUMP_MAX);
        }
        for process in self.processes.iter().filter(|process| process.alive) {
            let now = self.world.counts(process.pid);
            let before = Counts { streams: now.streams, listeners: now.listeners, ..process.before };
            leaks::check(&self.world, process.pid, before, "after closing everything")?;
            if let Some(engine) = process.engine.as_ref().filter(|_| self.scenario.shares()) {
                groups::check_empty(&engine.riding(), process.pid)?;
            }
            if let Some((comms, lanes, _)) = process.engine.as_ref().map(SimEngine::in_use)
                && (comms, lanes) != (0, 0)
            {
                let text = format!("{}: {comms} comms and {lanes} lanes after closing all", process.pid);
                return Err(Violation { checker: "leaks", text });
            }
        }
        self.world.free_run(ENDING);
        for process in &mut self.processes {
            process.engine = None;
            if process.alive {
                leaks::check(&self.world, process.pid, process.before, "without its engine")?;
            }
        }
        Ok(())
    }
}

impl Cluster {
    /// Registrars are called for something else: what they could not end when its owner dropped it they end then.
    fn call_registrars(&self) {
        for process in self.processes.iter().filter(|process| process.alive) {
            let (comms, lanes) = process.engine.as_ref().map_or((0, 0), |engine| {
                let (comms, lanes, _) = engine.in_use();
                (comms, lanes)
            });
            if (comms, lanes) == (0, 0) && self.world.counts(process.pid).regions > 0 {
                self.world.call_registrars(process.pid);
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A run that stopped early leaves engines with comms, which wait a while when they end.
        self.world.free_run(ENDING);
    }
}

fn setup(text: &str) -> Violation {
    Violation { checker: "bounded", text: format!("set-up: {text}") }
}
