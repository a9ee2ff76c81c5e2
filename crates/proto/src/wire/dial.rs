//! What processes of a one-sided job tell each other before anything is written: the card of each, which the job's launcher
//! hands to all, and the words by which a context's links are made. Words travel on a control stream, behind its HELLO.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::limits::{LINKS_MAX, RAILS_MAX, RMA_HEAPS_MAX};
use crate::wire::cursor::{Reader, Short, Writer};
use crate::wire::frame::Region;
use crate::wire::handle::ADDRESS_MAX;
use crate::wire::rma::Stream;

/// Bytes of a card.
pub const CARD_BYTES: usize = 96;

const MAGIC: [u8; 4] = *b"TRKR";
const VERSION: u16 = 1;
/// Most bytes of the address of a link.
const LINK_MAX: usize = 256;

/// How a process is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Card {
    /// It.
    pub process: ProcessId,
    /// Proves that whoever dials was given this card.
    pub nonce: [u8; 16],
    /// NICs that serve others, 1 to [`RAILS_MAX`].
    pub rails: u8,
    /// Where its control streams are accepted, 1 to [`ADDRESS_MAX`] bytes.
    pub address: Vec<u8>,
}

/// A heap as peers reach it over one link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Heap {
    /// Bytes.
    pub len: u64,
    /// Its key, and where it begins.
    pub region: Region,
}

/// Why a link is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The nonce is not the card's, or the job has no such member.
    Stranger,
    /// The process has run out of something.
    NoResources,
    /// A number this version does not know.
    Other(u8),
}

/// A word about a link from a context to the process that serves it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Word {
    /// Asks for the other end.
    Dial {
        /// What the asking side calls the link.
        id: u64,
        /// The nonce of the card.
        nonce: [u8; 16],
        /// Which member of the job asks.
        member: u32,
        /// Which context of it.
        stream: Stream,
        /// Which of the context's links to this process, below [`LINKS_MAX`].
        path: u8,
        /// This end of the link.
        link: Vec<u8>,
    },
    /// The other end is there.
    Taken {
        /// What the asking side calls the link.
        id: u64,
        /// What the serving side calls it.
        served: u64,
        /// Messages that may be under way to it over this link, at least 2.
        receives: u32,
        /// Its heaps, by number.
        heaps: Vec<Heap>,
        /// That end of the link.
        link: Vec<u8>,
    },
    /// There is none.
    Refused {
        /// What the asking side calls the link.
        id: u64,
        /// Why.
        why: Refusal,
    },
    /// The asking side is done with a link; nothing of it is under way.
    Leave {
        /// What the serving side calls it.
        served: u64,
    },
}

/// A card or a word could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DialError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] Short),
    /// It is not one of Trunkline's.
    #[error("not a card of Trunkline")]
    Foreign,
    /// Another version made it.
    #[error("version {0} of it, this is version {VERSION}")]
    Version(u16),
    /// There is no such word.
    #[error("a word of kind {0}")]
    Kind(u8),
    /// A number in it cannot be.
    #[error("{what} {value}")]
    Value {
        /// What.
        what: &'static str,
        /// The number.
        value: u32,
    },
    /// It goes on after its end.
    #[error("wrong length")]
    Length,
}

impl Card {
    /// The card's bytes. An address that is too long is cut, which no reader accepts.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CARD_BYTES] {
        let mut out = Writer::default();
        out.bytes(&MAGIC).u16(VERSION).u8(self.rails).u8(u8::try_from(self.address.len()).unwrap_or(u8::MAX));
        out.bytes(&self.process.0).bytes(&self.nonce);
        out.bytes(&self.address[..self.address.len().min(ADDRESS_MAX)]);
        let mut bytes = [0; CARD_BYTES];
        bytes[..out.0.len()].copy_from_slice(&out.0);
        bytes
    }

    /// Reads a card.
    ///
    /// # Errors
    /// [`DialError`] says what is wrong.
    pub fn from_bytes(bytes: &[u8; CARD_BYTES]) -> Result<Self, DialError> {
        let mut reader = Reader(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(DialError::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(DialError::Version(version));
        }
        let (rails, used) = (reader.u8()?, reader.u8()?);
        within("rails", rails.into(), 1, RAILS_MAX)?;
        within("bytes of an address", used.into(), 1, ADDRESS_MAX)?;
        let (process, nonce) = (ProcessId(reader.array()?), reader.array()?);
        let address = reader.bytes(ADDRESS_MAX)?[..usize::from(used)].to_vec();
        Ok(Self { process, nonce, rails, address })
    }
}

fn within(what: &'static str, value: u32, least: usize, most: usize) -> Result<(), DialError> {
    let fits = (least..=most).contains(&(value as usize));
    if fits { Ok(()) } else { Err(DialError::Value { what, value }) }
}

fn write_link(out: &mut Writer, link: &[u8]) {
    let used = link.len().min(LINK_MAX);
    out.u16(used as u16).bytes(&link[..used]);
}

fn read_link(reader: &mut Reader<'_>) -> Result<Vec<u8>, DialError> {
    let used = reader.u16()?;
    within("bytes of a link", used.into(), 1, LINK_MAX)?;
    Ok(reader.bytes(used.into())?.to_vec())
}

impl Word {
    /// The word's bytes. Heaps beyond [`RMA_HEAPS_MAX`] are left out.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Dial { id, nonce, member, stream, path, link } => {
                out.u8(1).u8(VERSION as u8).u8(stream.number()).u8(*path).u32(*member).u64(*id).bytes(nonce);
                write_link(&mut out, link);
            }
            Self::Taken { id, served, receives, heaps, link } => {
                let heaps = &heaps[..heaps.len().min(RMA_HEAPS_MAX)];
                out.u8(2).u8(VERSION as u8).u8(heaps.len() as u8).u8(0).u32(*receives).u64(*id).u64(*served);
                for heap in heaps {
                    out.u64(heap.len).u64(heap.region.key).u64(heap.region.addr);
                }
                write_link(&mut out, link);
            }
            Self::Refused { id, why } => {
                let why = match why {
                    Refusal::Stranger => 1,
                    Refusal::NoResources => 2,
                    Refusal::Other(number) => *number,
                };
                out.u8(3).u8(VERSION as u8).u8(why).bytes(&[0; 5]).u64(*id);
            }
            Self::Leave { served } => {
                out.u8(4).u8(VERSION as u8).bytes(&[0; 6]).u64(*served);
            }
        }
        out.0
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`DialError`] says what is wrong; the stream it came on cannot be trusted any more.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DialError> {
        let mut reader = Reader(bytes);
        let [kind, version, first, second] = reader.array()?;
        if u16::from(version) != VERSION {
            return Err(DialError::Version(version.into()));
        }
        let (number, id) = (reader.u32()?, reader.u64()?);
        let word = match kind {
            1 => {
                let stream =
                    Stream::new(first).ok_or(DialError::Value { what: "stream", value: first.into() })?;
                within("path", second.into(), 0, LINKS_MAX - 1)?;
                let nonce = reader.array()?;
                Self::Dial { id, nonce, member: number, stream, path: second, link: read_link(&mut reader)? }
            }
            2 => {
                within("heaps", first.into(), 0, RMA_HEAPS_MAX)?;
                within("receives", number, 2, u32::MAX as usize)?;
                let served = reader.u64()?;
                let mut heap = || -> Result<Heap, DialError> {
                    let (len, key, addr) = (reader.u64()?, reader.u64()?, reader.u64()?);
                    Ok(Heap { len, region: Region { key, addr } })
                };
                let heaps = (0..first).map(|_| heap()).collect::<Result<_, _>>()?;
                Self::Taken { id, served, receives: number, heaps, link: read_link(&mut reader)? }
            }
            3 => {
                let why = match first {
                    1 => Refusal::Stranger,
                    2 => Refusal::NoResources,
                    number => Refusal::Other(number),
                };
                Self::Refused { id, why }
            }
            4 => Self::Leave { served: id },
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

    fn card() -> Card {
        Card { process: ProcessId([1; 16]), nonce: [2; 16], rails: 2, address: vec![3; 7] }
    }

    #[test]
    fn cards_are_laid_out_as_documented() {
        let bytes = card().to_bytes();
        assert_eq!(bytes[..8], [b'T', b'R', b'K', b'R', 1, 0, 2, 7]);
        assert_eq!((bytes[8], bytes[24], bytes[40], bytes[47]), (1, 2, 3, 0));
        assert_eq!(Card::from_bytes(&bytes), Ok(card()));
    }

    #[test]
    fn cards_that_cannot_be_are_refused() {
        for (at, value, error) in [
            (0, b'x', DialError::Foreign),
            (4, 2, DialError::Version(2)),
            (6, 0, DialError::Value { what: "rails", value: 0 }),
            (6, 5, DialError::Value { what: "rails", value: 5 }),
            (7, 0, DialError::Value { what: "bytes of an address", value: 0 }),
            (7, 49, DialError::Value { what: "bytes of an address", value: 49 }),
        ] {
            let mut bytes = card().to_bytes();
            bytes[at] = value;
            assert_eq!(Card::from_bytes(&bytes), Err(error));
        }
    }

    fn heaps(count: usize) -> Vec<Heap> {
        (0..count as u64).map(|n| Heap { len: n, region: Region { key: !n, addr: n << 40 } }).collect()
    }

    fn words() -> Vec<Word> {
        let stream = Stream::new(63).unwrap();
        let dial = |link| Word::Dial { id: u64::MAX, nonce: [9; 16], member: 7, stream, path: 3, link };
        let taken = |count, link| Word::Taken { id: 1, served: 2, receives: 3, heaps: heaps(count), link };
        vec![
            dial(vec![5]),
            dial(vec![6; LINK_MAX]),
            taken(0, vec![7]),
            taken(RMA_HEAPS_MAX, vec![8; LINK_MAX]),
            Word::Refused { id: 3, why: Refusal::Stranger },
            Word::Refused { id: 3, why: Refusal::NoResources },
            Word::Refused { id: 3, why: Refusal::Other(200) },
            Word::Leave { served: 4 },
        ]
    }

    #[test]
    fn what_is_said_is_heard_and_nothing_shorter_or_longer() {
        for word in words() {
            let mut bytes = word.to_bytes();
            assert_eq!(Word::from_bytes(&bytes), Ok(word));
            for len in 0..bytes.len() {
                assert!(Word::from_bytes(&bytes[..len]).is_err());
            }
            bytes.push(0);
            assert_eq!(Word::from_bytes(&bytes), Err(DialError::Length));
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let refused = |word: usize, at: usize, value: u8| {
            let mut bytes = words()[word].to_bytes();
            bytes[at] = value;
            Word::from_bytes(&bytes).unwrap_err()
        };
        assert_eq!(refused(0, 0, 9), DialError::Kind(9));
        assert_eq!(refused(0, 1, 2), DialError::Version(2));
        assert_eq!(refused(0, 2, 64), DialError::Value { what: "stream", value: 64 });
        assert_eq!(refused(0, 3, 4), DialError::Value { what: "path", value: 4 });
        assert_eq!(refused(2, 4, 1), DialError::Value { what: "receives", value: 1 });
        let heaps = RMA_HEAPS_MAX as u8 + 1;
        assert_eq!(refused(2, 2, heaps), DialError::Value { what: "heaps", value: heaps.into() });
        let mut bytes = words()[2].to_bytes();
        let at = bytes.len() - 3;
        bytes[at..at + 2].copy_from_slice(&0_u16.to_le_bytes());
        assert_eq!(Word::from_bytes(&bytes), Err(DialError::Value { what: "bytes of a link", value: 0 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(word) = Word::from_bytes(&bytes) {
                prop_assert_eq!(Word::from_bytes(&word.to_bytes()), Ok(word));
            }
        }
    }
}
