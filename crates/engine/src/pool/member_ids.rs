//! What tells a comm's lane from others of its group: names in `wr_id`s, headers and tokens. Plain values, given when a comm
//! gets its seat; read for each message.

use trunkline_fabric::MatchKey;
use trunkline_proto::limits::TOKENS_MAX;
use trunkline_proto::pool::ranges::{self, TokenRange};
use trunkline_proto::wire::eager::{self, EagerError, EagerHeader};
use trunkline_proto::wire::fin;
use trunkline_proto::wire::imm::BufferToken;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{self, MemberEager};

/// What tells a sending lane from others of its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendMemberIds {
    /// In the `wr_id` of all it posts.
    pub(crate) tag: u64,
    /// What the receiving end calls the member; none where there are no others.
    pub(crate) remote: Option<MemberId>,
    /// Eager messages that it has the group's credit for.
    pub(crate) eager: u32,
    /// Slices under way.
    pub(crate) slices: u32,
    /// Places of its fin mailbox, less one.
    pub(crate) fin_mask: usize,
}

impl SendMemberIds {
    /// Of a comm that shares nothing.
    pub(crate) const ALONE: Self =
        Self { tag: 0, remote: None, eager: 0, slices: 0, fin_mask: TOKENS_MAX - 1 };

    /// Of a member, as the two ends call it.
    pub(crate) const fn of_member(member: MemberId, remote: MemberId) -> Self {
        let tag = member.wr_id(0);
        let fin_mask = ranges::SLOTS - 1;
        Self { tag, remote: Some(remote), eager: 0, slices: 0, fin_mask }
    }

    /// Bytes of the header of an eager message.
    #[inline]
    pub(crate) fn header_len(&self) -> usize {
        if self.remote.is_some() { share::EAGER_BYTES } else { eager::BYTES }
    }

    /// The header of an eager message, of which [`SendMemberIds::header_len`] bytes count.
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

    /// What a NIC that pairs messages tells members apart by, of whose name it compares these bits.
    pub(crate) fn match_key(&self, tag: u32, mask: u32) -> MatchKey {
        let member = self.remote.map_or(0, MemberId::to_bits) & mask;
        MatchKey(u64::from(tag) | u64::from(member) << 32)
    }
}

/// What tells a receiving lane from others of its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvMemberIds {
    /// In the `wr_id` of all it posts, but for bounce buffers, which are the group's.
    pub(crate) tag: u64,
    /// What a NIC that pairs messages tells members apart by.
    pub(crate) member: u32,
    /// Its tokens; none where there are no others.
    pub(crate) range: Option<TokenRange>,
    /// Bytes of the header of an eager message.
    pub(crate) head: usize,
}

impl RecvMemberIds {
    /// Of a comm that shares nothing.
    pub(crate) const ALONE: Self = Self { tag: 0, member: 0, range: None, head: eager::BYTES };

    /// Of a member with that range.
    pub(crate) const fn of_member(member: MemberId, range: TokenRange) -> Self {
        let tag = member.wr_id(0);
        let member = member.to_bits();
        Self { tag, member, range: Some(range), head: share::EAGER_BYTES }
    }

    /// The header of an eager message. Whose it is was looked at before, where there are others.
    ///
    /// # Errors
    /// As [`EagerHeader::from_bytes`].
    #[inline]
    pub(crate) fn parse_eager(&self, head: &[u8; eager::BYTES]) -> Result<EagerHeader, EagerError> {
        if self.range.is_some() { MemberEager::parse_eager(head) } else { EagerHeader::from_bytes(head) }
    }

    /// The token that the sender is told.
    #[inline]
    pub(crate) fn to_wire_token(self, token: BufferToken) -> BufferToken {
        self.range.map_or(token, |range| range.to_wire(token))
    }

    /// Where in the fin mailbox the record of a token is.
    #[inline]
    pub(crate) fn fin_at(&self, token: BufferToken) -> u64 {
        let place = if self.range.is_some() { ranges::token_place(token) } else { token.slot() };
        (place * fin::BYTES) as u64
    }
}
