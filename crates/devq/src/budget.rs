//! How long a wait may take. No clock is read here: who waits brings one, or a number of looks.

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

impl<B: Budget + ?Sized> Budget for &mut B {
    #[inline]
    fn goes_on(&mut self) -> bool {
        (**self).goes_on()
    }
}
