//! How a call waits for what other PEs write here: it spins while they may be at work on other processors, then gives its own away,
//! then sleeps; it goes on with what others want of this PE, and now and then looks whether they live.

use std::time::{Duration, Instant};

use trunkline_engine::{Pause, Waiting};

use crate::error::{Error, Result};
use crate::pe::Pe;

/// Fruitless looks while every PE of this host has a processor.
const SPINS: u32 = 2_000;
/// And where they have not.
const SPINS_CROWDED: u32 = 16;
/// The first of them, where every PE has a processor: nothing comes in between, as what is waited for is often on its way.
const EAGER: u32 = 64;
/// Fruitless looks after which a thread sleeps, by giving its processor away in between: milliseconds.
const YIELDS: u32 = 4_000;
/// The first sleep, and the longest.
const SLEEPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// How often it looks whether the others live.
const LOOKS: Duration = Duration::from_millis(50);

/// Who is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whom {
    /// This one.
    Pe(usize),
    /// Any.
    Anyone,
}

/// How many looks a PE makes before it gives its processor away, of so many on this host.
pub(crate) fn spins(neighbours: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if neighbours <= cores { SPINS } else { SPINS_CROWDED }
}

impl Pe {
    /// Looks until there is something.
    ///
    /// # Errors
    /// As the look; [`Error::Dead`] and [`Error::Engine`] if who is waited for has ended.
    pub(crate) fn until<T>(&self, whom: Whom, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        for _ in 0..self.spins / SPINS * EAGER {
            if let Some(done) = look()? {
                return Ok(done);
            }
        }
        let mut waiting = Waiting::patient(self.spins, YIELDS);
        let mut looked: Option<Instant> = None;
        let (mut turn, mut stirs) = (0, None);
        loop {
            if let Some(done) = look()? {
                return Ok(done);
            }
            if let Some(far) = &self.far
                && far.progress()?
            {
                waiting.moved();
            }
            let pause = waiting.pause(SLEEPS.0, SLEEPS.1);
            if let Pause::Park(_) = pause {
                let now = Instant::now();
                if now - *looked.get_or_insert(now) >= LOOKS {
                    looked = Some(now);
                    if let Err(error) = self.live(whom, &mut turn)
                        && !crate::planted("shmem-waits-for-the-dead")
                    {
                        // What it did last may have come in the meantime.
                        return look()?.ok_or(error);
                    }
                }
                if let Some(far) = &self.far {
                    // Others may be at work on this PE's memory; what is long comes in pieces.
                    let now = far.stirs();
                    if std::mem::replace(&mut stirs, now) != now
                        && !crate::planted("shmem-sleeps-through-work")
                    {
                        waiting.moved();
                        continue;
                    }
                    if far.is_unseen() {
                        std::thread::yield_now();
                        continue;
                    }
                }
            }
            pause.take();
        }
    }

    /// Fails if somebody who is waited for has ended. Over the fabric one of them at a time is looked at.
    fn live(&self, whom: Whom, turn: &mut usize) -> Result<()> {
        let near = |pe: usize| match self.near[pe].is_dead() {
            true => Err(Error::Dead(pe)),
            false => Ok(()),
        };
        let at = match whom {
            Whom::Pe(pe) => pe,
            Whom::Anyone => {
                (0..self.size).try_for_each(near)?;
                *turn = (*turn + 1) % self.size;
                *turn
            }
        };
        near(at)?;
        match &self.far {
            Some(far) if at != self.me && !self.near[at].is_whole() => far.look(at),
            _ => Ok(()),
        }
    }
}
