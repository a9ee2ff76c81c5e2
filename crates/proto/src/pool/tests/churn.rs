//! Comms that join and leave.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(cases(128))]

    /// Each comm joins a smallest group. So sizes are even as soon as comms have filled the empty places.
    #[test]
    fn groups_are_even_after_churn(m in 1..=8_u8, churn in prop::collection::vec(0..40_usize, 0..200)) {
        let (mut a, mut b) = (pool(SharingMode::On, m), pool(SharingMode::On, m));
        let mut inside: Vec<(GroupPlace, GroupPlace)> = Vec::new();
        let mut conn = 0;
        let mut join = |a: &mut GroupPool, b: &mut GroupPool, inside: &mut Vec<_>| {
            conn += 1;
            inside.push(connect((a, b), (&sending(2), &receiving(1)), conn, GroupPreference::new(1)).both());
        };
        for which in churn {
            if which < inside.len() {
                let (ours, theirs) = inside.swap_remove(which);
                leave(&mut a, ours.seat);
                leave(&mut b, theirs.seat);
            } else {
                let before = sizes(&a);
                join(&mut a, &mut b, &mut inside);
                let after = sizes(&a);
                prop_assert!(before.len() < m.into() || spread(&after) <= spread(&before).max(1));
            }
        }
        let most = sizes(&a).into_iter().max().unwrap_or(0);
        let holes = most * usize::from(m) - inside.len();
        (0..holes).for_each(|_| join(&mut a, &mut b, &mut inside));
        prop_assert!(spread(&sizes(&a)) <= 1, "{:?}", sizes(&a));
        join(&mut a, &mut b, &mut inside);
        prop_assert!(spread(&sizes(&a)) <= 1);
        prop_assert_eq!(sizes(&a), sizes(&b));
    }
}

/// A hundred thousand comms leave no state behind, and the tables stay as large as a few comms need.
#[test]
fn hundred_thousand_comms_leave_no_state() {
    let (mut a, mut b) = (pool(SharingMode::On, 2), pool(SharingMode::On, 2));
    for pool in [&mut a, &mut b] {
        pool.set_budget(0, 100);
    }
    let start = (a.pool_usage(), b.pool_usage());
    let mut places = None;
    for round in 0..20_000_u64 {
        let came: Vec<_> = (0..5)
            .map(|at| {
                let met = connect(
                    (&mut a, &mut b),
                    (&sending(2), &receiving(1)),
                    round * 5 + at,
                    GroupPreference::new(1),
                );
                met.both()
            })
            .collect();
        if round % 7 == 0 {
            a.on_broken(came[0].0.group);
        }
        for at in 0..5 {
            let (ours, theirs) = came[(at * 3 + round as usize) % 5];
            leave(&mut a, ours.seat);
            leave(&mut b, theirs.seat);
        }
        if round == 1000 {
            places = Some((a.used_places(), b.used_places()));
        }
    }
    assert_eq!((a.pool_usage(), b.pool_usage()), start);
    assert_eq!(places, Some((a.used_places(), b.used_places())));
    assert_eq!(a.used_places(), (POOL_QUARANTINE + 2, POOL_QUARANTINE + 5));
}
