//! How many queue pairs and completion queues a rank should have in use, and whether it has. Pure.

use trunkline_proto::limits::MEMBERS_OF_GROUP_MAX;

use super::configuration::SweepConfiguration;

/// Queues of one process, over all its NICs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct QueueCounts {
    /// Queue pairs.
    pub(crate) pairs: u32,
    /// Completion queues.
    pub(crate) completion: u32,
}

/// What was seen of a rank.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RankUsage {
    /// What its NICs had in use at most, as they count.
    pub(crate) queues: QueueCounts,
    /// Connections that had carried no message in the end.
    pub(crate) idle: u32,
}

impl RankUsage {
    /// The most of two looks, the later one last.
    pub(crate) fn merge_most(self, later: Self) -> Self {
        let a = self.queues;
        let b = later.queues;
        let queues = QueueCounts { pairs: a.pairs.max(b.pairs), completion: a.completion.max(b.completion) };
        Self { queues, ..later }
    }
}

/// What one rank has in use, beside the formula.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueComparison {
    /// As its NICs count.
    pub(crate) used: QueueCounts,
    /// Queue pairs, and most completion queues, by the formula.
    pub(crate) expected: QueueCounts,
    /// Queue pairs that may be missing: those of links beyond the first of a connection are made as it is used.
    pub(crate) unmade: u32,
}

impl QueueComparison {
    /// Whether it is as the formula says.
    pub(crate) const fn matches_formula(&self) -> bool {
        self.pairs_fit() && self.completion_fits()
    }

    /// Whether the queue pairs are.
    pub(crate) const fn pairs_fit(&self) -> bool {
        let used = self.used.pairs;
        let expected = self.expected.pairs;
        used <= expected && used >= expected.saturating_sub(self.unmade)
    }

    /// Whether the completion queues are. Fewer are no fault.
    pub(crate) const fn completion_fits(&self) -> bool {
        self.used.completion <= self.expected.completion
    }
}

/// A rank with that configuration, which has `connections` to each of `out_peers` ranks and as many from each
/// of `in_peers` ranks, beside what it should have in use.
pub(crate) fn compare_queues(
    seen: RankUsage,
    configuration: SweepConfiguration,
    connections: usize,
    out_peers: usize,
    in_peers: usize,
) -> QueueComparison {
    let expected = expected_queues(configuration, connections, out_peers, in_peers);
    let unmade = seen.idle * u32::from(configuration.links.saturating_sub(1));
    QueueComparison { used: seen.queues, expected, unmade }
}

/// Of each direction towards each peer there are as many groups as connections, and no more than the configuration allows
/// where they share, but for what one group does not hold; without sharing a connection is a group of its own. A group has the links of one connection, each a queue
/// pair, and one completion queue, as a sweep uses one NIC. NICs that need no flush have no queue pair for it.
fn expected_queues(
    configuration: SweepConfiguration,
    connections: usize,
    out_peers: usize,
    in_peers: usize,
) -> QueueCounts {
    let SweepConfiguration { groups, links, .. } = configuration;
    let needed = connections.div_ceil(MEMBERS_OF_GROUP_MAX);
    let each =
        if configuration.is_shared() { connections.min(needed.max(groups.into())) } else { connections };
    let all = (each * (out_peers + in_peers)) as u32;
    QueueCounts { pairs: all * u32::from(links), completion: all }
}

/// The rank to speak of: the first that does not fit, else the one with the most queue pairs.
pub(crate) fn foremost_rank(ranks: &[QueueComparison]) -> Option<QueueComparison> {
    let misfit = ranks.iter().find(|one| !one.matches_formula());
    misfit.or_else(|| ranks.iter().max_by_key(|one| one.used.pairs)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, connections: usize, out_peers: usize, in_peers: usize) -> (u32, u32) {
        let configuration = name.parse().unwrap();
        let QueueCounts { pairs, completion } =
            expected_queues(configuration, connections, out_peers, in_peers);
        (pairs, completion)
    }

    #[test]
    fn groups_are_as_many_as_connections_until_they_are_shared() {
        assert_eq!(of("q1", 16, 1, 1), (32, 32));
        assert_eq!(of("q4", 16, 1, 1), (128, 32));
        assert_eq!(of("m4d1", 16, 1, 1), (8, 8));
        assert_eq!(of("m4d4", 3, 1, 1), (6, 6), "fewer connections than groups");
        assert_eq!(of("m1d2", 16, 3, 3), (6, 6), "to each peer");
        assert_eq!(of("m8d1", 16, 0, 1), (8, 8), "one direction");
        assert_eq!((of("m1d1", 128, 1, 0), of("m1d1", 129, 1, 0)), ((1, 1), (2, 2)), "a full group");
        assert_eq!(of("m4d1", 512, 1, 1), (8, 8));
    }

    #[test]
    fn one_queue_too_many_does_not_fit() {
        let expected = QueueCounts { pairs: 8, completion: 8 };
        let fits = |pairs, completion| {
            QueueComparison { used: QueueCounts { pairs, completion }, expected, unmade: 0 }.matches_formula()
        };
        assert!(fits(8, 8) && fits(8, 2));
        assert!(!fits(9, 8) && !fits(7, 8) && !fits(8, 9) && !fits(0, 0));
    }

    #[test]
    fn what_carried_nothing_may_lack_its_further_links() {
        let fits = |name: &str, pairs, idle| {
            let seen = RankUsage { queues: QueueCounts { pairs, completion: 1 }, idle };
            compare_queues(seen, name.parse().unwrap(), 16, 1, 1).matches_formula()
        };
        assert!(fits("q4", 128, 0) && fits("q4", 128, 16) && fits("q4", 80, 16));
        assert!(!fits("q4", 127, 0) && !fits("q4", 79, 16) && !fits("q4", 129, 16));
        assert!(fits("q1", 32, 32) && !fits("q1", 31, 32), "it has no further links");
        assert!(fits("m4d1", 8, 16) && !fits("m4d1", 7, 16));
    }

    #[test]
    fn the_most_queues_of_all_looks_count_and_the_last_idle_ones() {
        let seen = |pairs, completion, idle| RankUsage { queues: QueueCounts { pairs, completion }, idle };
        assert_eq!(seen(3, 7, 5).merge_most(seen(2, 8, 1)), seen(3, 8, 1));
    }

    #[test]
    fn a_misfit_comes_before_whoever_has_most() {
        let rank = |pairs| {
            let used = QueueCounts { pairs, completion: 1 };
            QueueComparison { used, expected: QueueCounts { pairs: pairs.max(4), completion: 4 }, unmade: 0 }
        };
        assert_eq!(foremost_rank(&[rank(4), rank(8), rank(6)]), Some(rank(8)));
        assert_eq!(foremost_rank(&[rank(4), rank(3), rank(8)]), Some(rank(3)));
        assert_eq!(foremost_rank(&[]), None);
    }
}
