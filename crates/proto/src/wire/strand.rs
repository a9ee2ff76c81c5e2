//! Records of a strand, which is one TCP connection of a control stream between hosts. They are read from any process that connects, so from
//! unauthenticated peers too. The frames inside have their own format ([`frame`](crate::wire::frame)). Layout: "Control streams between hosts" of
//! docs/wire.md.

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::limits::LINKS_MAX;
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::socket_address::{self, PlaceError};

/// Size of a head in bytes.
pub const HEAD: usize = 20;

/// Most bytes after a head.
pub const BODY_MAX: usize = 4096;

/// Most strands of one stream, and most addresses of one end.
pub const STRANDS_MAX: usize = LINKS_MAX;

const VERSION: u8 = 1;
const MAGIC: u64 = 0x444e_5254_534c_4b54;

/// The name of a stream: random, so that only a process that received it can add a strand.
pub type StreamName = [u8; 16];

/// The kind of a record (1 byte).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StrandRecordKind {
    /// 1: the first record of each end; it names the stream of the strand.
    Join,
    /// 2: a control frame.
    Frame,
    /// 3: acknowledges received frames.
    Taken,
    /// 4: the end of the stream.
    End,
}

/// The head of a record (20 bytes): kind at offset 0 (1 byte), version at 1 (1 byte, 1), then the fields in this order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StrandHead {
    /// The kind.
    pub kind: StrandRecordKind,
    /// Offset 2, 2 bytes: number of bytes after the head. 1 to [`BODY_MAX`] for a JOIN and a FRAME, otherwise 0.
    pub len: u16,
    /// Offset 4, 8 bytes: number of frames that the sender sent on this stream before this one.
    pub number: u64,
    /// Offset 12, 8 bytes: number of frames of this stream that the sender has received.
    pub received: u64,
}

/// The body of a JOIN: a magic number (8 bytes), the name (16) and addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StrandJoin {
    /// The name of the stream.
    pub name: StreamName,
    /// The addresses at which the sender accepts strands, at most [`STRANDS_MAX`].
    pub places: Vec<SocketAddr>,
}

/// Why a record is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StrandError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// The kind is unknown.
    #[error("a record of a strand has the unknown kind {0}")]
    Kind(u8),
    /// The version is not that of this code.
    #[error("a record of a strand has the unknown version {0}")]
    Version(u8),
    /// The length is invalid for the kind.
    #[error("a record of a strand has an invalid length of {0} bytes")]
    Len(u16),
    /// The magic number of the JOIN is wrong.
    #[error("the connection is not of a control stream")]
    Foreign,
    /// It has more addresses than [`STRANDS_MAX`].
    #[error("a JOIN has too many addresses")]
    Places,
    /// An address is invalid.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl StrandHead {
    /// Returns the head's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEAD] {
        let kind = match self.kind {
            StrandRecordKind::Join => 1,
            StrandRecordKind::Frame => 2,
            StrandRecordKind::Taken => 3,
            StrandRecordKind::End => 4,
        };
        let mut bytes = [0; HEAD];
        (bytes[0], bytes[1]) = (kind, VERSION);
        bytes[2..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.received.to_le_bytes());
        bytes
    }

    /// Parses a head.
    ///
    /// # Errors
    /// [`StrandError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8; HEAD]) -> Result<Self, StrandError> {
        let mut reader = FieldReader(bytes);
        let kind = match reader.u8()? {
            1 => StrandRecordKind::Join,
            2 => StrandRecordKind::Frame,
            3 => StrandRecordKind::Taken,
            4 => StrandRecordKind::End,
            other => return Err(StrandError::Kind(other)),
        };
        let version = reader.u8()?;
        if version != VERSION {
            return Err(StrandError::Version(version));
        }
        let len = reader.u16()?;
        let fits = match kind {
            StrandRecordKind::Join | StrandRecordKind::Frame => len > 0 && usize::from(len) <= BODY_MAX,
            StrandRecordKind::Taken | StrandRecordKind::End => len == 0,
        };
        if !fits {
            return Err(StrandError::Len(len));
        }
        Ok(Self { kind, len, number: reader.u64()?, received: reader.u64()? })
    }
}

impl StrandJoin {
    /// Returns the bytes of the body.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.u64(MAGIC).bytes(&self.name);
        self.places
            .iter()
            .take(STRANDS_MAX)
            .for_each(|&place| socket_address::write_address(&mut out, place));
        out.0
    }

    /// Parses the body of a JOIN.
    ///
    /// # Errors
    /// [`StrandError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StrandError> {
        let mut reader = FieldReader(bytes);
        if reader.u64()? != MAGIC {
            return Err(StrandError::Foreign);
        }
        let name = reader.array()?;
        let mut places = Vec::new();
        while !reader.0.is_empty() {
            if places.len() == STRANDS_MAX {
                return Err(StrandError::Places);
            }
            places.push(socket_address::read_address(&mut reader)?);
        }
        Ok(Self { name, places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strand_head_is_laid_out_as_documented() {
        let head = StrandHead { kind: StrandRecordKind::Frame, len: 0x0102, number: 3, received: 4 };
        let bytes = [2, 1, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(head.to_bytes(), bytes);
        assert_eq!(StrandHead::from_bytes(&bytes), Ok(head));
    }

    #[test]
    fn invalid_values_are_rejected() {
        let head = |kind, version, len: u16| {
            let mut bytes =
                StrandHead { kind: StrandRecordKind::Taken, len: 0, number: 0, received: 0 }.to_bytes();
            (bytes[0], bytes[1]) = (kind, version);
            bytes[2..4].copy_from_slice(&len.to_le_bytes());
            StrandHead::from_bytes(&bytes)
        };
        assert_eq!(head(0, 1, 0), Err(StrandError::Kind(0)));
        assert_eq!(head(5, 1, 0), Err(StrandError::Kind(5)));
        assert_eq!(head(3, 2, 0), Err(StrandError::Version(2)));
        for (kind, len) in [(1, 0), (2, 0), (2, 4097), (3, 1), (4, 1)] {
            assert_eq!(head(kind, 1, len), Err(StrandError::Len(len)), "{kind}");
        }
        let places = Vec::from([SocketAddr::from(([192, 0, 2, 1], 7)); STRANDS_MAX]);
        let join = StrandJoin { name: [9; 16], places };
        let mut bytes = join.to_bytes();
        assert_eq!(StrandJoin::from_bytes(&bytes), Ok(join));
        bytes.extend([4, 192, 0, 2, 1, 7, 0]);
        assert_eq!(StrandJoin::from_bytes(&bytes), Err(StrandError::Places));
        let one = 8 + 16;
        assert_eq!(
            StrandJoin::from_bytes(&bytes[..one + 6]),
            Err(StrandError::Place(PlaceError::Short(ShortInput)))
        );
        bytes[one] = 5;
        assert_eq!(StrandJoin::from_bytes(&bytes[..one + 7]), Err(StrandError::Place(PlaceError::Kind(5))));
        bytes[one] = 4;
        bytes[one + 5] = 0;
        assert_eq!(StrandJoin::from_bytes(&bytes[..one + 7]), Err(StrandError::Place(PlaceError::Port)));
        bytes[0] ^= 1;
        assert_eq!(StrandJoin::from_bytes(&bytes[..one]), Err(StrandError::Foreign));
        assert_eq!(StrandJoin::from_bytes(&bytes[..7]), Err(StrandError::Short(ShortInput)));
    }
}
