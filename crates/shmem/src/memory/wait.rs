//! Waits for words that other PEs write here. A wait spins while the writers may run on other processors, then
//! yields, then sleeps. Meanwhile it serves requests of other PEs, and checks from time to time that they live.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use trunkline_runtime::{CheckTimer, watch_memory};

use crate::error::{Result, ShmemError};
use crate::team::Team;

use super::SymmetricMemory;

/// Polls before the first backoff step, where every PE of this host has a processor. Nothing else is done between
/// them, because the change is often about to arrive.
pub(super) const EAGER_POLLS: u32 = 64;
/// Fruitless tests between two readings of the clock.
const TESTS_PER_CLOCK: u32 = 64;

/// The PE whose write is awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpectedPe {
    /// A PE of a team, which may itself wait for any other PE of the team.
    Member(Team, usize),
    /// Any PE.
    Anyone,
}

/// The fruitless tests of a program that polls with non-blocking calls.
#[derive(Debug, Default)]
pub(crate) struct TestBackoff {
    vain: AtomicU32,
    /// The time of the next check that other PEs live, and the PE that was checked last over the fabric.
    checks: Mutex<(CheckTimer, usize)>,
}

impl SymmetricMemory {
    /// Polls `look` until it returns a value.
    ///
    /// # Errors
    /// Those of `look`; [`ShmemError::Dead`] and [`ShmemError::Engine`] if the awaited PE has ended.
    pub(crate) fn wait_until<T>(
        &self,
        whom: ExpectedPe,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        for _ in 0..self.eager_polls {
            if let Some(done) = look()? {
                return Ok(done);
            }
        }
        let far = self.far.as_ref().map(|far| far.fabric_calls(0)).transpose()?;
        let mut turn = 0;
        watch_memory(far.as_ref(), self.policy, look, || self.check_alive(whom, &mut turn))
    }

    /// Counts a fruitless test, and checks every 50 ms that other PEs live: a program that polls in a loop must end
    /// as one that waits.
    ///
    /// # Errors
    /// As [`SymmetricMemory::wait_until`] for any PE.
    pub(crate) fn count_failed_test(&self) -> Result<()> {
        // Lost increments are harmless, so threads need no atomic addition.
        let vain = self.tests.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.tests.vain.store(vain, Ordering::Relaxed);
        if !vain.is_multiple_of(TESTS_PER_CLOCK) {
            return Ok(());
        }
        let Ok(mut checks) = self.tests.checks.try_lock() else { return Ok(()) };
        let (timer, turn) = &mut *checks;
        if timer.take_due(Instant::now()) { self.check_alive(ExpectedPe::Anyone, turn) } else { Ok(()) }
    }

    /// Fails if an awaited PE has ended. Over the fabric it checks one PE per call, in turns.
    fn check_alive(&self, whom: ExpectedPe, turn: &mut usize) -> Result<()> {
        let near = |pe: usize| self.near[pe].dead_pe(pe).map_or(Ok(()), |dead| Err(ShmemError::Dead(dead)));
        let at = match whom {
            ExpectedPe::Member(team, pe) => {
                // A PE that waits for a dead one ends, too, but later: report the first.
                (0..team.size).try_for_each(|index| near(team.pe_at(index)))?;
                pe
            }
            ExpectedPe::Anyone => {
                (0..self.pe_count()).try_for_each(near)?;
                *turn = (*turn + 1) % self.pe_count();
                *turn
            }
        };
        near(at)?;
        match &self.far {
            Some(far) if at != self.me && !self.near[at].is_whole() => far.check_pe(at),
            _ => Ok(()),
        }
    }
}
