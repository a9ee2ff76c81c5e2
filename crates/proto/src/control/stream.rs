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

use crate::mutant::Mutant;
use crate::time::{Duration, Instant};
use crate::wire::strand::STRANDS_MAX;

/// Longest time between two attempts of a slot that no strand carries.
const REDIAL: Duration = Duration::millis(500);

/// The same of a slot that never carried anything, once it was dialled for [`HOPE`] while another slot carries.
const REDIAL_LATER: Duration = Duration::secs(2);

/// How long a slot that never carried anything is dialled as often as others.
const HOPE: Duration = Duration::secs(60);

/// A change of the network starts no attempt of a slot sooner than this after the one before.
const REDIAL_SOON: Duration = Duration::millis(100);

/// Attempts of one slot that nothing has answered: a new one takes the place of the oldest. Each is a descriptor, and an answer
/// may take so many times [`REDIAL`].
const DIALLED_MAX: usize = 2;

/// Attempts of one slot that were answered and have not joined. A stopped process answers by its kernel, which queues them.
const ANSWERED_MAX: usize = 2;

/// Longest time that a stream without joined strands waits for the answer to an attempt.
const LINGER_MAX: Duration = Duration::secs(2);

/// Shortest peer time: kernels count whole seconds.
const SILENCE_MIN: Duration = Duration::secs(1);

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
    state: State,
    silence: Duration,
    slots: [Slot; STRANDS_MAX],
    /// Slots that this end dials.
    dials: usize,
    /// Strands that have joined so far.
    ever_joined: u64,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Opening { since: Instant },
    Carried,
    Adrift { waited: Duration, looked: Instant },
    Over,
}

/// Strands of one slot. At the end that accepts them, all are of the first slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
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
    pub fn dialling(slots: usize, silence: Duration, now: Instant, mutant: Mutant) -> Self {
        let slot = Slot {
            dialled: 0,
            answered: 0,
            joined: 0,
            proven: false,
            since: now,
            begun: None,
            due: Some(now),
        };
        Self {
            state: State::Opening { since: now },
            silence: silence.max(SILENCE_MIN),
            slots: [slot; STRANDS_MAX],
            dials: slots.min(STRANDS_MAX),
            ever_joined: 0,
            mutant,
        }
    }

    /// A stream that this end accepted, by one strand that has not named its stream.
    #[must_use]
    pub fn accepted(silence: Duration, now: Instant, mutant: Mutant) -> Self {
        let mut life = Self::dialling(0, silence, now, mutant);
        life.slots[0].answered = 1;
        life
    }

    /// Strands that both ends have joined.
    #[must_use]
    pub fn joined(&self) -> usize {
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
        self.state == State::Over
    }

    /// The end that dials has learned of more addresses: it dials so many slots from now on.
    pub fn set_slots(&mut self, slots: usize) {
        self.dials = slots.min(STRANDS_MAX);
    }

    /// Longest time between two attempts of a slot that has carried, or of any slot of a stream that nothing carries.
    fn redial(&self) -> Duration {
        Duration(self.silence.0 / 4).min(REDIAL)
    }

    /// Longest time that a stream without joined strands waits for an answer.
    fn linger(&self) -> Duration {
        Duration(self.silence.0 / 2).min(LINGER_MAX)
    }

    /// The next attempt that is due: it counts as begun. One that cannot begin has [ended](Self::on_ended).
    pub fn dial(&mut self, now: Instant) -> Option<DialStep> {
        let at = (0..self.dials).find(|&at| self.due(at).is_some_and(|due| due <= now))?;
        let pace = self.pace(at, now);
        let once = self.mutant.is("oob-begins-once");
        let slot = &mut self.slots[at];
        slot.begun = Some(now);
        slot.due = (!once).then_some(now + pace);
        let drops_oldest = slot.dialled == DIALLED_MAX;
        slot.dialled += usize::from(!drops_oldest);
        Some(DialStep { slot: at, drops_oldest })
    }

    /// When [`StreamLife::dial`] or [`StreamLife::is_over`] has something to say next; `None`: not by time alone.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let dials = (0..self.dials).filter_map(|at| self.due(at)).min();
        let ends = match self.state {
            State::Opening { since } if self.dials > 0 => Some(since + self.silence),
            State::Adrift { looked, .. } => Some(looked + self.step()),
            State::Opening { .. } | State::Carried | State::Over => None,
        };
        dials.into_iter().chain(ends).min()
    }

    /// When a slot is to be dialled.
    fn due(&self, at: usize) -> Option<Instant> {
        let slot = &self.slots[at];
        // Before anything has carried, an attempt that was answered waits for a process that is yet to accept.
        let answered = if matches!(self.state, State::Opening { .. }) { 1 } else { ANSWERED_MAX };
        let waits = slot.joined > 0 || slot.answered >= answered || self.state == State::Over;
        let waits = waits || (slot.dialled > 0 && self.mutant.is("stream-dials-one-at-a-time"));
        slot.due.filter(|_| !waits)
    }

    fn pace(&self, at: usize, now: Instant) -> Duration {
        let slot = &self.slots[at];
        let hopeless = !slot.proven && self.state == State::Carried && now - slot.since >= HOPE;
        if hopeless { REDIAL_LATER } else { self.redial() }
    }

    /// The network has changed: all slots without a strand are dialled soon.
    fn hurry(&mut self, now: Instant) {
        if self.mutant.is("stream-keeps-its-pause") {
            return;
        }
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
            self.state = State::Carried;
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
            self.hurry(now);
            if self.state == State::Carried && self.joined() == 0 {
                self.on_last_ended(end, now);
            }
        } else if let State::Adrift { waited, .. } = &mut self.state
            && proven
            && end == StrandEnd::Refusal
            && !self.mutant.is("stream-ignores-refusals")
        {
            // The host is there, the process is not.
            *waited = Duration(u64::MAX);
        }
    }

    fn on_last_ended(&mut self, end: StrandEnd, now: Instant) {
        let lingers = match end {
            StrandEnd::Silence => !self.mutant.is("stream-never-lingers"),
            StrandEnd::Refusal => self.mutant.is("stream-lingers-when-ended"),
        };
        // An attempt that was answered shows by itself whether the process lives.
        let waited = if lingers { Duration(0) } else { Duration(u64::MAX) };
        self.state = State::Adrift { waited, looked: now };
    }

    /// The other end has said that the stream is over.
    pub fn end(&mut self) {
        self.state = State::Over;
    }

    /// Whether the stream is over. Ask after all strands were read and written.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let joined_only = self.mutant.is("stream-counts-joined-only");
        let answered = self.slots.iter().any(|slot| slot.answered > 0);
        let silence = self.silence;
        let linger = self.linger();
        let step = self.step();
        let over = match &mut self.state {
            State::Opening { since } => {
                let dialled = self.slots.iter().any(|slot| slot.dialled > 0);
                !answered && (!dialled || now - *since > silence)
            }
            State::Carried => false,
            State::Adrift { .. } if answered && !joined_only => false,
            State::Adrift { waited, looked } => {
                // A look counts for one step at the most, however long the process was stopped before.
                waited.0 = waited.0.saturating_add((now - *looked).min(step).0);
                *looked = now;
                *waited >= linger || joined_only
            }
            State::Over => true,
        };
        if over {
            self.state = State::Over;
        }
        over
    }

    fn step(&self) -> Duration {
        Duration(self.linger().0 / LOOKS)
    }
}

#[cfg(test)]
mod tests;
