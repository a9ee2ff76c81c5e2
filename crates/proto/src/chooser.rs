//! Learns which copy method is the fastest for messages of a size on one link, from the messages themselves. The software NIC keeps
//! one chooser per queue pair, tagged messages inside a node one per peer ([`crate::tagged`]). It is pure (time is an argument), and
//! allocates only when it is made.
//!
//! The caller requests a method when it posts an operation, and reports the completion. The measured quantity is the service time:
//! from the post, or from the preceding completion if that is later, to the completion. In a ping-pong this is the latency, in a
//! stream the inverse of the rate.

use alloc::collections::VecDeque;
use core::marker::PhantomData;

use crate::time::Instant;

/// Bytes below which the chooser is not used: staging is always best there.
pub const LEAST: u64 = 8 << 10;
/// Number of size classes: 8 KiB, 16 KiB ... 16 MiB and more.
pub const CLASSES: usize = 12;
/// Most measured operations in a run.
const RUN_OPS: u32 = 16;
/// Bytes after which a run ends, once it has [`RUN_OPS_LEAST`] operations.
const RUN_BYTES: u64 = 16 << 20;
/// Fewest operations in a run that ends by [`RUN_BYTES`].
const RUN_OPS_LEAST: u32 = 4;
/// Operations after a change of method that are not measured, because operations by the previous method are still in flight.
const SKIP: u32 = 2;
/// Runs between two trials of another method: the first value, doubled each time up to the second.
const PERIOD: (u32, u32) = (8, 512);
/// Number of latest runs of a method whose costs are kept.
const REMEMBERED: usize = 3;
/// Most operations that are timed at once.
pub const TRIALS: usize = 64;
/// Cost of a byte by a method that failed: higher than that of any method that did not.
const FAILED: u64 = u64::MAX - 1;

/// The copy methods of a link. The first one can always be used.
pub trait MethodSet<const N: usize>: Copy + Eq {
    /// All methods.
    const ALL: [Self; N];
}

/// Picoseconds per byte in the latest runs of a method; 0 in unused places.
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

    /// The lowest kept cost. The minimum, because disturbances only make a run slower.
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

/// The measurements of one size class.
#[derive(Clone, Copy, Debug)]
struct SizeClass<const N: usize> {
    costs: [MethodCosts; N],
    current: usize,
    run: MethodRun,
    /// Runs until another method is tried.
    wait: u32,
    period: u32,
    /// The method that was tried last; the next trial is of a later one.
    turn: usize,
    /// The class began with the best method of another class, so that measuring the other methods is not urgent.
    primed: bool,
    /// A method was requested for this class.
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

    /// The method with the lowest cost, if any was measured.
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

    /// Ends the current run; the next operation begins another one.
    fn finish_run(&mut self, cost: u64, allowed: [bool; N]) {
        let before = self.costs[self.current].lowest_cost();
        self.costs[self.current].record_cost(cost);
        if before.is_some_and(|before| cost > before.saturating_mul(2)) {
            // The cost has more than doubled, so conditions have changed: try the other methods sooner.
            self.period = PERIOD.0;
            self.wait = self.wait.min(PERIOD.0);
        }
        let next = self.next(allowed);
        self.run = MethodRun { skip: if next == self.current { 0 } else { SKIP }, ..MethodRun::default() };
        self.current = next;
    }

    /// Selects the method of the next run.
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

/// An operation that is being timed.
#[derive(Clone, Copy, Debug)]
struct TimedOperation<const N: usize> {
    flight: u64,
    bytes: u64,
    method: usize,
    allowed: [bool; N],
    begin: u64,
}

/// The choices and measurements of one link, for its methods `T`.
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
    /// Returns a chooser without measurements. It allocates all its memory here.
    #[must_use]
    pub fn new() -> Self {
        let trials = VecDeque::with_capacity(TRIALS);
        Self { classes: [SizeClass::new(); CLASSES], trials, last: 0, of: PhantomData }
    }

    /// Chooses the method for the operation with number `flight`, of at least [`LEAST`] bytes, and may begin to time it. `allowed` states
    /// which methods the operation can use; the first one is always usable.
    pub fn choose_method(&mut self, flight: u64, bytes: u64, allowed: [bool; N], now: Instant) -> T {
        let method = self.current_method(bytes, allowed);
        self.begin_timing(flight, bytes, method, allowed, now);
        method
    }

    /// Chooses the method for an operation that has no number yet; report it with [`MethodChooser::begin_timing`] later.
    pub fn current_method(&mut self, bytes: u64, allowed: [bool; N]) -> T {
        let class = size_class(bytes);
        if !self.classes[class].touched {
            self.prime_class(class);
        }
        let current = self.classes[class].current;
        // The allowed methods may have changed since the last run.
        if allowed[current] { T::ALL[current] } else { T::ALL[0] }
    }

    /// Records that an operation has begun with `method`. Returns whether it is timed; its end must be reported then.
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

    /// Begins a class with the best method of the nearest smaller class, else of the nearest larger one.
    fn prime_class(&mut self, class: usize) {
        let smaller = (0..class).rev();
        let known = smaller.chain(class + 1..CLASSES).find_map(|other| self.classes[other].best_method());
        let class = &mut self.classes[class];
        class.touched = true;
        if let Some(method) = known {
            (class.current, class.primed) = (method, true);
        }
    }

    /// Whether this operation is the oldest of those that are being timed.
    #[inline]
    #[must_use]
    pub fn is_oldest_timed(&self, flight: u64) -> bool {
        self.trials.front().is_some_and(|trial| trial.flight == flight)
    }

    fn take_timed(&mut self, flight: u64) -> Option<TimedOperation<N>> {
        let at = self.trials.iter().position(|trial| trial.flight == flight)?;
        self.trials.remove(at)
    }

    /// Records that an operation completed. Returns whether it was timed.
    pub fn record_completion(&mut self, flight: u64, now: Instant) -> bool {
        let Some(trial) = self.take_timed(flight) else { return false };
        let nanos = now.0.saturating_sub(trial.begin.max(self.last));
        self.last = now.0;
        self.classes[size_class(trial.bytes)].record_sample(trial.method, trial.bytes, nanos, trial.allowed);
        true
    }

    /// Records that an operation failed with its method and was continued by another one. Returns whether it was timed.
    pub fn record_failure(&mut self, flight: u64, now: Instant) -> bool {
        let Some(trial) = self.take_timed(flight) else { return false };
        self.last = now.0;
        let class = &mut self.classes[size_class(trial.bytes)];
        if class.current == trial.method {
            class.finish_run(FAILED, trial.allowed);
        }
        true
    }

    /// Records an end that gives no information about the method. Returns whether the operation was timed.
    pub fn discard_timing(&mut self, flight: u64) -> bool {
        self.take_timed(flight).is_some()
    }

    /// Operations that are being timed.
    #[inline]
    #[must_use]
    pub fn timed_count(&self) -> usize {
        self.trials.len()
    }
}

/// Returns the size class of `bytes`, below [`CLASSES`].
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

    /// The methods of the software NIC.
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

    /// Keeps `depth` operations of a size in flight, where a byte takes the given picoseconds with each method. Returns how often
    /// each method was used.
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
    fn fastest_method_gets_most_messages() {
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
    fn chooser_leaves_a_method_that_became_slow() {
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

    /// The best method's cost does not change, so only a trial of the other methods shows that one of them has become
    /// faster.
    #[test]
    fn chooser_finds_a_method_that_became_fastest() {
        let mut chooser = Chooser::new();
        let cost = |method| if method == Method::StagedLong { 80 } else { 120 };
        let used = drive(&mut chooser, 1 << 20, 8, 20_000, ALL, cost);
        assert!(used[1] > 18_000, "{used:?}");
        let cost = |method| if method == Method::Pulled { 40 } else { cost(method) };
        let used = drive(&mut chooser, 1 << 20, 8, 200_000, ALL, cost);
        assert!(used[2] > 150_000, "{used:?}");
    }

    #[test]
    fn disallowed_method_is_never_chosen() {
        let mut chooser = Chooser::new();
        let allowed = [true, true, true, false];
        let used = drive(&mut chooser, 1 << 20, 1, 1000, allowed, |_| 80);
        assert_eq!(used[3], 0, "{used:?}");
    }

    #[test]
    fn sizes_are_measured_separately() {
        let mut chooser = Chooser::new();
        let small = |method| if method == Method::Staged { 40 } else { 80 };
        let large = |method| if method == Method::Shared { 40 } else { 80 };
        drive(&mut chooser, LEAST, 1, 5000, ALL, small);
        drive(&mut chooser, 16 << 20, 1, 5000, ALL, large);
        assert_eq!(chooser.choose_method(0, LEAST, ALL, Instant(chooser.last)), Method::Staged);
        assert_eq!(chooser.choose_method(1, 16 << 20, ALL, Instant(chooser.last)), Method::Shared);
    }

    #[test]
    fn new_size_starts_with_a_neighbours_method() {
        let mut chooser = Chooser::new();
        let cost = |method| if method == Method::Pulled { 40 } else { 80 };
        drive(&mut chooser, 64 << 10, 1, 5000, ALL, cost);
        let used = drive(&mut chooser, 1 << 20, 1, 100, ALL, cost);
        assert_eq!(used, [0, 0, 100, 0]);
        let used = drive(&mut chooser, 1 << 20, 1, 2000, ALL, cost);
        assert!(used.iter().all(|&count| count > 0), "the other methods are measured later: {used:?}");
    }

    #[test]
    fn trial_table_never_grows() {
        let mut chooser = Chooser::new();
        let room = chooser.trials.capacity();
        for flight in 0..10 * TRIALS as u64 {
            let _ = chooser.choose_method(flight, 1 << 20, ALL, Instant(flight));
        }
        assert_eq!((chooser.trials.len(), chooser.trials.capacity()), (TRIALS, room));
    }

    /// Ends operations in another order than they began; the operations of one method fail.
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
    fn failing_method_is_avoided_and_tried_again() {
        let mut chooser = Chooser::new();
        // A failed operation ends at once, so its time alone would make its method the best.
        let used = fail(&mut chooser, 20_000, |method| method != Method::StagedLong);
        assert!(used[1] > 19_000 && used.iter().all(|&count| count > 0), "{used:?}");
        let used = fail(&mut chooser, 200_000, |method| method != Method::Pulled);
        assert!(used[2] > 150_000, "the method works again, but is not used: {used:?}");
    }

    #[test]
    fn single_failure_does_not_change_the_method() {
        let mut chooser = Chooser::new();
        drive(&mut chooser, 1 << 20, 1, 20_000, ALL, |method| if method == Method::Pulled { 40 } else { 80 });
        let now = Instant(chooser.last);
        assert_eq!(chooser.choose_method(7, 1 << 20, ALL, now), Method::Pulled);
        assert!(chooser.record_failure(7, now) && !chooser.record_failure(7, now));
        assert_eq!(chooser.current_method(1 << 20, ALL), Method::Pulled);
    }
}
