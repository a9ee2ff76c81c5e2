//! Which way of copying is the fastest for messages of a size on this link, learned from the messages themselves. Asked
//! when an operation is posted and told when it completes; pure, time is an argument. What it measures is the service
//! time: from post to completion, or from the completion before if that came later. In a ping-pong this is the latency,
//! in a stream the inverse of the rate.

use alloc::collections::VecDeque;

/// Bytes below which nothing is chosen: staging is always right.
pub const LEAST: u64 = 8 << 10;
/// Classes of sizes: 8 KiB, 16 KiB ... 16 MiB and more.
const CLASSES: usize = 12;
/// Measured operations of a run, at most;
const RUN_OPS: u32 = 16;
/// and bytes after which a run ends, once it has [`RUN_OPS_LEAST`].
const RUN_BYTES: u64 = 16 << 20;
/// See [`RUN_BYTES`].
const RUN_OPS_LEAST: u32 = 4;
/// Operations after a change of method that do not count: others are still under way.
const SKIP: u32 = 2;
/// Runs between two looks at another method; doubles each time up to the second.
const PERIOD: (u32, u32) = (8, 512);
/// Latest runs of a method that are remembered.
const REMEMBERED: usize = 3;
/// Operations measured at once.
const TRIALS: usize = 64;

/// A way to copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// Through the ring, in segments.
    Staged,
    /// Through the ring, in segments four times as long.
    StagedLong,
    /// By the target alone, out of the initiator's memory.
    Pulled,
    /// By both sides, each a part.
    Shared,
}

/// All methods.
const METHODS: [Method; 4] = [Method::Staged, Method::StagedLong, Method::Pulled, Method::Shared];

/// Which methods besides [`Method::Staged`] an operation can use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allowed {
    /// It is longer than a usual segment.
    pub long: bool,
    /// The target reads this side's memory.
    pub pulled: bool,
    /// And this side may write the target's.
    pub shared: bool,
}

impl Allowed {
    fn has(self, method: Method) -> bool {
        match method {
            Method::Staged => true,
            Method::StagedLong => self.long,
            Method::Pulled => self.pulled,
            Method::Shared => self.shared,
        }
    }
}

/// Picoseconds a byte took in the latest runs of a method; 0 where there was none.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    recent: [u64; REMEMBERED],
    runs: u32,
}

impl Costs {
    fn add(&mut self, cost: u64) {
        self.recent[self.runs as usize % REMEMBERED] = cost;
        self.runs = self.runs.wrapping_add(1).max(1);
    }

    /// The best of them: what disturbs a run only makes it slower.
    fn best(&self) -> Option<u64> {
        self.recent.iter().copied().filter(|&cost| cost > 0).min()
    }
}

/// A run of operations by one method.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    skip: u32,
    ops: u32,
    bytes: u64,
    nanos: u64,
}

/// What is known of one class of sizes.
#[derive(Clone, Copy, Debug)]
struct Class {
    costs: [Costs; METHODS.len()],
    current: usize,
    run: Run,
    /// Runs until another method is looked at.
    wait: u32,
    period: u32,
    /// Which one is next.
    turn: usize,
    /// It began with what is best for other sizes: there is no hurry to measure the rest.
    primed: bool,
    /// An operation has asked.
    touched: bool,
}

impl Class {
    fn new() -> Self {
        let run = Run { skip: SKIP, ..Run::default() };
        let costs = [Costs::default(); METHODS.len()];
        Self {
            costs,
            current: 0,
            run,
            wait: PERIOD.0,
            period: PERIOD.0,
            turn: 0,
            primed: false,
            touched: false,
        }
    }

    /// The best method of those measured, if any was.
    fn best(&self) -> Option<usize> {
        let known = (0..METHODS.len()).filter_map(|index| Some((self.costs[index].best()?, index)));
        known.min().map(|(_, index)| index)
    }

    fn measured(&mut self, method: Method, bytes: u64, nanos: u64, allowed: Allowed) {
        if METHODS[self.current] != method {
            return;
        }
        if self.run.skip > 0 {
            self.run.skip -= 1;
            return;
        }
        let run = &mut self.run;
        run.ops += 1;
        run.bytes += bytes;
        run.nanos += nanos;
        if run.ops < RUN_OPS && (run.bytes < RUN_BYTES || run.ops < RUN_OPS_LEAST) {
            return;
        }
        let cost = (run.nanos.saturating_mul(1000) / run.bytes.max(1)).max(1);
        let before = self.costs[self.current].best();
        self.costs[self.current].add(cost);
        if before.is_some_and(|before| cost > before * 2) {
            // Something has changed: look around sooner.
            self.period = PERIOD.0;
            self.wait = self.wait.min(PERIOD.0);
        }
        let next = self.next(allowed);
        self.run = Run { skip: if next == self.current { 0 } else { SKIP }, ..Run::default() };
        self.current = next;
    }

    /// The method of the next run.
    fn next(&mut self, allowed: Allowed) -> usize {
        let usable = |index: &usize| allowed.has(METHODS[*index]);
        let new = (0..METHODS.len()).filter(usable).find(|&index| self.costs[index].runs == 0);
        if let Some(new) = new.filter(|_| !self.primed) {
            return new;
        }
        let cost = |index: &usize| self.costs[*index].best().unwrap_or(u64::MAX);
        let best = (0..METHODS.len()).filter(usable).min_by_key(cost).unwrap_or(0);
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return best;
        }
        if let Some(new) = new {
            self.wait = PERIOD.0;
            return new;
        }
        self.period = (self.period * 2).min(PERIOD.1);
        self.wait = self.period;
        for _ in 0..METHODS.len() {
            self.turn = (self.turn + 1) % METHODS.len();
            if self.turn != best && usable(&self.turn) {
                return self.turn;
            }
        }
        best
    }
}

/// An operation whose time is taken.
#[derive(Clone, Copy, Debug)]
struct Trial {
    flight: u64,
    bytes: u64,
    method: Method,
    allowed: Allowed,
    begin: u64,
}

/// What one link has learned.
pub struct Chooser {
    classes: [Class; CLASSES],
    trials: VecDeque<Trial>,
    /// When the last measured operation completed.
    last: u64,
}

impl Chooser {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self { classes: [Class::new(); CLASSES], trials: VecDeque::with_capacity(TRIALS), last: 0 }
    }

    /// The method for an operation of at least [`LEAST`] bytes, whose number is `flight`.
    pub fn choose(&mut self, flight: u64, bytes: u64, allowed: Allowed, now: u64) -> Method {
        let class = class(bytes);
        if !self.classes[class].touched {
            self.prime(class);
        }
        let method = METHODS[self.classes[class].current];
        if !allowed.has(method) {
            // What was allowed may have changed since the last run.
            return Method::Staged;
        }
        if self.trials.len() < TRIALS {
            self.trials.push_back(Trial { flight, bytes, method, allowed, begin: now });
        }
        method
    }

    /// Lets a class begin with what the nearest smaller one, else the nearest larger one, found best.
    fn prime(&mut self, class: usize) {
        let smaller = (0..class).rev();
        let known = smaller.chain(class + 1..CLASSES).find_map(|other| self.classes[other].best());
        let class = &mut self.classes[class];
        class.touched = true;
        if let Some(method) = known {
            (class.current, class.primed) = (method, true);
        }
    }

    /// Whether this operation's time is taken.
    #[inline]
    pub fn awaits(&self, flight: u64) -> bool {
        self.trials.front().is_some_and(|trial| trial.flight == flight)
    }

    /// The operation for which [`Chooser::awaits`] said yes completed.
    pub fn completed(&mut self, now: u64) {
        let Some(trial) = self.trials.pop_front() else { return };
        let nanos = now.saturating_sub(trial.begin.max(self.last));
        self.last = now;
        self.classes[class(trial.bytes)].measured(trial.method, trial.bytes, nanos, trial.allowed);
    }
}

fn class(bytes: u64) -> usize {
    let doublings = bytes.max(LEAST).ilog2() - LEAST.ilog2();
    (doublings as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::{Allowed, Chooser, LEAST, METHODS, Method, TRIALS};

    const ALL: Allowed = Allowed { long: true, pulled: true, shared: true };

    /// Lets `depth` operations of a size be under way at a time, a byte of each method taking so many picoseconds;
    /// returns how often each method was used.
    fn drive(
        chooser: &mut Chooser,
        bytes: u64,
        depth: usize,
        ops: u64,
        allowed: Allowed,
        cost: impl Fn(Method) -> u64,
    ) -> [u64; 4] {
        let mut used = [0; 4];
        let mut now = chooser.last;
        let mut flying = std::collections::VecDeque::new();
        for flight in 0..ops {
            let method = chooser.choose(flight, bytes, allowed, now);
            used[METHODS.iter().position(|&one| one == method).unwrap()] += 1;
            flying.push_back((flight, method));
            if flying.len() >= depth {
                let (flight, method) = flying.pop_front().unwrap();
                now += bytes * cost(method) / 1000;
                assert!(chooser.awaits(flight));
                chooser.completed(now);
            }
        }
        while flying.pop_front().is_some() {
            chooser.completed(now);
        }
        used
    }

    #[test]
    fn the_fastest_method_gets_nearly_all_messages() {
        for (index, &fast) in METHODS.iter().enumerate() {
            for (bytes, depth) in [(64 << 10, 1), (64 << 10, 8), (1 << 20, 8), (16 << 20, 2)] {
                let mut chooser = Chooser::new();
                let cost = |method| if method == fast { 50 } else { 90 };
                let used = drive(&mut chooser, bytes, depth, 100_000, ALL, cost);
                assert!(used[index] > 97_000, "{fast:?} {bytes} {used:?}");
            }
        }
    }

    #[test]
    fn a_change_is_noticed() {
        let mut chooser = Chooser::new();
        drive(&mut chooser, 1 << 20, 8, 20_000, ALL, |method| if method == Method::Pulled { 40 } else { 80 });
        let used =
            drive(
                &mut chooser,
                1 << 20,
                8,
                20_000,
                ALL,
                |method| if method == Method::Pulled { 200 } else { 80 },
            );
        assert!(used[2] < 1000, "{used:?}");
    }

    #[test]
    fn what_is_not_allowed_is_not_used() {
        let mut chooser = Chooser::new();
        let allowed = Allowed { long: true, pulled: true, shared: false };
        let used = drive(&mut chooser, 1 << 20, 1, 1000, allowed, |_| 80);
        assert_eq!(used[3], 0, "{used:?}");
    }

    #[test]
    fn sizes_learn_apart() {
        let mut chooser = Chooser::new();
        let small = |method| if method == Method::Staged { 40 } else { 80 };
        let large = |method| if method == Method::Shared { 40 } else { 80 };
        drive(&mut chooser, LEAST, 1, 5000, ALL, small);
        drive(&mut chooser, 16 << 20, 1, 5000, ALL, large);
        assert_eq!(chooser.choose(0, LEAST, ALL, chooser.last), Method::Staged);
        assert_eq!(chooser.choose(1, 16 << 20, ALL, chooser.last), Method::Shared);
    }

    #[test]
    fn a_new_size_begins_with_what_its_neighbour_found() {
        let mut chooser = Chooser::new();
        let cost = |method| if method == Method::Pulled { 40 } else { 80 };
        drive(&mut chooser, 64 << 10, 1, 5000, ALL, cost);
        let used = drive(&mut chooser, 1 << 20, 1, 100, ALL, cost);
        assert_eq!(used, [0, 0, 100, 0]);
        let used = drive(&mut chooser, 1 << 20, 1, 2000, ALL, cost);
        assert!(used.iter().all(|&count| count > 0), "the others are measured later: {used:?}");
    }

    #[test]
    fn it_never_grows() {
        let mut chooser = Chooser::new();
        let room = chooser.trials.capacity();
        for flight in 0..10 * TRIALS as u64 {
            let _ = chooser.choose(flight, 1 << 20, ALL, flight);
        }
        assert_eq!((chooser.trials.len(), chooser.trials.capacity()), (TRIALS, room));
    }
}
