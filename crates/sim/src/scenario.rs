//! The plan of a run: the actions of its processes and the injected faults, drawn from the seed before the run
//! starts. Read by the cluster; never changes during a run.

use trunkline_engine::{CommNics, SharingParams};

use crate::{NetworkModel, SimRng};

/// The plan of a whole run.
#[derive(Clone, Debug)]
pub(crate) struct RunScenario {
    pub(crate) weather: NetworkModel,
    pub(crate) processes: usize,
    pub(crate) engine: EngineChoice,
    /// The sharing parameters of each process.
    pub(crate) sharing: Vec<SharingParams>,
    pub(crate) comms: Vec<CommPlan>,
    pub(crate) faults: Vec<FaultPlan>,
    /// Virtual time between two calls of the processes, at most.
    pub(crate) pace: u64,
    /// Chance that a request is tested again after it has ended.
    pub(crate) look_again: u32,
    /// Chance that a process makes progress on comms that its callers do not poll, as a helper thread would.
    pub(crate) tend: u32,
}

/// The engine parameters that vary between runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineChoice {
    pub(crate) by_nic: bool,
    pub(crate) eager_max: u32,
    pub(crate) eager_credits: u32,
    pub(crate) depth: u32,
    pub(crate) idle_polls: u32,
    pub(crate) links_per_rail: u32,
    pub(crate) stripe_min: u32,
    pub(crate) rail_time: u64,
}

/// One directed connection and its messages.
#[derive(Clone, Debug)]
pub(crate) struct CommPlan {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) from_nics: Vec<usize>,
    pub(crate) to_nics: Vec<usize>,
    /// Grouped receives, in posting order; each message's sends follow the same order by tag.
    pub(crate) groups: Vec<Vec<PlannedMessage>>,
    pub(crate) sender: SidePlan,
    pub(crate) receiver: SidePlan,
    /// Number of messages after the oldest unsent one that may be sent before it.
    pub(crate) window: usize,
    /// Whether the listener is closed right after the accept, and not at the end.
    pub(crate) close_listen_early: bool,
    /// Whether receives are flushed although the NIC does not need it.
    pub(crate) flush_anyway: bool,
    /// Whether its ends close only when that does not harm comms that share their queue pairs.
    pub(crate) settles: bool,
    /// Whether an end closes although a copy is stuck in its memory. It then leaves that memory allocated.
    pub(crate) gives_up: bool,
}

/// The plan of one end.
#[derive(Clone, Debug)]
pub(crate) struct SidePlan {
    /// When it starts to connect or accept.
    pub(crate) start: u64,
    /// How long after that it posts the first message.
    pub(crate) pause: u64,
    pub(crate) in_flight: usize,
    /// Whether each message has its own registration, which ends with the message.
    pub(crate) own_regions: bool,
    /// How the end closes the connection.
    pub(crate) ending: PlannedEnd,
    /// How long it waits between its last completion and its close.
    pub(crate) linger: u64,
    /// Whether a sender makes no more calls after all sends are done, until its receiver has closed.
    pub(crate) rests: bool,
}

/// How an end closes its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PlannedEnd {
    /// It closes when all messages are done.
    Done,
    /// It closes after that many completions, with work in flight.
    Abort(usize),
    /// After that many completions it posts nothing more, and closes once nothing is in flight.
    Quit(usize),
    /// After that many completions it deregisters memory of work in flight.
    Revoke(usize),
    /// It stops calling connect after that many calls that returned "call again".
    Abandon(usize),
}

/// A message: the sent bytes, and the room of its receive. With too little room both ends fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedMessage {
    pub(crate) tag: u32,
    pub(crate) size: u64,
    pub(crate) room: u64,
}

/// A fault at a virtual time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultPlan {
    pub(crate) at: u64,
    pub(crate) fault: InjectedFault,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InjectedFault {
    /// A process dies.
    Kill(usize),
    /// A process makes no call for that time. This is no error.
    Silence(usize, u64),
    /// A rogue peer connects to a listener. This is no error.
    Stranger(u64),
    /// A link fails.
    Flap,
    /// A NIC of a process is cut off for that time.
    Cut(usize, usize, u64),
}

/// The random stream that decides whether receives are longer than their messages. Its number keeps the seeds of
/// `memory_that_is_given_up_ends_with_its_comm` as they were.
const STEPS: u64 = 17;

/// How much longer such receives are, at most: each of their bytes is checked.
const SPARE_BYTES: u64 = 600;

const EDGES: [u64; 12] = [0, 1, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096];

impl RunScenario {
    /// Draws the scenario of a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let dice = &mut SimRng::new(seed, 2);
        let mut weather = NetworkModel::from_rng(dice);
        let processes = dice.pick([1, 2, 2, 2, 3]);
        let faulty = dice.below(4);
        if faulty == 3 && dice.coin() {
            weather.stream_twice = dice.pick([0, 20, 200]);
            weather.stream_lost = dice.pick([0, 20, 200]);
        }
        let mut comms: Vec<CommPlan> = (0..dice.pick([1, 1, 2, 2, 3, 5]))
            .map(|_| CommPlan::from_rng(dice, processes, weather.nics))
            .collect();
        let mut faults = Vec::new();
        if faulty >= 2 {
            faults = draw_faults(dice, processes);
        }
        if faulty == 1 {
            for comm in &mut comms {
                comm.draw_ending(dice);
            }
        }
        let engine = EngineChoice {
            by_nic: dice.chance(300),
            eager_max: dice.pick([0, 64, 200, 1000, 4096]),
            eager_credits: dice.pick([0, 1, 4, 32, 32]),
            depth: dice.pick([32, 64, 512]),
            idle_polls: dice.pick([1, 4, 16, 64]),
            links_per_rail: 1,
            stripe_min: 4096,
            rail_time: 3_000_000_000,
        };
        let pace = dice.pick([20, 200, 2_000, 20_000]);
        let look_again = dice.pick([0, 100]);
        let tend = dice.pick([0, 0, 300]);
        let sharing = Vec::new();
        let mut scenario =
            Self { weather, processes, engine, sharing, comms, faults, pace, look_again, tend };
        scenario.draw_rails(&mut SimRng::new(seed, 5));
        scenario.draw_sharing(&mut SimRng::new(seed, 6));
        scenario.weather.draw_arrival(&mut SimRng::new(seed, 8));
        let dice = &mut SimRng::new(seed, 10);
        scenario.comms.iter_mut().for_each(|comm| comm.gives_up = dice.chance(300));
        if SimRng::new(seed, STEPS).chance(750) {
            scenario.comms.iter_mut().for_each(CommPlan::receive_steps);
        }
        scenario
    }

    /// In some runs, comms use several rails, which die and recover.
    fn draw_rails(&mut self, dice: &mut SimRng) {
        if !dice.chance(400) {
            return;
        }
        let nics = dice.pick([2, 2, 4]);
        self.weather.nics = self.weather.nics.max(nics);
        self.weather.caps.regions_max = self.weather.caps.regions_max.max(4096);
        self.engine.stripe_min = dice.pick([1, 64, 500, 4096]);
        self.engine.rail_time = dice.pick([20_000_000, 500_000_000, 3_000_000_000]);
        for comm in &mut self.comms {
            if dice.chance(800) {
                comm.from_nics = draw_nics(dice, nics);
                comm.to_nics = draw_nics(dice, nics);
            }
        }
        for _ in 0..dice.pick([0, 1, 1, 1, 2, 4]) {
            let at = match dice.below(4) {
                0 => dice.below(200_000),
                1 => dice.below(3_000_000),
                2 => dice.below(50_000_000),
                _ => 3_000_000_000 + dice.below(100_000_000),
            };
            let time = dice.pick([1_000, 1_000_000, 200_000_000, 2_000_000_000, 1 << 60]);
            let process = dice.below(self.processes as u64) as usize;
            let nic = dice.below(nics as u64) as usize;
            self.faults.push(FaultPlan { at, fault: InjectedFault::Cut(process, nic, time) });
        }
        self.weather.deaf = dice.chance(250);
        self.engine.links_per_rail = dice.pick([1, 1, 1, 2, 4]);
        self.weather.numbered = dice.chance(300);
    }
}

/// Draws one, two or four of `nics` NICs.
fn draw_nics(dice: &mut SimRng, nics: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..nics).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, dice.below(at as u64 + 1) as usize);
    }
    all.truncate(dice.pick([1, 2, 2, 4]));
    all
}

/// Returns the NICs of a plan, which are distinct and at most four.
pub(crate) fn nic_set(list: &[usize]) -> CommNics {
    CommNics::new(list).unwrap_or(CommNics::from(0))
}

impl CommPlan {
    pub(crate) fn from_rng(dice: &mut SimRng, processes: usize, nics: usize) -> Self {
        let from = dice.below(processes as u64) as usize;
        let mut to = dice.below(processes as u64) as usize;
        if to == from && dice.coin() {
            to = (from + 1) % processes;
        }
        let grouped = dice.coin();
        let tags = CommTags::from_rng(dice);
        let small = dice.chance(700);
        let mut budget: u64 = dice.pick([16_384, 65_536, 262_144]);
        if dice.chance(20) {
            budget = 1 << 20;
        }
        let mut groups = Vec::new();
        // A few comms wrap around the mailbox and the table of requests several times.
        let count = if dice.chance(15) { dice.between(130, 400) } else { dice.pick([1, 3, 8, 20, 40]) };
        for _ in 0..count {
            let count = if grouped { dice.between(1, 8) } else { 1 };
            let group: Vec<PlannedMessage> =
                (0..count).map(|_| draw_message(dice, &tags, small, &mut budget)).collect();
            groups.push(group);
        }
        Self {
            from,
            to,
            from_nics: vec![dice.below(nics as u64) as usize],
            to_nics: vec![dice.below(nics as u64) as usize],
            groups,
            sender: SidePlan::from_rng(dice),
            receiver: SidePlan::from_rng(dice),
            window: dice.pick([1, 1, 3, 8]),
            close_listen_early: dice.coin(),
            flush_anyway: dice.chance(100),
            settles: true,
            gives_up: false,
        }
    }

    pub(crate) fn draw_ending(&mut self, dice: &mut SimRng) {
        let messages: usize = self.groups.iter().map(Vec::len).sum();
        let sends = dice.below(messages as u64) as usize;
        let receives = sends.min(self.groups.len() - 1);
        match dice.below(10) {
            0 | 1 => self.sender.ending = PlannedEnd::Abort(sends),
            2 | 3 => self.receiver.ending = PlannedEnd::Abort(receives),
            4 => self.sender.ending = PlannedEnd::Quit(sends),
            5 => self.receiver.ending = PlannedEnd::Quit(receives),
            6 => self.sender.ending = PlannedEnd::Revoke(sends),
            7 => self.receiver.ending = PlannedEnd::Revoke(receives),
            8 => self.sender.ending = PlannedEnd::Abandon(dice.pick([1, 3, 10])),
            _ => self.draw_too_long(dice),
        }
    }

    /// Extends all receives to the length of the longest message and one word, because NCCL's receives have one
    /// length.
    fn receive_steps(&mut self) {
        let longest = self.groups.iter().flatten().map(|message| message.size).max();
        let step = longest.unwrap_or(0) + 8;
        for message in self.groups.iter_mut().flatten().filter(|message| message.room >= message.size) {
            message.room = message.room.max(step.min(message.size + SPARE_BYTES));
        }
    }

    /// Gives one message too little room.
    fn draw_too_long(&mut self, dice: &mut SimRng) {
        let group = dice.below(self.groups.len() as u64) as usize;
        let message = dice.below(self.groups[group].len() as u64) as usize;
        let message = &mut self.groups[group][message];
        message.size += 1;
        message.room = dice.pick([0, message.size / 2, message.size - 1]);
    }
}

impl SidePlan {
    fn from_rng(dice: &mut SimRng) -> Self {
        Self {
            start: dice.pick([0, 0, 100_000, 5_000_000, 3_000_000_000]),
            pause: dice.pick([0, 0, 1_000, 100_000, 10_000_000]),
            in_flight: dice.pick([1, 2, 8, 8, 32, 80]),
            own_regions: dice.coin(),
            ending: PlannedEnd::Done,
            linger: dice.pick([0, 0, 10_000, 50_000_000]),
            rests: dice.chance(300),
        }
    }
}

/// The tags of a comm.
struct CommTags(Vec<u32>);

impl CommTags {
    fn from_rng(dice: &mut SimRng) -> Self {
        let count = dice.pick([1, 2, 8, 8]);
        let wide = dice.coin();
        Self((0..count).map(|i| if wide { dice.draw_u64() as u32 } else { i }).collect())
    }
}

fn draw_message(dice: &mut SimRng, tags: &CommTags, small: bool, budget: &mut u64) -> PlannedMessage {
    let tag = tags.0[dice.below(tags.0.len() as u64) as usize];
    let mut size = match dice.below(10) {
        0..4 => dice.pick(EDGES),
        4 => dice.between(4000, 4200),
        5..8 => dice.below(600),
        _ if small => dice.below(3000),
        _ => dice.below(65_537),
    };
    size = size.min(*budget);
    *budget -= size;
    let room = size + if dice.coin() { 0 } else { dice.pick([1, 8, 100, 5000]) };
    PlannedMessage { tag, size, room }
}

fn draw_faults(dice: &mut SimRng, processes: usize) -> Vec<FaultPlan> {
    (0..dice.pick([1, 1, 2]))
        .map(|_| {
            let at = match dice.below(4) {
                0 => dice.below(100_000),
                1 => dice.below(3_000_000),
                2 => dice.below(50_000_000),
                _ => 3_000_000_000 + dice.below(20_000_000),
            };
            let who = dice.below(processes as u64) as usize;
            let fault = match dice.below(10) {
                0..3 if processes > 1 => InjectedFault::Kill(who),
                0..6 => InjectedFault::Silence(who, dice.pick([1_000_000, 5_000_000_000, 90_000_000_000])),
                6..9 => InjectedFault::Stranger(dice.draw_u64()),
                _ => InjectedFault::Flap,
            };
            FaultPlan { at, fault }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_receives_are_longer_than_their_messages() {
        let mut counts = [0; 2];
        for seed in 0..200 {
            let comms = RunScenario::from_seed(seed).comms;
            for message in comms.iter().flat_map(|comm| comm.groups.iter().flatten()) {
                counts[usize::from(message.room > message.size)] += 1;
            }
        }
        assert!(counts[1] > 4 * counts[0] && counts[0] > 1000, "{counts:?}: exact, longer");
    }

    #[test]
    fn seeds_that_tests_name_keep_their_receives() {
        let steps = |seed: u64| SimRng::new(seed, STEPS).chance(750);
        assert!([107_325, 121_010].into_iter().all(|seed| !steps(seed)));
    }
}
