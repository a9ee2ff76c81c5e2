//! How long a wait may take. No clock is read here: who waits brings one, or a number of looks.

use trunkline_proto::mutant::Mutant;
use trunkline_proto::time::Instant;

/// What a wait may spend. It is asked after each look that found nothing.
pub trait Budget {
    /// Whether there may be another look.
    fn goes_on(&mut self) -> bool;
}

/// So many looks.
#[derive(Clone, Copy, Debug)]
pub struct Looks(pub u64);

impl Budget for Looks {
    #[inline]
    fn goes_on(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some_and(|left| left > 0)
    }
}

/// Until a moment, by a clock of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Until<C> {
    /// The first moment at which it is over.
    pub deadline: Instant,
    /// Tells the time.
    pub clock: C,
}

impl<C: FnMut() -> Instant> Budget for Until<C> {
    #[inline]
    fn goes_on(&mut self) -> bool {
        (self.clock)() < self.deadline
    }
}

/// No limit: only the queue's end, its failure or an abort ends the wait.
#[derive(Clone, Copy, Debug)]
pub struct Forever;

impl Budget for Forever {
    #[inline]
    fn goes_on(&mut self) -> bool {
        true
    }
}

/// A budget that, once it is spent, ends more than the wait, if that is asked for: for kernels that cannot go on without what they wait for.
#[derive(Clone, Copy, Debug)]
pub struct OrDie<B> {
    budget: B,
    die: Option<fn() -> !>,
    mutant: Mutant,
}

impl<B> OrDie<B> {
    /// With what ends the kernel; with nothing it is the budget alone.
    pub const fn new(budget: B, die: Option<fn() -> !>, mutant: Mutant) -> Self {
        Self { budget, die, mutant }
    }
}

impl<B: Budget> Budget for OrDie<B> {
    #[inline]
    fn goes_on(&mut self) -> bool {
        let goes_on = self.budget.goes_on();
        if let Some(die) = self.die.filter(|_| !goes_on && !self.mutant.is("devq-never-dies")) {
            die();
        }
        goes_on
    }
}

impl<B: Budget + ?Sized> Budget for &mut B {
    #[inline]
    fn goes_on(&mut self) -> bool {
        (**self).goes_on()
    }
}
