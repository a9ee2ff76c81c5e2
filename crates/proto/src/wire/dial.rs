//! The card of each process of a one-sided job, which the launcher distributes to all members, and the messages that create, lose and release a
//! context's links. The messages are frames of a control stream, after its HELLO. The one-sided engine encodes and parses them; this module sends
//! nothing. Layout: "Cards and dialling" of docs/wire.md.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::limits::{LINKS_MAX, RAILS_MAX, RMA_HEAPS_TOLD_MAX};
use crate::rma::incoming::{MakeUp, PathDeliveryReport};
use crate::rma::shape::EpochShape;
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::fabric::{ChosenFabric, FABRIC_BYTES};
use crate::wire::frame::RemoteRegion;
use crate::wire::handle::ADDRESS_MAX;
use crate::wire::rma::RmaStream;

/// Size of a card in bytes.
pub const CARD_BYTES: usize = 112;

const MAGIC: [u8; 4] = *b"TRKR";
/// Version of the card (2 bytes at offset 4).
const CARD: u16 = 4;
/// Version of the messages (1 byte at offset 1).
const WORDS: u8 = 2;
/// Offset of the flags in a card.
const FLAGS: usize = 104;
/// Offset of the fabric in a card.
const FABRIC: usize = 105;
/// Flag: [`ProcessCard::executes`].
const EXECUTES: u8 = 1;
/// Longest address of a link, in bytes.
const LINK_MAX: usize = 256;
/// Most epochs in each list of a [`DialMessage::Standing`], and in a [`DialMessage::MakeUp`].
pub const EPOCHS_MAX: usize = EpochShape::WIRE.epoch_window() as usize;

/// A member's public key (X25519, RFC 7748).
pub type PublicKey = [u8; 32];

/// A proof to one member that a message is from another member: only these two can compute it.
pub type MemberProof = [u8; 16];

/// The card of a process (112 bytes): how other members reach it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessCard {
    /// Offset 8, 16 bytes: the id of the process.
    pub process: ProcessId,
    /// Offset 24, 32 bytes: the public key of the process for this job; the members' proofs derive from it.
    pub key: PublicKey,
    /// Offset 6, 1 byte: number of NICs that serve other members, 1 to [`RAILS_MAX`].
    pub rails: u8,
    /// Offset 56, 48 bytes: the address of the control plane, 1 to [`ADDRESS_MAX`] bytes and zeros after them. Its length is at offset 7, 1 byte.
    pub address: Vec<u8>,
    /// Offset 104, 1 byte: whether the NIC executes atomics on words of 8 bytes. Only true if it is the only NIC that serves others.
    pub executes: bool,
    /// Offset 105, 7 bytes: the fabric that the process chose.
    pub fabric: ChosenFabric,
}

/// A heap, as peers reach it over one link (24 bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteHeap {
    /// Its length in bytes.
    pub len: u64,
    /// Its key, and the address of its first byte.
    pub region: RemoteRegion,
}

/// Why a link is refused (1 byte).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DialRefusal {
    /// 1: the proof is not that of the member, or the job has no such member.
    Stranger,
    /// 2: the serving process is out of a resource.
    NoResources,
    /// 3: the asking side broke the protocol, and is not served any more on this stream.
    Protocol,
    /// A reason that this version does not know.
    Other(u8),
}

/// A message about a link from a context to the process that serves it: kind (1 byte), version (1), two bytes and a number (4) that depend on the
/// kind, an id (8), and from offset 16 the rest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DialMessage {
    /// Kind 1: requests the other end of a link.
    Dial {
        /// The asking side's id of the link.
        id: u64,
        /// Proves to this process that the member is the sender (16 bytes at offset 16).
        proof: MemberProof,
        /// The number of the asking member (4 bytes at offset 4).
        member: u32,
        /// The stream of the context (byte 2).
        stream: RmaStream,
        /// The index of the link among the context's links to this process, below [`LINKS_MAX`] (byte 3).
        path: u8,
        /// The address of the asking side's end: length (2 bytes, 1 to 256) and that many bytes.
        link: Vec<u8>,
    },
    /// Kind 2: the other end exists.
    Taken {
        /// The asking side's id of the link.
        id: u64,
        /// The serving side's id of the link (8 bytes at offset 16).
        served: u64,
        /// Number of messages that may be in flight to the serving side over this link, at least 2 (4 bytes at offset 4).
        receives: u32,
        /// The heaps of the serving side, by number; at most [`RMA_HEAPS_TOLD_MAX`] (their count is byte 2).
        heaps: Vec<RemoteHeap>,
        /// The address of the serving side's end.
        link: Vec<u8>,
    },
    /// Kind 3: the link is refused.
    Refused {
        /// The asking side's id of the link.
        id: u64,
        /// The reason (byte 2).
        why: DialRefusal,
    },
    /// Kind 4: the asking side has finished with a stream and all its links.
    Leave {
        /// The stream (byte 2).
        stream: RmaStream,
    },
    /// Kind 5: a link is lost at the asking side.
    Down {
        /// The serving side's id of the link.
        served: u64,
    },
    /// Kind 6: a link is lost at the serving side, which has taken in all that arrived over it.
    Standing {
        /// The asking side's id of the link.
        id: u64,
        /// The writes that were counted on the link, and the signals of the stream that have arrived.
        standing: PathDeliveryReport,
    },
    /// Kind 7: counted writes that were lost with a link were written again.
    MakeUp {
        /// The stream (byte 2).
        stream: RmaStream,
        /// Their epochs and numbers of writes, for 1 to [`EPOCHS_MAX`] epochs of that stream (6 bytes each).
        lost: Vec<MakeUp>,
    },
    /// Kind 8: an operation that was to change a word has failed. The receiver sets the error word of that word, unless it is set already.
    Spoil {
        /// Proves to this process that a member is the sender (16 bytes at offset 16).
        proof: MemberProof,
        /// The heap of the receiving process (byte 2).
        heap: u8,
        /// The offset of the error word in that heap, in bytes (the 8 bytes of the id).
        offset: u64,
        /// The new value of the error word; not 0 (8 bytes at offset 32).
        value: u64,
    },
}

/// Why a card or a message is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DialError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// The first bytes are not those of a card of Trunkline.
    #[error("the bytes are not a card of Trunkline")]
    Foreign,
    /// The version is not one that this code reads.
    #[error("version {0} is unknown; this process reads version {CARD} of cards and {WORDS} of messages")]
    Version(u16),
    /// The kind of message is unknown.
    #[error("a message has the unknown kind {0}")]
    Kind(u8),
    /// A number in it is out of range.
    #[error("{what} {value} is out of range")]
    Value {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// The fabric's name is invalid: it contains bytes other than letters and digits.
    #[error("the name of the fabric has other characters than letters and digits")]
    Fabric,
    /// Bytes follow its end.
    #[error("bytes follow the end of the card or message")]
    Length,
}

impl ProcessCard {
    /// Returns the card's bytes. An address that is too long is truncated; every reader rejects the card then.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CARD_BYTES] {
        let mut out = FieldWriter::default();
        out.bytes(&MAGIC).u16(CARD).u8(self.rails).u8(u8::try_from(self.address.len()).unwrap_or(u8::MAX));
        out.bytes(&self.process.0).bytes(&self.key);
        out.bytes(&self.address[..self.address.len().min(ADDRESS_MAX)]);
        let mut bytes = [0; CARD_BYTES];
        bytes[..out.0.len()].copy_from_slice(&out.0);
        bytes[FLAGS] = if self.executes { EXECUTES } else { 0 };
        bytes[FABRIC..][..FABRIC_BYTES].copy_from_slice(&self.fabric.to_bytes());
        bytes
    }

    /// Parses a card.
    ///
    /// # Errors
    /// [`DialError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8; CARD_BYTES]) -> Result<Self, DialError> {
        let mut reader = FieldReader(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(DialError::Foreign);
        }
        let version = reader.u16()?;
        if version != CARD {
            return Err(DialError::Version(version));
        }
        let rails = reader.u8()?;
        let used = reader.u8()?;
        check_range("rails", rails.into(), 1, RAILS_MAX)?;
        check_range("bytes of an address", used.into(), 1, ADDRESS_MAX)?;
        let process = ProcessId(reader.array()?);
        let key = reader.array()?;
        let address = reader.bytes(ADDRESS_MAX)?[..usize::from(used)].to_vec();
        // Atomics that several NICs execute are not atomic with each other.
        let flags = reader.u8()?;
        check_range("flags", flags.into(), 0, usize::from(if rails == 1 { EXECUTES } else { 0 }))?;
        let fabric = ChosenFabric::from_bytes(reader.array()?).ok_or(DialError::Fabric)?;
        Ok(Self { process, key, rails, address, executes: flags == EXECUTES, fabric })
    }
}

fn check_range(what: &'static str, value: u32, least: usize, most: usize) -> Result<(), DialError> {
    let fits = (least..=most).contains(&(value as usize));
    if fits { Ok(()) } else { Err(DialError::Value { what, value }) }
}

fn write_link(out: &mut FieldWriter, link: &[u8]) {
    let used = link.len().min(LINK_MAX);
    out.u16(used as u16).bytes(&link[..used]);
}

fn write_standing(out: &mut FieldWriter, id: u64, standing: &PathDeliveryReport) {
    let PathDeliveryReport { applied, seen, signals } = standing;
    let seen = &seen[..seen.len().min(EPOCHS_MAX)];
    let signals = &signals[..signals.len().min(EPOCHS_MAX)];
    out.u8(6).u8(WORDS).u8(seen.len() as u8).u8(signals.len() as u8).u32(*applied as u32);
    out.u64(id).u16((*applied >> 32) as u16);
    for &(epoch, count) in seen {
        out.u16(epoch).u32(count);
    }
    for &epoch in signals {
        out.u16(epoch);
    }
}

fn read_standing(
    reader: &mut FieldReader<'_>,
    seen: u8,
    signals: u8,
    applied: u32,
) -> Result<PathDeliveryReport, DialError> {
    check_range("epochs with writes", seen.into(), 0, EPOCHS_MAX)?;
    check_range("epochs with signals", signals.into(), 0, EPOCHS_MAX)?;
    let applied = u64::from(applied) | u64::from(reader.u16()?) << 32;
    let seen = (0..seen).map(|_| Ok((reader.u16()?, reader.u32()?))).collect::<Result<_, DialError>>()?;
    let signals = (0..signals).map(|_| Ok(reader.u16()?)).collect::<Result<_, DialError>>()?;
    Ok(PathDeliveryReport { applied, seen, signals })
}

fn read_lost(reader: &mut FieldReader<'_>, stream: RmaStream, count: u8) -> Result<Vec<MakeUp>, DialError> {
    check_range("epochs to make up for", count.into(), 1, EPOCHS_MAX)?;
    let mut one = || -> Result<MakeUp, DialError> {
        let epoch = reader.u16()?;
        let count = reader.u32()?;
        check_range("writes to make up for", count, 1, u32::MAX as usize)?;
        Ok(MakeUp { stream, epoch, count })
    };
    (0..count).map(|_| one()).collect()
}

fn parse_stream(number: u8) -> Result<RmaStream, DialError> {
    RmaStream::new(number).ok_or(DialError::Value { what: "stream", value: number.into() })
}

fn check_error_word(value: u64) -> Result<u64, DialError> {
    if value == 0 { Err(DialError::Value { what: "an error word", value: 0 }) } else { Ok(value) }
}

fn read_link(reader: &mut FieldReader<'_>) -> Result<Vec<u8>, DialError> {
    let used = reader.u16()?;
    check_range("bytes of a link", used.into(), 1, LINK_MAX)?;
    Ok(reader.bytes(used.into())?.to_vec())
}

impl DialMessage {
    /// Returns the message's bytes. Heaps beyond [`RMA_HEAPS_TOLD_MAX`] and epochs beyond [`EPOCHS_MAX`] are left out.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match self {
            Self::Dial { id, proof, member, stream, path, link } => {
                out.u8(1).u8(WORDS).u8(stream.number()).u8(*path).u32(*member).u64(*id).bytes(proof);
                write_link(&mut out, link);
            }
            Self::Taken { id, served, receives, heaps, link } => {
                let heaps = &heaps[..heaps.len().min(RMA_HEAPS_TOLD_MAX)];
                out.u8(2).u8(WORDS).u8(heaps.len() as u8).u8(0).u32(*receives).u64(*id).u64(*served);
                for heap in heaps {
                    out.u64(heap.len).u64(heap.region.key).u64(heap.region.addr);
                }
                write_link(&mut out, link);
            }
            Self::Refused { id, why } => {
                let why = match why {
                    DialRefusal::Stranger => 1,
                    DialRefusal::NoResources => 2,
                    DialRefusal::Protocol => 3,
                    DialRefusal::Other(number) => *number,
                };
                out.u8(3).u8(WORDS).u8(why).bytes(&[0; 5]).u64(*id);
            }
            Self::Leave { stream } => {
                out.u8(4).u8(WORDS).u8(stream.number()).bytes(&[0; 13]);
            }
            Self::Down { served } => {
                out.u8(5).u8(WORDS).bytes(&[0; 6]).u64(*served);
            }
            Self::Standing { id, standing } => write_standing(&mut out, *id, standing),
            Self::MakeUp { stream, lost } => {
                let lost = &lost[..lost.len().min(EPOCHS_MAX)];
                out.u8(7).u8(WORDS).u8(stream.number()).u8(lost.len() as u8).bytes(&[0; 12]);
                for one in lost {
                    out.u16(one.epoch).u32(one.count);
                }
            }
            Self::Spoil { proof, heap, offset, value } => {
                out.u8(8).u8(WORDS).u8(*heap).bytes(&[0; 5]).u64(*offset).bytes(proof).u64(*value);
            }
        }
        out.0
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`DialError`] names the invalid field; the stream that carried the message must end.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DialError> {
        let mut reader = FieldReader(bytes);
        let [kind, version, first, second] = reader.array()?;
        if version != WORDS {
            return Err(DialError::Version(version.into()));
        }
        let number = reader.u32()?;
        let id = reader.u64()?;
        let word = match kind {
            1 => {
                let stream = parse_stream(first)?;
                check_range("path", second.into(), 0, LINKS_MAX - 1)?;
                let proof = reader.array()?;
                Self::Dial { id, proof, member: number, stream, path: second, link: read_link(&mut reader)? }
            }
            2 => {
                check_range("heaps", first.into(), 0, RMA_HEAPS_TOLD_MAX)?;
                check_range("receives", number, 2, u32::MAX as usize)?;
                let served = reader.u64()?;
                let mut heap = || -> Result<RemoteHeap, DialError> {
                    let len = reader.u64()?;
                    let key = reader.u64()?;
                    let addr = reader.u64()?;
                    Ok(RemoteHeap { len, region: RemoteRegion { key, addr } })
                };
                let heaps = (0..first).map(|_| heap()).collect::<Result<_, _>>()?;
                Self::Taken { id, served, receives: number, heaps, link: read_link(&mut reader)? }
            }
            3 => {
                let why = match first {
                    1 => DialRefusal::Stranger,
                    2 => DialRefusal::NoResources,
                    3 => DialRefusal::Protocol,
                    number => DialRefusal::Other(number),
                };
                Self::Refused { id, why }
            }
            4 => Self::Leave { stream: parse_stream(first)? },
            5 => Self::Down { served: id },
            6 => Self::Standing { id, standing: read_standing(&mut reader, first, second, number)? },
            7 => {
                let stream = parse_stream(first)?;
                Self::MakeUp { stream, lost: read_lost(&mut reader, stream, second)? }
            }
            8 => Self::Spoil {
                proof: reader.array()?,
                heap: first,
                offset: id,
                value: check_error_word(reader.u64()?)?,
            },
            kind => return Err(DialError::Kind(kind)),
        };
        if reader.0.is_empty() { Ok(word) } else { Err(DialError::Length) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn card() -> ProcessCard {
        let fabric = ChosenFabric::new("soft", "tcp");
        let process = ProcessId([1; 16]);
        let key = [2; 32];
        let address = vec![3; 7];
        ProcessCard { process, key, rails: 2, address, executes: false, fabric }
    }

    #[test]
    fn cards_are_laid_out_as_documented() {
        let bytes = card().to_bytes();
        assert_eq!(bytes[..8], [b'T', b'R', b'K', b'R', 4, 0, 2, 7]);
        assert_eq!((bytes[8], bytes[24], bytes[55], bytes[56], bytes[63]), (1, 2, 2, 3, 0));
        assert_eq!(ProcessCard::from_bytes(&bytes), Ok(card()));
        let executes = ProcessCard { executes: true, rails: 1, ..card() };
        let bytes = executes.to_bytes();
        assert_eq!((bytes[104], &bytes[105..]), (1, &b"\x01tcp\0\0\0"[..]));
        assert_eq!(ProcessCard::from_bytes(&bytes), Ok(executes));
    }

    #[test]
    fn invalid_cards_are_rejected() {
        for (at, value, error) in [
            (0, b'x', DialError::Foreign),
            (4, 1, DialError::Version(1)),
            (4, 3, DialError::Version(3)),
            (6, 0, DialError::Value { what: "rails", value: 0 }),
            (6, 5, DialError::Value { what: "rails", value: 5 }),
            (7, 0, DialError::Value { what: "bytes of an address", value: 0 }),
            (7, 49, DialError::Value { what: "bytes of an address", value: 49 }),
            (104, 2, DialError::Value { what: "flags", value: 2 }),
            // Two NICs execute no atomics together.
            (104, 1, DialError::Value { what: "flags", value: 1 }),
            (106, b' ', DialError::Fabric),
            (111, b'x', DialError::Fabric),
        ] {
            let mut bytes = card().to_bytes();
            bytes[at] = value;
            assert_eq!(ProcessCard::from_bytes(&bytes), Err(error));
        }
    }

    fn heaps(count: usize) -> Vec<RemoteHeap> {
        (0..count as u64)
            .map(|n| RemoteHeap { len: n, region: RemoteRegion { key: !n, addr: n << 40 } })
            .collect()
    }

    fn words() -> Vec<DialMessage> {
        let stream = RmaStream::new(63).unwrap();
        let dial =
            |link| DialMessage::Dial { id: u64::MAX, proof: [9; 16], member: 7, stream, path: 3, link };
        let taken =
            |count, link| DialMessage::Taken { id: 1, served: 2, receives: 3, heaps: heaps(count), link };
        vec![
            dial(vec![5]),
            dial(vec![6; LINK_MAX]),
            taken(0, vec![7]),
            taken(RMA_HEAPS_TOLD_MAX, vec![8; LINK_MAX]),
            DialMessage::Refused { id: 3, why: DialRefusal::Stranger },
            DialMessage::Refused { id: 3, why: DialRefusal::NoResources },
            DialMessage::Refused { id: 3, why: DialRefusal::Other(200) },
            DialMessage::Leave { stream },
            DialMessage::Refused { id: 3, why: DialRefusal::Protocol },
            DialMessage::Down { served: 5 },
            DialMessage::Standing { id: 6, standing: PathDeliveryReport::default() },
            DialMessage::Standing { id: u64::MAX, standing: standing(EPOCHS_MAX as u16) },
            DialMessage::MakeUp { stream, lost: made_up(stream, 1) },
            DialMessage::MakeUp { stream, lost: made_up(stream, EPOCHS_MAX as u16) },
            DialMessage::Spoil { proof: [4; 16], heap: 255, offset: u64::MAX, value: 1 },
        ]
    }

    fn standing(epochs: u16) -> PathDeliveryReport {
        let seen = (0..epochs).map(|epoch| (epoch, u32::from(epoch) << 20)).collect();
        PathDeliveryReport {
            applied: 0xaabb_0102_0304,
            seen,
            signals: (0..epochs).map(|epoch| !epoch).collect(),
        }
    }

    fn made_up(stream: RmaStream, epochs: u16) -> Vec<MakeUp> {
        (0..epochs).map(|epoch| MakeUp { stream, epoch, count: u32::from(epoch) + 1 }).collect()
    }

    #[test]
    fn standings_are_laid_out_as_documented() {
        let bytes = DialMessage::Standing { id: 0x0807_0605_0403_0201, standing: standing(1) }.to_bytes();
        assert_eq!(bytes[..8], [6, 2, 1, 1, 4, 3, 2, 1]);
        assert_eq!(bytes[8..18], [1, 2, 3, 4, 5, 6, 7, 8, 0xbb, 0xaa]);
        assert_eq!(bytes[18..], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let stream = RmaStream::new(9).unwrap();
        let bytes = DialMessage::MakeUp { stream, lost: made_up(stream, 1) }.to_bytes();
        assert_eq!(bytes[..4], [7, 2, 9, 1]);
        assert_eq!(bytes[16..], [0, 0, 1, 0, 0, 0]);
        assert_eq!(
            DialMessage::Leave { stream }.to_bytes(),
            [4, 2, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let longest = DialMessage::Standing { id: 0, standing: standing(EPOCHS_MAX as u16) }.to_bytes();
        assert!(longest.len() <= 4096, "a frame of a control stream");
    }

    #[test]
    fn messages_round_trip_at_exact_length() {
        for word in words() {
            let mut bytes = word.to_bytes();
            assert_eq!(DialMessage::from_bytes(&bytes), Ok(word));
            for len in 0..bytes.len() {
                assert!(DialMessage::from_bytes(&bytes[..len]).is_err());
            }
            bytes.push(0);
            assert_eq!(DialMessage::from_bytes(&bytes), Err(DialError::Length));
        }
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        let refused = |word: usize, at: usize, value: u8| {
            let mut bytes = words()[word].to_bytes();
            bytes[at] = value;
            DialMessage::from_bytes(&bytes).unwrap_err()
        };
        assert_eq!(refused(0, 0, 9), DialError::Kind(9));
        assert_eq!(refused(0, 1, 1), DialError::Version(1));
        assert_eq!(refused(0, 2, 64), DialError::Value { what: "stream", value: 64 });
        assert_eq!(refused(0, 3, 4), DialError::Value { what: "path", value: 4 });
        assert_eq!(refused(2, 4, 1), DialError::Value { what: "receives", value: 1 });
        let heaps = RMA_HEAPS_TOLD_MAX as u8 + 1;
        assert_eq!(refused(2, 2, heaps), DialError::Value { what: "heaps", value: heaps.into() });
        assert_eq!(refused(7, 2, 64), DialError::Value { what: "stream", value: 64 });
        assert_eq!(refused(11, 2, 129), DialError::Value { what: "epochs with writes", value: 129 });
        assert_eq!(refused(11, 3, 255), DialError::Value { what: "epochs with signals", value: 255 });
        assert_eq!(refused(12, 2, 64), DialError::Value { what: "stream", value: 64 });
        assert_eq!(refused(12, 3, 0), DialError::Value { what: "epochs to make up for", value: 0 });
        assert_eq!(refused(12, 18, 0), DialError::Value { what: "writes to make up for", value: 0 });
        let mut bytes = words()[2].to_bytes();
        let at = bytes.len() - 3;
        bytes[at..at + 2].copy_from_slice(&0_u16.to_le_bytes());
        assert_eq!(
            DialMessage::from_bytes(&bytes),
            Err(DialError::Value { what: "bytes of a link", value: 0 })
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(word) = DialMessage::from_bytes(&bytes) {
                prop_assert_eq!(DialMessage::from_bytes(&word.to_bytes()), Ok(word));
            }
        }
    }
}
