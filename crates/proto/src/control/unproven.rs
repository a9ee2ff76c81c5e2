//! Control streams that peers have opened and not authenticated yet: any process that finds the listener can open one. The list determines
//! which streams the accepting code reads and ends; it reads or ends no stream itself.

use alloc::collections::VecDeque;

use crate::limits::{UNPROVEN_READS_MAX, UNPROVEN_STREAMS_MAX, UNPROVEN_TIME};
use crate::slots::SlotId;
use crate::time::Instant;

/// The unproven streams of one listener, oldest first.
///
/// A stream is removed when it has shown a secret that only an invited peer has, when it ends, or after [`UNPROVEN_TIME`]. The oldest one is
/// also removed when there are more than [`UNPROVEN_STREAMS_MAX`]. An invited peer shows the secret with its second frame, so a flood keeps it
/// out only if it is faster than the peer's first round trip.
#[derive(Debug, Default)]
pub struct UnprovenStreams {
    streams: VecDeque<(SlotId, Instant)>,
    /// Index of the first stream of the next reads.
    turn: usize,
}

impl UnprovenStreams {
    /// Returns an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { streams: VecDeque::new(), turn: 0 }
    }

    /// Adds a stream that was accepted at `now`; successive times never decrease. Returns the stream to end if there are too many.
    pub fn add_stream(&mut self, stream: SlotId, now: Instant) -> Option<SlotId> {
        self.streams.push_back((stream, now));
        if self.streams.len() <= UNPROVEN_STREAMS_MAX {
            return None;
        }
        self.streams.pop_front().map(|(oldest, _)| oldest)
    }

    /// Removes a stream that has ended or has proved itself.
    pub fn remove(&mut self, stream: SlotId) {
        if let Some(at) = self.streams.iter().position(|(unproven, _)| *unproven == stream) {
            self.streams.remove(at);
        }
    }

    /// Returns the streams to read next, at most [`UNPROVEN_READS_MAX`] of them in rotation. Each read is a system call, and silent streams must not
    /// use the time of proven ones.
    pub fn next_reads(&mut self) -> impl Iterator<Item = SlotId> {
        let count = self.streams.len();
        let first = self.turn;
        let reads = count.min(UNPROVEN_READS_MAX);
        self.turn = if count == 0 { 0 } else { (first + reads) % count };
        let stream = move |at| self.streams.get((first + at) % count).map(|(stream, _)| *stream);
        (0..reads).filter_map(stream)
    }

    /// Returns the latest streams, at most `count`: an invited peer has often sent its proof already.
    pub fn newest_streams(&self, count: usize) -> impl Iterator<Item = SlotId> {
        self.streams.iter().rev().take(count).map(|(stream, _)| *stream)
    }

    /// Returns the streams that are older than [`UNPROVEN_TIME`] at `now`: the caller reads them once more before it ends them.
    pub fn expired_streams(&self, now: Instant) -> impl Iterator<Item = SlotId> {
        self.streams
            .iter()
            .take_while(move |(_, since)| now - *since > UNPROVEN_TIME)
            .map(|(stream, _)| *stream)
    }

    /// Removes and returns a stream that is older than [`UNPROVEN_TIME`] at `now`.
    pub fn take_expired(&mut self, now: Instant) -> Option<SlotId> {
        let is_expired = self.streams.front().is_some_and(|(_, since)| now - *since > UNPROVEN_TIME);
        if !is_expired {
            return None;
        }
        self.streams.pop_front().map(|(stream, _)| stream)
    }

    /// Number of unproven streams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::*;

    fn stream(number: u64) -> SlotId {
        SlotId::from_bits(1 << 32 | number)
    }

    #[test]
    fn stream_beyond_the_limit_evicts_the_oldest() {
        let mut streams = UnprovenStreams::new();
        let most = UNPROVEN_STREAMS_MAX as u64;
        assert!((0..most).all(|number| streams.add_stream(stream(number), Instant(number)).is_none()));
        streams.remove(stream(0));
        assert_eq!(streams.add_stream(stream(most), Instant(most)), None, "a proven stream was counted");
        assert_eq!(streams.add_stream(stream(most + 1), Instant(most)), Some(stream(1)));
        assert_eq!(streams.len(), UNPROVEN_STREAMS_MAX);
    }

    #[test]
    fn streams_are_read_in_rotation() {
        let mut streams = UnprovenStreams::new();
        assert_eq!(streams.next_reads().count(), 0);
        let count = 2 * UNPROVEN_READS_MAX + 3;
        assert!(
            (0..count as u64).all(|number| streams.add_stream(stream(number), Instant(number)).is_none())
        );
        let turns: Vec<Vec<_>> = (0..3).map(|_| streams.next_reads().collect()).collect();
        assert!(turns.iter().all(|turn| turn.len() == UNPROVEN_READS_MAX));
        let read: BTreeSet<_> = turns.concat().into_iter().map(SlotId::to_bits).collect();
        assert_eq!(read.len(), count, "a stream was not read");
        (0..count as u64 - 1).for_each(|number| streams.remove(stream(number)));
        assert_eq!(streams.next_reads().collect::<Vec<_>>(), [stream(count as u64 - 1)]);
    }

    #[test]
    fn the_newest_streams_are_the_last_added() {
        let mut streams = UnprovenStreams::new();
        assert!((0..9).all(|number| streams.add_stream(stream(number), Instant(number)).is_none()));
        assert_eq!(streams.newest_streams(2).collect::<Vec<_>>(), [stream(8), stream(7)]);
        assert_eq!((streams.newest_streams(0).count(), streams.newest_streams(99).count()), (0, 9));
    }

    #[test]
    fn a_stream_expires_after_its_time_and_once() {
        let mut streams = UnprovenStreams::new();
        streams.add_stream(stream(1), Instant(5));
        streams.add_stream(stream(2), Instant(7));
        let end = Instant(5) + UNPROVEN_TIME;
        assert_eq!(streams.take_expired(end), None);
        assert_eq!(streams.expired_streams(Instant(end.0 + 1)).collect::<Vec<_>>(), [stream(1)]);
        assert_eq!(streams.take_expired(Instant(end.0 + 1)), Some(stream(1)));
        assert_eq!(streams.take_expired(Instant(end.0 + 1)), None);
        streams.remove(stream(2));
        assert!(streams.is_empty());
        assert_eq!(streams.take_expired(Instant(u64::MAX)), None);
    }
}
