//! The state that the simulated processes share: virtual clock, network, control streams, trace. The fabric and the
//! host are views of it; the run drives its clock. It never calls into a process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_fabric::{AbandonedKeys, Completion, CompletionKind, OobAddress, OpStatus};
use trunkline_mem::MemoryRange;

use crate::atomics::CachedWord;
use crate::cut::{DelayedWrite, NicCut};
use crate::denied::DeniedResource;
use crate::link::{DialPhase, LinkEntry, LinkPhase};
use crate::oob::StreamTable;
use crate::rail::{QueuedCompletion, RailEntry};
use crate::region_bytes::RegionEntry;
use crate::wire::NetworkEvent;
use crate::{NetworkModel, RunTrace, SimRng};

/// A simulated process, by its number in the world.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SimPid(pub usize);

impl fmt::Display for SimPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// A NIC of a simulated process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProcessNic {
    /// The process that owns the NIC.
    pub process: SimPid,
    /// Number of the NIC in that process.
    pub nic: usize,
}

/// The resources of a process at a moment; all zero once it has closed everything.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HeldResources {
    /// Open rails.
    pub rails: usize,
    /// Links, connected or not.
    pub links: usize,
    /// Registered regions.
    pub regions: usize,
    /// The bytes of those regions, counted per rail on which they are registered.
    pub registered: usize,
    /// Ends of control streams.
    pub streams: usize,
    /// Listeners for control streams.
    pub listeners: usize,
}

/// The shared world of one run. Clones are the same world.
#[derive(Clone)]
pub struct SimWorld(Arc<Mutex<SimCore>>);

pub(crate) struct SimCore {
    pub(crate) now: u64,
    pub(crate) weather: NetworkModel,
    pub(crate) dice: SimRng,
    pub(crate) trace: RunTrace,
    events: BinaryHeap<Reverse<ScheduledEvent>>,
    scheduled: u64,
    pub(crate) processes: Vec<ProcessEntry>,
    pub(crate) rails: Vec<RailEntry>,
    pub(crate) links: Vec<LinkEntry>,
    pub(crate) regions: BTreeMap<u64, RegionEntry>,
    /// Local keys by remote key.
    pub(crate) remote_keys: BTreeMap<u64, u64>,
    /// Words that NICs have cached, by region and offset.
    pub(crate) words: BTreeMap<(u64, u64), CachedWord>,
    /// Remote keys of retired regions, with their rails.
    pub(crate) retired: BTreeMap<u64, usize>,
    pub(crate) streams: StreamTable,
    /// Pairs of processes between which a link is never established, until the run has read them.
    pub(crate) unreachable: Vec<(SimPid, SimPid)>,
    /// NICs that are cut off.
    pub(crate) cuts: Vec<NicCut>,
    /// Delayed writes of rails that died, and how many there were so far.
    pub(crate) ghosts: BTreeMap<u64, DelayedWrite>,
    pub(crate) haunted: u64,
    /// A working link that accepts no posted operation.
    pub(crate) refusing: Option<usize>,
    /// Regions whose owners have dropped them, but with a stuck copy.
    pub(crate) abandoned: BTreeMap<(SimPid, usize), AbandonedKeys>,
    /// The resource that a process is refused.
    pub(crate) denied: Option<(SimPid, DeniedResource)>,
    /// Completions that were polled while they were kept, with their rails and links; and whether they are being kept
    /// now.
    pub(crate) kept: (Vec<(usize, usize, Completion)>, bool),
}

pub(crate) struct ProcessEntry {
    pub(crate) alive: bool,
    pub(crate) dice: SimRng,
    pub(crate) warnings: usize,
}

struct ScheduledEvent {
    at: u64,
    number: u64,
    event: NetworkEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl SimWorld {
    /// Creates a world without processes. `traced` keeps events for [`SimWorld::take_trace`].
    #[must_use]
    pub fn new(seed: u64, weather: NetworkModel, traced: bool) -> Self {
        Self(Arc::new(Mutex::new(SimCore {
            now: 0,
            weather,
            dice: SimRng::new(seed, 1),
            trace: RunTrace::new(traced),
            events: BinaryHeap::new(),
            scheduled: 0,
            processes: Vec::new(),
            rails: Vec::new(),
            links: Vec::new(),
            regions: BTreeMap::new(),
            words: BTreeMap::new(),
            remote_keys: BTreeMap::new(),
            retired: BTreeMap::new(),
            streams: StreamTable::default(),
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, SimCore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a live process.
    #[must_use]
    pub fn add_process(&self) -> SimPid {
        let mut state = self.lock();
        let dice = SimRng::new(state.dice.draw_u64(), 0);
        state.processes.push(ProcessEntry { alive: true, dice, warnings: 0 });
        SimPid(state.processes.len() - 1)
    }

    /// Returns the virtual nanoseconds since the start.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// Advances the clock by that time, and runs the events that are due.
    pub fn advance_by(&self, nanos: u64) {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        state.run_until(until);
    }

    /// Advances the clock until just after the next event, by at most `nanos`; returns whether there was an event.
    pub fn advance_to_event(&self, nanos: u64) -> bool {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        let next = state.next_event();
        state.run_until(next.map_or(until, |at| at.min(until)));
        next.is_some_and(|at| at <= until)
    }

    /// From now on every read of the clock or poll of a NIC advances the clock by that time: for engines that wait
    /// while they are dropped.
    pub fn free_run(&self, nanos: u64) {
        self.lock().weather.poll_time = nanos;
    }

    /// Kills a process between two of its instructions: its links stop, and its streams close after a while.
    pub fn kill_process(&self, process: SimPid) {
        let mut state = self.lock();
        let Some(entry) = state.processes.get_mut(process.0) else { return };
        if !std::mem::replace(&mut entry.alive, false) {
            return;
        }
        state.note_trace(format_args!("{process} dies"));
        state.close_streams_of(process);
        state.kill_links_of(process);
    }

    /// Whether the process was not killed.
    #[must_use]
    pub fn is_alive(&self, process: SimPid) -> bool {
        self.lock().is_alive(process)
    }

    /// From now on the first working link of a process refuses all posted operations, as a provider without memory
    /// does; `None` ends that.
    pub fn refuse_posts(&self, process: Option<SimPid>) {
        let mut state = self.lock();
        let of = |link: &LinkEntry| {
            link.phase == LinkPhase::Ready && Some(state.rails[link.rail].process) == process
        };
        state.refusing = state.links.iter().position(of);
    }

    /// From now on the NICs of a process refuse that resource; `None` ends that.
    pub fn deny_resource(&self, denied: Option<(SimPid, DeniedResource)>) {
        self.lock().denied = denied;
    }

    /// Each NIC of a process registers and deregisters a region.
    pub fn call_registrars(&self, process: SimPid) {
        let mut state = self.lock();
        for rail in 0..state.rails.len() {
            if state.rails[rail].process == process {
                state.end_abandoned(rail);
            }
        }
    }

    /// Starts or stops keeping every completion that is polled.
    pub fn keep_completions(&self, keeps: bool) {
        self.lock().kept.1 = keeps;
    }

    /// Returns how many messages a process polled while completions were kept.
    #[must_use]
    pub fn kept_messages(&self, process: SimPid) -> usize {
        let state = self.lock();
        let is_message = |c: &Completion| (c.done, c.status) == (CompletionKind::Received, OpStatus::Ok);
        let of = |(rail, _, c): &&(usize, usize, Completion)| {
            state.rails[*rail].process == process && is_message(c)
        };
        state.kept.0.iter().filter(of).count()
    }

    /// Polls the kept completions of a process again, except those of receives, as if they arrived very late.
    pub fn come_late(&self, process: SimPid) -> usize {
        let mut state = self.lock();
        let kept = state.kept.0.clone();
        let late = kept.into_iter().filter(|(rail, _, completion)| {
            state.rails[*rail].process == process && completion.done != CompletionKind::Received
        });
        let late: Vec<_> = late.collect();
        for &(rail, link, completion) in &late {
            state.rails[rail].queue.push_back(QueuedCompletion {
                completion,
                link,
                frees_slot: false,
                ack: None,
            });
        }
        late.len()
    }

    /// Puts one working link between two processes into error, as a flapping port does; returns the two processes.
    pub fn flap_link(&self) -> Option<(SimPid, SimPid)> {
        self.lock().flap_one()
    }

    /// Cuts a NIC of a process off for that time. Its operations in flight are lost for their owner; some of them
    /// land late.
    pub fn cut_nic(&self, process: SimPid, nic: usize, nanos: u64) {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        state.cut_nic(process, nic, until);
    }

    /// Makes delayed writes to this memory land now, because the application reuses it from now on.
    pub fn force_delayed_writes(&self, memory: &MemoryRange, offset: u64, len: u64) {
        self.lock().force_delayed_writes(memory, offset, len);
    }

    /// Whether a NIC of a process is cut off.
    #[must_use]
    pub fn is_cut(&self, process: SimPid, nic: usize) -> bool {
        self.lock().is_nic_cut(process, nic)
    }

    /// Whether a link between those two NICs, of two processes, died with a rail and has not detected that.
    #[must_use]
    pub fn is_stranded(&self, one: ProcessNic, other: ProcessNic) -> bool {
        self.lock().has_stranded(one, other)
    }

    /// Returns the pairs of processes between which a link is never established, each once.
    #[must_use]
    pub fn take_unreachable(&self) -> Vec<(SimPid, SimPid)> {
        std::mem::take(&mut self.lock().unreachable)
    }

    /// Returns the number of connected links of a process that are not up.
    #[must_use]
    pub fn waiting_links(&self, process: SimPid) -> usize {
        let state = self.lock();
        let waits =
            |link: &LinkEntry| link.phase == LinkPhase::Ready && !matches!(link.dial, DialPhase::Up(_));
        state.links.iter().filter(|link| state.rails[link.rail].process == process && waits(link)).count()
    }

    /// Returns the addresses of all listeners for control streams.
    #[must_use]
    pub fn listener_addresses(&self) -> Vec<OobAddress> {
        self.lock().streams.listener_addresses()
    }

    /// Returns the resources that a process holds now.
    #[must_use]
    pub fn held_resources(&self, process: SimPid) -> HeldResources {
        let state = self.lock();
        let rail_of = |rail: usize| state.rails.get(rail).is_some_and(|rail| rail.process == process);
        let regions = || state.regions.values().filter(|region| rail_of(region.rail));
        HeldResources {
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

    /// Returns the number of retired regions of a process, on NICs with that capability.
    #[must_use]
    pub fn retired_regions(&self, process: SimPid) -> usize {
        let state = self.lock();
        let of = |rail: usize| state.rails.get(rail).is_some_and(|rail| rail.process == process);
        state.retired.values().filter(|rail| of(**rail)).count()
    }

    /// Returns the number of messages that the NICs of a process have reported and that were not polled.
    #[must_use]
    pub fn unpolled_messages(&self, process: SimPid) -> usize {
        let state = self.lock();
        let rails = state.rails.iter().filter(|rail| rail.process == process);
        let completions = rails.flat_map(|rail| rail.queue.iter().map(|waiting| waiting.completion));
        completions.filter(|c| c.status == OpStatus::Ok && c.done != CompletionKind::Posted).count()
    }

    /// Returns the number of warnings that the process has logged.
    #[must_use]
    pub fn warning_count(&self, process: SimPid) -> usize {
        self.lock().processes.get(process.0).map_or(0, |entry| entry.warnings)
    }

    /// Adds a line to the trace.
    pub fn note_trace(&self, text: fmt::Arguments<'_>) {
        self.lock().note_trace(text);
    }

    /// Takes the lines of the trace.
    #[must_use]
    pub fn take_trace(&self) -> Vec<String> {
        self.lock().trace.take_lines()
    }
}

impl fmt::Debug for SimWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(at {} ns)", self.now())
    }
}

impl SimCore {
    pub(crate) fn is_alive(&self, process: SimPid) -> bool {
        self.processes.get(process.0).is_some_and(|entry| entry.alive)
    }

    pub(crate) fn note_trace(&mut self, text: fmt::Arguments<'_>) {
        self.trace.push_line(self.now, text);
    }

    /// Schedules an event `after` nanoseconds from now.
    pub(crate) fn schedule_after(&mut self, after: u64, event: NetworkEvent) {
        self.schedule_at(self.now.saturating_add(after), event);
    }

    pub(crate) fn schedule_at(&mut self, at: u64, event: NetworkEvent) {
        self.scheduled += 1;
        self.events.push(Reverse(ScheduledEvent { at, number: self.scheduled, event }));
    }

    fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse(scheduled)| scheduled.at)
    }

    pub(crate) fn run_until(&mut self, until: u64) {
        while self.next_event().is_some_and(|at| at <= until) {
            let Some(Reverse(scheduled)) = self.events.pop() else { break };
            self.now = self.now.max(scheduled.at);
            self.handle_event(scheduled.event);
        }
        self.now = self.now.max(until);
    }

    /// Advances the clock at a poll if no driver advances it.
    pub(crate) fn poll_tick(&mut self) {
        if self.weather.poll_time > 0 {
            self.run_until(self.now + self.weather.poll_time);
        }
    }
}
