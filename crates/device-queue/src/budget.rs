//! How long a wait may take. No clock is read here: who waits brings one, or a number of looks.

use trunkline_proto::time::Instant;

/// What a wait may spend. It is asked after each look that found nothing.
pub trait WaitBudget {
    /// Whether there may be another look.
    fn spend_poll(&mut self) -> bool;
}

/// So many looks.
#[derive(Clone, Copy, Debug)]
pub struct PollLimit(pub u64);

impl WaitBudget for PollLimit {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some_and(|left| left > 0)
    }
}

/// Until a moment, by a clock of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct ClockDeadline<C> {
    /// The first moment at which it is over.
    pub deadline: Instant,
    /// Tells the time.
    pub clock: C,
}

impl<C: FnMut() -> Instant> WaitBudget for ClockDeadline<C> {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        (self.clock)() < self.deadline
    }
}

/// No limit: only the queue's end, its failure or an abort ends the wait.
#[derive(Clone, Copy, Debug)]
pub struct UnlimitedWait;

impl WaitBudget for UnlimitedWait {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        true
    }
}

/// A budget that, once it is spent, ends more than the wait, if that is asked for: for kernels that cannot go on without what they wait for.
#[derive(Clone, Copy, Debug)]
pub struct OrDie<B> {
    budget: B,
    die: Option<fn() -> !>,
}

impl<B> OrDie<B> {
    /// With what ends the kernel; with nothing it is the budget alone.
    pub const fn new(budget: B, die: Option<fn() -> !>) -> Self {
        Self { budget, die }
    }
}

impl<B: WaitBudget> WaitBudget for OrDie<B> {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        let goes_on = self.budget.spend_poll();
        if let Some(die) = self.die.filter(|_| !goes_on) {
            die();
        }
        goes_on
    }
}

impl<B: WaitBudget + ?Sized> WaitBudget for &mut B {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        (**self).spend_poll()
    }
}
