//! The names that distinguish a comm's lane from others of its group: in `wr_id`s, headers and tokens. Plain values, set when a
//! comm becomes a member; read for each message.

use trunkline_fabric::MatchKey;
use trunkline_proto::limits::TOKENS_MAX;
use trunkline_proto::pool::ranges::{self, TokenRange};
use trunkline_proto::wire::eager::{self, EagerError, EagerHeader};
use trunkline_proto::wire::fin;
use trunkline_proto::wire::imm::BufferToken;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{self, MemberEager};

/// The names of a sending lane in its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendMemberIds {
    /// Part of the `wr_id` of all its posted operations.
    pub(crate) tag: u64,
    /// The receiving end's name of the member; `None` for a comm of its own.
    pub(crate) remote: Option<MemberId>,
    /// Eager messages for which it holds the group's credit.
    pub(crate) eager: u32,
    /// Slices in flight.
    pub(crate) slices: u32,
    /// The number of entries of its fin mailbox, minus one.
    pub(crate) fin_mask: usize,
}

impl SendMemberIds {
    /// The names of a comm that shares nothing.
    pub(crate) const ALONE: Self =
        Self { tag: 0, remote: None, eager: 0, slices: 0, fin_mask: TOKENS_MAX - 1 };

    /// Returns the names of a member, as used at the two ends.
    pub(crate) const fn of_member(member: MemberId, remote: MemberId) -> Self {
        let tag = member.wr_id(0);
        let fin_mask = ranges::SLOTS - 1;
        Self { tag, remote: Some(remote), eager: 0, slices: 0, fin_mask }
    }

    /// Returns the number of header bytes of an eager message.
    #[inline]
    pub(crate) fn header_len(&self) -> usize {
        if self.remote.is_some() { share::EAGER_BYTES } else { eager::BYTES }
    }

    /// Returns the header of an eager message; [`SendMemberIds::header_len`] of its bytes are sent.
    #[inline]
    pub(crate) fn eager_head(&self, header: EagerHeader) -> [u8; share::EAGER_BYTES] {
        match self.remote {
            Some(member) => MemberEager { member, eager: header }.to_bytes(),
            None => {
                let mut head = [0; share::EAGER_BYTES];
                head[..eager::BYTES].copy_from_slice(&header.to_bytes());
                head
            }
        }
    }

    /// Returns the key by which a NIC that pairs messages distinguishes members; `mask` selects the bits of the name that it
    /// compares.
    pub(crate) fn match_key(&self, tag: u32, mask: u32) -> MatchKey {
        let member = self.remote.map_or(0, MemberId::to_bits) & mask;
        MatchKey(u64::from(tag) | u64::from(member) << 32)
    }
}

/// The names of a receiving lane in its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvMemberIds {
    /// Part of the `wr_id` of all its posted operations, except for bounce buffers, which are the group's.
    pub(crate) tag: u64,
    /// The name by which a NIC that pairs messages distinguishes members.
    pub(crate) member: u32,
    /// The range of its tokens; `None` for a comm of its own.
    pub(crate) range: Option<TokenRange>,
    /// The number of header bytes of an eager message.
    pub(crate) head: usize,
}

impl RecvMemberIds {
    /// The names of a comm that shares nothing.
    pub(crate) const ALONE: Self = Self { tag: 0, member: 0, range: None, head: eager::BYTES };

    /// Returns the names of a member with this range.
    pub(crate) const fn of_member(member: MemberId, range: TokenRange) -> Self {
        let tag = member.wr_id(0);
        let member = member.to_bits();
        Self { tag, member, range: Some(range), head: share::EAGER_BYTES }
    }

    /// Parses the header of an eager message. Its member has been identified before, for a group.
    ///
    /// # Errors
    /// As [`EagerHeader::from_bytes`].
    #[inline]
    pub(crate) fn parse_eager(&self, head: &[u8; eager::BYTES]) -> Result<EagerHeader, EagerError> {
        if self.range.is_some() { MemberEager::parse_eager(head) } else { EagerHeader::from_bytes(head) }
    }

    /// Returns the token for the sender.
    #[inline]
    pub(crate) fn to_wire_token(self, token: BufferToken) -> BufferToken {
        self.range.map_or(token, |range| range.to_wire(token))
    }

    /// Returns the offset of a token's record in the fin mailbox.
    #[inline]
    pub(crate) fn fin_at(&self, token: BufferToken) -> u64 {
        let place = if self.range.is_some() { ranges::token_place(token) } else { token.slot() };
        (place * fin::BYTES) as u64
    }
}
