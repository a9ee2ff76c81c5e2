//! Control streams that others have opened and that have shown nothing yet: anybody who finds the listener can open one. Asked by those who
//! accept streams; it ends none itself.

use alloc::collections::VecDeque;

use crate::limits::{UNPROVEN_STREAMS_MAX, UNPROVEN_TIME};
use crate::slots::SlotId;
use crate::time::Instant;

/// The streams of one listener, oldest first.
///
/// A stream leaves when it has shown something that only an invited peer knows, when it ends, when it has been here for
/// [`UNPROVEN_TIME`], or as the oldest when there are more than [`UNPROVEN_STREAMS_MAX`]. An invited peer shows that with its second frame,
/// so a flood has to be faster than the peer's first round trip to keep it out.
#[derive(Debug, Default)]
pub struct UnprovenStreams(VecDeque<(SlotId, Instant)>);

impl UnprovenStreams {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Adds a stream that was accepted at `now`, which never goes back. Returns the one to end for it, if there are too many.
    pub fn add(&mut self, stream: SlotId, now: Instant) -> Option<SlotId> {
        self.0.push_back((stream, now));
        if self.0.len() <= UNPROVEN_STREAMS_MAX {
            return None;
        }
        self.0.pop_front().map(|(oldest, _)| oldest)
    }

    /// Forgets a stream that has ended, or has shown what it should.
    pub fn remove(&mut self, stream: SlotId) {
        if let Some(at) = self.0.iter().position(|(unproven, _)| *unproven == stream) {
            self.0.remove(at);
        }
    }

    /// Takes a stream whose time is over.
    pub fn take_expired(&mut self, now: Instant) -> Option<SlotId> {
        let is_expired = self.0.front().is_some_and(|(_, since)| now - *since > UNPROVEN_TIME);
        if !is_expired {
            return None;
        }
        self.0.pop_front().map(|(stream, _)| stream)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(number: u64) -> SlotId {
        SlotId::from_bits(1 << 32 | number)
    }

    #[test]
    fn the_oldest_makes_room_for_one_too_many() {
        let mut streams = UnprovenStreams::new();
        let most = UNPROVEN_STREAMS_MAX as u64;
        assert!((0..most).all(|number| streams.add(stream(number), Instant(number)).is_none()));
        streams.remove(stream(0));
        assert_eq!(streams.add(stream(most), Instant(most)), None, "one had shown what it should");
        assert_eq!(streams.add(stream(most + 1), Instant(most)), Some(stream(1)));
        assert_eq!(streams.len(), UNPROVEN_STREAMS_MAX);
    }

    #[test]
    fn a_stream_expires_after_its_time_and_once() {
        let mut streams = UnprovenStreams::new();
        streams.add(stream(1), Instant(5));
        streams.add(stream(2), Instant(7));
        let end = Instant(5) + UNPROVEN_TIME;
        assert_eq!(streams.take_expired(end), None);
        assert_eq!(streams.take_expired(Instant(end.0 + 1)), Some(stream(1)));
        assert_eq!(streams.take_expired(Instant(end.0 + 1)), None);
        streams.remove(stream(2));
        assert!(streams.is_empty());
        assert_eq!(streams.take_expired(Instant(u64::MAX)), None);
    }
}
