//! The control streams of a process, and the connections that carry them: one word of the head of a status page.

/// Control streams to other hosts. Those inside the host, which no network carries, do not count.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ControlStreams {
    /// How many there are.
    pub streams: u16,
    /// The connections of the stream that has the fewest; 0 where there is no stream.
    pub fewest: u16,
    /// The connections of all of them. One counts as soon as both ends have joined it, until this end gives it up.
    pub connections: u32,
}

impl ControlStreams {
    /// Counts a stream with so many connections.
    pub fn add_stream(&mut self, connections: usize) {
        let of_one = u16::try_from(connections).unwrap_or(u16::MAX);
        self.fewest = if self.streams == 0 { of_one } else { self.fewest.min(of_one) };
        self.streams = self.streams.saturating_add(1);
        self.connections = self.connections.saturating_add(of_one.into());
    }

    /// The word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let Self { streams, fewest, connections } = self;
        u64::from(streams) | u64::from(fewest) << 16 | u64::from(connections) << 32
    }

    /// Reads it.
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
