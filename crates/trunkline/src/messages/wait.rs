//! How a call of messages waits: it does what there is to do, and rests when there is nothing.

use trunkline_engine::{BackoffStep, WaitBackoff, WaitPolicy};
use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::LeaveReason;
use trunkline_node::tagged::TaggedEvent;
use trunkline_proto::time::Instant;

use super::{MessageError, Messages};

/// Calls between two looks at the clock.
const CALLS_PER_CLOCK: u32 = 64;

/// Where a rank stands in its waiting.
#[derive(Debug)]
pub(super) struct WaitRounds {
    waiting: WaitBackoff,
    calls: u32,
    pub(super) now: Instant,
}

impl WaitRounds {
    /// For so many ranks on this host.
    pub(super) fn new(ranks: usize, now: Instant) -> Self {
        Self { waiting: WaitBackoff::new(WaitPolicy::MESSAGES.for_threads(ranks)), calls: 0, now }
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Does what there is to do, a bounded part of it; whether anything happened.
    #[inline]
    pub fn progress(&mut self) -> bool {
        self.rounds.calls = self.rounds.calls.wrapping_add(1);
        if self.rounds.calls.is_multiple_of(CALLS_PER_CLOCK) {
            self.rounds.now = self.current_time();
            self.poll_deaths();
        } else if self.endpoint.is_timing() {
            // Of a long message, which takes longer than a look at the clock.
            self.rounds.now = self.current_time();
        }
        let moved = self.endpoint.progress(self.rounds.now);
        moved | self.serve_accesses()
    }

    /// Who has gone is told by what it leaves undone; that somebody died, by the next call that all make together.
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

    /// The same, and rests if nothing did.
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
