//! How long a wait may take. This module reads no clock: the waiter supplies one, or a number of polls.

use trunkline_proto::time::Instant;

/// The budget of a wait, charged after each fruitless poll.
pub trait WaitBudget {
    /// Returns whether another poll is allowed.
    fn spend_poll(&mut self) -> bool;
}

/// A number of polls.
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

/// A deadline by a clock of the caller.
#[derive(Clone, Copy, Debug)]
pub struct ClockDeadline<C> {
    /// The first moment at which the budget is spent.
    pub deadline: Instant,
    /// Reads the clock.
    pub clock: C,
}

impl<C: FnMut() -> Instant> WaitBudget for ClockDeadline<C> {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        (self.clock)() < self.deadline
    }
}

/// No limit. Only success, a failure or an abort of the queue ends the wait.
#[derive(Clone, Copy, Debug)]
pub struct UnlimitedWait;

impl WaitBudget for UnlimitedWait {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        true
    }
}

/// A budget that may end the kernel when it is spent, for kernels that cannot continue without the result of the wait.
#[derive(Clone, Copy, Debug)]
pub struct OrDie<B> {
    budget: B,
    die: Option<fn() -> !>,
}

impl<B> OrDie<B> {
    /// Combines a budget with the function that ends the kernel. With `None` only the wait ends.
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
