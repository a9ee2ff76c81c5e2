//! The life of a control stream that several connections carry, its strands: when to dial which slot, the effect of a strand's end, and how
//! long a stream without strands lasts. The host's streams drive it; it never uses a socket.
//!
//! ```text
//!                 the first JOIN             the last joined strand falls silent
//!      Opening -----------------> Carried ------------------------------------> Adrift
//!         |                        |   ^                                          | |
//!         | nothing answers        |   +---------------- JOIN --------------------+ |
//!         |                        | the last joined strand is ended                | nothing answers, or a refusal
//!         +------------------------+----------------> Over <------------------------+
//! ```
//! The kernel of a dead process ends or refuses its strands. Then the stream is over at once, unless an attempt was accepted
//! by the host and has not joined. A strand that falls silent indicates a broken path: the stream waits for another path,
//! which the end that began the stream dials.

use crate::time::{Duration, Instant};
use crate::wire::strand::STRANDS_MAX;

/// Longest time between two attempts of a slot without a strand.
const REDIAL: Duration = Duration::from_millis(500);

/// Longest time between two attempts of a slot that never carried, once it was dialled for [`HOPE`] while another slot carries.
const REDIAL_LATER: Duration = Duration::from_secs(2);

/// How long a slot that never carried is dialled as often as the others.
const HOPE: Duration = Duration::from_secs(60);

/// Shortest time from the last attempt of a slot to one that a change of the network causes.
const REDIAL_SOON: Duration = Duration::from_millis(100);

/// Unanswered attempts of one slot; a further one replaces the oldest. Each is a descriptor. An answer may take this number times
/// [`REDIAL`].
const DIALLED_MAX: usize = 2;

/// The maximum number of attempts of one slot that the other host has accepted and that have not joined. It is bounded
/// because the kernel of a stopped process accepts connections and queues them.
const ANSWERED_MAX: usize = 2;

/// Longest time that a stream without joined strands waits for an answer to an attempt.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// Shortest peer time, because kernels count whole seconds.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Checks of a stream without joined strands before it is over: a process that was stopped meanwhile first reads the frames that have arrived.
const LOOKS: u64 = 8;

/// The progress of a strand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StrandPhase {
    /// No answer has arrived.
    Dialled,
    /// The other host has accepted the connection; its process has not replied.
    Answered,
    /// Both ends know which stream the strand belongs to.
    Joined,
}

/// Why a strand ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StrandEnd {
    /// No packet arrived for too long, or no route leads to the other host.
    Silence,
    /// The other host closed, reset or refused the connection.
    Refusal,
}

/// An attempt that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DialStep {
    /// The slot to dial.
    pub slot: usize,
    /// Whether to drop the oldest unanswered attempt of the slot first.
    pub drops_oldest: bool,
}

/// The life of one stream at one end.
#[derive(Clone, Debug)]
pub struct StreamLife {
    state: StreamPhase,
    silence: Duration,
    slots: [DialSlot; STRANDS_MAX],
    /// Slots that this end dials.
    dials: usize,
    /// Strands that have joined since the stream began.
    ever_joined: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StreamPhase {
    Opening { since: Instant },
    Carried,
    Adrift { waited: Duration, looked: Instant },
    Over,
}

/// The strands of one slot. At the accepting end, all strands belong to the first slot.
#[derive(Clone, Copy, Debug)]
struct DialSlot {
    dialled: usize,
    answered: usize,
    joined: usize,
    /// A strand of this slot has joined before, so its address leads to the other process.
    proven: bool,
    /// Start of the time that [`HOPE`] limits.
    since: Instant,
    /// Time of the last attempt.
    begun: Option<Instant>,
    /// Time of the next attempt; `None`: never.
    due: Option<Instant>,
}

impl StreamLife {
    /// Begins a stream that this end dials over `slots` slots. `silence` is the peer time: the longest time without a packet from the other host.
    #[must_use]
    pub fn new_dialling(slots: usize, silence: Duration, now: Instant) -> Self {
        let slot = DialSlot {
            dialled: 0,
            answered: 0,
            joined: 0,
            proven: false,
            since: now,
            begun: None,
            due: Some(now),
        };
        Self {
            state: StreamPhase::Opening { since: now },
            silence: silence.max(SILENCE_MIN),
            slots: [slot; STRANDS_MAX],
            dials: slots.min(STRANDS_MAX),
            ever_joined: 0,
        }
    }

    /// Begins a stream that this end accepted, with one strand that has not named its stream.
    #[must_use]
    pub fn new_accepted(silence: Duration, now: Instant) -> Self {
        let mut life = Self::new_dialling(0, silence, now);
        life.slots[0].answered = 1;
        life
    }

    /// Strands that both ends have joined and that have not ended.
    #[must_use]
    pub fn joined_count(&self) -> usize {
        self.slots.iter().map(|slot| slot.joined).sum()
    }

    /// Strands that have joined since the stream began.
    #[must_use]
    pub fn ever_joined(&self) -> u64 {
        self.ever_joined
    }

    /// Whether a slot has a joined strand.
    #[must_use]
    pub fn is_joined(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.joined > 0)
    }

    /// Whether the stream is over, so that nothing can be sent.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == StreamPhase::Over
    }

    /// Sets the number of slots that this end dials, after it has learned more addresses.
    pub fn set_slots(&mut self, slots: usize) {
        self.dials = slots.min(STRANDS_MAX);
    }

    /// Longest time between two attempts of a slot that has carried, or of any slot of a stream without strands.
    fn redial_interval(&self) -> Duration {
        Duration(self.silence.0 / 4).min(REDIAL)
    }

    /// Longest time that a stream without joined strands waits for an answer.
    fn linger_time(&self) -> Duration {
        Duration(self.silence.0 / 2).min(LINGER_MAX)
    }

    /// Returns the next attempt that is due, which counts as begun. If the attempt cannot begin, call [`on_ended`](Self::on_ended).
    pub fn next_dial(&mut self, now: Instant) -> Option<DialStep> {
        let at = (0..self.dials).find(|&at| self.dial_time(at).is_some_and(|due| due <= now))?;
        let pace = self.dial_interval(at, now);
        let slot = &mut self.slots[at];
        slot.begun = Some(now);
        slot.due = Some(now + pace);
        let drops_oldest = slot.dialled == DIALLED_MAX;
        slot.dialled += usize::from(!drops_oldest);
        Some(DialStep { slot: at, drops_oldest })
    }

    /// The time of the next result by [`StreamLife::next_dial`] or [`StreamLife::check_over`]; `None` if time alone causes none.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let dials = (0..self.dials).filter_map(|at| self.dial_time(at)).min();
        let ends = match self.state {
            StreamPhase::Opening { since } if self.dials > 0 => Some(since + self.silence),
            StreamPhase::Adrift { looked, .. } => Some(looked + self.check_interval()),
            StreamPhase::Opening { .. } | StreamPhase::Carried | StreamPhase::Over => None,
        };
        dials.into_iter().chain(ends).min()
    }

    /// The time at which a slot is to be dialled.
    fn dial_time(&self, at: usize) -> Option<Instant> {
        let slot = &self.slots[at];
        // Until the stream is carried, an accepted attempt waits for a process that has yet to accept the stream. A second
        // attempt would wait for it, too.
        let answered = if matches!(self.state, StreamPhase::Opening { .. }) { 1 } else { ANSWERED_MAX };
        let waits = slot.joined > 0 || slot.answered >= answered || self.state == StreamPhase::Over;
        slot.due.filter(|_| !waits)
    }

    fn dial_interval(&self, at: usize, now: Instant) -> Duration {
        let slot = &self.slots[at];
        let hopeless = !slot.proven && self.state == StreamPhase::Carried && now - slot.since >= HOPE;
        if hopeless { REDIAL_LATER } else { self.redial_interval() }
    }

    /// Makes all slots without a strand due soon, because the network has changed.
    fn expedite_dials(&mut self, now: Instant) {
        for slot in &mut self.slots {
            slot.since = now;
            let soonest = slot.begun.map_or(now, |begun| begun + REDIAL_SOON).max(now);
            slot.due = slot.due.map(|due| due.min(soonest));
        }
    }

    /// Records that the other host has accepted the connection of an attempt.
    pub fn on_answered(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        slot.dialled = slot.dialled.saturating_sub(1);
        slot.answered += 1;
    }

    /// Records that a strand has joined. At the dialling end, the caller drops all other attempts of its slot.
    pub fn on_joined(&mut self, at: usize, now: Instant) {
        let slot = &mut self.slots[at];
        (slot.dialled, slot.answered, slot.proven) = (0, 0, true);
        slot.joined += 1;
        self.ever_joined += 1;
        if !self.has_ended() {
            self.state = StreamPhase::Carried;
            self.slots.iter_mut().for_each(|slot| slot.since = now);
        }
    }

    /// Records that a strand has ended.
    pub fn on_ended(&mut self, at: usize, phase: StrandPhase, end: StrandEnd, now: Instant) {
        let slot = &mut self.slots[at];
        let count = match phase {
            StrandPhase::Dialled => &mut slot.dialled,
            StrandPhase::Answered => &mut slot.answered,
            StrandPhase::Joined => &mut slot.joined,
        };
        *count = count.saturating_sub(1);
        let proven = slot.proven;
        if phase == StrandPhase::Joined {
            self.expedite_dials(now);
            if self.state == StreamPhase::Carried && self.joined_count() == 0 {
                self.on_last_ended(end, now);
            }
        } else if let StreamPhase::Adrift { waited, .. } = &mut self.state
            && proven
            && end == StrandEnd::Refusal
        {
            // The host refuses at an address that was the process's: the host runs, and the process has ended.
            *waited = Duration(u64::MAX);
        }
    }

    fn on_last_ended(&mut self, end: StrandEnd, now: Instant) {
        // After a refusal the stream is over at the next check. It stays while an attempt is accepted by the host, because
        // that attempt shows whether the process lives.
        let waited = if end == StrandEnd::Silence { Duration(0) } else { Duration(u64::MAX) };
        self.state = StreamPhase::Adrift { waited, looked: now };
    }

    /// Ends the stream, because the other end has ended it.
    pub fn mark_over(&mut self) {
        self.state = StreamPhase::Over;
    }

    /// Returns whether the stream is over. Call it after all strands were read and written.
    pub fn check_over(&mut self, now: Instant) -> bool {
        let answered = self.slots.iter().any(|slot| slot.answered > 0);
        let silence = self.silence;
        let linger = self.linger_time();
        let step = self.check_interval();
        let over = match &mut self.state {
            StreamPhase::Opening { since } => {
                let dialled = self.slots.iter().any(|slot| slot.dialled > 0);
                !answered && (!dialled || now - *since > silence)
            }
            StreamPhase::Carried => false,
            StreamPhase::Adrift { .. } if answered => false,
            StreamPhase::Adrift { waited, looked } => {
                // A check counts for one step at most, however long the process was stopped before it.
                waited.0 = waited.0.saturating_add((now - *looked).min(step).0);
                *looked = now;
                *waited >= linger
            }
            StreamPhase::Over => true,
        };
        if over {
            self.state = StreamPhase::Over;
        }
        over
    }

    fn check_interval(&self) -> Duration {
        Duration(self.linger_time().0 / LOOKS)
    }
}

#[cfg(test)]
mod tests;
