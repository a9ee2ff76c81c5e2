//! The buffer of a process's events until they are written: of a fixed size, filled once from the front by
//! any thread that has an event. Made by a front end that writes a trace, filled by `rail`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use trunkline_mem::OutOfMemory;
use trunkline_proto::reserve::try_filled_with;
use trunkline_proto::time::Instant;

use super::event::{RailEvent, WORDS};

type TraceClock = Box<dyn Fn() -> Instant + Send + Sync>;

/// Records events of one process, up to a limit; later events are only counted.
pub struct EventRecorder {
    clock: TraceClock,
    start: Instant,
    slots: Box<[[AtomicU64; WORDS]]>,
    /// Events so far, including those that found no room.
    count: AtomicU64,
    rails: AtomicU32,
}

impl EventRecorder {
    /// Creates a recorder with room for `limit` events of 40 bytes. All processes of the host must share the clock, and reading it
    /// should be cheap.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_new(
        limit: usize,
        clock: impl Fn() -> Instant + Send + Sync + 'static,
    ) -> Result<Self, OutOfMemory> {
        let start = clock();
        // Written here, so that recording causes no page faults later.
        let slots = try_filled_with(limit, || std::array::from_fn(|_| AtomicU64::new(0)))?;
        let count = AtomicU64::new(0);
        let rails = AtomicU32::new(0);
        Ok(Self { clock: Box::new(clock), start, slots, count, rails })
    }

    /// Creates a recorder for tests.
    ///
    /// # Panics
    /// Without memory.
    #[cfg(any(test, feature = "test-utils"))]
    #[expect(clippy::expect_used, reason = "for tests alone")]
    pub fn new(limit: usize, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self::try_new(limit, clock).expect("memory for events")
    }

    /// Returns the current time of its clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Returns the time of its creation, where the times of a file begin.
    #[must_use]
    pub fn start_time(&self) -> Instant {
        self.start
    }

    /// Returns how many events there were, including lost ones.
    #[must_use]
    pub fn event_count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns how many events found no room.
    #[must_use]
    pub fn lost_count(&self) -> u64 {
        self.event_count().saturating_sub(self.slots.len() as u64)
    }

    /// Returns a number for one more rail.
    pub(super) fn add_rail(&self) -> u32 {
        self.rails.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps an event, if there is room.
    pub(super) fn put_event(&self, event: RailEvent) {
        let at = self.count.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = usize::try_from(at).ok().and_then(|at| self.slots.get(at)) else { return };
        let words = event.to_words();
        let last = WORDS - 1;
        let first = words.iter().zip(slot);
        first.take(last).for_each(|(&word, place)| place.store(word, Ordering::Relaxed));
        // The release makes the other words visible to a reader that sees this one.
        slot[last].store(words[last], Ordering::Release);
    }

    /// Returns all kept events, in the order in which each rail saw them, without those that are being stored at the moment.
    pub(super) fn recorded_events(&self) -> Vec<RailEvent> {
        let kept = usize::try_from(self.event_count()).unwrap_or(usize::MAX).min(self.slots.len());
        let read = |slot: &[AtomicU64; WORDS]| {
            let last = slot[WORDS - 1].load(Ordering::Acquire);
            let mut words = [0; WORDS];
            words.iter_mut().zip(slot).for_each(|(word, place)| *word = place.load(Ordering::Relaxed));
            words[WORDS - 1] = last;
            RailEvent::from_words(words)
        };
        self.slots[..kept].iter().filter_map(read).collect()
    }
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({} of {})", self.event_count(), self.slots.len())
    }
}
