//! The first frame of each end of a control stream for tagged messages: the rank of its sender, and a proof of that rank.
//! It is read from any process that connects, before anything else is believed.

use alloc::vec::Vec;

use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::dial::MemberProof;

/// Size of an introduction in bytes.
pub const INTRODUCTION_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"TRKI";
const VERSION: u16 = 1;

/// The introduction of a rank: `TRKI`, version at offset 4 (2 bytes), rank at 8, proof at 16; the other bytes are zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RankIntroduction {
    /// Offset 8, 4 bytes: the rank of the sender.
    pub rank: u32,
    /// Offset 16, 16 bytes: a proof that only the sender and the receiving rank can compute.
    pub proof: MemberProof,
}

/// Why an introduction is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IntroductionError {
    /// The length is not [`INTRODUCTION_BYTES`].
    #[error("an introduction has {0} bytes instead of {INTRODUCTION_BYTES}")]
    Length(usize),
    /// The first bytes are not `TRKI`.
    #[error("the bytes are not the introduction of a rank")]
    Foreign,
    /// The version is not that of this code.
    #[error("an introduction has version {0}; this library reads version {VERSION}")]
    Version(u16),
    /// Reserved bytes are not 0.
    #[error("reserved bytes of an introduction are not zero")]
    Reserved,
}

impl RankIntroduction {
    /// Returns the introduction's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.bytes(&MAGIC).u16(VERSION).u16(0).u32(self.rank).u32(0).bytes(&self.proof);
        out.0
    }

    /// Parses an introduction.
    ///
    /// # Errors
    /// [`IntroductionError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, IntroductionError> {
        let parsed = Self::from_reader(&mut FieldReader(bytes));
        match parsed {
            Ok(introduction) if bytes.len() == INTRODUCTION_BYTES => introduction,
            _ => Err(IntroductionError::Length(bytes.len())),
        }
    }

    fn from_reader(input: &mut FieldReader<'_>) -> Result<Result<Self, IntroductionError>, ShortInput> {
        let magic = input.array()?;
        let version = input.u16()?;
        let reserved = input.u16()?;
        let rank = input.u32()?;
        let more = input.u32()?;
        let proof = input.array()?;
        Ok(if magic != MAGIC {
            Err(IntroductionError::Foreign)
        } else if version != VERSION {
            Err(IntroductionError::Version(version))
        } else if reserved != 0 || more != 0 {
            Err(IntroductionError::Reserved)
        } else {
            Ok(Self { rank, proof })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introductions_are_laid_out_as_documented() {
        let introduction = RankIntroduction { rank: 0x0102_0304, proof: [7; 16] };
        let bytes = introduction.to_bytes();
        assert_eq!(bytes[..16], *b"TRKI\x01\0\0\0\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(bytes[16..], [7; 16]);
        assert_eq!(RankIntroduction::from_bytes(&bytes), Ok(introduction));
    }

    #[test]
    fn invalid_introductions_are_rejected() {
        let bytes = RankIntroduction { rank: 1, proof: [7; 16] }.to_bytes();
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x80;
            RankIntroduction::from_bytes(&bytes)
        };
        assert_eq!(changed(3), Err(IntroductionError::Foreign));
        assert_eq!(changed(4), Err(IntroductionError::Version(0x81)));
        assert_eq!(
            (changed(7), changed(12)),
            (Err(IntroductionError::Reserved), Err(IntroductionError::Reserved))
        );
        assert_eq!(RankIntroduction::from_bytes(&bytes[..31]), Err(IntroductionError::Length(31)));
        assert_eq!(
            RankIntroduction::from_bytes(&[&bytes[..], &[0]].concat()),
            Err(IntroductionError::Length(33))
        );
    }
}
