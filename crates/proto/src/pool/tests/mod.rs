//! The rules of the pool, one by one and under random sequences of events.

mod churn;
mod counts;
mod pair;
mod rules;

use proptest::prelude::ProptestConfig;

use super::config::{GroupPreference, SharingMode};
use super::*;
use crate::limits::{GROUPS_OF_KEY_MAX, TURNS_MAX};
use crate::nics::NicList;
use crate::slots::SlotId;
use crate::wire::member::MemberId;
use crate::wire::share::{ShareAnswer, ShareMode, ShareOffer, ShareOutcome, ShareRequest};

/// The number of cases; failed ones are printed and not kept.
pub(super) fn cases(number: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(number) }
}

/// The first member in that slot.
pub(super) fn member(slot: u32) -> MemberId {
    MemberId::from_bits(1 << MemberId::SLOT_BITS | slot).unwrap()
}

fn pool(sharing: SharingMode, groups: u8) -> GroupPool {
    GroupPool::new(PoolConfig::new(sharing, groups, 1).unwrap(), 1 << 40)
}

fn process(number: u8) -> ProcessId {
    ProcessId([number; 16])
}

fn nics(list: &[u16]) -> NicList {
    NicList::new(list).unwrap()
}

/// The key of a sending end towards that process, from NIC 0 to its NIC 0.
fn sending(peer: u8) -> GroupKey {
    GroupKey { peer: process(peer), end: CommEnd::Sending, local: nics(&[0]), remote: nics(&[0]) }
}

/// The key of a receiving end.
fn receiving(peer: u8) -> GroupKey {
    GroupKey { end: CommEnd::Receiving, ..sending(peer) }
}

/// The proof of a group with these ids at its ends.
fn proof(asking: GroupId, answering: GroupId) -> GroupProof {
    GroupProof::of_links([(&asking.0.to_bits().to_le_bytes()[..], &answering.0.to_bits().to_le_bytes()[..])])
}

/// The result of a lossless handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Met {
    /// A member at each end.
    Both(GroupPlace, GroupPlace),
    /// The requesting end has no room.
    Exhausted(PoolLimit),
    /// The replying end has no room.
    NoResources(PoolLimit),
    /// The reply ended the attempt.
    Failed(AnswerFault),
}

impl Met {
    fn both(self) -> (GroupPlace, GroupPlace) {
        let Self::Both(asking, answering) = self else { unreachable!("{self:?}") };
        (asking, answering)
    }
}

/// Connects a comm without losses or delays.
fn connect(
    ends: (&mut GroupPool, &mut GroupPool),
    keys: (&GroupKey, &GroupKey),
    conn: u64,
    mut wish: GroupPreference,
) -> Met {
    let (asking, answering) = ends;
    for _ in 0..100 {
        let ask = match asking.plan_connect(keys.0, wish) {
            Ok(ask) => ask,
            Err(PlacementError::Exhausted(limit)) => return Met::Exhausted(limit),
            Err(PlacementError::Misuse) => unreachable!("misuse"),
        };
        let (ConnectPlan::Alone(ours)
        | ConnectPlan::Rather(ours)
        | ConnectPlan::Create(ours, _)
        | ConnectPlan::First(ours, _)
        | ConnectPlan::Join(ours, ..)) = ask
        else {
            unreachable!("no group is being created")
        };
        let request = ask.to_request(wish.turn).unwrap();
        let verdict = answering.on_request(keys.1, conn, wish.links, &request).unwrap();
        assert_eq!(
            answering.on_request(keys.1, conn, wish.links, &request),
            Ok(verdict),
            "the repeated request had another result"
        );
        let (given, theirs) = match answered(answering, verdict, &request, ours) {
            Ok(answered) => answered,
            Err(limit) => {
                leave(asking, ours.seat);
                return Met::NoResources(limit);
            }
        };
        let answer = ShareAnswer { given, turn: wish.turn };
        match asking.on_answer(ours.seat, &answer) {
            AnswerStep::Wire => {
                assert_eq!(asking.on_wired(ours.group, proof(ours.group, theirs.group)), Ok(GroupPhase::Up));
                assert_eq!(answering.on_ready(theirs.seat), Ok(GroupPhase::Up));
                return Met::Both(ours, theirs);
            }
            AnswerStep::Go => {
                assert_eq!(answering.on_ready(theirs.seat), Ok(GroupPhase::Up));
                return Met::Both(ours, theirs);
            }
            AnswerStep::Again(next) => {
                leave(asking, ours.seat);
                wish = next;
            }
            AnswerStep::Failed(fault) => {
                leave(asking, ours.seat);
                return Met::Failed(fault);
            }
            AnswerStep::Known => unreachable!("one request got two replies"),
        }
    }
    unreachable!("the handshake did not end")
}

/// Returns the reply of the replying end, after its links are wired.
fn answered(
    pool: &mut GroupPool,
    verdict: AcceptPlan,
    request: &ShareRequest,
    ours: GroupPlace,
) -> Result<(ShareOutcome, GroupPlace), PoolLimit> {
    let wire = |pool: &mut GroupPool, theirs: GroupPlace| {
        let proof = proof(ours.group, theirs.group);
        assert_eq!(pool.on_wired(theirs.group, proof), Ok(GroupPhase::Creating));
        proof
    };
    let (ShareMode::Create(epoch) | ShareMode::First(epoch) | ShareMode::Join(epoch, _)) = request.mode
    else {
        return match verdict {
            AcceptPlan::Alone(place) => {
                wire(pool, place);
                Ok((ShareOutcome::Alone, place))
            }
            AcceptPlan::Full => Ok((ShareOutcome::Full, ours)),
            AcceptPlan::NoResources(limit) => Err(limit),
            other => unreachable!("{other:?}"),
        };
    };
    match verdict {
        AcceptPlan::Created(place) => {
            let proof = wire(pool, place);
            Ok((ShareOutcome::Created { epoch, proof, member: member(0) }, place))
        }
        AcceptPlan::Joined(place) => Ok((ShareOutcome::Joined { epoch, member: member(0) }, place)),
        AcceptPlan::Alone(place) => {
            wire(pool, place);
            Ok((ShareOutcome::Alone, place))
        }
        AcceptPlan::Retry => Ok((ShareOutcome::Retry, ours)),
        AcceptPlan::Full => Ok((ShareOutcome::Full, ours)),
        AcceptPlan::NoResources(limit) => Err(limit),
        AcceptPlan::Stale(_) | AcceptPlan::Late | AcceptPlan::Later => unreachable!("{verdict:?}"),
    }
}

/// Removes a member, and destroys its group's objects if it was the last.
fn leave(pool: &mut GroupPool, seat: PoolMemberId) {
    if let RemainingMembers::Last(teardown) = pool.remove_member(seat).unwrap() {
        let group = teardown.group;
        assert_eq!(pool.group_phase(group), Some(GroupPhase::Leaving));
        assert!(teardown.count() > 1);
        assert!(pool.on_destroyed(group) && !pool.on_destroyed(group));
    }
}

/// Number of members of each joinable group, by index.
fn sizes(pool: &GroupPool) -> Vec<usize> {
    let mut sizes: Vec<_> = pool
        .group_usages()
        .filter(|group| group.shared && group.state == GroupPhase::Up)
        .map(|group| (group.index, group.members))
        .collect();
    sizes.sort_unstable();
    sizes.into_iter().map(|(_, members)| members).collect()
}

fn spread(sizes: &[usize]) -> usize {
    sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0)
}
