//! Learns which copy method is the fastest for long messages to a peer. `send` takes the method from here when a
//! message starts, and reports the outcome. Allocated with the first long message to a peer; later calls never
//! allocate.

use std::collections::VecDeque;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::chooser::{CLASSES, MethodChooser, TRIALS, size_class};
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::{
    CopyMethod, MemoryReach, MethodChoice, SendMethod, allowed_methods, choose_send_method,
};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::tagged::EAGER_MAX;

use super::endpoint::TaggedEndpoint;
use super::peer::TaggedPeerId;

/// The learned methods of one peer.
#[derive(Debug)]
pub(super) struct LearnedMethods {
    /// The choosers for messages that start while no other timed message is in progress, so that the caller waits for
    /// each, and for those that start among others. Among others, ranks that copy in parallel are faster. So the
    /// fastest methods differ.
    choosers: [MethodChooser<CopyMethod, 3>; 2],
    /// Messages of each size class that were sent with the alternating method.
    numbers: [u64; CLASSES],
    /// Consecutive messages that needed no new export.
    settled: u32,
    /// Messages whose last piece is in the stage, each with the stage position that the reader must have consumed
    /// before it counts as complete.
    staged: VecDeque<(SlotId, u64)>,
}

/// The copy method of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MethodPlan {
    pub(super) way: SendMethod,
    /// The configured choice.
    choice: MethodChoice,
    /// If the method was learned: the method, the allowed methods, and the index of the chooser (1 if other messages
    /// are in progress).
    pub(super) learned: Option<(CopyMethod, [bool; 3], usize)>,
}

/// The outcome of a message for its copy method.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MethodOutcome {
    /// Its bytes have arrived.
    Came,
    /// It fell back to another method.
    FellBack,
    /// The outcome contains no information about the method.
    Other,
}

impl LearnedMethods {
    fn new() -> Self {
        let choosers = [(); 2].map(|()| MethodChooser::new());
        let staged = VecDeque::with_capacity(TRIALS);
        Self { choosers, numbers: [0; CLASSES], settled: 0, staged }
    }

    /// Returns the number of messages that are being timed.
    pub(super) fn timed_count(&self) -> usize {
        let [alone, among] = &self.choosers;
        alone.timed_count() + among.timed_count()
    }

    /// Counts a message that was sent with the alternating method.
    pub(super) const fn count_alternating(&mut self, class: usize) {
        self.numbers[class] = self.numbers[class].wrapping_add(1);
    }

    /// Records whether a message needed a new export or announcement.
    pub(super) const fn record_setup(&mut self, new: bool) {
        self.settled = if new { 0 } else { self.settled.saturating_add(1) };
    }
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Chooses the copy method of a long message to a peer.
    pub(super) fn plan_send(
        &mut self,
        to: TaggedPeerId,
        len: u64,
        source: MemoryReach,
        choice: MethodChoice,
    ) -> MethodPlan {
        let len = len.max(u64::from(EAGER_MAX) + 1);
        let Some(peer) = self.peers.get_mut(to.0 as usize).filter(|_| source == MemoryReach::Mapped) else {
            return MethodPlan {
                way: choose_send_method(len, MemoryReach::Private, CopyMethod::Pull, 0),
                choice,
                learned: None,
            };
        };
        let learned = peer.learned.get_or_insert_with(|| Box::new(LearnedMethods::new()));
        let number = learned.numbers[size_class(len)];
        match choice {
            MethodChoice::Fixed(method) => {
                MethodPlan { way: choose_send_method(len, source, method, number), choice, learned: None }
            }
            MethodChoice::Learned => {
                let allowed = allowed_methods(self.maps, learned.settled);
                let among = usize::from(learned.timed_count() > 0);
                let method = learned.choosers[among].current_method(len, allowed);
                let learned = Some((method, allowed, among));
                MethodPlan { way: choose_send_method(len, source, method, number), choice, learned }
            }
        }
    }

    /// Records that a message was sent as planned.
    pub(super) fn record_sent(
        &mut self,
        to: TaggedPeerId,
        request: SlotId,
        len: u64,
        plan: MethodPlan,
        new: bool,
    ) {
        let Some(learned) = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.learned.as_mut()) else {
            return;
        };
        let by_turns = match (plan.learned, plan.choice) {
            (Some((method, ..)), _) | (None, MethodChoice::Fixed(method)) => method == CopyMethod::Turns,
            (None, MethodChoice::Learned) => false,
        };
        if let SendMethod::Refer { .. } = plan.way {
            learned.record_setup(new);
        }
        // A message of private memory is never sent as a reference, so it has no turn.
        if by_turns && matches!(plan.way, SendMethod::Refer { .. }) {
            learned.count_alternating(size_class(len));
        }
        if let Some((method, allowed, among)) = plan.learned {
            let timed =
                learned.choosers[among].begin_timing(request.to_bits(), len, method, allowed, self.now);
            self.timed += usize::from(timed);
        }
    }

    /// Records that a message to a peer has ended.
    pub(super) fn record_outcome(&mut self, to: TaggedPeerId, request: SlotId, fate: MethodOutcome) {
        if self.timed == 0 {
            return;
        }
        let Some(learned) = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.learned.as_mut()) else {
            return;
        };
        let flight = request.to_bits();
        let now = self.now;
        let was_timed = learned.choosers.iter_mut().any(|chooser| match fate {
            MethodOutcome::Came => chooser.record_completion(flight, now),
            MethodOutcome::FellBack => chooser.record_failure(flight, now),
            MethodOutcome::Other => chooser.discard_timing(flight),
        });
        self.timed -= usize::from(was_timed);
    }

    /// Records that a whole message is in the stage, up to that position.
    pub(super) fn learn_of_stage(&mut self, to: TaggedPeerId, request: SlotId, position: u64) {
        let learned = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.learned.as_mut());
        let Some(learned) = learned.filter(|learned| learned.timed_count() > 0) else { return };
        if learned.staged.len() < TRIALS {
            learned.staged.push_back((request, position));
        } else {
            self.record_outcome(to, request, MethodOutcome::Other);
        }
    }

    /// Checks which of the messages that are wholly staged have been consumed.
    pub(super) fn poll_stages(&mut self) {
        for number in 0..self.peers.len() {
            let to = TaggedPeerId(number as u32);
            while let Some(peer) = self.peers.get_mut(number) {
                let (Some(learned), Some(outbox)) = (&mut peer.learned, &mut peer.outbox) else { break };
                let Some((request, position)) = learned.staged.front().copied() else { break };
                match outbox.is_consumed(position) {
                    Ok(true) => _ = learned.staged.pop_front(),
                    Ok(false) => break,
                    Err(_) => {
                        self.report_violation(to);
                        break;
                    }
                }
                self.record_outcome(to, request, MethodOutcome::Came);
            }
        }
    }

    /// Drops the learned methods of a peer that is gone.
    pub(super) fn forget_learned(&mut self, to: TaggedPeerId) {
        let learned = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.learned.take());
        self.timed -= learned.map_or(0, |learned| learned.timed_count());
    }

    /// Returns the choice of copy method for long messages.
    #[must_use]
    pub const fn copy_choice(&self) -> MethodChoice {
        self.choice
    }

    /// Sets the choice of copy method for further long messages.
    pub const fn set_copy_choice(&mut self, choice: MethodChoice) {
        self.choice = choice;
    }

    /// Whether messages are being timed, so that calls of [`TaggedEndpoint::progress`] should pass the current time.
    #[inline]
    #[must_use]
    pub const fn is_timing(&self) -> bool {
        self.timed > 0
    }

    /// Sets the current time, for a caller that made no progress call for a while and is about to send.
    #[inline]
    pub const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }
}
