//! How a call waits for what other PEs write here: it spins while they may be at work on other processors, then gives its own away,
//! then sleeps; it goes on with what others want of this PE, and now and then looks whether they live.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use trunkline_engine::WaitPolicy;
use trunkline_runtime::{CheckTimer, watch_memory};

use crate::error::{Result, ShmemError};
use crate::team::Team;

use super::SymmetricMemory;

/// Polls before the first fruitless round, where every PE of this host has a processor: nothing else is done between them, as the
/// change is often on its way.
const EAGER: u32 = 64;
/// Fruitless tests between two readings of the clock.
const TESTS_PER_CLOCK: u32 = 64;

/// Who is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpectedPe {
    /// This PE of a team, which may itself wait for any other of it.
    Member(Team, usize),
    /// Any.
    Anyone,
}

/// How long a program has asked in vain, by calls that do not wait.
#[derive(Debug, Default)]
pub(crate) struct TestBackoff {
    vain: AtomicU32,
    /// The time of the next check that other PEs live, and the PE that was checked last over the fabric.
    checks: Mutex<(CheckTimer, usize)>,
}

impl SymmetricMemory {
    /// Looks until there is something.
    ///
    /// # Errors
    /// As the look; [`ShmemError::Dead`] and [`ShmemError::Engine`] if who is waited for has ended.
    pub(crate) fn wait_until<T>(
        &self,
        whom: ExpectedPe,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        // What comes over the fabric may come by progress alone.
        let is_crowded = self.policy.spins < WaitPolicy::CHANGE.spins;
        let eager = if self.far.is_some() || is_crowded { 0 } else { EAGER };
        for _ in 0..eager {
            if let Some(done) = look()? {
                return Ok(done);
            }
        }
        let far = self.far.as_ref().map(|far| far.fabric_calls(0)).transpose()?;
        let mut turn = 0;
        watch_memory(far.as_ref(), self.policy, look, || self.check_alive(whom, &mut turn))
    }

    /// Counts a test in vain: a program that goes on testing waits as one does that calls a wait.
    ///
    /// # Errors
    /// As [`SymmetricMemory::wait_until`] for anyone.
    pub(crate) fn count_failed_test(&self) -> Result<()> {
        // No two threads need to agree on it.
        let vain = self.tests.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.tests.vain.store(vain, Ordering::Relaxed);
        if !vain.is_multiple_of(TESTS_PER_CLOCK) {
            return Ok(());
        }
        let Ok(mut checks) = self.tests.checks.try_lock() else { return Ok(()) };
        let (timer, turn) = &mut *checks;
        if timer.take_due(Instant::now()) { self.check_alive(ExpectedPe::Anyone, turn) } else { Ok(()) }
    }

    /// Fails if somebody who is waited for has ended. Over the fabric one of them at a time is looked at.
    fn check_alive(&self, whom: ExpectedPe, turn: &mut usize) -> Result<()> {
        let near = |pe: usize| self.near[pe].dead_pe(pe).map_or(Ok(()), |dead| Err(ShmemError::Dead(dead)));
        let at = match whom {
            ExpectedPe::Member(team, pe) => {
                // Who waits for the dead ends, too, but later.
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
