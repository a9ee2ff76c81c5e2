//! How a call of this crate waits: it tries, and between two tries it spins, then gives the processor away, then sleeps. It is
//! the engine's one policy, with more patience, as somebody waits for the answer.

use std::time::Duration;

use trunkline_engine::{Pause, Waiting};

use crate::context::Context;
use crate::error::Error;

/// Fruitless tries before the processor is given away: some ten microseconds, as long as an answer takes; the rank that is to answer may wait for
/// this very processor.
const SPINS: u32 = 24;
/// Fruitless tries before the thread sleeps: a millisecond or more, by who else is there.
const YIELDS: u32 = 500;
/// The first sleep, and the longest.
const SLEEPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(200));

/// Tries until there is something.
pub(crate) fn until<T>(
    context: &Context,
    mut attempt: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    until_moved(context, |_| attempt())
}

/// The same, where an attempt also says when anything moved, for others or for itself: then more is likely to come at once.
pub(crate) fn until_moved<T>(
    context: &Context,
    mut attempt: impl FnMut(&mut Waiting) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut waiting = Waiting::patient(SPINS, YIELDS);
    let mut stirs = None;
    loop {
        if let Some(done) = attempt(&mut waiting)? {
            return Ok(done);
        }
        let pause = waiting.pause(SLEEPS.0, SLEEPS.1);
        if let Pause::Park(_) = pause {
            // Others may be at work on this rank's memory, whether this thread sees to it or the one beside it; and what is long
            // comes in pieces.
            let now = context.shared.job.stirs(context.id);
            if std::mem::replace(&mut stirs, now) != now {
                waiting.moved();
                continue;
            }
            if context.shared.unseen {
                // A sleep here is a sleep of everybody who works on this rank's memory.
                std::thread::yield_now();
                continue;
            }
        }
        pause.take();
    }
}
