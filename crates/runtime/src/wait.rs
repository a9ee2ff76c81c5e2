//! How a call of a front end with symmetric memory waits: it tries, and between two tries it spins, then gives the processor away, then
//! sleeps. It is the engine's one policy, with more patience, as somebody waits for the answer.

use trunkline_engine::rma::ContextId;
use trunkline_engine::{BackoffStep, WaitBackoff, WaitPolicy};

use crate::FabricJob;

impl FabricJob {
    /// Tries until there is something. An attempt may say that something moved, for others or for itself: then more is likely to come
    /// at once. `unseen`: others' work on this process's memory goes on in its calls only, which do not hear of it.
    ///
    /// # Errors
    /// As the attempt.
    pub fn wait_until<T, E>(
        &self,
        id: ContextId,
        unseen: bool,
        mut attempt: impl FnMut(&mut WaitBackoff) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut waiting = WaitBackoff::new(WaitPolicy::CALL);
        let mut stirs = None;
        loop {
            if let Some(done) = attempt(&mut waiting)? {
                return Ok(done);
            }
            let pause = waiting.next_step();
            if let BackoffStep::Rest { .. } = pause {
                // Others may be at work on this rank's memory, whether this thread sees to it or the one beside it; and what is long
                // comes in pieces.
                let now = self.sample_progress(id);
                if std::mem::replace(&mut stirs, now) != now {
                    waiting.reset_backoff();
                    continue;
                }
                if unseen {
                    // A sleep here is a sleep of everybody who works on this rank's memory.
                    std::thread::yield_now();
                    continue;
                }
            }
            pause.wait_once();
        }
    }
}
