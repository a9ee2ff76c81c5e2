//! Queue pairs and completion queues in use, by the formula.

use proptest::prelude::*;

use super::*;

/// The comms of a pair of processes, and the NICs at each end.
#[derive(Clone, Debug)]
struct Towards {
    comms: usize,
    nics: (usize, usize),
}

fn towards() -> impl Strategy<Value = Towards> {
    let rails = prop::sample::select(&[1_usize, 2, 4][..]);
    (0..70_usize, (rails.clone(), rails)).prop_map(|(comms, nics)| Towards { comms, nics })
}

proptest! {
    #![proptest_config(cases(64))]

    /// The number of comms is communicators times channels. Each has `q` links for each rail of the end with more rails, at most 4.
    /// For each peer and direction, the queue pairs in use are those of min(n, m) comms, and the completion queues are
    /// one per rail of these.
    #[test]
    fn queue_pairs_match_the_formula(
        m in 1..=8_u8,
        q in 1..=4_usize,
        out in prop::collection::vec(towards(), 1..4),
        back in towards(),
    ) {
        let mut middle = pool(SharingMode::On, m);
        let mut peers: Vec<_> = out.iter().map(|_| pool(SharingMode::On, m)).collect();
        let (mut queue_pairs, mut completion_queues) = (0, 0);
        let mut there = std::vec![(0, 0); peers.len()];
        let mut conn = 0;
        for (at, towards) in out.iter().enumerate() {
            // The comms that send to each peer, and for the first peer also those that receive from it.
            let both = [Some((towards, true)), (at == 0).then_some((&back, false))];
            for (towards, outwards) in both.into_iter().flatten() {
                let rails = [towards.nics.0, towards.nics.1].map(|n| nics(&[3, 1, 2, 0][..n]));
                let links = (q * towards.nics.0.max(towards.nics.1)).min(4);
                let (us, them) = (1, 10 + at as u8);
                let (asking, answering) = if outwards { (us, them) } else { (them, us) };
                let send = GroupKey { peer: process(answering), end: CommEnd::Sending, local: rails[0], remote: rails[1] };
                let recv = GroupKey { peer: process(asking), end: CommEnd::Receiving, local: rails[1], remote: rails[0] };
                for _ in 0..towards.comms {
                    conn += 1;
                    let pools = if outwards { (&mut middle, &mut peers[at]) } else { (&mut peers[at], &mut middle) };
                    let wish = GroupPreference::new(links as u8);
                    connect(pools, (&send, &recv), conn, wish).both();
                }
                let groups = towards.comms.min(m.into()) as u64;
                let (here, far) = if outwards { towards.nics } else { (towards.nics.1, towards.nics.0) };
                queue_pairs += groups * links as u64;
                completion_queues += groups * links.min(here) as u64;
                there[at].0 += groups * links as u64;
                there[at].1 += groups * links.min(far) as u64;
            }
        }
        let used = |pool: &GroupPool| (pool.pool_usage().queue_pairs, pool.pool_usage().completion_queues);
        prop_assert_eq!(used(&middle), (queue_pairs, completion_queues));
        prop_assert_eq!(peers.iter().map(used).collect::<Vec<_>>(), there);
        let by_nic: u64 = middle.pool_usage().budgets.iter().map(|budget| u64::from(budget.in_use)).sum();
        prop_assert_eq!(by_nic, queue_pairs);
    }
}

/// The purpose of sharing: 16 communicators of 32 channels.
#[test]
fn sharing_reduces_queue_pairs_a_hundredfold() {
    let used = |sharing| {
        let (mut a, mut b) = (pool(sharing, 4), pool(sharing, 4));
        for conn in 0..16 * 32 {
            connect((&mut a, &mut b), (&sending(2), &receiving(1)), conn, GroupPreference::new(1)).both();
        }
        (a.pool_usage().queue_pairs, a.pool_usage().completion_queues)
    };
    assert_eq!((used(SharingMode::Off), used(SharingMode::On)), ((512, 512), (4, 4)));
}
