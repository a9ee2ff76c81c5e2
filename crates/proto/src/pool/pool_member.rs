//! A comm's seat in a group: what the pool knows of a member. Owned by the pool; the member's own state is elsewhere.

use super::config::GroupPreference;
use super::group::GroupId;
use crate::slots::SlotId;

/// The name of a seat at one end.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PoolMemberId(pub SlotId);

/// How a seat came to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MemberOrigin {
    /// With links of its own.
    Alone,
    /// With the group.
    Created,
    /// In a group that was up.
    Joined,
}

/// How far the handshake is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HandshakeStage {
    /// The other end was asked.
    Asking,
    /// Both ends agree.
    Agreed,
}

/// Who takes a seat.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoiningMember {
    pub(super) how: MemberOrigin,
    pub(super) wish: GroupPreference,
    /// The asking side's id of the connection, at the end that was asked.
    pub(super) conn: Option<u64>,
}

/// One seat.
#[derive(Debug)]
pub(super) struct PoolMember {
    pub(super) group: GroupId,
    pub(super) how: MemberOrigin,
    pub(super) stage: HandshakeStage,
    pub(super) wish: GroupPreference,
    /// The asking side's id of the connection, at the end that was asked.
    pub(super) conn: Option<u64>,
}
