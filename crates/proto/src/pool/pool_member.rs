//! The pool's record of one group member. The pool owns it; the state of the member's comm is elsewhere.

use super::config::GroupPreference;
use super::group::GroupId;
use crate::slots::SlotId;

/// The id of a member at one end.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PoolMemberId(pub SlotId);

/// How a member began.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MemberOrigin {
    /// With links of its own.
    Alone,
    /// As the first member of its group.
    Created,
    /// In a group that was up.
    Joined,
}

/// The progress of the handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HandshakeStage {
    /// The other end has not replied.
    Asking,
    /// Both ends agree.
    Agreed,
}

/// A member that is about to join.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoiningMember {
    pub(super) how: MemberOrigin,
    pub(super) wish: GroupPreference,
    /// At the receiving end: the sending end's id of the connection.
    pub(super) conn: Option<u64>,
}

/// One member.
#[derive(Debug)]
pub(super) struct PoolMember {
    pub(super) group: GroupId,
    pub(super) how: MemberOrigin,
    pub(super) stage: HandshakeStage,
    pub(super) wish: GroupPreference,
    /// At the receiving end: the sending end's id of the connection.
    pub(super) conn: Option<u64>,
}
