//! The protocol between endpoints, version 1: frames of 56 bytes, little-endian, followed by the payload if there is
//! one. `outgoing.rs` and `incoming.rs` send and receive them. Frames of a peer are parsed here into valid values;
//! any other frame closes the connection.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | `STR1` |
//! | 4 | kind: 1 hello, 2 send, 3 write, 4 read, 5 done, 6 data |
//! | 5 | flags: 1 tagged, 2 has remote CQ data, 4 reply only after delivery |
//! | 6..8 | zero |
//! | 8..12 | number of the operation, echoed by done and data |
//! | 12..16 | error number of done, or 0 |
//! | 16..24 | tag; first half of the address of a hello |
//! | 24..32 | remote CQ data; second half of the address of a hello |
//! | 32..40 | key |
//! | 40..48 | remote address |
//! | 48..56 | bytes of payload, or bytes to read |
//!
//! The connecting end sends requests, first one hello. The other end sends replies: one done per request, in any
//! order, and for a read the data before its done.

/// Bytes of a frame.
pub(crate) const FRAME: usize = 56;
/// Most bytes per operation.
pub(crate) const MESSAGE_MAX: u64 = 1 << 30;
/// Bytes of an endpoint's address.
pub(crate) const ADDRESS: usize = 16;

/// Address of an endpoint: random, and the name of its socket.
pub(crate) type StrictAddress = [u8; ADDRESS];

const MAGIC: [u8; 4] = *b"STR1";
const TAGGED: u8 = 1;
const HAS_DATA: u8 = 2;
const DELIVERY: u8 = 4;

/// The tag of a message; `None` for plain messages.
pub(crate) type MessageTag = Option<u64>;

/// A frame of the connecting end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WireRequest {
    /// The sender's address; the first frame, and sent only once.
    Hello(StrictAddress),
    /// A message of `len` bytes, which follow.
    Send { op: u32, tag: MessageTag, data: Option<u64>, delivery: bool, len: u64 },
    /// A write of `len` bytes, which follow.
    Write { op: u32, key: u64, addr: u64, data: Option<u64>, len: u64 },
    /// A read of `len` bytes.
    Read { op: u32, key: u64, addr: u64, len: u64 },
}

/// A frame of the accepting end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WireAnswer {
    /// The operation ended, with an error number or 0.
    Done { op: u32, error: u16 },
    /// Bytes of a read, which follow.
    Data { op: u32, len: u64 },
}

/// The bytes are not a valid frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MalformedFrame;

#[derive(Default)]
struct FrameFields {
    kind: u8,
    flags: u8,
    op: u32,
    error: u32,
    words: [u64; 5],
}

impl FrameFields {
    fn to_bytes(&self) -> [u8; FRAME] {
        let mut out = [0; FRAME];
        out[..4].copy_from_slice(&MAGIC);
        (out[4], out[5]) = (self.kind, self.flags);
        out[8..12].copy_from_slice(&self.op.to_le_bytes());
        out[12..16].copy_from_slice(&self.error.to_le_bytes());
        for (place, word) in out[16..].chunks_exact_mut(8).zip(self.words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn of_bytes(bytes: &[u8; FRAME]) -> Result<Self, MalformedFrame> {
        if bytes[..4] != MAGIC || bytes[6..8] != [0, 0] || bytes[5] & !(TAGGED | HAS_DATA | DELIVERY) != 0 {
            return Err(MalformedFrame);
        }
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |n: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + 8 * n + i]));
        Ok(Self {
            kind: bytes[4],
            flags: bytes[5],
            op: half(8),
            error: half(12),
            words: std::array::from_fn(word),
        })
    }

    fn remote_data(&self) -> Option<u64> {
        (self.flags & HAS_DATA != 0).then_some(self.words[1])
    }
}

impl WireRequest {
    /// Encodes the frame.
    pub(crate) fn to_bytes(self) -> [u8; FRAME] {
        let data_flag = |data: Option<u64>| if data.is_some() { HAS_DATA } else { 0 };
        let fields = match self {
            Self::Hello(address) => {
                let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| address[at + i]));
                FrameFields { kind: 1, words: [half(0), half(8), 0, 0, 0], ..FrameFields::default() }
            }
            Self::Send { op, tag, data, delivery, len } => {
                let flags = if tag.is_some() { TAGGED } else { 0 } | if delivery { DELIVERY } else { 0 };
                let words = [tag.unwrap_or(0), data.unwrap_or(0), 0, 0, len];
                FrameFields { kind: 2, flags: flags | data_flag(data), op, words, ..FrameFields::default() }
            }
            Self::Write { op, key, addr, data, len } => {
                let words = [0, data.unwrap_or(0), key, addr, len];
                FrameFields { kind: 3, flags: data_flag(data), op, words, ..FrameFields::default() }
            }
            Self::Read { op, key, addr, len } => {
                FrameFields { kind: 4, op, words: [0, 0, key, addr, len], ..FrameFields::default() }
            }
        };
        fields.to_bytes()
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// [`MalformedFrame`].
    pub(crate) fn of_bytes(bytes: &[u8; FRAME]) -> Result<Self, MalformedFrame> {
        let fields = FrameFields::of_bytes(bytes)?;
        let [tag, data, key, addr, len] = fields.words;
        let op = fields.op;
        if len > MESSAGE_MAX || fields.error != 0 {
            return Err(MalformedFrame);
        }
        Ok(match fields.kind {
            1 if fields.flags == 0 && op == 0 && (key, addr, len) == (0, 0, 0) => {
                let mut address = StrictAddress::default();
                address[..8].copy_from_slice(&tag.to_le_bytes());
                address[8..].copy_from_slice(&data.to_le_bytes());
                Self::Hello(address)
            }
            2 if (key, addr) == (0, 0) => Self::Send {
                op,
                tag: (fields.flags & TAGGED != 0).then_some(tag),
                data: fields.remote_data(),
                delivery: fields.flags & DELIVERY != 0,
                len,
            },
            3 if fields.flags & !HAS_DATA == 0 => {
                Self::Write { op, key, addr, data: fields.remote_data(), len }
            }
            4 if fields.flags == 0 => Self::Read { op, key, addr, len },
            _ => return Err(MalformedFrame),
        })
    }
}

impl WireAnswer {
    /// Encodes the frame.
    pub(crate) fn to_bytes(self) -> [u8; FRAME] {
        let fields = match self {
            Self::Done { op, error } => {
                FrameFields { kind: 5, op, error: error.into(), ..FrameFields::default() }
            }
            Self::Data { op, len } => {
                FrameFields { kind: 6, op, words: [0, 0, 0, 0, len], ..FrameFields::default() }
            }
        };
        fields.to_bytes()
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// [`MalformedFrame`].
    pub(crate) fn of_bytes(bytes: &[u8; FRAME]) -> Result<Self, MalformedFrame> {
        let fields = FrameFields::of_bytes(bytes)?;
        let error = u16::try_from(fields.error).map_err(|_| MalformedFrame)?;
        match (fields.kind, fields.flags, fields.words) {
            (5, 0, [0, 0, 0, 0, 0]) => Ok(Self::Done { op: fields.op, error }),
            (6, 0, [0, 0, 0, 0, len]) if error == 0 && len <= MESSAGE_MAX => {
                Ok(Self::Data { op: fields.op, len })
            }
            _ => Err(MalformedFrame),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_request() -> impl Strategy<Value = WireRequest> {
        let numbers =
            (any::<u32>(), any::<[u64; 3]>(), any::<Option<u64>>(), any::<MessageTag>(), any::<bool>());
        prop_oneof![
            any::<StrictAddress>().prop_map(WireRequest::Hello),
            (numbers, 0..4_u8).prop_map(|((op, [key, addr, len], data, tag, delivery), kind)| {
                let len = len % (MESSAGE_MAX + 1);
                match kind {
                    0 => WireRequest::Send { op, tag, data, delivery, len },
                    1 => WireRequest::Write { op, key, addr, data, len },
                    _ => WireRequest::Read { op, key, addr, len },
                }
            })
        ]
    }

    proptest! {
        #[test]
        fn encoded_requests_decode_to_the_same(request in any_request()) {
            prop_assert_eq!(WireRequest::of_bytes(&request.to_bytes()), Ok(request));
            prop_assert_eq!(WireAnswer::of_bytes(&request.to_bytes()), Err(MalformedFrame));
        }

        #[test]
        fn encoded_answers_decode_to_the_same(op: u32, error: u16, len in 0..=MESSAGE_MAX) {
            for answer in [WireAnswer::Done { op, error }, WireAnswer::Data { op, len }] {
                prop_assert_eq!(WireAnswer::of_bytes(&answer.to_bytes()), Ok(answer));
                prop_assert_eq!(WireRequest::of_bytes(&answer.to_bytes()), Err(MalformedFrame));
            }
        }

        #[test]
        fn decoded_requests_encode_to_the_same(mut bytes in any::<[u8; FRAME]>(), kind in 0..8_u8, flags in 0..8_u8) {
            bytes[..4].copy_from_slice(&MAGIC);
            (bytes[4], bytes[5], bytes[6], bytes[7]) = (kind, flags, 0, 0);
            bytes[12..16].fill(0);
            if let Ok(request) = WireRequest::of_bytes(&bytes) {
                prop_assert_eq!(WireRequest::of_bytes(&request.to_bytes()), Ok(request));
            }
        }
    }

    #[test]
    fn frame_with_oversized_length_is_malformed() {
        let request = WireRequest::Read { op: 1, key: 2, addr: 3, len: MESSAGE_MAX + 1 };
        assert_eq!(WireRequest::of_bytes(&request.to_bytes()), Err(MalformedFrame));
    }
}
