//! The sending end of sharing: assigns a connecting comm to a group, and applies the other end's reply. The engine calls it
//! in connect; it makes no links and sends nothing.

use super::config::GroupPreference;
use super::group::{GroupId, GroupPhase, PoolGroup};
use super::key::{CommEnd, GroupKey};
use super::pool_member::{HandshakeStage, JoiningMember, MemberOrigin, PoolMemberId};
use super::{GroupPlace, GroupPool, PoolLimit};
use crate::limits::{GROUPS_OF_KEY_MAX, LINKS_MAX, MEMBERS_OF_GROUP_MAX, TURNS_MAX};
use crate::wire::proof::{GroupEpoch, GroupProof};
use crate::wire::share::{ShareAnswer, ShareMode, ShareOutcome, ShareRequest};

/// The action for a comm that connects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectPlan {
    /// Make links for this comm alone, because this process or the peer does not share.
    Alone(GroupPlace),
    /// Make links for this comm alone, as its preferences state.
    Rather(GroupPlace),
    /// Make links for a further group, and request the group from the other end.
    Create(GroupPlace, GroupEpoch),
    /// Make links for the first group of its key, and request the group from the other end.
    First(GroupPlace, GroupEpoch),
    /// Request from the other end that the comm joins this group, which is up.
    Join(GroupPlace, GroupEpoch, GroupProof),
    /// Call again later: the best group is still being made, or the required queue pairs are still being destroyed with another
    /// group. Nothing is reserved for the comm meanwhile. If the making fails, the next caller makes the next group.
    Wait,
}

impl ConnectPlan {
    /// Returns the request that OPEN carries in that turn; `None` for `Wait`.
    #[must_use]
    pub const fn to_request(&self, turn: u32) -> Option<ShareRequest> {
        let mode = match *self {
            Self::Alone(_) => ShareMode::Alone,
            Self::Rather(_) => ShareMode::Rather,
            Self::Create(_, epoch) => ShareMode::Create(epoch),
            Self::First(_, epoch) => ShareMode::First(epoch),
            Self::Join(_, epoch, proof) => ShareMode::Join(epoch, proof),
            Self::Wait => return None,
        };
        Some(ShareRequest { mode, turn })
    }
}

/// A comm cannot be assigned to a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// Neither a new group nor any existing group has room for it.
    #[error("no room for another comm: {0}")]
    Exhausted(PoolLimit),
    /// The arguments are not those of a comm of this end. A comm has 1 to 4 links over at least one NIC, and one end either requests
    /// or replies.
    #[error("the links or NICs are not those of a comm of this end")]
    Misuse,
}

/// The effect of the other end's reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AnswerStep {
    /// Connect the links that were made, then call [`GroupPool::on_wired`].
    Wire,
    /// The comm is a member of the group, whose links are up.
    Go,
    /// The member is unusable: call [`GroupPool::remove_member`], then connect again with these preferences.
    Again(GroupPreference),
    /// The attempt has failed.
    Failed(AnswerFault),
    /// The reply belongs to an earlier turn, or repeats an earlier reply: no action.
    Known,
}

/// Why a reply ends an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerFault {
    /// The peer replied with a request to retry too often.
    #[error("the peer replied RETRY to every request, and the number of requests is limited")]
    Turns,
    /// The reply does not match the request.
    #[error("the peer's reply does not match the request")]
    Nonsense,
}

impl GroupPool {
    /// Assigns a comm of that key to a group, or has links made for it.
    ///
    /// The comm begins a group while the key has fewer groups than allowed (by this process, the comm's preferences, and the peer's
    /// offer among them) and queue pairs are free. Otherwise it joins the group with the lowest weight of members, then with the
    /// lowest load. Where queue pairs are short, it shares also against its preferences.
    ///
    /// # Errors
    /// [`PlacementError`] names the exhausted resource.
    pub fn plan_connect(
        &mut self,
        key: &GroupKey,
        wish: GroupPreference,
    ) -> Result<ConnectPlan, PlacementError> {
        if key.end != CommEnd::Sending || !fits_links(key, wish.links) {
            return Err(PlacementError::Misuse);
        }
        let comer = |how| JoiningMember { how, wish, conn: None };
        let short = self.budgets.are_short(&key.local, wish.links);
        let groups = self.config.group_limit(short).min(wish.groups_at_most).min(GROUPS_OF_KEY_MAX);
        let existing = self.joinable_groups(key).count();
        let room = self.check_budget(key, wish.links, existing);
        if groups == 0 || wish.alone && !short {
            if let Err(limit) = self.check_budget(key, wish.links, 0) {
                return self.fail_or_wait(limit);
            }
            let place =
                self.make_group(key, None, comer(MemberOrigin::Alone)).map_err(PlacementError::Exhausted)?;
            return Ok(if groups == 0 { ConnectPlan::Alone(place) } else { ConnectPlan::Rather(place) });
        }
        let full = self.best_group(key).is_none() && existing < GROUPS_OF_KEY_MAX.into();
        if existing == 0 || (existing < usize::from(groups) || full) && room.is_ok() {
            if let Err(limit) = room {
                return self.fail_or_wait(limit);
            }
            let epoch = self.epochs.next_epoch();
            let place = self
                .make_group(key, Some(epoch), comer(MemberOrigin::Created))
                .map_err(PlacementError::Exhausted)?;
            return Ok(if existing == 0 {
                ConnectPlan::First(place, epoch)
            } else {
                ConnectPlan::Create(place, epoch)
            });
        }
        let full = PlacementError::Exhausted(PoolLimit::MembersOfGroup(MEMBERS_OF_GROUP_MAX));
        let (id, group) = self.best_group(key).ok_or(full)?;
        let Some(proof) = group.proof.filter(|_| group.state == GroupPhase::Up) else {
            return Ok(ConnectPlan::Wait);
        };
        let epoch = group.epoch.ok_or(PlacementError::Misuse)?;
        let place = self.add_member(id, comer(MemberOrigin::Joined)).map_err(PlacementError::Exhausted)?;
        Ok(ConnectPlan::Join(place, epoch, proof))
    }

    fn fail_or_wait(&self, limit: PoolLimit) -> Result<ConnectPlan, PlacementError> {
        if self.comes_back(limit) { Ok(ConnectPlan::Wait) } else { Err(PlacementError::Exhausted(limit)) }
    }

    /// The best group of a key for a further comm.
    fn best_group(&self, key: &GroupKey) -> Option<(GroupId, &PoolGroup)> {
        let with_room =
            || self.joinable_groups(key).filter(|(_, group)| group.seats.len() < MEMBERS_OF_GROUP_MAX);
        with_room().min_by_key(|(_, group)| {
            (group.weight, group.load, group.state == GroupPhase::Creating, group.index)
        })
    }

    /// Applies the other end's RESULT for a member.
    pub fn on_answer(&mut self, id: PoolMemberId, answer: &ShareAnswer) -> AnswerStep {
        let Some(seat) = self.seats.get_mut(id.0) else { return AnswerStep::Known };
        if seat.stage != HandshakeStage::Asking || answer.turn != seat.wish.turn {
            return AnswerStep::Known;
        }
        let Some(group) = self.groups.get_mut(seat.group.0) else { return AnswerStep::Known };
        let again = seat.wish.next_turn();
        let ours = |epoch| Some(epoch) == group.epoch;
        match (seat.how, answer.given) {
            (MemberOrigin::Alone, ShareOutcome::Alone) => {}
            (MemberOrigin::Created, ShareOutcome::Alone) => {
                group.epoch = None;
                (seat.how, seat.stage) = (MemberOrigin::Alone, HandshakeStage::Agreed);
                let key = group.key;
                let id = seat.group;
                self.unlist_group(&key, id);
                return AnswerStep::Wire;
            }
            (MemberOrigin::Created, ShareOutcome::Created { epoch, proof, .. }) if ours(epoch) => {
                group.told = Some(proof)
            }
            (MemberOrigin::Joined, ShareOutcome::Joined { epoch, .. }) if ours(epoch) => {
                seat.stage = HandshakeStage::Agreed;
                return AnswerStep::Go;
            }
            (MemberOrigin::Created | MemberOrigin::Joined, ShareOutcome::Retry) => {
                group.advance_to(GroupPhase::Draining);
                return retry_with(again);
            }
            (MemberOrigin::Alone, ShareOutcome::Full) if again.alone => {
                return retry_with(GroupPreference { alone: false, ..again });
            }
            (MemberOrigin::Created, ShareOutcome::Full) => {
                group.advance_to(GroupPhase::Draining);
                let key = group.key;
                // The other end's groups for such comms may belong to other NICs of this end: then the comm gets links of its own.
                let joins = self.joinable_groups(&key).next().is_some();
                return retry_with(GroupPreference { groups_at_most: u8::from(joins), ..again });
            }
            _ => return AnswerStep::Failed(AnswerFault::Nonsense),
        }
        seat.stage = HandshakeStage::Agreed;
        AnswerStep::Wire
    }
}

/// Retries with these preferences, unless the attempt has used all its turns.
const fn retry_with(wish: GroupPreference) -> AnswerStep {
    if wish.turn < TURNS_MAX { AnswerStep::Again(wish) } else { AnswerStep::Failed(AnswerFault::Turns) }
}

/// Whether a comm of that key can have `links` links.
pub(super) fn fits_links(key: &GroupKey, links: u8) -> bool {
    (1..=LINKS_MAX).contains(&usize::from(links)) && !key.local.is_empty()
}
