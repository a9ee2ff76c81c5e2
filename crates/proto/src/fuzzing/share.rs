//! Fuzzing of sharing: the wire formats, and a pool with a hostile peer.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU64;

use super::make_variants;
use crate::id::ProcessId;
use crate::limits::GROUPS_OF_KEY_MAX;
use crate::nics::NicList;
use crate::pool::config::{PoolConfig, SharingMode};
use crate::pool::group::{GroupId, GroupPhase};
use crate::pool::key::{CommEnd, GroupKey};
use crate::pool::{AcceptPlan, GroupPool, PoolMemberId, RemainingMembers};
use crate::wire::cursor::FieldReader;
use crate::wire::eager::{self, EagerHeader};
use crate::wire::member::MemberId;
use crate::wire::proof::{GroupEpoch, GroupProof};
use crate::wire::share::{
    ANSWER_BYTES, EAGER_BYTES, MemberEager, REQUEST_BYTES, ShareAnswer, ShareMode, ShareOffer, ShareOutcome,
    ShareRequest,
};

/// Input: a byte that selects the format, and its bytes.
pub(super) fn check_words(bytes: &[u8]) {
    let Some((what, rest)) = bytes.split_first() else { return };
    match what % 4 {
        0 => {
            let Ok(parsed) = ShareRequest::from_reader(&mut FieldReader(rest)) else { return };
            assert_eq!(parsed.to_bytes(), rest[..REQUEST_BYTES]);
        }
        1 => {
            let Ok(parsed) = ShareAnswer::from_reader(&mut FieldReader(rest)) else { return };
            assert_eq!(parsed.to_bytes(), rest[..ANSWER_BYTES]);
        }
        2 => {
            let Ok(parsed) = MemberEager::from_bytes(rest) else { return };
            assert_eq!(parsed.to_bytes(), rest[..EAGER_BYTES]);
            assert!(EagerHeader::from_bytes(rest).is_err());
        }
        _ => {
            let Ok(bits) = FieldReader(rest).u32() else { return };
            let offer = ShareOffer::from_bits(bits);
            assert!(offer.groups <= GROUPS_OF_KEY_MAX && ShareOffer::from_bits(offer.to_bits()) == offer);
            if let Some(member) = MemberId::from_bits(bits) {
                assert_eq!((member.to_bits(), MemberId::of_wr_id(member.wr_id(7))), (bits, (bits, 7)));
            }
        }
    }
}

fn make_epoch(number: u64) -> Option<GroupEpoch> {
    NonZeroU64::new(number).map(GroupEpoch)
}

pub(super) fn word_seeds() -> Vec<Vec<u8>> {
    let (Some(epoch), Some(member)) = (make_epoch(0x1122_3344_5566_7788), MemberId::from_bits(0x00ab_cdef))
    else {
        return Vec::new();
    };
    let request = |mode| [&[0], &ShareRequest { mode, turn: 3 }.to_bytes()[..]].concat();
    let answer = |given| [&[1], &ShareAnswer { given, turn: 4 }.to_bytes()[..]].concat();
    let eager = EagerHeader { number: 5, base: 6, tag: 7, len: eager::LEN_MAX };
    make_variants(&[
        request(ShareMode::Join(epoch, GroupProof(9))),
        answer(ShareOutcome::Created { epoch, proof: GroupProof(8), member }),
        [&[2], &MemberEager { member, eager }.to_bytes()[..]].concat(),
        answer(ShareOutcome::Joined { epoch, member }),
        request(ShareMode::Create(epoch)),
        request(ShareMode::First(epoch)),
        vec![3, 4, 0, 0, 0],
        request(ShareMode::Alone),
        request(ShareMode::Rather),
        answer(ShareOutcome::Alone),
        answer(ShareOutcome::Retry),
        answer(ShareOutcome::Full),
    ])
}

/// Number of queue pairs that the pool below may use.
const BUDGET: u32 = 12;

/// Four bytes per step: the action, the connection, and two numbers.
pub(super) fn check_pool(bytes: &[u8]) {
    let Ok(config) = PoolConfig::new(SharingMode::On, 2, 1) else { return };
    let mut pool = GroupPool::new(config, 7);
    pool.set_budget(0, BUDGET);
    let start = pool.pool_usage();
    let mut seats: Vec<PoolMemberId> = Vec::new();
    let mut leaving: Vec<GroupId> = Vec::new();
    for step in bytes.chunks_exact(4).take(256) {
        one_step(&mut pool, &mut seats, &mut leaving, [step[0], step[1], step[2], step[3]]);
        let usage = pool.pool_usage();
        assert!(usage.queue_pairs <= BUDGET.into() && usage.members == seats.len());
        assert_eq!(usage.conns, seats.len());
    }
    while let Some(seat) = seats.pop() {
        leave_group(&mut pool, &mut leaving, seat);
    }
    leaving.iter().for_each(|&group| assert!(pool.on_destroyed(group)));
    assert_eq!(pool.pool_usage(), start);
}

fn leave_group(pool: &mut GroupPool, leaving: &mut Vec<GroupId>, seat: PoolMemberId) {
    match pool.remove_member(seat) {
        Ok(RemainingMembers::Last(teardown)) => leaving.push(teardown.group),
        Ok(RemainingMembers::Others) => {}
        Err(_) => unreachable!("the member id is valid until the member leaves"),
    }
    assert!(pool.remove_member(seat).is_err());
}

fn one_step(
    pool: &mut GroupPool,
    seats: &mut Vec<PoolMemberId>,
    leaving: &mut Vec<GroupId>,
    [what, which, one, two]: [u8; 4],
) {
    let seat = seats.get(usize::from(which) % seats.len().max(1)).copied();
    let group = seat.and_then(|seat| pool.group_of(seat));
    match (what % 8, seat.zip(group)) {
        (0, Some((seat, _))) => {
            seats.retain(|&other| other != seat);
            leave_group(pool, leaving, seat);
        }
        (1, Some((seat, _))) => _ = pool.on_ready(seat),
        (2, Some((_, group))) => _ = pool.on_wired(group, GroupProof(one.into())),
        (3, Some((seat, group))) => {
            let told = pool.on_broken(group);
            assert!(told.is_empty() || told.contains(&seat));
            assert!(pool.on_broken(group).is_empty() && pool.group_phase(group) == Some(GroupPhase::Broken));
        }
        (4, _) => {
            if let Some(group) = leaving.pop() {
                assert!(pool.on_destroyed(group));
            }
        }
        _ => ask_pool(pool, seats, leaving, [what, which, one, two]),
    }
}

fn ask_pool(
    pool: &mut GroupPool,
    seats: &mut Vec<PoolMemberId>,
    leaving: &mut Vec<GroupId>,
    [what, which, one, two]: [u8; 4],
) {
    let Some(local) = NicList::new(&[0]) else { return };
    let peer = ProcessId([which >> 6; 16]);
    let key = GroupKey { peer, end: CommEnd::Receiving, local, remote: NicList::NONE };
    let mode = match (what >> 3 & 3, make_epoch(u64::from(one & 7))) {
        (0, _) => ShareMode::Alone,
        (_, None) => ShareMode::Rather,
        (1, Some(epoch)) => ShareMode::Create(epoch),
        (2, Some(epoch)) => ShareMode::First(epoch),
        (_, Some(epoch)) => ShareMode::Join(epoch, GroupProof(two.into())),
    };
    let conn = u64::from(which & 15);
    let links = what >> 5;
    let turn = u32::from(one >> 6);
    let request = ShareRequest { mode, turn };
    let Ok(verdict) = pool.on_request(&key, conn, links, &request) else { return };
    match verdict {
        AcceptPlan::Created(place) | AcceptPlan::Joined(place) | AcceptPlan::Alone(place) => {
            assert_eq!(pool.on_request(&key, conn, links, &request), Ok(verdict));
            if !seats.contains(&place.seat) {
                seats.push(place.seat);
            }
        }
        AcceptPlan::Stale(seat) => {
            seats.retain(|&other| other != seat);
            leave_group(pool, leaving, seat);
        }
        AcceptPlan::Retry
        | AcceptPlan::Full
        | AcceptPlan::NoResources(_)
        | AcceptPlan::Late
        | AcceptPlan::Later => {}
    }
}

pub(super) fn pool_seeds() -> Vec<Vec<u8>> {
    // Connect, mark ready, fail and leave groups that were created or joined, and links of a single comm, with proofs as the steps connect them.
    let create = |which, epoch| [1 << 5 | 1 << 3 | 5, which, epoch, 0];
    let join = |which, epoch, proof| [1 << 5 | 2 << 3 | 5, which, epoch, proof];
    let alone = |which| [2 << 5 | 5, which, 0, 0];
    let leave = [0, 0, 0, 0];
    let ready = [1, 0, 0, 0];
    let wire = [2, 0, 9, 0];
    let broken = [3, 0, 0, 0];
    let destroyed = [4, 0, 0, 0];
    let scripts: [&[[u8; 4]]; 5] = [
        &[
            create(0, 1),
            wire,
            ready,
            join(1, 1, 9),
            join(2, 1, 8),
            join(2, 1, 9),
            leave,
            leave,
            leave,
            destroyed,
        ],
        &[
            create(0, 1),
            create(1, 2),
            create(2, 1),
            wire,
            join(3, 1, 9),
            broken,
            join(4, 1, 9),
            create(3, 0x43),
        ],
        &[
            alone(0),
            alone(1),
            create(0x40, 3),
            alone(2),
            alone(3),
            alone(4),
            create(0x41, 4),
            leave,
            destroyed,
        ],
        &[create(0, 1), join(1, 1, 0), leave, create(1, 1), destroyed, destroyed, join(0x80, 1, 0)],
        &[join(0, 1, 0), wire, ready, broken, leave, destroyed],
    ];
    make_variants(&scripts.map(<[[u8; 4]]>::concat))
}
