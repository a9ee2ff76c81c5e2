//! Everything the simulated processes share: virtual clock, network, control streams, trace. The fabric and the host
//! are views of it; the run drives its clock. It never calls into a process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_fabric::{Abandoned, Completion, Done, OobAddress, Status};
use trunkline_mem::Memory;

use crate::cut::{Cut, Ghost};
use crate::denied::Denied;
use crate::link::{Dial, LinkPhase, LinkState};
use crate::oob::Streams;
use crate::place::Region;
use crate::rail::{RailState, Waiting};
use crate::wire::Event;
use crate::words::Kept;
use crate::{Dice, Mutant, Trace, Weather};

/// A simulated process, by its number in the world.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Pid(pub usize);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// What a process holds at a moment; all zero once it has closed everything.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Open rails.
    pub rails: usize,
    /// Links, connected or not.
    pub links: usize,
    /// Registered regions.
    pub regions: usize,
    /// Their bytes, on each rail that they are registered on.
    pub registered: usize,
    /// Ends of control streams.
    pub streams: usize,
    /// Listeners for control streams.
    pub listeners: usize,
}

/// The shared world of one run. Clones are the same world.
#[derive(Clone)]
pub struct World(Arc<Mutex<State>>);

pub(crate) struct State {
    pub(crate) now: u64,
    pub(crate) weather: Weather,
    pub(crate) mutant: Mutant,
    pub(crate) dice: Dice,
    pub(crate) trace: Trace,
    events: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(crate) processes: Vec<ProcessState>,
    pub(crate) rails: Vec<RailState>,
    pub(crate) links: Vec<LinkState>,
    pub(crate) regions: BTreeMap<u64, Region>,
    /// Local keys by remote key.
    pub(crate) remote_keys: BTreeMap<u64, u64>,
    /// Words that NICs keep to themselves, by region and place.
    pub(crate) words: BTreeMap<(u64, u64), Kept>,
    /// Remote keys of retired regions, and their rails.
    pub(crate) retired: BTreeMap<u64, usize>,
    pub(crate) streams: Streams,
    /// Processes of which one cannot reach the other, until the run has heard of it.
    pub(crate) unreachable: Vec<(Pid, Pid)>,
    /// NICs that are cut off.
    pub(crate) cuts: Vec<Cut>,
    /// Writes that left on rails that died, and how many there were so far.
    pub(crate) ghosts: BTreeMap<u64, Ghost>,
    pub(crate) haunted: u64,
    /// A link that works and takes nothing that is posted.
    pub(crate) refusing: Option<usize>,
    /// Regions whose owners are gone, and that a copy is stuck in.
    pub(crate) abandoned: BTreeMap<(Pid, usize), Abandoned>,
    /// What a process is refused.
    pub(crate) denied: Option<(Pid, Denied)>,
    /// Completions that were polled while they were kept, with their rails and links, and whether they are kept now.
    pub(crate) kept: (Vec<(usize, usize, Completion)>, bool),
}

pub(crate) struct ProcessState {
    pub(crate) alive: bool,
    pub(crate) dice: Dice,
    pub(crate) warnings: usize,
}

struct Scheduled {
    at: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl World {
    /// A world without processes. `traced` keeps what happens for [`World::take_trace`].
    #[must_use]
    pub fn new(seed: u64, weather: Weather, mutant: Mutant, traced: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: 0,
            weather,
            mutant,
            dice: Dice::new(seed, 1),
            trace: Trace::new(traced),
            events: BinaryHeap::new(),
            scheduled: 0,
            processes: Vec::new(),
            rails: Vec::new(),
            links: Vec::new(),
            regions: BTreeMap::new(),
            words: BTreeMap::new(),
            remote_keys: BTreeMap::new(),
            retired: BTreeMap::new(),
            streams: Streams::default(),
            unreachable: Vec::new(),
            cuts: Vec::new(),
            ghosts: BTreeMap::new(),
            haunted: 0,
            refusing: None,
            abandoned: BTreeMap::new(),
            denied: None,
            kept: (Vec::new(), false),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a living process.
    #[must_use]
    pub fn add_process(&self) -> Pid {
        let mut state = self.lock();
        let dice = Dice::new(state.dice.draw(), 0);
        state.processes.push(ProcessState { alive: true, dice, warnings: 0 });
        Pid(state.processes.len() - 1)
    }

    /// Virtual nanoseconds since the start.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// Lets this much time pass; what is due happens.
    pub fn advance(&self, nanos: u64) {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        state.run_until(until);
    }

    /// Lets time pass until just after the next thing that is due, at most `nanos`; whether there was one.
    pub fn advance_to_event(&self, nanos: u64) -> bool {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        let next = state.next_event();
        state.run_until(next.map_or(until, |at| at.min(until)));
        next.is_some_and(|at| at <= until)
    }

    /// From now on every look at the clock or a NIC lets this much time pass: for engines that wait while they end.
    pub fn free_run(&self, nanos: u64) {
        self.lock().weather.poll_time = nanos;
    }

    /// Ends a process between two of its instructions: its links stop, its streams close after a while.
    pub fn kill(&self, process: Pid) {
        let mut state = self.lock();
        let Some(entry) = state.processes.get_mut(process.0) else { return };
        if !std::mem::replace(&mut entry.alive, false) {
            return;
        }
        state.note(format_args!("{process} dies"));
        if state.mutant != Mutant::HidePeerDeath {
            state.close_streams_of(process);
        }
        state.kill_links_of(process);
    }

    /// Whether the process was not killed.
    #[must_use]
    pub fn is_alive(&self, process: Pid) -> bool {
        self.lock().is_alive(process)
    }

    /// From now on the first working link of a process refuses all that is posted, as a provider does that is out of memory;
    /// with `None` nothing does.
    pub fn refuse(&self, process: Option<Pid>) {
        let mut state = self.lock();
        let of = |link: &LinkState| {
            link.phase == LinkPhase::Ready && Some(state.rails[link.rail].process) == process
        };
        state.refusing = state.links.iter().position(of);
    }

    /// From now on a process is refused that by its NICs; with `None` nobody is refused anything.
    pub fn deny(&self, denied: Option<(Pid, Denied)>) {
        self.lock().denied = denied;
    }

    /// Each NIC of a process registers something and ends that.
    pub fn call_registrars(&self, process: Pid) {
        let mut state = self.lock();
        for rail in 0..state.rails.len() {
            if state.rails[rail].process == process {
                state.end_abandoned(rail);
            }
        }
    }

    /// Keeps every completion that is polled from now on, or no more of them.
    pub fn keep(&self, keeps: bool) {
        self.lock().kept.1 = keeps;
    }

    /// How many messages were polled by a process while completions were kept.
    #[must_use]
    pub fn kept_messages(&self, process: Pid) -> usize {
        let state = self.lock();
        let is_message = |c: &Completion| (c.done, c.status) == (Done::Received, Status::Ok);
        let of = |(rail, _, c): &&(usize, usize, Completion)| {
            state.rails[*rail].process == process && is_message(c)
        };
        state.kept.0.iter().filter(of).count()
    }

    /// What was kept of a process, but for receives, is polled once more: as what comes very late.
    pub fn come_late(&self, process: Pid) -> usize {
        let mut state = self.lock();
        let kept = state.kept.0.clone();
        let late = kept.into_iter().filter(|(rail, _, completion)| {
            state.rails[*rail].process == process && completion.done != Done::Received
        });
        let late: Vec<_> = late.collect();
        for &(rail, link, completion) in &late {
            state.rails[rail].queue.push_back(Waiting { completion, link, frees_slot: false, ack: None });
        }
        late.len()
    }

    /// Puts one working link between two processes into error, as a flapping port does; returns the two.
    pub fn flap(&self) -> Option<(Pid, Pid)> {
        self.lock().flap_one()
    }

    /// Cuts a NIC of a process off for so long. What it had under way is lost for its owner; some of it lands late.
    pub fn cut(&self, process: Pid, nic: usize, nanos: u64) {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        state.cut(process, nic, until);
    }

    /// The application uses memory for something else from now on: what may still land there lands now.
    pub fn tempt(&self, memory: &Memory, offset: u64, len: u64) {
        self.lock().tempt(memory, offset, len);
    }

    /// Whether a NIC of a process is cut off.
    #[must_use]
    pub fn is_cut(&self, process: Pid, nic: usize) -> bool {
        self.lock().is_nic_cut(process, nic)
    }

    /// Whether a link between those two NICs, of two processes, died with a rail and has not noticed.
    #[must_use]
    pub fn is_stranded(&self, one: (Pid, usize), other: (Pid, usize)) -> bool {
        self.lock().has_stranded(one, other)
    }

    /// Pairs of processes between which a link never comes up, each once.
    #[must_use]
    pub fn take_unreachable(&self) -> Vec<(Pid, Pid)> {
        std::mem::take(&mut self.lock().unreachable)
    }

    /// Connected links of a process that are not up.
    #[must_use]
    pub fn waiting_links(&self, process: Pid) -> usize {
        let state = self.lock();
        let waits = |link: &LinkState| link.phase == LinkPhase::Ready && !matches!(link.dial, Dial::Up(_));
        state.links.iter().filter(|link| state.rails[link.rail].process == process && waits(link)).count()
    }

    /// Addresses of all listeners for control streams.
    #[must_use]
    pub fn listening(&self) -> Vec<OobAddress> {
        self.lock().streams.addresses()
    }

    /// What a process holds now.
    #[must_use]
    pub fn counts(&self, process: Pid) -> Counts {
        let state = self.lock();
        let rail_of = |rail: usize| state.rails.get(rail).is_some_and(|rail| rail.process == process);
        let regions = || state.regions.values().filter(|region| rail_of(region.rail));
        Counts {
            rails: state.rails.iter().filter(|rail| rail.process == process && rail.open).count(),
            links: state
                .links
                .iter()
                .filter(|link| rail_of(link.rail) && link.phase != LinkPhase::Gone)
                .count(),
            regions: regions().count(),
            registered: regions().map(|region| region.memory.len()).sum(),
            streams: state.streams.ends_of(process),
            listeners: state.streams.listeners_of(process),
        }
    }

    /// Regions of a process that were retired, on NICs that do.
    #[must_use]
    pub fn retired(&self, process: Pid) -> usize {
        let state = self.lock();
        let of = |rail: usize| state.rails.get(rail).is_some_and(|rail| rail.process == process);
        state.retired.values().filter(|rail| of(**rail)).count()
    }

    /// Messages that have arrived at the NICs of a process, as far as they have told, and that nobody has polled.
    #[must_use]
    pub fn unpolled(&self, process: Pid) -> usize {
        let state = self.lock();
        let rails = state.rails.iter().filter(|rail| rail.process == process);
        let completions = rails.flat_map(|rail| rail.queue.iter().map(|waiting| waiting.completion));
        completions.filter(|c| c.status == Status::Ok && c.done != Done::Posted).count()
    }

    /// Warnings the process logged so far.
    #[must_use]
    pub fn warnings(&self, process: Pid) -> usize {
        self.lock().processes.get(process.0).map_or(0, |entry| entry.warnings)
    }

    /// Adds a line to the trace.
    pub fn note(&self, text: fmt::Arguments<'_>) {
        self.lock().note(text);
    }

    /// Takes the lines of the trace.
    #[must_use]
    pub fn take_trace(&self) -> Vec<String> {
        self.lock().trace.take()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(at {} ns)", self.now())
    }
}

impl State {
    pub(crate) fn is_alive(&self, process: Pid) -> bool {
        self.processes.get(process.0).is_some_and(|entry| entry.alive)
    }

    pub(crate) fn note(&mut self, text: fmt::Arguments<'_>) {
        self.trace.line(self.now, text);
    }

    /// Makes an event happen `after` nanoseconds from now.
    pub(crate) fn schedule(&mut self, after: u64, event: Event) {
        self.schedule_at(self.now.saturating_add(after), event);
    }

    pub(crate) fn schedule_at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse(Scheduled { at, number: self.scheduled, event }));
    }

    fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse(scheduled)| scheduled.at)
    }

    pub(crate) fn run_until(&mut self, until: u64) {
        while self.next_event().is_some_and(|at| at <= until) {
            let Some(Reverse(scheduled)) = self.events.pop() else { break };
            self.now = self.now.max(scheduled.at);
            self.happen(scheduled.event);
        }
        self.now = self.now.max(until);
    }

    /// Lets a poll pay for itself where nobody drives the clock.
    pub(crate) fn poll_tick(&mut self) {
        if self.weather.poll_time > 0 {
            self.run_until(self.now + self.weather.poll_time);
        }
    }
}
