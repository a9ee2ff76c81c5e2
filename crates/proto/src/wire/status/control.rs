//! The control streams of a process and their connections: one word of the head of a status page.

/// Control streams to other hosts. Streams inside the host do not count, as no network carries them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ControlStreams {
    /// Bits 0-15: number of streams.
    pub streams: u16,
    /// Bits 16-31: number of connections of the stream that has the fewest; 0 without a stream.
    pub fewest: u16,
    /// Bits 32-63: number of connections of all streams. A connection counts from when both ends have joined it until this end abandons it.
    pub connections: u32,
}

impl ControlStreams {
    /// Counts a stream with that many connections.
    pub fn add_stream(&mut self, connections: usize) {
        let of_one = u16::try_from(connections).unwrap_or(u16::MAX);
        self.fewest = if self.streams == 0 { of_one } else { self.fewest.min(of_one) };
        self.streams = self.streams.saturating_add(1);
        self.connections = self.connections.saturating_add(of_one.into());
    }

    /// Returns the word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let Self { streams, fewest, connections } = self;
        u64::from(streams) | u64::from(fewest) << 16 | u64::from(connections) << 32
    }

    /// Parses the word.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Self { streams: word as u16, fewest: (word >> 16) as u16, connections: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_with_their_connections() {
        let mut control = ControlStreams::default();
        assert_eq!(control.to_word(), 0);
        for (connections, seen) in [(3, (1, 3, 3)), (4, (2, 3, 7)), (1, (3, 1, 8)), (0, (4, 0, 8))] {
            control.add_stream(connections);
            assert_eq!((control.streams, control.fewest, control.connections), seen);
            assert_eq!(ControlStreams::from_word(control.to_word()), control);
        }
    }
}
