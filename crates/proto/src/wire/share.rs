//! The sharing fields of control frames: an offer in HELLO, a request at the end of OPEN, an answer at the end of RESULT. Also the header of an eager
//! message to a member of a group. Part of control frames from version 4 on. Layout: "Sharing" of docs/wire.md. Pure encoding; `pool` decides.

use core::num::NonZeroU64;

use crate::limits::GROUPS_OF_KEY_MAX;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::eager::{self, EagerError, EagerHeader};
use crate::wire::member::MemberId;
use crate::wire::proof::{GroupEpoch, GroupProof};

/// Size of a request in bytes.
pub const REQUEST_BYTES: usize = 24;

/// Size of an answer in bytes.
pub const ANSWER_BYTES: usize = 32;

/// Size in bytes of the eager header that names a member.
pub const EAGER_BYTES: usize = 24;

/// The kind of eager header that names a member: bits 4-7 of byte 3.
const KIND: u8 = 2;

/// The number of groups that a process accepts for the comms of one peer (4 bytes in HELLO).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShareOffer {
    /// Bits 0-7: number of groups, at most [`GROUPS_OF_KEY_MAX`], as larger values count as that; 0: the process does not share.
    pub groups: u8,
}

/// The links that the connecting end requests for a comm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShareMode {
    /// Mode 0: links of its own.
    Alone,
    /// Mode 3: links of its own, unless the other end is short of queue pairs.
    Rather,
    /// Mode 1: links of a new group, which further comms may join. The connecting end already has groups for such comms.
    Create(GroupEpoch),
    /// Mode 4: links of a new group. The connecting end has no group for such comms, and so none to join instead.
    First(GroupEpoch),
    /// Mode 2: links of a group that is up.
    Join(GroupEpoch, GroupProof),
}

/// The request at the end of OPEN (24 bytes): mode at offset 0 (1 byte), 3 zero bytes, turn at 4 (4), epoch at 8 (8), proof at 16 (8). The epoch is
/// not 0 with modes 1, 2 and 4, and 0 otherwise; the proof is 0 unless the mode is 2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShareRequest {
    /// The requested links.
    pub mode: ShareMode,
    /// The number of OPENs of this connection id that made another request before this one.
    pub turn: u32,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShareOutcome {
    /// 0: the comm has links of its own, whatever the request, since the accepting end does not share.
    Alone,
    /// 1: the group was created.
    Created {
        /// The epoch of the request.
        epoch: GroupEpoch,
        /// The accepting end's proof.
        proof: GroupProof,
        /// The accepting end's id of the member.
        member: MemberId,
    },
    /// 2: the comm has joined the group.
    Joined {
        /// The epoch of the request.
        epoch: GroupEpoch,
        /// The accepting end's id of the member.
        member: MemberId,
    },
    /// 3: the accepting end has no such group; the connecting end requests again, and not that group.
    Retry,
    /// 4: the accepting end has no queue pairs to spare for the request; the connecting end shares.
    Full,
}

/// The answer at the end of RESULT (32 bytes): outcome at offset 0 (1 byte), 3 zero bytes, turn at 4 (4), member at 8 (4), zero at 12 (4), epoch at
/// 16 (8), proof at 24 (8). Member and epoch are set with outcomes 1 and 2, the proof with 1; otherwise they are 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShareAnswer {
    /// The outcome.
    pub given: ShareOutcome,
    /// The turn of the request.
    pub turn: u32,
}

/// The header of an eager message to a member of a group (24 bytes): an eager header of kind 2, the member at offset 16 (4 bytes), zero at 20 (4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemberEager {
    /// The receiving end's id of the member.
    pub member: MemberId,
    /// The eager header.
    pub eager: EagerHeader,
}

/// Why a sharing field or a member's eager header is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ShareError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// The mode or outcome is unknown.
    #[error("unknown mode or outcome {0} of sharing")]
    Kind(u8),
    /// Bits that must be zero are set.
    #[error("reserved bits are set")]
    Reserved,
    /// The epoch is 0 where a group is named.
    #[error("the epoch of a group is 0")]
    Epoch,
    /// The bits are not a valid member id.
    #[error("{0:#x} is not a valid member id")]
    Member(u32),
    /// The first 16 bytes are not an eager header of kind 2.
    #[error(transparent)]
    Eager(#[from] EagerError),
}

impl ShareOffer {
    /// The offer of a process that does not share.
    pub const NONE: Self = Self { groups: 0 };

    /// Returns the bits of the offer in HELLO.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.groups as u32
    }

    /// Parses the bits of an offer. Every value is valid: bits 8-31 are reserved for later versions and ignored.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        let groups = bits as u8;
        Self { groups: if groups < GROUPS_OF_KEY_MAX { groups } else { GROUPS_OF_KEY_MAX } }
    }
}

impl ShareRequest {
    /// Returns the request's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let (mode, epoch, proof) = match self.mode {
            ShareMode::Alone => (0, 0, 0),
            ShareMode::Create(epoch) => (1, epoch.0.get(), 0),
            ShareMode::Join(epoch, proof) => (2, epoch.0.get(), proof.0),
            ShareMode::Rather => (3, 0, 0),
            ShareMode::First(epoch) => (4, epoch.0.get(), 0),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = mode;
        bytes[4..8].copy_from_slice(&self.turn.to_le_bytes());
        bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&proof.to_le_bytes());
        bytes
    }

    /// Parses a request.
    ///
    /// # Errors
    /// [`ShareError`] names the invalid field.
    pub fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, ShareError> {
        let kind = read_kind(reader)?;
        let turn = reader.u32()?;
        let epoch = reader.u64()?;
        let proof = reader.u64()?;
        let mode = match kind {
            0 => check_zero(epoch | proof).map(|()| ShareMode::Alone)?,
            1 => check_zero(proof).and_then(|()| Ok(ShareMode::Create(parse_epoch(epoch)?)))?,
            2 => ShareMode::Join(parse_epoch(epoch)?, GroupProof(proof)),
            3 => check_zero(epoch | proof).map(|()| ShareMode::Rather)?,
            4 => check_zero(proof).and_then(|()| Ok(ShareMode::First(parse_epoch(epoch)?)))?,
            other => return Err(ShareError::Kind(other)),
        };
        Ok(Self { mode, turn })
    }
}

impl ShareAnswer {
    /// Returns the answer's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ANSWER_BYTES] {
        let (kind, member, epoch, proof) = match self.given {
            ShareOutcome::Alone => (0, 0, 0, 0),
            ShareOutcome::Created { epoch, proof, member } => (1, member.to_bits(), epoch.0.get(), proof.0),
            ShareOutcome::Joined { epoch, member } => (2, member.to_bits(), epoch.0.get(), 0),
            ShareOutcome::Retry => (3, 0, 0, 0),
            ShareOutcome::Full => (4, 0, 0, 0),
        };
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&self.turn.to_le_bytes());
        bytes[8..12].copy_from_slice(&member.to_le_bytes());
        bytes[16..24].copy_from_slice(&epoch.to_le_bytes());
        bytes[24..32].copy_from_slice(&proof.to_le_bytes());
        bytes
    }

    /// Parses an answer.
    ///
    /// # Errors
    /// [`ShareError`] names the invalid field.
    pub fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, ShareError> {
        let kind = read_kind(reader)?;
        let turn = reader.u32()?;
        let member = reader.u32()?;
        let reserved = reader.u32()?;
        let epoch = reader.u64()?;
        let proof = reader.u64()?;
        check_zero(reserved.into())?;
        let bare = |given| check_zero(u64::from(member) | epoch | proof).map(|()| given);
        let given = match kind {
            0 => bare(ShareOutcome::Alone)?,
            1 => ShareOutcome::Created {
                epoch: parse_epoch(epoch)?,
                proof: GroupProof(proof),
                member: parse_member_id(member)?,
            },
            2 => check_zero(proof).and(Ok(ShareOutcome::Joined {
                epoch: parse_epoch(epoch)?,
                member: parse_member_id(member)?,
            }))?,
            3 => bare(ShareOutcome::Retry)?,
            4 => bare(ShareOutcome::Full)?,
            other => return Err(ShareError::Kind(other)),
        };
        Ok(Self { given, turn })
    }
}

impl MemberEager {
    /// Returns the header's bytes; a length beyond [`eager::LEN_MAX`] loses its upper bits.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; EAGER_BYTES] {
        let mut bytes = [0; EAGER_BYTES];
        bytes[..eager::BYTES].copy_from_slice(&self.eager.to_bytes());
        bytes[3] = bytes[3] & 0xf | KIND << 4;
        bytes[16..20].copy_from_slice(&self.member.to_bits().to_le_bytes());
        bytes
    }

    /// Parses a header.
    ///
    /// # Errors
    /// [`ShareError`] names the invalid field.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ShareError> {
        let bytes = FieldReader(bytes).array::<EAGER_BYTES>()?;
        Ok(Self { member: Self::parse_member(&bytes)?, eager: Self::parse_eager(&bytes)? })
    }

    /// Parses the member of a header: the only field that routing needs.
    ///
    /// # Errors
    /// [`ShareError`] names the invalid field.
    #[inline]
    pub fn parse_member(bytes: &[u8; EAGER_BYTES]) -> Result<MemberId, ShareError> {
        let kind = bytes[3] >> 4;
        if kind != KIND {
            return Err(EagerError::Kind(kind).into());
        }
        let [.., a, b, c, d, e, f, g, h] = *bytes;
        check_zero(u32::from_le_bytes([e, f, g, h]).into())?;
        parse_member_id(u32::from_le_bytes([a, b, c, d]))
    }

    /// Parses the eager header in the first [`eager::BYTES`] bytes.
    ///
    /// # Errors
    /// As [`EagerHeader::from_bytes`].
    #[inline]
    pub fn parse_eager(head: &[u8]) -> Result<EagerHeader, EagerError> {
        EagerHeader::of_kind(KIND.into(), head)
    }
}

/// Parses the first four bytes: a kind, and three zeros.
fn read_kind(reader: &mut FieldReader<'_>) -> Result<u8, ShareError> {
    let [kind, reserved @ ..] = reader.array::<4>()?;
    if reserved == [0; 3] { Ok(kind) } else { Err(ShareError::Reserved) }
}

const fn check_zero(bits: u64) -> Result<(), ShareError> {
    if bits == 0 { Ok(()) } else { Err(ShareError::Reserved) }
}

fn parse_epoch(epoch: u64) -> Result<GroupEpoch, ShareError> {
    NonZeroU64::new(epoch).map(GroupEpoch).ok_or(ShareError::Epoch)
}

fn parse_member_id(member: u32) -> Result<MemberId, ShareError> {
    MemberId::from_bits(member).ok_or(ShareError::Member(member))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64) -> GroupEpoch {
        GroupEpoch(NonZeroU64::new(number).unwrap())
    }

    fn member(bits: u32) -> MemberId {
        MemberId::from_bits(bits).unwrap()
    }

    fn request(bytes: &[u8]) -> Result<ShareRequest, ShareError> {
        ShareRequest::from_reader(&mut FieldReader(bytes))
    }

    fn answer(bytes: &[u8]) -> Result<ShareAnswer, ShareError> {
        ShareAnswer::from_reader(&mut FieldReader(bytes))
    }

    #[test]
    fn share_requests_are_laid_out_as_documented() {
        let join = ShareRequest { mode: ShareMode::Join(epoch(0x0102), GroupProof(0x0304)), turn: 5 };
        let bytes = [2, 0, 0, 0, 5, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0];
        assert_eq!((join.to_bytes(), request(&bytes)), (bytes, Ok(join)));
        for mode in [
            ShareMode::Alone,
            ShareMode::Rather,
            ShareMode::Create(epoch(u64::MAX)),
            ShareMode::First(epoch(1)),
        ] {
            let one = ShareRequest { mode, turn: u32::MAX };
            assert_eq!(request(&one.to_bytes()), Ok(one));
        }
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let mut bytes = ShareRequest { mode: ShareMode::Create(epoch(1)), turn: 0 }.to_bytes();
        assert_eq!(request(&bytes[..23]), Err(ShareError::Short(ShortInput)));
        bytes[16] = 1;
        assert_eq!(request(&bytes), Err(ShareError::Reserved), "a request of mode CREATE contains a proof");
        bytes[0] = 0;
        bytes[16] = 0;
        assert_eq!(request(&bytes), Err(ShareError::Reserved), "a request without a group contains an epoch");
        bytes[0] = 3;
        assert_eq!(request(&bytes), Err(ShareError::Reserved), "a request without a group contains a proof");
        bytes[0] = 5;
        assert_eq!(request(&bytes), Err(ShareError::Kind(5)));
        (bytes[0], bytes[16]) = (4, 1);
        assert_eq!(
            request(&bytes),
            Err(ShareError::Reserved),
            "a request to create a group contains a proof"
        );
        bytes[16] = 0;
        (bytes[0], bytes[8]) = (2, 0);
        assert_eq!(request(&bytes), Err(ShareError::Epoch));
        (bytes[3], bytes[8]) = (1, 1);
        assert_eq!(request(&bytes), Err(ShareError::Reserved));
    }

    #[test]
    fn share_replies_are_laid_out_as_documented() {
        let created =
            ShareOutcome::Created { epoch: epoch(9), proof: GroupProof(8), member: member(0x0007_0605) };
        let one = ShareAnswer { given: created, turn: 4 };
        let mut bytes = [0; ANSWER_BYTES];
        (bytes[0], bytes[4], bytes[16], bytes[24]) = (1, 4, 9, 8);
        bytes[8..11].copy_from_slice(&[5, 6, 7]);
        assert_eq!((one.to_bytes(), answer(&bytes)), (bytes, Ok(one)));
        let joined = ShareOutcome::Joined { epoch: epoch(1), member: member(1 << 10) };
        for given in [ShareOutcome::Alone, joined, ShareOutcome::Retry, ShareOutcome::Full] {
            let one = ShareAnswer { given, turn: 0 };
            assert_eq!(answer(&one.to_bytes()), Ok(one));
        }
    }

    #[test]
    fn invalid_share_replies_are_rejected() {
        let with = |kind: u8, member: u32, epoch: u8, proof: u8| {
            let mut bytes = [0; ANSWER_BYTES];
            (bytes[0], bytes[16], bytes[24]) = (kind, epoch, proof);
            bytes[8..12].copy_from_slice(&member.to_le_bytes());
            answer(&bytes)
        };
        for (kind, member, epoch, proof) in
            [(0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (2, 1 << 10, 1, 1), (3, 1 << 10, 0, 0), (4, 0, 1, 0)]
        {
            assert_eq!(with(kind, member, epoch, proof), Err(ShareError::Reserved), "{kind} {member}");
        }
        for kind in 1..=2 {
            assert_eq!(with(kind, 1 << 10, 0, 0), Err(ShareError::Epoch));
        }
        for bits in [0, 1, 0x3ff << 10 | 0x3ff, 1 << 24 | 1 << 10] {
            assert_eq!(with(1, bits, 1, 0), Err(ShareError::Member(bits)));
            assert_eq!(with(2, bits, 1, 0), Err(ShareError::Member(bits)));
        }
        assert_eq!(with(5, 0, 1, 0), Err(ShareError::Kind(5)));
        let mut bytes = ShareAnswer { given: ShareOutcome::Alone, turn: 0 }.to_bytes();
        bytes[12] = 1;
        assert_eq!(answer(&bytes), Err(ShareError::Reserved));
        assert_eq!(answer(&bytes[..31]), Err(ShareError::Short(ShortInput)));
    }

    #[test]
    fn an_offer_is_a_byte() {
        for (bits, groups) in [(0, 0), (4, 4), (0xffff_ff02, 2), (65, 64), (0xff, 64)] {
            assert_eq!(ShareOffer::from_bits(bits), ShareOffer { groups });
        }
        assert_eq!(ShareOffer { groups: 8 }.to_bits(), 8);
    }

    #[test]
    fn eager_header_contains_its_member() {
        let eager = EagerHeader { number: 1, base: 2, tag: 3, len: eager::LEN_MAX };
        let header = MemberEager { member: member(0x00ab_c123), eager };
        let bytes = header.to_bytes();
        assert_eq!(bytes[3], 0x2f);
        assert_eq!(bytes[16..], [0x23, 0xc1, 0xab, 0, 0, 0, 0, 0]);
        assert_eq!(MemberEager::from_bytes(&bytes), Ok(header));
        assert_eq!(
            EagerHeader::from_bytes(&bytes),
            Err(EagerError::Kind(2)),
            "an eager header of one kind was read as the other"
        );
        assert_eq!(MemberEager::from_bytes(&bytes[..23]), Err(ShareError::Short(ShortInput)));
        let mut plain = [0; EAGER_BYTES];
        plain[..eager::BYTES].copy_from_slice(&eager.to_bytes());
        assert_eq!(MemberEager::from_bytes(&plain), Err(ShareError::Eager(EagerError::Kind(1))));
        for (at, byte, error) in [(20, 1, ShareError::Reserved), (19, 1, ShareError::Member(0x01ab_c123))] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(MemberEager::from_bytes(&wrong), Err(error));
        }
    }
}
