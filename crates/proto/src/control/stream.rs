//! The life of a control stream that is carried by several connections, its strands: which strand is dialled when, what the
//! end of one means, and how long a stream without any lasts. Driven by the host's streams; knows no socket.
//!
//! ```text
//!                 the first JOIN             the last joined strand falls silent
//!      Opening -----------------> Carried ------------------------------------> Adrift
//!         |                        |   ^                                          | |
//!         | nothing answers        |   +---------------- JOIN --------------------+ |
//!         |                        | the last joined strand is ended                | nothing answers, or a refusal
//!         +------------------------+----------------> Over <------------------------+
//! ```
//! A strand of a dead process is ended or refused by that process's kernel: the stream is over at once. A strand that falls
//! silent shows a broken path: the stream waits for another path, dialled by the end that began it.

use crate::time::{Duration, Instant};
use crate::wire::strand::STRANDS_MAX;

/// Longest time between two attempts of a slot that no strand carries.
const REDIAL: Duration = Duration::from_millis(500);

/// The same of a slot that never carried anything, once it was dialled for [`HOPE`] while another slot carries.
const REDIAL_LATER: Duration = Duration::from_secs(2);

/// How long a slot that never carried anything is dialled as often as others.
const HOPE: Duration = Duration::from_secs(60);

/// A change of the network starts no attempt of a slot sooner than this after the one before.
const REDIAL_SOON: Duration = Duration::from_millis(100);

/// Attempts of one slot that nothing has answered: a new one takes the place of the oldest. Each is a descriptor, and an answer
/// may take so many times [`REDIAL`].
const DIALLED_MAX: usize = 2;

/// Attempts of one slot that were answered and have not joined. A stopped process answers by its kernel, which queues them.
const ANSWERED_MAX: usize = 2;

/// Longest time that a stream without joined strands waits for the answer to an attempt.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// Shortest peer time: kernels count whole seconds.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Looks at a stream without joined strands before it is over: a process that was stopped meanwhile has yet to hear.
const LOOKS: u64 = 8;

/// How far a strand has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StrandPhase {
    /// Nothing has answered.
    Dialled,
    /// The other host has answered; the process has not.
    Answered,
    /// Both ends have said which stream it belongs to.
    Joined,
}

/// Why a strand ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StrandEnd {
    /// Nothing came for too long, or no route leads to the other host.
    Silence,
    /// The other host said so: it closed, reset or refused the connection.
    Refusal,
}

/// An attempt that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DialStep {
    /// Which slot to dial.
    pub slot: usize,
    /// The oldest attempt of the slot that nothing has answered is to be dropped first.
    pub drops_oldest: bool,
}

/// One stream, at one end.
#[derive(Clone, Debug)]
pub struct StreamLife {
    state: StreamPhase,
    silence: Duration,
    slots: [DialSlot; STRANDS_MAX],
    /// Slots that this end dials.
    dials: usize,
    /// Strands that have joined so far.
    ever_joined: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StreamPhase {
    Opening { since: Instant },
    Carried,
    Adrift { waited: Duration, looked: Instant },
    Over,
}

/// Strands of one slot. At the end that accepts them, all are of the first slot.
#[derive(Clone, Copy, Debug)]
struct DialSlot {
    dialled: usize,
    answered: usize,
    joined: usize,
    /// A strand of it has joined before: its address is the other process's.
    proven: bool,
    /// Since when it is dialled with that hope.
    since: Instant,
    /// The last attempt.
    begun: Option<Instant>,
    /// The next attempt; `None`: never.
    due: Option<Instant>,
}

impl StreamLife {
    /// A stream that this end begins, over so many slots; nothing may come from the other host for `silence`.
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

    /// A stream that this end accepted, by one strand that has not named its stream.
    #[must_use]
    pub fn new_accepted(silence: Duration, now: Instant) -> Self {
        let mut life = Self::new_dialling(0, silence, now);
        life.slots[0].answered = 1;
        life
    }

    /// Strands that both ends have joined.
    #[must_use]
    pub fn joined_count(&self) -> usize {
        self.slots.iter().map(|slot| slot.joined).sum()
    }

    /// All strands that have joined so far.
    #[must_use]
    pub fn ever_joined(&self) -> u64 {
        self.ever_joined
    }

    /// Whether a slot has a joined strand.
    #[must_use]
    pub fn is_joined(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.joined > 0)
    }

    /// Whether nothing can be sent any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == StreamPhase::Over
    }

    /// The end that dials has learned of more addresses: it dials so many slots from now on.
    pub fn set_slots(&mut self, slots: usize) {
        self.dials = slots.min(STRANDS_MAX);
    }

    /// Longest time between two attempts of a slot that has carried, or of any slot of a stream that nothing carries.
    fn redial_interval(&self) -> Duration {
        Duration(self.silence.0 / 4).min(REDIAL)
    }

    /// Longest time that a stream without joined strands waits for an answer.
    fn linger_time(&self) -> Duration {
        Duration(self.silence.0 / 2).min(LINGER_MAX)
    }

    /// The next attempt that is due: it counts as begun. One that cannot begin has [ended](Self::on_ended).
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

    /// When [`StreamLife::next_dial`] or [`StreamLife::check_over`] has something to say next; `None`: not by time alone.
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

    /// When a slot is to be dialled.
    fn dial_time(&self, at: usize) -> Option<Instant> {
        let slot = &self.slots[at];
        // Before anything has carried, an attempt that was answered waits for a process that is yet to accept.
        let answered = if matches!(self.state, StreamPhase::Opening { .. }) { 1 } else { ANSWERED_MAX };
        let waits = slot.joined > 0 || slot.answered >= answered || self.state == StreamPhase::Over;
        slot.due.filter(|_| !waits)
    }

    fn dial_interval(&self, at: usize, now: Instant) -> Duration {
        let slot = &self.slots[at];
        let hopeless = !slot.proven && self.state == StreamPhase::Carried && now - slot.since >= HOPE;
        if hopeless { REDIAL_LATER } else { self.redial_interval() }
    }

    /// The network has changed: all slots without a strand are dialled soon.
    fn expedite_dials(&mut self, now: Instant) {
        for slot in &mut self.slots {
            slot.since = now;
            let soonest = slot.begun.map_or(now, |begun| begun + REDIAL_SOON).max(now);
            slot.due = slot.due.map(|due| due.min(soonest));
        }
    }

    /// The other host has answered an attempt.
    pub fn on_answered(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        slot.dialled = slot.dialled.saturating_sub(1);
        slot.answered += 1;
    }

    /// A strand has joined. At the end that dials, all other attempts of its slot are to be dropped.
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

    /// A strand has ended.
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
            // The host is there, the process is not.
            *waited = Duration(u64::MAX);
        }
    }

    fn on_last_ended(&mut self, end: StrandEnd, now: Instant) {
        // An attempt that was answered shows by itself whether the process lives.
        let waited = if end == StrandEnd::Silence { Duration(0) } else { Duration(u64::MAX) };
        self.state = StreamPhase::Adrift { waited, looked: now };
    }

    /// The other end has said that the stream is over.
    pub fn mark_over(&mut self) {
        self.state = StreamPhase::Over;
    }

    /// Whether the stream is over. Ask after all strands were read and written.
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
                // A look counts for one step at the most, however long the process was stopped before.
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
