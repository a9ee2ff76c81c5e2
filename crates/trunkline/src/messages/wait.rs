//! Progress and waits of messages: each wait advances all pending work, and backs off while nothing moves.

use trunkline_engine::{BackoffStep, WaitBackoff, WaitPolicy};
use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::LeaveReason;
use trunkline_node::tagged::TaggedEvent;
use trunkline_proto::time::Instant;

use super::{MessageError, Messages};

/// Calls of [`Messages::progress`] between two readings of the clock.
const CALLS_PER_CLOCK: u32 = 64;

/// The state of a rank's waits.
#[derive(Debug)]
pub(super) struct WaitRounds {
    waiting: WaitBackoff,
    calls: u32,
    pub(super) now: Instant,
}

impl WaitRounds {
    /// Returns the state for a host with that many ranks.
    pub(super) fn new(ranks: usize, now: Instant) -> Self {
        Self { waiting: WaitBackoff::new(WaitPolicy::MESSAGES.for_threads(ranks)), calls: 0, now }
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Advances pending messages and requested accesses by a bounded amount. Returns whether anything moved. Programs
    /// call it between other work, so that messages of other ranks advance.
    ///
    /// # Examples
    /// ```no_run
    /// # fn compute_block(_: usize) {}
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// for block in 0..1000 {
    ///     compute_block(block);
    ///     // Pending messages and requests of other ranks do not wait for all blocks.
    ///     messages.progress();
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[inline]
    pub fn progress(&mut self) -> bool {
        self.rounds.calls = self.rounds.calls.wrapping_add(1);
        if self.rounds.calls.is_multiple_of(CALLS_PER_CLOCK) {
            self.rounds.now = self.current_time();
            self.poll_deaths();
        } else if self.endpoint.is_timing() {
            // A long message is being timed; it takes much longer than a reading of the clock.
            self.rounds.now = self.current_time();
        }
        let moved = self.endpoint.progress(self.rounds.now);
        moved | self.serve_accesses()
    }

    /// Records the death of a near rank for later collective calls. Operations with a rank that left fail by
    /// themselves.
    #[inline(never)]
    fn poll_deaths(&mut self) {
        while let Some(event) = self.endpoint.next_event() {
            if let TaggedEvent::Left { peer, why } = event
                && !matches!(why, LeaveReason::Bye)
                && let Some(rank) =
                    self.ranks.get(peer.peer_number() as usize).filter(|rank| self.is_near(**rank))
            {
                self.died = Some(*rank);
            }
        }
    }

    /// Advances pending work, and backs off if nothing moved.
    #[inline]
    pub(super) fn progress_or_pause(&mut self) {
        if self.progress() {
            self.rounds.waiting.reset_backoff();
        } else {
            let pause = self.rounds.waiting.next_step();
            if let BackoffStep::Rest { .. } = pause {
                self.rounds.calls = CALLS_PER_CLOCK - 1;
            }
            pause.wait_once();
        }
    }

    pub(super) fn wait_until<T>(
        &mut self,
        mut ask: impl FnMut(&mut Self) -> Result<Option<T>, MessageError>,
    ) -> Result<T, MessageError> {
        loop {
            match ask(self)? {
                Some(answer) => return Ok(answer),
                None => self.progress_or_pause(),
            }
        }
    }
}
