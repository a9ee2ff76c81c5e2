//! Which way of copying is the fastest for messages of a size on this link, learned from the messages themselves. Asked
//! when an operation is posted and told when it completes; pure, time is an argument. What it measures is the service
//! time: from post to completion, or from the completion before if that came later. In a ping-pong this is the latency,
//! in a stream the inverse of the rate.
//!
//! By the software NIC for each queue pair, and by tagged messages inside a node for each peer ([`crate::tagged`]). It allocates nothing
//! after it was made.

use alloc::collections::VecDeque;
use core::marker::PhantomData;

use crate::time::Instant;

/// Bytes below which nothing is chosen: staging is always right.
pub const LEAST: u64 = 8 << 10;
/// Classes of sizes: 8 KiB, 16 KiB ... 16 MiB and more.
pub const CLASSES: usize = 12;
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
pub const TRIALS: usize = 64;
/// What a byte costs by a method that failed: more than by any that did not.
const FAILED: u64 = u64::MAX - 1;

/// The ways that there are to copy. The first is one that can always be used.
pub trait MethodSet<const N: usize>: Copy + Eq {
    /// All of them.
    const ALL: [Self; N];
}

/// Picoseconds a byte took in the latest runs of a method; 0 where there was none.
#[derive(Clone, Copy, Debug, Default)]
struct MethodCosts {
    recent: [u64; REMEMBERED],
    runs: u32,
}

impl MethodCosts {
    fn record_cost(&mut self, cost: u64) {
        self.recent[self.runs as usize % REMEMBERED] = cost;
        self.runs = self.runs.wrapping_add(1).max(1);
    }

    /// The best of them: what disturbs a run only makes it slower.
    fn lowest_cost(&self) -> Option<u64> {
        self.recent.iter().copied().filter(|&cost| cost > 0).min()
    }
}

/// A run of operations by one method.
#[derive(Clone, Copy, Debug, Default)]
struct MethodRun {
    skip: u32,
    ops: u32,
    bytes: u64,
    nanos: u64,
}

/// What is known of one class of sizes.
#[derive(Clone, Copy, Debug)]
struct SizeClass<const N: usize> {
    costs: [MethodCosts; N],
    current: usize,
    run: MethodRun,
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

impl<const N: usize> SizeClass<N> {
    fn new() -> Self {
        let run = MethodRun { skip: SKIP, ..MethodRun::default() };
        let costs = [MethodCosts::default(); N];
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
    fn best_method(&self) -> Option<usize> {
        let known = (0..N).filter_map(|index| Some((self.costs[index].lowest_cost()?, index)));
        known.min().map(|(_, index)| index)
    }

    fn record_sample(&mut self, method: usize, bytes: u64, nanos: u64, allowed: [bool; N]) {
        if self.current != method {
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
        self.finish_run(cost.min(FAILED - 1), allowed);
    }

    /// A run is over, with the next operation another one begins.
    fn finish_run(&mut self, cost: u64, allowed: [bool; N]) {
        let before = self.costs[self.current].lowest_cost();
        self.costs[self.current].record_cost(cost);
        if before.is_some_and(|before| cost > before.saturating_mul(2)) {
            // Something has changed: look around sooner.
            self.period = PERIOD.0;
            self.wait = self.wait.min(PERIOD.0);
        }
        let next = self.next(allowed);
        self.run = MethodRun { skip: if next == self.current { 0 } else { SKIP }, ..MethodRun::default() };
        self.current = next;
    }

    /// The method of the next run.
    fn next(&mut self, allowed: [bool; N]) -> usize {
        let usable = |index: &usize| allowed[*index];
        let new = (0..N).filter(usable).find(|&index| self.costs[index].runs == 0);
        if let Some(new) = new.filter(|_| !self.primed) {
            return new;
        }
        let cost = |index: &usize| self.costs[*index].lowest_cost().unwrap_or(u64::MAX);
        let best = (0..N).filter(usable).min_by_key(cost).unwrap_or(0);
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return best;
        }
        if let Some(new) = new {
            self.wait = PERIOD.0;
            return new;
        }
        self.period = self.period.saturating_mul(2).min(PERIOD.1.max(self.period));
        self.wait = self.period;
        for _ in 0..N {
            self.turn = (self.turn + 1) % N;
            if self.turn != best && usable(&self.turn) {
                return self.turn;
            }
        }
        best
    }
}

/// An operation whose time is taken.
#[derive(Clone, Copy, Debug)]
struct TimedOperation<const N: usize> {
    flight: u64,
    bytes: u64,
    method: usize,
    allowed: [bool; N],
    begin: u64,
}

/// What one link has learned of its methods `T`.
#[derive(Clone, Debug)]
pub struct MethodChooser<T, const N: usize> {
    classes: [SizeClass<N>; CLASSES],
    trials: VecDeque<TimedOperation<N>>,
    /// When the last measured operation completed.
    last: u64,
    of: PhantomData<T>,
}

impl<T: MethodSet<N>, const N: usize> Default for MethodChooser<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: MethodSet<N>, const N: usize> MethodChooser<T, N> {
    /// Knows nothing yet. All that it will ever have is allocated here.
    #[must_use]
    pub fn new() -> Self {
        let trials = VecDeque::with_capacity(TRIALS);
        Self { classes: [SizeClass::new(); CLASSES], trials, last: 0, of: PhantomData }
    }

    /// The method for an operation of at least [`LEAST`] bytes, whose number is `flight`; `allowed` says which of the methods it can use, the
    /// first aside, which it always can.
    pub fn choose_method(&mut self, flight: u64, bytes: u64, allowed: [bool; N], now: Instant) -> T {
        let method = self.current_method(bytes, allowed);
        self.begin_timing(flight, bytes, method, allowed, now);
        method
    }

    /// The same before the operation has a number; [`MethodChooser::begin_timing`] is told of it.
    pub fn current_method(&mut self, bytes: u64, allowed: [bool; N]) -> T {
        let class = size_class(bytes);
        if !self.classes[class].touched {
            self.prime_class(class);
        }
        let current = self.classes[class].current;
        // What was allowed may have changed since the last run.
        if allowed[current] { T::ALL[current] } else { T::ALL[0] }
    }

    /// An operation has begun by that method. Whether its time is taken, so that its end must be told.
    pub fn begin_timing(
        &mut self,
        flight: u64,
        bytes: u64,
        method: T,
        allowed: [bool; N],
        now: Instant,
    ) -> bool {
        let current = self.classes[size_class(bytes)].current;
        let is_current = T::ALL[current] == method && allowed[current];
        let taken = is_current && self.trials.len() < TRIALS;
        if taken {
            self.trials.push_back(TimedOperation { flight, bytes, method: current, allowed, begin: now.0 });
        }
        taken
    }

    /// Lets a class begin with what the nearest smaller one, else the nearest larger one, found best.
    fn prime_class(&mut self, class: usize) {
        let smaller = (0..class).rev();
        let known = smaller.chain(class + 1..CLASSES).find_map(|other| self.classes[other].best_method());
        let class = &mut self.classes[class];
        class.touched = true;
        if let Some(method) = known {
            (class.current, class.primed) = (method, true);
        }
    }

    /// Whether this operation's time is taken, and it is the oldest of those.
    #[inline]
    #[must_use]
    pub fn is_oldest_timed(&self, flight: u64) -> bool {
        self.trials.front().is_some_and(|trial| trial.flight == flight)
    }

    fn take_timed(&mut self, flight: u64) -> Option<TimedOperation<N>> {
        let at = self.trials.iter().position(|trial| trial.flight == flight)?;
        self.trials.remove(at)
    }

    /// That operation completed. Whether its time was taken.
    pub fn record_completion(&mut self, flight: u64, now: Instant) -> bool {
        let Some(trial) = self.take_timed(flight) else { return false };
        let nanos = now.0.saturating_sub(trial.begin.max(self.last));
        self.last = now.0;
        self.classes[size_class(trial.bytes)].record_sample(trial.method, trial.bytes, nanos, trial.allowed);
        true
    }

    /// It had to go on by another method. Whether its time was taken.
    pub fn record_failure(&mut self, flight: u64, now: Instant) -> bool {
        let Some(trial) = self.take_timed(flight) else { return false };
        self.last = now.0;
        let class = &mut self.classes[size_class(trial.bytes)];
        if class.current == trial.method {
            class.finish_run(FAILED, trial.allowed);
        }
        true
    }

    /// It ended in a way that says nothing of its method. Whether its time was taken.
    pub fn discard_timing(&mut self, flight: u64) -> bool {
        self.take_timed(flight).is_some()
    }

    /// How many operations' times are taken.
    #[inline]
    #[must_use]
    pub fn timed_count(&self) -> usize {
        self.trials.len()
    }
}

/// The class of so many bytes, below [`CLASSES`].
#[inline]
#[must_use]
pub fn size_class(bytes: u64) -> usize {
    let doublings = bytes.max(LEAST).ilog2() - LEAST.ilog2();
    (doublings as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{LEAST, MethodSet, TRIALS};
    use crate::time::Instant;

    /// Those of the software NIC.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    enum Method {
        Staged,
        StagedLong,
        Pulled,
        Shared,
    }

    const METHODS: [Method; 4] = [Method::Staged, Method::StagedLong, Method::Pulled, Method::Shared];

    impl MethodSet<4> for Method {
        const ALL: [Self; 4] = METHODS;
    }

    type Chooser = super::MethodChooser<Method, 4>;

    const ALL: [bool; 4] = [true; 4];

    /// Lets `depth` operations of a size be under way at a time, a byte of each method taking so many picoseconds;
    /// returns how often each method was used.
    fn drive(
        chooser: &mut Chooser,
        bytes: u64,
        depth: usize,
        ops: u64,
        allowed: [bool; 4],
        cost: impl Fn(Method) -> u64,
    ) -> [u64; 4] {
        let mut used = [0; 4];
        let mut now = chooser.last;
        let mut flying = VecDeque::new();
        for flight in 0..ops {
            let method = chooser.choose_method(flight, bytes, allowed, Instant(now));
            used[METHODS.iter().position(|&one| one == method).unwrap()] += 1;
            flying.push_back((flight, method));
            if flying.len() >= depth {
                let (flight, method) = flying.pop_front().unwrap();
                now += bytes * cost(method) / 1000;
                assert!(chooser.is_oldest_timed(flight));
                chooser.record_completion(flight, Instant(now));
            }
        }
        while let Some((flight, _)) = flying.pop_front() {
            chooser.record_completion(flight, Instant(now));
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

    /// The best one is as good as it was: nothing but a look at the others tells that one of them is better now.
    #[test]
    fn what_has_become_the_fastest_is_found_though_the_best_is_as_it_was() {
        let mut chooser = Chooser::new();
        let cost = |method| if method == Method::StagedLong { 80 } else { 120 };
        let used = drive(&mut chooser, 1 << 20, 8, 20_000, ALL, cost);
        assert!(used[1] > 18_000, "{used:?}");
        let cost = |method| if method == Method::Pulled { 40 } else { cost(method) };
        let used = drive(&mut chooser, 1 << 20, 8, 200_000, ALL, cost);
        assert!(used[2] > 150_000, "{used:?}");
    }

    #[test]
    fn what_is_not_allowed_is_not_used() {
        let mut chooser = Chooser::new();
        let allowed = [true, true, true, false];
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
        assert_eq!(chooser.choose_method(0, LEAST, ALL, Instant(chooser.last)), Method::Staged);
        assert_eq!(chooser.choose_method(1, 16 << 20, ALL, Instant(chooser.last)), Method::Shared);
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
            let _ = chooser.choose_method(flight, 1 << 20, ALL, Instant(flight));
        }
        assert_eq!((chooser.trials.len(), chooser.trials.capacity()), (TRIALS, room));
    }

    /// Operations that end in another order than they began, of which those by one method fail.
    fn fail(chooser: &mut Chooser, ops: u64, fails: impl Fn(Method) -> bool) -> [u64; 4] {
        let mut used = [0; 4];
        let mut now = chooser.last;
        for pair in 0..ops / 2 {
            let two = [2 * pair, 2 * pair + 1]
                .map(|flight| (flight, chooser.choose_method(flight, 1 << 20, ALL, Instant(now))));
            for (flight, method) in two.into_iter().rev() {
                now += 50_000;
                used[METHODS.iter().position(|&one| one == method).unwrap()] += 1;
                if fails(method) {
                    chooser.record_failure(flight, Instant(now));
                } else {
                    chooser.record_completion(flight, Instant(now));
                }
            }
        }
        assert_eq!(chooser.timed_count(), 0);
        used
    }

    #[test]
    fn what_fails_is_used_no_more_and_looked_at_again() {
        let mut chooser = Chooser::new();
        // What fails is over at once: by its time alone it would be the best.
        let used = fail(&mut chooser, 20_000, |method| method != Method::StagedLong);
        assert!(used[1] > 19_000 && used.iter().all(|&count| count > 0), "{used:?}");
        let used = fail(&mut chooser, 200_000, |method| method != Method::Pulled);
        assert!(used[2] > 150_000, "it works again: {used:?}");
    }

    #[test]
    fn a_failure_now_and_then_changes_nothing() {
        let mut chooser = Chooser::new();
        drive(&mut chooser, 1 << 20, 1, 20_000, ALL, |method| if method == Method::Pulled { 40 } else { 80 });
        let now = Instant(chooser.last);
        assert_eq!(chooser.choose_method(7, 1 << 20, ALL, now), Method::Pulled);
        assert!(chooser.record_failure(7, now) && !chooser.record_failure(7, now));
        assert_eq!(chooser.current_method(1 << 20, ALL), Method::Pulled);
    }
}
