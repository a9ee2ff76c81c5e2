//! Compares the queue pairs and completion queues that a rank uses with the expected numbers. Pure.

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

/// The observed queues and connections of a rank.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RankUsage {
    /// The most queues that its NICs reported in use.
    pub(crate) queues: QueueCounts,
    /// Connections without any message at the last poll.
    pub(crate) idle: u32,
}

impl RankUsage {
    /// Merges two polls: the most queues of both, and the idle connections of the later one.
    pub(crate) fn merge_most(self, later: Self) -> Self {
        let a = self.queues;
        let b = later.queues;
        let queues = QueueCounts { pairs: a.pairs.max(b.pairs), completion: a.completion.max(b.completion) };
        Self { queues, ..later }
    }
}

/// The queues of one rank, and those expected by the formula.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueComparison {
    /// As its NICs report.
    pub(crate) used: QueueCounts,
    /// Queue pairs by the formula, and the most completion queues.
    pub(crate) expected: QueueCounts,
    /// Queue pairs that may be missing: links of a connection after the first are made when it is used.
    pub(crate) unmade: u32,
}

impl QueueComparison {
    /// Whether the queues match the formula.
    pub(crate) const fn matches_formula(&self) -> bool {
        self.pairs_fit() && self.completion_fits()
    }

    /// Whether the number of queue pairs matches.
    pub(crate) const fn pairs_fit(&self) -> bool {
        let used = self.used.pairs;
        let expected = self.expected.pairs;
        used <= expected && used >= expected.saturating_sub(self.unmade)
    }

    /// Whether the number of completion queues matches. Fewer are no fault.
    pub(crate) const fn completion_fits(&self) -> bool {
        self.used.completion <= self.expected.completion
    }
}

/// Compares the queues of a rank with the formula. The rank has `connections` outgoing connections to each of
/// `out_peers` ranks, and `connections` incoming ones from each of `in_peers` ranks.
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

/// The expected queues. Without sharing, each connection is a group of its own. With sharing, each peer and direction
/// has a group per connection, up to the configured number of groups. If these cannot hold all connections, it has the
/// number that can. A group has the links of one connection, a queue pair per link, and one completion queue, because a
/// sweep uses one NIC. NICs that need no flush have no queue pair for it.
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

/// The rank to report: the first that does not match, else the one with the most queue pairs.
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
    fn expected_groups_equal_connections_unless_shared() {
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
    fn idle_connections_may_lack_further_links() {
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
    fn polls_merge_most_queues_and_last_idle_count() {
        let seen = |pairs, completion, idle| RankUsage { queues: QueueCounts { pairs, completion }, idle };
        assert_eq!(seen(3, 7, 5).merge_most(seen(2, 8, 1)), seen(3, 8, 1));
    }

    #[test]
    fn foremost_rank_prefers_a_mismatch() {
        let rank = |pairs| {
            let used = QueueCounts { pairs, completion: 1 };
            QueueComparison { used, expected: QueueCounts { pairs: pairs.max(4), completion: 4 }, unmade: 0 }
        };
        assert_eq!(foremost_rank(&[rank(4), rank(8), rank(6)]), Some(rank(8)));
        assert_eq!(foremost_rank(&[rank(4), rank(3), rank(8)]), Some(rank(3)));
        assert_eq!(foremost_rank(&[]), None);
    }
}
