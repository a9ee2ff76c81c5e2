//! The head of a frame: 64 bytes, eight little-endian words. Six are those of a ring's descriptor, the other two are
//! the sender's positions. Parsed into types that admit only valid values.

use crate::record::{RingRecord, WORDS};

/// Bytes of a head.
pub(crate) const BYTES: usize = 64;
/// Words of a record in a head.
const RECORD_WORDS: usize = 6;

/// First byte of a head without a record.
const ACK: u64 = 0xa0;
const NAK: u64 = 0xa1;

/// The content of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FrameBody {
    /// Work, with its payload behind the head.
    Record(RingRecord),
    /// Only the sender's positions.
    Ack,
    /// The sender refused the record at a position; nothing follows.
    Nak {
        /// Why.
        code: u64,
        /// Position of the record.
        at: u64,
    },
}

/// A head.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TcpFrame {
    /// Its content.
    pub(crate) body: FrameBody,
    /// Position up to which the sender has executed.
    pub(crate) executed: u64,
    /// Receives the sender has posted.
    pub(crate) posted: u64,
}

impl TcpFrame {
    /// The head's bytes.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let words = match self.body {
            FrameBody::Record(record) => record.to_words(),
            FrameBody::Ack => [ACK, 0, 0, 0, 0, 0, 0],
            FrameBody::Nak { code, at } => [NAK, code, at, 0, 0, 0, 0],
        };
        let words = words[..RECORD_WORDS].iter().chain([&self.executed, &self.posted]);
        let mut out = [0; BYTES];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Parses a head.
    #[inline]
    pub(crate) fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let word = |index: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[8 * index..8 * (index + 1)]);
            u64::from_le_bytes(eight)
        };
        let executed = word(RECORD_WORDS);
        let posted = word(RECORD_WORDS + 1);
        // The last word of a descriptor means something only on the wire inside a process.
        let mut words = [0; WORDS];
        words[1..=RECORD_WORDS].iter_mut().enumerate().for_each(|(index, to)| *to = word(index));
        let body = match words[1] {
            ACK if words[2..] == [0; WORDS - 2] => FrameBody::Ack,
            NAK if words[4..] == [0; WORDS - 4] => FrameBody::Nak { code: words[2], at: words[3] },
            _ => FrameBody::Record(RingRecord::parse_streamed(&words)?),
        };
        Some(Self { body, executed, posted })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BYTES, FrameBody, TcpFrame};
    use crate::record::{RecordPayload, RecordVerb, RingRecord};

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_nothing(bytes: [[u8; 32]; 2], op in 0u8..12, flags in 0u8..10, form in 0u8..8) {
            let mut head = [0; BYTES];
            head[..32].copy_from_slice(&bytes[0]);
            head[32..].copy_from_slice(&bytes[1]);
            let _ = TcpFrame::parse(&head);
            (head[0], head[1], head[2], head[3]) = (op, flags, form, 0);
            if let Some(frame) = TcpFrame::parse(&head) {
                prop_assert_eq!(TcpFrame::parse(&frame.to_bytes()), Some(frame));
            }
        }

        #[test]
        fn frames_round_trip(key: u64, addr: u64, len: u64, id: u64, last: bool, imm: Option<u32>, executed: u64, posted: u64) {
            let payload = RecordPayload::Streamed { len, landed: false };
            let none = RecordPayload::Inline { len: 0 };
            let record = |verb, payload| FrameBody::Record(RingRecord { verb, payload, last, awaited: !last, imm });
            for body in [
                FrameBody::Ack,
                FrameBody::Nak { code: key, at: addr },
                record(RecordVerb::Write { key, addr }, payload),
                record(RecordVerb::Send { offset: addr }, payload),
                record(RecordVerb::Reply { id, offset: addr }, payload),
                record(RecordVerb::Matched { grant: id, offset: addr }, payload),
                record(RecordVerb::Read { key, addr, len, id }, none),
                record(RecordVerb::Add { key, addr, add: len, id }, none),
                record(RecordVerb::Swap { key, addr, expect: len, swap: posted, id }, none),
                record(RecordVerb::Grant { key, len, id }, none),
                record(RecordVerb::Revoke { key, id }, none),
                record(RecordVerb::Decline { grant: id }, none),
            ] {
                let frame = TcpFrame { body, executed, posted };
                prop_assert_eq!(TcpFrame::parse(&frame.to_bytes()), Some(frame));
            }
        }

        #[test]
        fn records_of_rings_are_refused_in_frames(form in prop_oneof![0u8..5, 6u8..=255], op in prop_oneof![1u8..3, Just(6u8), Just(8)]) {
            let mut head = [0; BYTES];
            (head[0], head[1], head[2]) = (op, 1, form);
            prop_assert_eq!(TcpFrame::parse(&head), None);
        }
    }
}
