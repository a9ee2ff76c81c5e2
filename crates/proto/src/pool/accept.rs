//! The receiving end of sharing: decides about the other end's requests, and when a group is up. The engine calls it for OPEN
//! and READY; it makes no links and sends nothing.

use super::config::GroupPreference;
use super::connect::{PlacementError, fits_links};
use super::group::{GroupId, GroupPhase};
use super::key::{CommEnd, GroupKey};
use super::pool_member::{HandshakeStage, JoiningMember, MemberOrigin, PoolMemberId};
use super::{GroupPlace, GroupPool, PoolLimit, UnknownMember};
use crate::limits::{GROUPS_OF_KEY_MAX, MEMBERS_OF_GROUP_MAX};
use crate::wire::proof::{GroupEpoch, GroupProof};
use crate::wire::share::{ShareMode, ShareRequest};

/// The action for a comm that is to be accepted. A repeated request gets the same result, and no second member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AcceptPlan {
    /// Make links for the new group, connect them, call [`GroupPool::on_wired`] and reply with the proof.
    Created(GroupPlace),
    /// The comm is a member of the group.
    Joined(GroupPlace),
    /// Make links for this comm alone, because the request states so or this end does not share.
    Alone(GroupPlace),
    /// The group does not exist here, or is not wired to the other end's.
    Retry,
    /// No queue pairs are free for a further group or for a comm alone: the comm has to share.
    Full,
    /// A resource for it is exhausted.
    NoResources(PoolLimit),
    /// Send no reply now: the required queue pairs are still being destroyed with another group. The peer repeats its
    /// request.
    Later,
    /// The other end has abandoned its earlier request: call [`GroupPool::remove_member`] for this member, then call the pool again.
    Stale(PoolMemberId),
    /// The request is older than one that was handled; send no reply.
    Late,
}

impl GroupPool {
    /// Handles an OPEN for connection `conn` of the other process, from a comm with `links` links.
    ///
    /// # Errors
    /// [`PlacementError::Misuse`] only.
    pub fn on_request(
        &mut self,
        key: &GroupKey,
        conn: u64,
        links: u8,
        request: &ShareRequest,
    ) -> Result<AcceptPlan, PlacementError> {
        if key.end != CommEnd::Receiving || !fits_links(key, links) {
            return Err(PlacementError::Misuse);
        }
        if let Some(&seat) = self.conns.get(&(key.peer, conn)) {
            return Ok(self.repeat_answer(seat, request.turn));
        }
        let wish = GroupPreference { turn: request.turn, ..GroupPreference::new(links) };
        let shares = self.config.sharing_offer().groups > 0;
        Ok(match request.mode {
            ShareMode::Join(epoch, proof) => self.accept_join(key, conn, wish, epoch, proof),
            ShareMode::Create(epoch) if shares => {
                self.accept_create(key, conn, wish, epoch, self.joinable_groups(key).count())
            }
            // The groups of this key here may belong to other NICs of that process, which OPEN does not name: none of them counts.
            ShareMode::First(epoch) if shares => self.accept_create(key, conn, wish, epoch, 0),
            ShareMode::Rather if shares && self.budgets.are_short(&key.local, links) => AcceptPlan::Full,
            ShareMode::Create(_) | ShareMode::First(_) | ShareMode::Rather | ShareMode::Alone => {
                self.accept_alone(key, conn, wish)
            }
        })
    }

    /// Returns the earlier result for a connection that has a member.
    fn repeat_answer(&self, id: PoolMemberId, turn: u32) -> AcceptPlan {
        let Some(seat) = self.seats.get(id.0) else { return AcceptPlan::Retry };
        if turn != seat.wish.turn {
            return if turn < seat.wish.turn { AcceptPlan::Late } else { AcceptPlan::Stale(id) };
        }
        let place = GroupPlace { group: seat.group, seat: id };
        match (seat.how, self.group_phase(seat.group)) {
            (MemberOrigin::Alone, _) => AcceptPlan::Alone(place),
            (_, None | Some(GroupPhase::Broken | GroupPhase::Leaving)) => AcceptPlan::Retry,
            (MemberOrigin::Created, _) => AcceptPlan::Created(place),
            (MemberOrigin::Joined, _) => AcceptPlan::Joined(place),
        }
    }

    fn accept_join(
        &mut self,
        key: &GroupKey,
        conn: u64,
        wish: GroupPreference,
        epoch: GroupEpoch,
        proof: GroupProof,
    ) -> AcceptPlan {
        let Some(id) = self.of_epoch(key, epoch) else { return AcceptPlan::Retry };
        let Some(group) = self.groups.get_mut(id.0) else { return AcceptPlan::Retry };
        let proven = group.proof == Some(proof);
        let open = matches!(group.state, GroupPhase::Creating | GroupPhase::Up);
        if !proven || !open || group.seats.len() >= MEMBERS_OF_GROUP_MAX {
            return AcceptPlan::Retry;
        }
        // A peer that can prove the wiring has received the reply to the group's creator, and joins only a group that is up at its end.
        // So its request implies READY.
        group.advance_to(GroupPhase::Up);
        match self.add_member(id, JoiningMember { how: MemberOrigin::Joined, wish, conn: Some(conn) }) {
            Ok(place) => AcceptPlan::Joined(place),
            Err(limit) => AcceptPlan::NoResources(limit),
        }
    }

    /// Handles a request for a new group. `existing`: groups that the requesting end could have this comm share.
    fn accept_create(
        &mut self,
        key: &GroupKey,
        conn: u64,
        wish: GroupPreference,
        epoch: GroupEpoch,
        existing: usize,
    ) -> AcceptPlan {
        if self.of_epoch(key, epoch).is_some() {
            // Two connections cannot both create one group.
            return AcceptPlan::Retry;
        }
        match self.check_budget(key, wish.links, existing) {
            Err(_) if existing > 0 => return AcceptPlan::Full,
            Err(limit) => return self.refuse_or_defer(limit),
            Ok(()) if self.joinable_groups(key).count() >= GROUPS_OF_KEY_MAX.into() => {
                return AcceptPlan::Full;
            }
            Ok(()) => {}
        }
        match self.make_group(
            key,
            Some(epoch),
            JoiningMember { how: MemberOrigin::Created, wish, conn: Some(conn) },
        ) {
            Ok(place) => AcceptPlan::Created(place),
            Err(limit) => AcceptPlan::NoResources(limit),
        }
    }

    fn accept_alone(&mut self, key: &GroupKey, conn: u64, wish: GroupPreference) -> AcceptPlan {
        if let Err(limit) = self.check_budget(key, wish.links, 0) {
            return self.refuse_or_defer(limit);
        }
        match self.make_group(key, None, JoiningMember { how: MemberOrigin::Alone, wish, conn: Some(conn) }) {
            Ok(place) => AcceptPlan::Alone(place),
            Err(limit) => AcceptPlan::NoResources(limit),
        }
    }

    fn refuse_or_defer(&self, limit: PoolLimit) -> AcceptPlan {
        if self.comes_back(limit) { AcceptPlan::Later } else { AcceptPlan::NoResources(limit) }
    }

    /// The group of that epoch, in any phase.
    fn of_epoch(&self, key: &GroupKey, epoch: GroupEpoch) -> Option<GroupId> {
        let of_epoch = |id: &GroupId| self.groups.get(id.0).is_some_and(|group| group.epoch == Some(epoch));
        self.of_key(key).find(of_epoch)
    }

    /// Handles READY for a member: the other end is wired too, so a group that waited for it is up. Returns the group's phase.
    ///
    /// # Errors
    /// [`UnknownMember`] if the comm was removed.
    pub fn on_ready(&mut self, id: PoolMemberId) -> Result<GroupPhase, UnknownMember> {
        let seat = self.seats.get_mut(id.0).ok_or(UnknownMember)?;
        let group = self.groups.get_mut(seat.group.0).ok_or(UnknownMember)?;
        seat.stage = HandshakeStage::Agreed;
        if group.proof.is_some() {
            group.advance_to(GroupPhase::Up);
        }
        Ok(group.state)
    }
}
