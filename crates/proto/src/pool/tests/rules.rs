//! One test per rule.

use super::*;

/// Two ends that share on `groups` groups.
fn two(groups: u8) -> (GroupPool, GroupPool) {
    (pool(SharingMode::On, groups), pool(SharingMode::On, groups))
}

fn join(ends: &mut (GroupPool, GroupPool), conn: u64) -> (GroupPlace, GroupPlace) {
    join_as(ends, conn, GroupPreference::new(1))
}

fn join_as(
    (a, b): &mut (GroupPool, GroupPool),
    conn: u64,
    wish: GroupPreference,
) -> (GroupPlace, GroupPlace) {
    connect((a, b), (&sending(2), &receiving(1)), conn, wish).both()
}

#[test]
fn groups_are_created_before_any_is_joined() {
    let mut ends = two(3);
    let places: Vec<_> = (0..8).map(|conn| join(&mut ends, conn)).collect();
    assert_eq!((sizes(&ends.0), sizes(&ends.1)), ([3, 3, 2].into(), [3, 3, 2].into()));
    let groups: Vec<_> = places.iter().map(|(ours, _)| ends.0.index(ours.group).unwrap()).collect();
    assert_eq!(groups, [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn the_least_loaded_group_is_joined() {
    let mut ends = two(3);
    let places: Vec<_> = (0..6).map(|conn| join(&mut ends, conn)).collect();
    // The second group has one member less; its index does not depend on the number of groups.
    leave(&mut ends.0, places[1].0.seat);
    leave(&mut ends.1, places[1].1.seat);
    let next = join(&mut ends, 10).0;
    assert_eq!(ends.0.index(next.group), Some(1));
    // Both groups have two members, so the load decides.
    ends.0.set_load(places[0].0.group, 5);
    ends.0.set_load(places[2].0.group, 1);
    ends.0.set_load(next.group, 3);
    let third = join(&mut ends, 11).0;
    assert_eq!(ends.0.index(third.group), Some(2));
    // Weight has precedence over load.
    let heavy = join_as(&mut ends, 12, GroupPreference { weight: 9, ..GroupPreference::new(1) }).0;
    assert_eq!(ends.0.index(heavy.group), Some(1));
    for conn in 13..18 {
        assert_ne!(join(&mut ends, conn).0.group, heavy.group);
    }
}

#[test]
fn join_creates_a_group_when_the_pending_one_fails() {
    let mut a = pool(SharingMode::On, 1);
    let Ok(ConnectPlan::First(first, one)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
        unreachable!()
    };
    assert_eq!(a.plan_connect(&sending(2), GroupPreference::new(1)), Ok(ConnectPlan::Wait));
    let before = a.pool_usage();
    assert_eq!(a.plan_connect(&sending(2), GroupPreference::new(1)), Ok(ConnectPlan::Wait));
    assert_eq!(a.pool_usage(), before, "a waiting comm holds nothing in the pool");
    assert!(
        matches!(a.plan_connect(&sending(3), GroupPreference::new(1)), Ok(ConnectPlan::First(..))),
        "the key is of another process"
    );
    leave(&mut a, first.seat);
    let Ok(ConnectPlan::First(_, two)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
        unreachable!()
    };
    assert_ne!(one, two);
}

#[test]
fn join_without_the_groups_proof_is_refused() {
    let mut ends = two(1);
    let (ours, theirs) = join(&mut ends, 0);
    let Ok(ConnectPlan::Join(_, epoch, right)) = ends.0.plan_connect(&sending(2), GroupPreference::new(1))
    else {
        unreachable!()
    };
    let mut ask = |epoch, proof, key: &GroupKey| {
        let request = ShareRequest { mode: ShareMode::Join(epoch, proof), turn: 0 };
        ends.1.on_request(key, 77, 1, &request).unwrap()
    };
    let other_epoch = GroupEpoch(epoch.0.checked_add(1).unwrap());
    assert_eq!(ask(epoch, GroupProof(right.0 ^ 1), &receiving(1)), AcceptPlan::Retry);
    assert_eq!(ask(other_epoch, right, &receiving(1)), AcceptPlan::Retry);
    assert_eq!(ask(epoch, right, &receiving(9)), AcceptPlan::Retry, "the key is of another process");
    assert_eq!(
        ask(epoch, right, &GroupKey { local: nics(&[1]), ..receiving(1) }),
        AcceptPlan::Retry,
        "other NICs"
    );
    let AcceptPlan::Joined(place) = ask(epoch, right, &receiving(1)) else { unreachable!() };
    assert_eq!(place.group, theirs.group);
    assert_eq!(right, proof(ours.group, theirs.group));
}

/// Comms whose keys differ in any field share nothing, and each key has its own number of groups.
#[test]
fn comms_share_only_if_all_key_fields_match() {
    let base = sending(2);
    let others = [
        GroupKey { peer: process(3), ..base },
        GroupKey { local: nics(&[1]), ..base },
        GroupKey { local: nics(&[0, 1]), ..base },
        GroupKey { remote: nics(&[1]), ..base },
        GroupKey { remote: nics(&[0, 1]), ..base },
    ];
    for other in others {
        let mut ends = two(1);
        join(&mut ends, 0);
        let asked = ends.0.plan_connect(&other, GroupPreference::new(1));
        assert!(matches!(asked, Ok(ConnectPlan::First(..))), "{other:?}: {asked:?}");
        assert!(
            matches!(ends.0.plan_connect(&base, GroupPreference::new(1)), Ok(ConnectPlan::Join(..))),
            "a comm of the first key still joins"
        );
    }
    // At the receiving end the epoch identifies the group, and all other parts of the key must match.
    let mut ends = two(2);
    let groups = [0, 1].map(|conn| join(&mut ends, conn));
    let Ok(ConnectPlan::Join(place, epoch, right)) = ends.0.plan_connect(&base, GroupPreference::new(1))
    else {
        unreachable!()
    };
    assert_eq!(place.group, groups[0].0.group);
    let request = |epoch, proof| ShareRequest { mode: ShareMode::Join(epoch, proof), turn: 0 };
    let mut told = |key: &GroupKey, proof| ends.1.on_request(key, 77, 1, &request(epoch, proof)).unwrap();
    let other = proof(groups[1].0.group, groups[1].1.group);
    assert_eq!(told(&receiving(1), other), AcceptPlan::Retry, "the proof of another group");
    for key in [
        receiving(3),
        GroupKey { local: nics(&[1]), ..receiving(1) },
        GroupKey { remote: nics(&[1]), ..receiving(1) },
    ] {
        assert_eq!(told(&key, right), AcceptPlan::Retry, "{key:?}");
    }
    assert!(matches!(told(&receiving(1), right), AcceptPlan::Joined(at) if at.group == groups[0].1.group));
    // A process that sends to its peer and receives from it, over the same NICs.
    let back = GroupKey { end: CommEnd::Receiving, ..base };
    assert_eq!(
        ends.0.on_request(&back, 78, 1, &request(epoch, right)),
        Ok(AcceptPlan::Retry),
        "the key is of the other direction"
    );
}

#[test]
fn a_group_is_joined_only_when_both_ends_are_wired() {
    let (mut a, mut b) = two(1);
    let Ok(ConnectPlan::First(ours, epoch)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
        unreachable!()
    };
    let request = ShareRequest { mode: ShareMode::Create(epoch), turn: 0 };
    let Ok(AcceptPlan::Created(theirs)) = b.on_request(&receiving(1), 5, 1, &request) else { unreachable!() };
    let right = proof(ours.group, theirs.group);
    let join = ShareRequest { mode: ShareMode::Join(epoch, right), turn: 0 };
    assert_eq!(
        b.on_request(&receiving(1), 6, 1, &join),
        Ok(AcceptPlan::Retry),
        "the receiving end is not wired"
    );
    assert_eq!(a.on_wired(ours.group, right), Err(WiredError::Unanswered));
    assert_eq!(
        b.on_ready(theirs.seat),
        Ok(GroupPhase::Creating),
        "READY arrived before the receiving end was wired"
    );
    assert_eq!(b.on_wired(theirs.group, right), Ok(GroupPhase::Creating));
    assert_eq!(b.on_ready(theirs.seat), Ok(GroupPhase::Up));
    assert_eq!(b.on_wired(theirs.group, right), Err(WiredError::NotCreating));
    let given = ShareOutcome::Created { epoch, proof: right, member: member(0) };
    assert_eq!(a.on_answer(ours.seat, &ShareAnswer { given, turn: 0 }), AnswerStep::Wire);
    assert_eq!(
        a.plan_connect(&sending(2), GroupPreference::new(1)),
        Ok(ConnectPlan::Wait),
        "the sending end is not wired"
    );
    assert_eq!(a.on_wired(ours.group, GroupProof(!right.0)), Err(WiredError::Proof));
    assert_eq!(a.on_wired(ours.group, right), Ok(GroupPhase::Up));
    assert!(matches!(a.plan_connect(&sending(2), GroupPreference::new(1)), Ok(ConnectPlan::Join(..))));
}

#[test]
fn join_with_proof_replaces_ready() {
    let (mut a, mut b) = two(1);
    let Ok(ConnectPlan::First(ours, epoch)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
        unreachable!()
    };
    let request = ShareRequest { mode: ShareMode::Create(epoch), turn: 0 };
    let Ok(AcceptPlan::Created(theirs)) = b.on_request(&receiving(1), 5, 1, &request) else { unreachable!() };
    let right = proof(ours.group, theirs.group);
    b.on_wired(theirs.group, right).unwrap();
    let join = ShareRequest { mode: ShareMode::Join(epoch, right), turn: 0 };
    assert!(matches!(b.on_request(&receiving(1), 6, 1, &join), Ok(AcceptPlan::Joined(_))));
    assert_eq!(
        (b.group_phase(theirs.group), b.on_ready(theirs.seat)),
        (Some(GroupPhase::Up), Ok(GroupPhase::Up))
    );
}

#[test]
fn repeated_request_gets_the_same_reply_without_resources() {
    let mut ends = two(1);
    let (_, created) = join(&mut ends, 0);
    let Ok(ConnectPlan::Join(ours, epoch, right)) = ends.0.plan_connect(&sending(2), GroupPreference::new(1))
    else {
        unreachable!()
    };
    let request = ShareRequest { mode: ShareMode::Join(epoch, right), turn: 3 };
    let b = &mut ends.1;
    let verdict = b.on_request(&receiving(1), 8, 1, &request).unwrap();
    let before = b.pool_usage();
    (0..5).for_each(|_| assert_eq!(b.on_request(&receiving(1), 8, 1, &request), Ok(verdict)));
    let create = ShareRequest { mode: ShareMode::Create(epoch), turn: 0 };
    assert_eq!(b.on_request(&receiving(1), 0, 1, &create), Ok(AcceptPlan::Created(created)));
    assert_eq!(
        b.on_request(&receiving(1), 9, 1, &create),
        Ok(AcceptPlan::Retry),
        "a second comm cannot create the same group"
    );
    let turn = |turn| ShareRequest { turn, ..create };
    assert_eq!(b.on_request(&receiving(1), 8, 1, &turn(2)), Ok(AcceptPlan::Late));
    let AcceptPlan::Joined(place) = verdict else { unreachable!() };
    assert_eq!(b.on_request(&receiving(1), 8, 1, &turn(4)), Ok(AcceptPlan::Stale(place.seat)));
    assert_eq!(b.pool_usage(), before);
    let a = &mut ends.0;
    let joined = ShareOutcome::Joined { epoch, member: member(0) };
    assert_eq!(
        a.on_answer(ours.seat, &ShareAnswer { given: joined, turn: 1 }),
        AnswerStep::Known,
        "the reply is of another turn"
    );
    assert_eq!(a.on_answer(ours.seat, &ShareAnswer { given: joined, turn: 0 }), AnswerStep::Go);
    assert_eq!(a.on_answer(ours.seat, &ShareAnswer { given: joined, turn: 0 }), AnswerStep::Known);
    assert_eq!(
        a.on_answer(ours.seat, &ShareAnswer { given: ShareOutcome::Retry, turn: 0 }),
        AnswerStep::Known
    );
}

#[test]
fn reply_without_a_matching_request_ends_the_attempt() {
    let answers = |epoch: GroupEpoch| {
        let other = GroupEpoch(epoch.0.checked_add(1).unwrap());
        let (created, joined) = (
            |epoch| ShareOutcome::Created { epoch, proof: GroupProof(1), member: member(0) },
            |epoch| ShareOutcome::Joined { epoch, member: member(0) },
        );
        [created(other), joined(epoch), joined(other)]
    };
    for at in 0..3 {
        let mut a = pool(SharingMode::On, 1);
        let Ok(ConnectPlan::First(ours, epoch)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
            unreachable!()
        };
        let answer = ShareAnswer { given: answers(epoch)[at], turn: 0 };
        assert_eq!(a.on_answer(ours.seat, &answer), AnswerStep::Failed(AnswerFault::Nonsense));
    }
    let more = [ShareOutcome::Retry, ShareOutcome::Full];
    for given in answers(GroupEpoch(core::num::NonZeroU64::MIN)).into_iter().chain(more) {
        let mut a = pool(SharingMode::Off, 1);
        let Ok(ConnectPlan::Alone(ours)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
            unreachable!()
        };
        let next = a.on_answer(ours.seat, &ShareAnswer { given, turn: 0 });
        assert_eq!(next, AnswerStep::Failed(AnswerFault::Nonsense));
    }
}

#[test]
fn group_lost_at_one_end_keeps_its_members() {
    let mut ends = two(1);
    let (ours, theirs) = join(&mut ends, 0);
    // The comm closes at the receiving end only.
    leave(&mut ends.1, theirs.seat);
    let (again, there) = join(&mut ends, 1);
    assert_ne!(again.group, ours.group);
    assert_eq!(ends.0.group_phase(ours.group), Some(GroupPhase::Draining));
    assert_eq!(ends.0.group_phase(again.group), Some(GroupPhase::Up));
    assert_eq!(join(&mut ends, 2).0.group, again.group);
    leave(&mut ends.0, ours.seat);
    assert_eq!(
        (ends.0.group_phase(ours.group), ends.1.group_phase(there.group)),
        (None, Some(GroupPhase::Up))
    );
}

#[test]
fn attempt_sends_at_most_turns_max_requests() {
    let mut a = pool(SharingMode::On, 1);
    let mut wish = GroupPreference::new(1);
    let mut asks = 0;
    let last = loop {
        asks += 1;
        let Ok(ConnectPlan::First(ours, _)) = a.plan_connect(&sending(2), wish) else { unreachable!() };
        let next = a.on_answer(ours.seat, &ShareAnswer { given: ShareOutcome::Retry, turn: wish.turn });
        leave(&mut a, ours.seat);
        let AnswerStep::Again(again) = next else { break next };
        wish = again;
    };
    assert_eq!((last, asks), (AnswerStep::Failed(AnswerFault::Turns), TURNS_MAX));
}

#[test]
fn broken_group_reports_members_once_without_joins() {
    let mut ends = two(2);
    let places: Vec<_> = (0..6).map(|conn| join(&mut ends, conn)).collect();
    let broken = places[0].0.group;
    leave(&mut ends.0, places[2].0.seat);
    let told = ends.0.on_broken(broken);
    assert_eq!(told, [places[0].0.seat, places[4].0.seat]);
    assert_eq!(
        (ends.0.on_broken(broken), ends.0.group_phase(broken)),
        (Vec::new(), Some(GroupPhase::Broken))
    );
    let fresh = join(&mut ends, 6).0;
    assert!(!places.iter().any(|(ours, _)| ours.group == fresh.group));
    assert_eq!(ends.0.index(fresh.group), Some(0));
    // The group is still up at the other end. A comm that requests it there, without the report, joins it.
    told.iter().for_each(|&seat| leave(&mut ends.0, seat));
    assert_eq!((ends.0.group_phase(broken), ends.0.on_broken(broken)), (None, Vec::new()));
    // The group broke at the other end only: that end replies so to a comm that requests to join.
    let there = places[1].1.group;
    assert_eq!(ends.1.on_broken(there).len(), 3);
    let (ours, theirs) = (join(&mut ends, 7).0, join(&mut ends, 8).1);
    assert!(ours.group != places[1].0.group && theirs.group != there);
}

#[test]
fn members_leave_once_in_any_order() {
    let orders = (0..24_usize).map(|number| {
        let mut rest: Vec<_> = (0..4).collect();
        let mut number = number;
        (1..=4).rev().map(|left| (rest.remove(number % left), number /= left).0).collect::<Vec<_>>()
    });
    let mut seen = std::collections::BTreeSet::new();
    for order in orders {
        assert!(seen.insert(order.clone()));
        let mut ends = two(1);
        let start = (pool(SharingMode::On, 1).pool_usage(), pool(SharingMode::On, 1).pool_usage());
        let places: Vec<_> =
            (0..4).map(|conn| join_as(&mut ends, conn, GroupPreference::new(1 + conn as u8 % 3))).collect();
        for (pool, end) in [(&mut ends.0, 0), (&mut ends.1, 1)] {
            let seat = |at: usize| if end == 0 { places[at].0.seat } else { places[at].1.seat };
            for (nth, &at) in order.iter().enumerate() {
                let left = pool.remove_member(seat(at)).unwrap();
                assert_eq!(matches!(left, RemainingMembers::Last(_)), nth == 3, "{order:?}");
                assert_eq!(pool.remove_member(seat(at)), Err(UnknownMember), "a member leaves once");
                assert_eq!(pool.group_of(seat(at)), None);
                if let RemainingMembers::Last(teardown) = left {
                    assert_eq!(
                        (pool.pool_usage().queue_pairs, pool.pool_usage().members),
                        (1, 0),
                        "the objects of the group are not destroyed yet"
                    );
                    assert!(pool.on_destroyed(teardown.group));
                }
            }
        }
        let budgets =
            |pool: &GroupPool| pool.pool_usage().budgets.iter().map(|budget| budget.in_use).sum::<u32>();
        assert_eq!((budgets(&ends.0), budgets(&ends.1)), (0, 0));
        let bare = |pool: &GroupPool| PoolUsage { budgets: Vec::new(), ..pool.pool_usage() };
        assert_eq!((bare(&ends.0), bare(&ends.1)), start);
    }
    assert_eq!(seen.len(), 24);
}

#[test]
fn queue_pairs_count_until_they_are_destroyed() {
    let mut a = pool(SharingMode::Off, 1);
    a.set_budget(0, 4);
    let Ok(ConnectPlan::Alone(place)) = a.plan_connect(&sending(2), GroupPreference::new(4)) else {
        unreachable!()
    };
    assert!(!a.on_destroyed(place.group), "a group with a member was destroyed");
    let Ok(RemainingMembers::Last(teardown)) = a.remove_member(place.seat) else { unreachable!() };
    // A comm that needs these queue pairs waits for them, at either end.
    let request = ShareRequest { mode: ShareMode::Alone, turn: 0 };
    let ask = |a: &mut GroupPool| {
        (a.plan_connect(&sending(2), GroupPreference::new(1)), a.on_request(&receiving(2), 9, 1, &request))
    };
    assert_eq!(ask(&mut a), (Ok(ConnectPlan::Wait), Ok(AcceptPlan::Later)));
    assert!(a.on_destroyed(teardown.group));
    let Ok(ConnectPlan::Alone(_)) = a.plan_connect(&sending(2), GroupPreference::new(3)) else {
        unreachable!()
    };
    assert!(matches!(ask(&mut a), (Ok(ConnectPlan::Alone(_)), Ok(AcceptPlan::NoResources(_)))));
    assert!(matches!(ask(&mut a), (Err(PlacementError::Exhausted(_)), Ok(AcceptPlan::NoResources(_)))));
}

#[test]
fn budget_makes_comms_share_before_they_fail() {
    let mut ends = two(8);
    ends.0.set_budget(0, 20);
    (0..20).for_each(|conn| _ = join(&mut ends, conn));
    assert_eq!(sizes(&ends.0), [5, 5, 5, 5], "with four other groups, a fifth would exceed a fifth of 20");
    let (a, b) = (&mut ends.0, &mut ends.1);
    let mut towards = |peer| {
        let before = a.pool_usage().groups;
        let mut met = || {
            connect(
                (a, b),
                (&sending(peer), &receiving(1)),
                100 + u64::from(peer) * 8,
                GroupPreference::new(1),
            )
        };
        let first = met();
        (a.pool_usage().groups - before, first)
    };
    assert!((3..19).map(&mut towards).all(|(groups, met)| groups == 1 && matches!(met, Met::Both(..))));
    let none = Met::Exhausted(PoolLimit::QueuePairs { nic: 0, limit: 20 });
    assert_eq!(towards(19), (0, none));
    assert_eq!(a.pool_usage().queue_pairs, 20);
    // A key that has a group can continue to share it.
    assert!(matches!(
        connect((a, b), (&sending(3), &receiving(1)), 999, GroupPreference::new(1)),
        Met::Both(..)
    ));
    let error = std::format!("{}", a.plan_connect(&sending(19), GroupPreference::new(1)).unwrap_err());
    assert_eq!(error, "no room for another comm: all 20 queue pairs of NIC 0 are in use");
}

#[test]
fn budget_of_the_receiving_end_makes_comms_share() {
    let mut ends = two(8);
    ends.1.set_budget(0, 20);
    (0..20).for_each(|conn| _ = join(&mut ends, conn));
    assert_eq!(sizes(&ends.0), [5, 5, 5, 5]);
    let mut b = pool(SharingMode::On, 8);
    b.set_budget(0, 0);
    let none = Met::NoResources(PoolLimit::QueuePairs { nic: 0, limit: 0 });
    assert_eq!(
        connect((&mut ends.0, &mut b), (&sending(5), &receiving(1)), 1, GroupPreference::new(1)),
        none
    );
    assert_eq!(ends.0.pool_usage().groups, 4, "the group that was made for the comm is removed");
}

#[test]
fn group_full_without_another_group_requests_own_links() {
    let mut a = pool(SharingMode::On, 8);
    let Ok(ConnectPlan::First(ours, _)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
        unreachable!()
    };
    let answer = ShareAnswer { given: ShareOutcome::Full, turn: 0 };
    let AnswerStep::Again(wish) = a.on_answer(ours.seat, &answer) else { unreachable!() };
    leave(&mut a, ours.seat);
    let Ok(ConnectPlan::Alone(ours)) = a.plan_connect(&sending(2), wish) else { panic!("{wish:?}") };
    assert_eq!(
        a.on_answer(ours.seat, &ShareAnswer { turn: 1, ..answer }),
        AnswerStep::Failed(AnswerFault::Nonsense)
    );
}

#[test]
fn short_end_grants_each_peer_nic_a_group() {
    let mut b = pool(SharingMode::On, 1);
    b.set_budget(0, 3);
    // The other end has the same sharing parameters; only its comms use different NICs.
    let mut a = pool(SharingMode::On, 1);
    for (nic, conn) in [(0, 1), (1, 2)] {
        let from = GroupKey { local: nics(&[nic]), ..sending(2) };
        for more in 0..3 {
            let met =
                connect((&mut a, &mut b), (&from, &receiving(1)), conn + 10 * more, GroupPreference::new(1));
            assert!(matches!(met, Met::Both(..)), "{met:?}");
        }
    }
    assert_eq!((a.pool_usage().groups, a.pool_usage().alone, b.pool_usage().queue_pairs), (2, 0, 2));
}

#[test]
fn auto_shares_once_queue_pairs_are_short() {
    let mut ends = (pool(SharingMode::Auto, 2), pool(SharingMode::Auto, 2));
    ends.0.set_budget(0, 50);
    (0..14).for_each(|conn| _ = join(&mut ends, conn));
    assert_eq!(sizes(&ends.0), [2, 2, 2, 2, 2, 2, 2], "one key has at most 7 of 50 queue pairs");
    let (a, b) = (&mut ends.0, &mut ends.1);
    for conn in 100..118 {
        connect((a, b), (&sending(conn as u8), &receiving(1)), conn, GroupPreference::new(1)).both();
    }
    // 25 queue pairs are in use.
    connect((a, b), (&sending(9), &receiving(1)), 200, GroupPreference::new(1)).both();
    connect((a, b), (&sending(9), &receiving(1)), 201, GroupPreference::new(1)).both();
    assert_eq!(a.pool_usage().queue_pairs, 26);
    let mut ends = (pool(SharingMode::Auto, 2), pool(SharingMode::Auto, 2));
    (0..100).for_each(|conn| _ = join(&mut ends, conn));
    assert_eq!(
        ends.0.pool_usage().groups,
        usize::from(GROUPS_OF_KEY_MAX),
        "one key has at most GROUPS_OF_KEY_MAX groups"
    );
}

#[test]
fn comm_gets_own_links_while_not_short() {
    let wish = GroupPreference { alone: true, ..GroupPreference::new(1) };
    for end in 0..2 {
        let mut ends = two(2);
        if end == 0 { &mut ends.0 } else { &mut ends.1 }.set_budget(0, 12);
        (0..30).for_each(|conn| _ = join_as(&mut ends, conn, wish));
        for pool in [&ends.0, &ends.1] {
            let usage = pool.pool_usage();
            // Six comms alone use half of the queue pairs. A second group of a key may begin only while at most half are in use.
            assert_eq!((usage.groups, usage.alone, usage.members), (1, 6, 30), "{end}");
        }
    }
    // Comms that must not share do not share, and may use all queue pairs.
    let mut ends = two(2);
    ends.1.set_budget(0, 12);
    let must = GroupPreference { groups_at_most: 0, ..wish };
    (0..12).for_each(|conn| _ = join_as(&mut ends, conn, must));
    let met = connect((&mut ends.0, &mut ends.1), (&sending(2), &receiving(1)), 99, must);
    assert_eq!(met, Met::NoResources(PoolLimit::QueuePairs { nic: 0, limit: 12 }));
}

#[test]
fn comm_can_request_fewer_groups() {
    let mut ends = two(4);
    (0..6).for_each(|conn| {
        _ = join_as(&mut ends, conn, GroupPreference { groups_at_most: 2, ..GroupPreference::new(1) })
    });
    assert_eq!(sizes(&ends.0), [3, 3]);
    join(&mut ends, 7);
    assert_eq!(sizes(&ends.0), [3, 3, 1]);
}

#[test]
fn smaller_offer_counts_and_both_ends_must_share() {
    let shapes = [(SharingMode::Off, 1), (SharingMode::On, 2), (SharingMode::On, 5), (SharingMode::Auto, 3)];
    for (one, other) in shapes.iter().flat_map(|one| shapes.map(|other| (*one, other))) {
        for knows in [true, false] {
            let (mut a, mut b) = (pool(one.0, one.1), pool(other.0, other.1));
            let offers = [a.config().sharing_offer(), b.config().sharing_offer()];
            // A sending end that did not receive the offer learns of it by the reply.
            let wish =
                if knows { GroupPreference::new(1).with_offer(offers[1]) } else { GroupPreference::new(1) };
            for conn in 0..20 {
                connect((&mut a, &mut b), (&sending(2), &receiving(1)), conn, wish).both();
            }
            let least = offers.iter().map(|offer| offer.groups).min().unwrap();
            let expected = match (least, knows) {
                (0, _) => (0, 20),
                (_, true) => (least.min(20).into(), 0),
                (_, false) => (offers[0].groups.min(20).into(), 0),
            };
            for pool in [&a, &b] {
                assert_eq!(
                    (pool.pool_usage().groups, pool.pool_usage().alone),
                    expected,
                    "{one:?} {other:?} {knows}"
                );
            }
            assert_eq!(spread(&sizes(&a)), usize::from(expected.0 != 0 && 20 % expected.0 != 0));
        }
    }
    assert_eq!(GroupPreference::new(1).with_offer(ShareOffer::from_bits(0)).groups_at_most, 0);
}

#[test]
fn full_group_makes_the_next_member_create_another() {
    let mut ends = two(1);
    let max = crate::limits::MEMBERS_OF_GROUP_MAX;
    let groups = usize::from(GROUPS_OF_KEY_MAX);
    let mut conns = 0..;
    for group in 1..=groups {
        conns.by_ref().take(max).for_each(|conn| _ = join(&mut ends, conn));
        assert_eq!((sizes(&ends.0).len(), sizes(&ends.1)[group - 1]), (group, max));
    }
    let met =
        connect((&mut ends.0, &mut ends.1), (&sending(2), &receiving(1)), 9999, GroupPreference::new(1));
    assert_eq!(met, Met::Exhausted(PoolLimit::MembersOfGroup(max)));
}

#[test]
fn groups_and_members_have_limits() {
    let mut a = pool(SharingMode::Off, 1);
    let all = MEMBERS_MAX.min(GROUPS_MAX);
    let ask = |a: &mut GroupPool| a.plan_connect(&sending(2), GroupPreference::new(1));
    let places: Vec<_> = (0..all).map(|_| ask(&mut a).unwrap()).collect();
    let Err(PlacementError::Exhausted(limit)) = ask(&mut a) else { unreachable!() };
    assert!([PoolLimit::Members(MEMBERS_MAX), PoolLimit::Groups(GROUPS_MAX)].contains(&limit));
    assert_eq!((a.pool_usage().members, a.pool_usage().alone), (all, all));
    for place in &places[..=POOL_QUARANTINE] {
        let ConnectPlan::Alone(place) = place else { unreachable!() };
        leave(&mut a, place.seat);
    }
    assert!(ask(&mut a).is_ok());
}

#[test]
fn group_and_member_ids_wait_256_others() {
    let mut a = pool(SharingMode::Off, 1);
    let mut recent: std::collections::VecDeque<GroupPlace> = std::collections::VecDeque::new();
    for _ in 0..2000 {
        let Ok(ConnectPlan::Alone(place)) = a.plan_connect(&sending(2), GroupPreference::new(1)) else {
            unreachable!()
        };
        assert!(!recent.iter().any(|old| old.seat.0.slot == place.seat.0.slot));
        assert!(!recent.iter().any(|old| old.group.0.slot == place.group.0.slot));
        leave(&mut a, place.seat);
        recent.push_back(place);
        if recent.len() > POOL_QUARANTINE {
            recent.pop_front();
        }
    }
    let GroupPlace { group: GroupId(SlotId { generation, .. }), .. } = recent[0];
    assert!(generation > 1);
}

#[test]
fn invalid_arguments_are_refused() {
    let mut a = pool(SharingMode::On, 1);
    let request = ShareRequest { mode: ShareMode::Alone, turn: 0 };
    for links in [0, 5] {
        assert_eq!(a.plan_connect(&sending(2), GroupPreference::new(links)), Err(PlacementError::Misuse));
        assert_eq!(a.on_request(&receiving(2), 1, links, &request), Err(PlacementError::Misuse));
    }
    let nowhere = GroupKey { local: NicList::NONE, ..sending(2) };
    assert_eq!(a.plan_connect(&nowhere, GroupPreference::new(1)), Err(PlacementError::Misuse));
    assert_eq!(a.plan_connect(&receiving(2), GroupPreference::new(1)), Err(PlacementError::Misuse));
    assert_eq!(a.on_request(&sending(2), 1, 1, &request), Err(PlacementError::Misuse));
    let gone = PoolMemberId(SlotId { slot: 0, generation: 1 });
    assert_eq!((a.remove_member(gone), a.on_ready(gone)), (Err(UnknownMember), Err(UnknownMember)));
    assert_eq!(a.on_wired(GroupId(gone.0), GroupProof(0)), Err(WiredError::NotCreating));
}

#[test]
fn new_group_uses_the_least_loaded_pipeline() {
    let mut a = pool(SharingMode::On, 8);
    let placed = |a: &mut GroupPool, wish| match a.plan_connect(&sending(2), wish) {
        Ok(ConnectPlan::First(place, _) | ConnectPlan::Create(place, _)) => {
            (place, a.place_on_pipeline(place.group, 2))
        }
        other => unreachable!("{other:?}"),
    };
    let (heavy, first) = placed(&mut a, GroupPreference { weight: 3, ..GroupPreference::new(1) });
    let light: Vec<_> = (0..3).map(|_| placed(&mut a, GroupPreference::new(1))).collect();
    assert_eq!((first, light.iter().map(|one| one.1).collect::<Vec<_>>()), (Some(0), [Some(1); 3].to_vec()));
    a.set_load(heavy.group, 9);
    assert_eq!(placed(&mut a, GroupPreference::new(1)).1, Some(1), "equal weights, but less load");
    assert_eq!(placed(&mut a, GroupPreference::new(1)).1, Some(0));
    leave(&mut a, heavy.seat);
    assert_eq!(placed(&mut a, GroupPreference::new(1)).1, Some(0), "the heavy group has left");
    assert_eq!(a.place_on_pipeline(light[0].0.group, 1), None, "the NIC has one pipeline");
}
