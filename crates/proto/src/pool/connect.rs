//! The sending end: which group a comm goes to, and what the other end's answer makes of it.

use super::config::GroupPreference;
use super::group::{GroupId, GroupPhase, PoolGroup};
use super::key::{CommEnd, GroupKey};
use super::pool_member::{HandshakeStage, JoiningMember, MemberOrigin, PoolMemberId};
use super::{GroupPlace, GroupPool, PoolLimit};
use crate::limits::{GROUPS_OF_KEY_MAX, LINKS_MAX, MEMBERS_OF_GROUP_MAX, TURNS_MAX};
use crate::wire::proof::{GroupEpoch, GroupProof};
use crate::wire::share::{ShareAnswer, ShareMode, ShareOutcome, ShareRequest};

/// What to do for a comm that connects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectPlan {
    /// Make links for it alone, as this process or the peer does not share.
    Alone(GroupPlace),
    /// Make links for it alone, as it wished.
    Rather(GroupPlace),
    /// Make links for one more group, and ask the other end to.
    Create(GroupPlace, GroupEpoch),
    /// The same for the first group of its key.
    First(GroupPlace, GroupEpoch),
    /// Ask the other end to let it into this group, which is up.
    Join(GroupPlace, GroupEpoch, GroupProof),
    /// Ask again later: the group that it fits best is still being made, or the queue pairs that it needs are still being
    /// destroyed with another. Nothing is kept for it meanwhile; if the making fails, whoever asks first makes the next one.
    Wait,
}

impl ConnectPlan {
    /// What OPEN says, of that turn; nothing while it waits.
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

/// A comm cannot be placed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// There is no room for it, nor in any group that exists.
    #[error("no room for another comm: {0}")]
    Exhausted(PoolLimit),
    /// A comm has 1 to 4 links, over at least one NIC, and this end asks or answers, not both.
    #[error("not a comm of this end")]
    Misuse,
}

/// What the other end's answer means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AnswerStep {
    /// Connect the links that were made, then say [`GroupPool::on_wired`].
    Wire,
    /// The comm is in the group, whose links are up.
    Go,
    /// The seat is of no use: [`GroupPool::remove_member`] it, then ask with this wish.
    Again(GroupPreference),
    /// The attempt has failed.
    Failed(AnswerFault),
    /// It answers an ask of an earlier turn, or one that was answered: nothing.
    Known,
}

/// Why an answer ends an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerFault {
    /// It was told to ask anew too often.
    #[error("the peer wants to be asked anew for ever")]
    Turns,
    /// It is no answer to what was asked.
    #[error("the peer's answer does not fit the request")]
    Nonsense,
}

impl GroupPool {
    /// A comm of that key wants links.
    ///
    /// Below the number of groups there may be (of this process, the wish, and the peer's offer within it) and with queue
    /// pairs to spare, it begins a group; otherwise it goes to the one with the least weight of members, then with the
    /// least load. Where queue pairs are short it shares also against its wish.
    ///
    /// # Errors
    /// [`PlacementError`] names what has run out.
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

    /// The group of a key that a comm fits best.
    fn best_group(&self, key: &GroupKey) -> Option<(GroupId, &PoolGroup)> {
        let with_room =
            || self.joinable_groups(key).filter(|(_, group)| group.seats.len() < MEMBERS_OF_GROUP_MAX);
        with_room().min_by_key(|(_, group)| {
            (group.weight, group.load, group.state == GroupPhase::Creating, group.index)
        })
    }

    /// The other end's RESULT came for that seat.
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
                // What that end has for comms of this kind may be for other NICs of this one: then it is to have its own.
                let joins = self.joinable_groups(&key).next().is_some();
                return retry_with(GroupPreference { groups_at_most: u8::from(joins), ..again });
            }
            _ => return AnswerStep::Failed(AnswerFault::Nonsense),
        }
        seat.stage = HandshakeStage::Agreed;
        AnswerStep::Wire
    }
}

/// Asks anew with that wish, unless that was often enough.
const fn retry_with(wish: GroupPreference) -> AnswerStep {
    if wish.turn < TURNS_MAX { AnswerStep::Again(wish) } else { AnswerStep::Failed(AnswerFault::Turns) }
}

/// Whether a comm of that key can have so many links.
pub(super) fn fits_links(key: &GroupKey, links: u8) -> bool {
    (1..=LINKS_MAX).contains(&usize::from(links)) && !key.local.is_empty()
}
