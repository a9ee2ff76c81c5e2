//! The counters of a process, as one struct. The engine fills it from its own words, readers of a status page from a copy.
//! Counts nothing itself.

macro_rules! counters {
    ($($kind:ident $name:ident: $help:literal;)*) => {
        /// All counters at one moment. Totals count from the start of the process and never decrease.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct Counters {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Counters {
            /// Every field: name, kind, meaning, and how to read it.
            pub const TABLE: &[CounterField] = &[
                $(CounterField {
                    name: stringify!($name),
                    kind: CounterKind::$kind,
                    help: $help,
                    get: |counters| counters.$name,
                },)*
            ];
        }
    };
}

counters! {
    Total comms_opened: "Connections opened, each end counted where it is.";
    Total comms_closed: "Connections closed.";
    Total messages_sent: "Messages sent: their bytes are out of the sender's buffer.";
    Total bytes_sent: "Bytes of the messages sent.";
    Total messages_received: "Messages received into their buffers.";
    Total bytes_received: "Bytes of the messages received.";
    Gauge messages_pending: "Sends and receives that have begun and not ended.";
    Total messages_failed: "Sends and receives that ended because their connection failed or was closed.";
    Total calls_again: "Calls to send or receive that must be repeated: the peer was not ready, or no room was left.";
    Total requests_failed: "Requests that ended in an error.";
    Total completions_dropped: "Late completions that matched no pending operation, and were dropped.";
    Total streams_refused: "Control streams refused: no proof, a wrong version, or invalid frames.";
    Total opens_refused: "Connections refused: stale handle or wrong nonce.";
    Total attempts_abandoned: "Connection attempts given up, because connect was not called for them any more.";
    Total links_left: "Links that failed and were left, of connections with several links.";
    Total links_taken: "Links of such connections that came up, without the first link of each.";
}

/// Whether a counter can decrease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CounterKind {
    /// It only increases.
    Total,
    /// It increases and decreases.
    Gauge,
}

/// One field of [`Counters`].
#[derive(Clone, Copy, Debug)]
pub struct CounterField {
    /// The field's name.
    pub name: &'static str,
    /// Whether it can decrease.
    pub kind: CounterKind,
    /// Its meaning, in one sentence.
    pub help: &'static str,
    /// Reads its value.
    pub get: fn(&Counters) -> u64,
}

/// The counters in one row of the status page, for the comms that have used the row so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MessageCounts {
    /// Messages begun: sends, and the buffers of receives.
    pub begun: u64,
    /// Messages sent.
    pub sent: u64,
    /// Bytes of the sent messages.
    pub sent_bytes: u64,
    /// Messages received.
    pub received: u64,
    /// Bytes of the received messages.
    pub received_bytes: u64,
    /// Calls that returned without a request, so that the caller has to call again.
    pub again: u64,
    /// Messages that ended without being sent or received.
    pub failed: u64,
}

impl MessageCounts {
    /// Number of counters in a row.
    pub const LEN: usize = 7;

    /// Returns the counters in the order of docs/wire.md.
    #[must_use]
    pub const fn to_array(self) -> [u64; Self::LEN] {
        let Self { begun, sent, sent_bytes, received, received_bytes, again, failed } = self;
        [begun, sent, sent_bytes, received, received_bytes, again, failed]
    }

    /// Reads the counters from words in the order of docs/wire.md.
    #[must_use]
    pub const fn from_array(words: [u64; Self::LEN]) -> Self {
        let [begun, sent, sent_bytes, received, received_bytes, again, failed] = words;
        Self { begun, sent, sent_bytes, received, received_bytes, again, failed }
    }

    /// Returns the counts since the earlier copy `before`.
    #[must_use]
    pub fn counted_since(self, before: Self) -> Self {
        let now = self.to_array();
        let then = before.to_array();
        Self::from_array(core::array::from_fn(|at| now[at].wrapping_sub(then[at])))
    }

    /// Messages that have begun and not ended. A copy that is made while messages end may give 0 too early.
    #[must_use]
    pub const fn pending_messages(self) -> u64 {
        let ended = self.sent.wrapping_add(self.received).wrapping_add(self.failed);
        // In such a copy more messages may have ended than begun. The difference wraps to a number that no process can reach.
        match self.begun.wrapping_sub(ended) {
            pending if pending <= u64::MAX / 2 => pending,
            _ => 0,
        }
    }
}

/// The counters of the process as a whole; each is counted outside the path of messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum ProcessTally {
    /// Comms opened.
    CommsOpened = 0,
    /// Comms closed.
    CommsClosed = 1,
    /// Requests that ended in an error.
    RequestsFailed = 2,
    /// Completions for an unknown operation.
    CompletionsDropped = 3,
    /// Control streams refused.
    StreamsRefused = 4,
    /// Connections refused.
    OpensRefused = 5,
    /// Connection attempts whose caller stopped calling connect.
    AttemptsAbandoned = 6,
    /// Links that carried and were abandoned.
    LinksLeft = 7,
    /// Links that began to carry, without the first link of each comm.
    LinksTaken = 8,
}

impl ProcessTally {
    /// Number of tallies.
    pub const LEN: usize = 9;
}

impl Counters {
    /// Returns the counters of a process, from its tallies and the counts of all its rows.
    #[must_use]
    pub fn from_rows(
        tallies: &[u64; ProcessTally::LEN],
        rows: impl IntoIterator<Item = MessageCounts>,
    ) -> Self {
        let tally = |which: ProcessTally| tallies[which as usize];
        let mut counters = Self {
            comms_opened: tally(ProcessTally::CommsOpened),
            comms_closed: tally(ProcessTally::CommsClosed),
            requests_failed: tally(ProcessTally::RequestsFailed),
            completions_dropped: tally(ProcessTally::CompletionsDropped),
            streams_refused: tally(ProcessTally::StreamsRefused),
            opens_refused: tally(ProcessTally::OpensRefused),
            attempts_abandoned: tally(ProcessTally::AttemptsAbandoned),
            links_left: tally(ProcessTally::LinksLeft),
            links_taken: tally(ProcessTally::LinksTaken),
            ..Self::default()
        };
        for row in rows {
            let add = |to: &mut u64, n: u64| *to = to.wrapping_add(n);
            add(&mut counters.messages_sent, row.sent);
            add(&mut counters.bytes_sent, row.sent_bytes);
            add(&mut counters.messages_received, row.received);
            add(&mut counters.bytes_received, row.received_bytes);
            add(&mut counters.messages_pending, row.pending_messages());
            add(&mut counters.messages_failed, row.failed);
            add(&mut counters.calls_again, row.again);
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums_and_pending_is_never_negative() {
        let one = MessageCounts {
            begun: 5,
            sent: 3,
            sent_bytes: 30,
            failed: 1,
            again: 2,
            ..MessageCounts::default()
        };
        // A copy that was made while a receive ended: `begun` is older than `received`.
        let torn = MessageCounts { begun: 7, received: 8, received_bytes: 800, ..MessageCounts::default() };
        assert_eq!((one.pending_messages(), torn.pending_messages()), (1, 0));
        let counters = Counters::from_rows(&[1, 2, 3, 4, 5, 6, 7, 8, 9], [one, torn]);
        let wanted = Counters {
            comms_opened: 1,
            comms_closed: 2,
            messages_sent: 3,
            bytes_sent: 30,
            messages_received: 8,
            bytes_received: 800,
            messages_pending: 1,
            messages_failed: 1,
            calls_again: 2,
            requests_failed: 3,
            completions_dropped: 4,
            streams_refused: 5,
            opens_refused: 6,
            attempts_abandoned: 7,
            links_left: 8,
            links_taken: 9,
        };
        assert_eq!(counters, wanted);
    }

    #[test]
    fn comm_counts_exclude_earlier_comms_of_the_row() {
        let before = MessageCounts { begun: u64::MAX, sent: 4, ..MessageCounts::default() };
        let now = MessageCounts { begun: 2, sent: 7, ..MessageCounts::default() };
        assert_eq!(
            now.counted_since(before),
            MessageCounts { begun: 3, sent: 3, ..MessageCounts::default() }
        );
        assert_eq!(MessageCounts::from_array(now.to_array()), now);
    }

    #[test]
    fn every_counter_is_in_the_table_once() {
        let tallies = core::array::from_fn(|at| at as u64 + 1);
        let row = MessageCounts::from_array([1000, 10, 11, 12, 13, 14, 15]);
        let counters = Counters::from_rows(&tallies, [row]);
        let mut values: std::vec::Vec<u64> = Counters::TABLE.iter().map(|row| (row.get)(&counters)).collect();
        values.sort_unstable();
        let pending = 1000 - 10 - 12 - 15;
        assert_eq!(values, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, pending]);
    }
}
