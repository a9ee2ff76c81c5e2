//! How a call waits for what other PEs write here: it spins while they may be at work on other processors, then gives its own away,
//! then sleeps; it goes on with what others want of this PE, and now and then looks whether they live.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trunkline_engine::{BackoffStep, WaitBackoff, WaitPolicy};

use crate::error::{Result, ShmemError};
use crate::team::Team;

use super::SymmetricMemory;

/// Polls before the first fruitless round, where every PE of this host has a processor: nothing else is done between them, as the
/// change is often on its way.
const EAGER: u32 = 64;
/// How often it looks whether the others live.
const LOOKS: Duration = Duration::from_millis(50);
/// Fruitless looks between two at the clock: where there are more threads than processors, each may take as long as others are let run.
const CLOCK: u32 = 64;

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
    /// When it was looked whether the others live, and which of them over the fabric.
    looked: Mutex<(Option<Instant>, usize)>,
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
        let is_crowded = self.spins < WaitPolicy::CHANGE.spins;
        let eager = if self.far.is_some() || is_crowded { 0 } else { EAGER };
        for _ in 0..eager {
            if let Some(done) = look()? {
                return Ok(done);
            }
        }
        let mut waiting = WaitBackoff::new(WaitPolicy { spins: self.spins, ..WaitPolicy::CHANGE });
        let mut looked: Option<Instant> = None;
        let mut turn = 0;
        let mut stirs = None;
        let mut vain = 0_u32;
        loop {
            if let Some(done) = look()? {
                return Ok(done);
            }
            if let Some(far) = &self.far
                && far.progress()?
            {
                waiting.reset_backoff();
            }
            let pause = waiting.next_step();
            let rests = matches!(pause, BackoffStep::Rest { .. });
            vain = vain.wrapping_add(1);
            if (rests || vain.is_multiple_of(CLOCK))
                && let Err(error) = self.check_alive_if_due(whom, &mut looked, &mut turn)
            {
                // What it did last may have come in the meantime.
                return look()?.ok_or(error);
            }
            if rests && let Some(far) = &self.far {
                // Others may be at work on this PE's memory; what is long comes in pieces.
                let now = far.sample_progress();
                if std::mem::replace(&mut stirs, now) != now {
                    waiting.reset_backoff();
                    continue;
                }
                if far.is_unseen() {
                    std::thread::yield_now();
                    continue;
                }
            }
            pause.wait_once();
        }
    }

    /// Counts a test in vain: a program that goes on testing waits as one does that calls a wait.
    ///
    /// # Errors
    /// As [`SymmetricMemory::wait_until`] for anyone.
    pub(crate) fn count_failed_test(&self) -> Result<()> {
        // No two threads need to agree on it.
        let vain = self.tests.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.tests.vain.store(vain, Ordering::Relaxed);
        if !vain.is_multiple_of(CLOCK) {
            return Ok(());
        }
        let Ok(mut looked) = self.tests.looked.try_lock() else { return Ok(()) };
        let (at, turn) = &mut *looked;
        self.check_alive_if_due(ExpectedPe::Anyone, at, turn)
    }

    /// The same as `live`, if it is time to look.
    fn check_alive_if_due(
        &self,
        whom: ExpectedPe,
        looked: &mut Option<Instant>,
        turn: &mut usize,
    ) -> Result<()> {
        let now = Instant::now();
        if now - *looked.get_or_insert(now) < LOOKS {
            return Ok(());
        }
        *looked = Some(now);
        self.check_alive(whom, turn)
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
