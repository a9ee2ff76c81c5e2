//! One descriptor of a ring: sixteen little-endian words (docs/wire.md, "Software NIC"), of which the first eight define
//! it. Written by the ring's producer and parsed by its consumer from a private copy, into types that admit only valid
//! values. For any input the parser returns a record or `None`.

use crate::copy_claim::BYTES_MAX;

/// Most payload bytes inside a descriptor.
pub(crate) const INLINE: usize = 96;
/// [`INLINE`] in the type of the length field.
pub(crate) const INLINE_U32: u32 = 96;
/// Words of a descriptor that define it.
pub(crate) const WORDS: usize = 8;
/// Offset of inline payload in bytes. Its part inside the first words is not parsed as words.
pub(crate) const INLINE_AT: usize = 32;

mod opcode {
    pub(super) const WRITE: u64 = 1;
    pub(super) const SEND: u64 = 2;
    pub(super) const READ: u64 = 3;
    pub(super) const ADD: u64 = 4;
    pub(super) const SWAP: u64 = 5;
    pub(super) const REPLY: u64 = 6;
    pub(super) const GRANT: u64 = 7;
    pub(super) const MATCHED: u64 = 8;
    pub(super) const REVOKE: u64 = 9;
    pub(super) const DECLINE: u64 = 10;
}

mod form {
    pub(super) const INLINE: u64 = 0;
    pub(super) const STAGED: u64 = 1;
    pub(super) const PLACED: u64 = 2;
    pub(super) const PULLED: u64 = 3;
    pub(super) const SHARED: u64 = 4;
    pub(super) const STREAMED: u64 = 5;
}

const LAST: u64 = 1;
const IMM: u64 = 2;
const AWAITED: u64 = 4;

/// The request of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecordVerb {
    /// Write at an address of a region.
    Write { key: u64, addr: u64 },
    /// Bytes of a send, from `offset` of it.
    Send { offset: u64 },
    /// Bytes of the reply to a read or an atomic, from `offset` of the reply.
    Reply { id: u64, offset: u64 },
    /// Bytes of a matched send for a grant, from `offset` of it.
    Matched { grant: u64, offset: u64 },
    /// Requests `len` bytes.
    Read { key: u64, addr: u64, len: u64, id: u64 },
    /// Adds to a word.
    Add { key: u64, addr: u64, add: u64, id: u64 },
    /// Compares and swaps a word.
    Swap { key: u64, addr: u64, expect: u64, swap: u64, id: u64 },
    /// Offers memory of `len` bytes to the matched send with this key.
    Grant { key: u64, len: u64, id: u64 },
    /// Revokes the grant of that id, unless a send has it.
    Revoke { key: u64, id: u64 },
    /// The send that has a grant is longer than it: no bytes are transferred.
    Decline { grant: u64 },
}

/// Where the bytes of a record are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecordPayload {
    /// In the descriptor.
    Inline { len: u32 },
    /// In the payload ring.
    Staged { offset: u32, len: u32 },
    /// In a region of the same fabric, named by its local key.
    Placed { nic: u32, key: u64, offset: u64, len: u64 },
    /// In the sender's memory; if `shared`, the sender copies a part.
    Pulled { addr: u64, len: u64, shared: bool },
    /// Behind the record, in a stream; if `landed`, already at their destination.
    Streamed { len: u64, landed: bool },
}

impl RecordPayload {
    /// Bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match *self {
            Self::Inline { len } | Self::Staged { len, .. } => u64::from(len),
            Self::Placed { len, .. } | Self::Pulled { len, .. } | Self::Streamed { len, .. } => len,
        }
    }
}

/// A parsed descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RingRecord {
    /// Its request.
    pub(crate) verb: RecordVerb,
    /// Its bytes.
    pub(crate) payload: RecordPayload,
    /// Ends the operation.
    pub(crate) last: bool,
    /// The sender waits for the acknowledgement of its execution.
    pub(crate) awaited: bool,
    /// Delivered when the operation ends.
    pub(crate) imm: Option<u32>,
}

impl RingRecord {
    /// Parses the words after the stamp. `words[0]`, the stamp, is ignored.
    #[inline]
    pub(crate) fn parse(words: &[u64; WORDS]) -> Option<Self> {
        Self::parse_words::<false>(words)
    }

    /// Returns the record, its key and its address, if it is a write with inline bytes, as most are. The result is that of
    /// [`RingRecord::parse`], at less cost.
    #[inline(always)]
    pub(crate) fn small_write(words: &[u64; WORDS]) -> Option<(Self, u64, u64)> {
        let head = words[1];
        let key = words[2];
        let addr = words[3];
        let flags = (head >> 8) & 0xff;
        let inline = (head >> 24) & 0xff;
        let is_write = head & 0xff == opcode::WRITE && (head >> 16) & 0xff == form::INLINE;
        if !is_write || flags & !(LAST | IMM | AWAITED) != 0 || inline > INLINE as u64 {
            return None;
        }
        let imm = (flags & IMM != 0).then_some((head >> 32) as u32);
        let verb = RecordVerb::Write { key, addr };
        let payload = RecordPayload::Inline { len: inline as u32 };
        let record = Self { verb, payload, last: flags & LAST != 0, awaited: flags & AWAITED != 0, imm };
        Some((record, key, addr))
    }

    /// Parses the same words at the head of a frame of a stream, where all bytes are behind the record.
    #[inline]
    pub(crate) fn parse_streamed(words: &[u64; WORDS]) -> Option<Self> {
        Self::parse_words::<true>(words)
    }

    #[inline]
    fn parse_words<const STREAM: bool>(words: &[u64; WORDS]) -> Option<Self> {
        let head = words[1];
        let flags = (head >> 8) & 0xff;
        let inline = (head >> 24) & 0xff;
        if flags & !(LAST | IMM | AWAITED) != 0 || inline > INLINE as u64 {
            return None;
        }
        let form = (head >> 16) & 0xff;
        let payload = match form {
            form::INLINE if !STREAM || inline == 0 => RecordPayload::Inline { len: inline as u32 },
            _ if inline != 0 => return None,
            form::STREAMED if STREAM => RecordPayload::Streamed { len: words[4], landed: false },
            _ if STREAM => return None,
            form::STAGED => RecordPayload::Staged { offset: words[4] as u32, len: (words[4] >> 32) as u32 },
            form::PLACED => RecordPayload::Placed {
                nic: u32::try_from(words[7]).ok()?,
                key: words[4],
                offset: words[5],
                len: copied_len(words[6])?,
            },
            form::PULLED | form::SHARED => RecordPayload::Pulled {
                addr: words[4],
                len: copied_len(words[5])?,
                shared: form == form::SHARED,
            },
            _ => return None,
        };
        let key = words[2];
        let addr = words[3];
        let verb = match head & 0xff {
            // Bytes of a stream are always behind the record.
            opcode::WRITE | opcode::SEND | opcode::REPLY | opcode::MATCHED
                if STREAM && form == form::INLINE =>
            {
                return None;
            }
            opcode::WRITE => RecordVerb::Write { key, addr },
            opcode::SEND => RecordVerb::Send { offset: addr },
            opcode::REPLY => RecordVerb::Reply { id: key, offset: addr },
            opcode::MATCHED => RecordVerb::Matched { grant: key, offset: addr },
            // The remaining verbs carry no payload: the words are the request.
            _ if form != form::INLINE || inline != 0 => return None,
            opcode::READ => RecordVerb::Read { key, addr, len: words[4], id: words[5] },
            opcode::ADD => RecordVerb::Add { key, addr, add: words[4], id: words[5] },
            opcode::SWAP => RecordVerb::Swap { key, addr, expect: words[4], id: words[5], swap: words[6] },
            opcode::GRANT => RecordVerb::Grant { key, len: addr, id: words[4] },
            opcode::REVOKE if addr == 0 => RecordVerb::Revoke { key, id: words[4] },
            opcode::DECLINE if addr == 0 => RecordVerb::Decline { grant: key },
            _ => return None,
        };
        let imm = (flags & IMM != 0).then_some((head >> 32) as u32);
        Some(Self { verb, payload, last: flags & LAST != 0, awaited: flags & AWAITED != 0, imm })
    }

    /// Whether the sender of a descriptor that parses waits for the acknowledgement of its execution.
    #[inline]
    pub(crate) fn awaits_ack(words: &[u64; WORDS]) -> bool {
        words[1] >> 8 & AWAITED != 0
    }

    /// Payload bytes of a descriptor that parses and whose payload is not inline.
    #[inline]
    pub(crate) fn payload_bytes(words: &[u64; WORDS]) -> u64 {
        match (words[1] >> 16) & 0xff {
            form::STAGED => words[4] >> 32,
            form::PLACED => words[6],
            _ => words[5],
        }
    }

    /// Encodes words 1 to 7 of the descriptor; inline payload overwrites the last four.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 7] {
        let mut a = 0;
        let mut b = 0;
        let mut c = 0;
        let mut d = 0;
        let (form, inline) = match self.payload {
            RecordPayload::Inline { len } => (form::INLINE, u64::from(len)),
            RecordPayload::Staged { offset, len } => {
                a = u64::from(offset) | u64::from(len) << 32;
                (form::STAGED, 0)
            }
            RecordPayload::Placed { nic, key, offset, len } => {
                (a, b, c, d) = (key, offset, len, u64::from(nic));
                (form::PLACED, 0)
            }
            RecordPayload::Pulled { addr, len, shared } => {
                (a, b) = (addr, len);
                (if shared { form::SHARED } else { form::PULLED }, 0)
            }
            RecordPayload::Streamed { len, .. } => {
                a = len;
                (form::STREAMED, 0)
            }
        };
        let (opcode, key, addr) = match self.verb {
            RecordVerb::Write { key, addr } => (opcode::WRITE, key, addr),
            RecordVerb::Send { offset } => (opcode::SEND, 0, offset),
            RecordVerb::Reply { id, offset } => (opcode::REPLY, id, offset),
            RecordVerb::Matched { grant, offset } => (opcode::MATCHED, grant, offset),
            RecordVerb::Read { key, addr, len, id } => {
                (a, b) = (len, id);
                (opcode::READ, key, addr)
            }
            RecordVerb::Add { key, addr, add, id } => {
                (a, b) = (add, id);
                (opcode::ADD, key, addr)
            }
            RecordVerb::Swap { key, addr, expect, swap, id } => {
                (a, b, c) = (expect, id, swap);
                (opcode::SWAP, key, addr)
            }
            RecordVerb::Grant { key, len, id } => {
                a = id;
                (opcode::GRANT, key, len)
            }
            RecordVerb::Revoke { key, id } => {
                a = id;
                (opcode::REVOKE, key, 0)
            }
            RecordVerb::Decline { grant } => (opcode::DECLINE, grant, 0),
        };
        let flags = if self.last { LAST } else { 0 }
            | if self.imm.is_some() { IMM } else { 0 }
            | if self.awaited { AWAITED } else { 0 };
        let imm = u64::from(self.imm.unwrap_or(0));
        [opcode | flags << 8 | form << 16 | inline << 24 | imm << 32, key, addr, a, b, c, d]
    }
}

/// Returns the length of a payload that the reader is to copy itself, unless it is longer than any writer names.
#[inline]
fn copied_len(len: u64) -> Option<u64> {
    (len <= BYTES_MAX).then_some(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BYTES_MAX, RecordPayload, RecordVerb, RingRecord, WORDS};

    fn with(words: [u64; 7]) -> [u64; WORDS] {
        let mut all = [0; WORDS];
        all[1..].copy_from_slice(&words);
        all
    }

    #[test]
    fn the_first_line_has_the_documented_layout() {
        let verb = RecordVerb::Write { key: 0x1122, addr: 0x3344 };
        let payload = RecordPayload::Staged { offset: 0x55, len: 0x66 };
        let record = RingRecord { verb, payload, last: true, awaited: false, imm: Some(0x7788_99aa) };
        assert_eq!(record.to_words(), [0x7788_99aa_0001_0301, 0x1122, 0x3344, 0x66_0000_0055, 0, 0, 0]);
    }

    fn payloads() -> impl Strategy<Value = RecordPayload> {
        prop_oneof![
            (0u32..=96).prop_map(|len| RecordPayload::Inline { len }),
            any::<(u32, u32)>().prop_map(|(offset, len)| RecordPayload::Staged { offset, len }),
            (any::<(u32, u64, u64)>(), 0..=BYTES_MAX)
                .prop_map(|((nic, key, offset), len)| RecordPayload::Placed { nic, key, offset, len }),
            (any::<(u64, bool)>(), 0..=BYTES_MAX).prop_map(|((addr, shared), len)| RecordPayload::Pulled {
                addr,
                len,
                shared
            }),
        ]
    }

    proptest! {
        #[test]
        fn any_words_are_a_record_or_nothing(words: [u64; WORDS]) {
            let _ = RingRecord::parse(&words);
        }

        #[test]
        fn parsed_records_are_written_back(
            mut words: [u64; WORDS],
            op in 0u64..12,
            form in 0u64..6,
            flags in 0u64..8,
            long: bool,
        ) {
            if !long {
                words[5] %= BYTES_MAX + 1;
                words[6] %= BYTES_MAX + 1;
            }
            words[1] = op | flags << 8 | form << 16 | (words[1] & 0x7f00_0000);
            let small = RingRecord::small_write(&words);
            if let Some(record) = RingRecord::parse(&words) {
                let verb = if let (RecordVerb::Write { key, addr }, RecordPayload::Inline { .. }) = (record.verb, record.payload) {
                    Some((record, key, addr))
                } else {
                    None
                };
                prop_assert_eq!(small, verb);
                prop_assert_eq!(RingRecord::parse(&with(record.to_words())), Some(record));
            } else {
                prop_assert_eq!(small, None);
            }
        }

        #[test]
        fn records_longer_than_a_piece_are_refused(len in BYTES_MAX + 1.., key: u64, form in 2u64..=4) {
            let (length, other) = if form == 2 { (6, 7) } else { (5, 6) };
            let mut words = [0, 1 | form << 16, key, 0, 0, 0, 0, 0];
            (words[length], words[other]) = (len, 0);
            prop_assert_eq!(RingRecord::parse(&words), None);
            words[length] = BYTES_MAX;
            prop_assert!(RingRecord::parse(&words).is_some());
        }

        #[test]
        fn records_with_payload_round_trip(payload in payloads(), a: u64, b: u64, last: bool, imm: Option<u32>) {
            for verb in [
                RecordVerb::Write { key: a, addr: b },
                RecordVerb::Send { offset: b },
                RecordVerb::Reply { id: a, offset: b },
                RecordVerb::Matched { grant: a, offset: b },
            ] {
                let record = RingRecord { verb, payload, last, awaited: !last, imm };
                prop_assert_eq!(RingRecord::parse(&with(record.to_words())), Some(record));
            }
        }

        #[test]
        fn requests_round_trip(key: u64, addr: u64, x: u64, y: u64, id: u64) {
            for verb in [
                RecordVerb::Read { key, addr, len: x, id },
                RecordVerb::Add { key, addr, add: x, id },
                RecordVerb::Swap { key, addr, expect: x, swap: y, id },
                RecordVerb::Grant { key, len: x, id },
                RecordVerb::Revoke { key, id },
                RecordVerb::Decline { grant: id },
            ] {
                let record = RingRecord { verb, payload: RecordPayload::Inline { len: 0 }, last: true, awaited: true, imm: None };
                prop_assert_eq!(RingRecord::parse(&with(record.to_words())), Some(record));
            }
        }
    }
}
