//! The measured figures: for each collective and configuration a list of sizes, and for each size one figure per round.
//! Pure.

use trunkline_nccl_host::{Collective, PluginReport, RowResult};

use super::SweepPlan;
use super::configuration::SweepConfiguration;
use super::formula::{self, QueueComparison, RankUsage};
use crate::bench::collective::RowHalf;

/// All measured figures.
#[derive(Debug, Default)]
pub(crate) struct SweepResults {
    /// By collective, then by configuration.
    pub(crate) cells: Vec<SweepCell>,
}

/// One collective with one configuration.
#[derive(Debug)]
pub(crate) struct SweepCell {
    pub(crate) collective: Collective,
    pub(crate) configuration: SweepConfiguration,
    /// The plugin that the ranks loaded.
    pub(crate) info: PluginReport,
    /// The points, one per size.
    pub(crate) points: Vec<SweepPoint>,
    /// The observed queues of each rank.
    seen: Vec<RankUsage>,
}

/// One size.
#[derive(Debug)]
pub(crate) struct SweepPoint {
    /// Elements of a rank's part.
    pub(crate) block: usize,
    /// The result of each round.
    pub(crate) rounds: Vec<RowHalf>,
}

/// A figure with its spread over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RoundSpread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl RoundSpread {
    /// The spread of some values; zeros for an empty list.
    pub(crate) fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |at: usize| values.get(at).copied().unwrap_or(0.0);
        let last = values.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), low: at(0), high: at(last) }
    }
}

impl SweepPoint {
    /// Bus bandwidth in GB/s.
    pub(crate) fn bus_bandwidth(&self) -> RoundSpread {
        RoundSpread::from_values(self.rounds.iter().map(|half| half.busbw).collect())
    }

    /// The median of each figure, and the sum of wrong elements.
    pub(crate) fn median_half(&self) -> RowHalf {
        let median =
            |of: fn(&RowHalf) -> f64| RoundSpread::from_values(self.rounds.iter().map(of).collect()).median;
        RowHalf {
            result: RowResult {
                time_us: median(|half| half.result.time_us),
                wrong: self.rounds.iter().map(|half| half.result.wrong).sum(),
            },
            algbw: median(|half| half.algbw),
            busbw: median(|half| half.busbw),
        }
    }
}

impl SweepCell {
    /// Creates a cell without results.
    pub(crate) fn new(collective: Collective, configuration: SweepConfiguration) -> Self {
        Self {
            collective,
            configuration,
            info: PluginReport::default(),
            points: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Adds the result of a round for the size with index `at`.
    pub(crate) fn add_round(&mut self, at: usize, block: usize, half: RowHalf) {
        if self.points.len() == at {
            self.points.push(SweepPoint { block, rounds: Vec::new() });
        }
        self.points[at].rounds.push(half);
    }

    /// Adds the plugin and the observed queues of a round's ranks.
    pub(crate) fn record_ranks(&mut self, info: &PluginReport, ranks: &[RankUsage]) {
        self.info = info.clone();
        self.seen.resize(ranks.len(), RankUsage::default());
        for (before, now) in self.seen.iter_mut().zip(ranks) {
            *before = before.merge_most(*now);
        }
    }

    /// The number of wrong elements.
    pub(crate) fn wrong_count(&self) -> u64 {
        self.points.iter().map(|point| point.median_half().result.wrong).sum()
    }

    /// The queues of the rank to report, beside the expected ones.
    pub(crate) fn queue_comparison(&self, plan: &SweepPlan) -> QueueComparison {
        let ranks: Vec<QueueComparison> =
            (0..self.seen.len()).map(|rank| self.queue_comparison_of(plan, rank)).collect();
        // Without observed ranks, compare zero queues, which do not match.
        formula::foremost_rank(&ranks).unwrap_or_else(|| self.queue_comparison_of(plan, 0))
    }

    /// The queues of one rank, beside the expected ones.
    pub(crate) fn queue_comparison_of(&self, plan: &SweepPlan, rank: usize) -> QueueComparison {
        let job = &plan.common.job;
        let (out_peers, in_peers) = self.collective.peer_counts(rank, job.ranks, job.root);
        let seen = self.seen.get(rank).copied().unwrap_or_default();
        let connections = plan.connection_count();
        formula::compare_queues(seen, self.configuration, connections, out_peers, in_peers)
    }

    /// Bus bandwidth relative to another cell's: in each round the geometric mean over all sizes.
    ///
    /// A round is compared with the same round of the other cell, which ran minutes apart at most. A cell relative to
    /// itself is compared with the median of its own rounds, which shows the machine's variation.
    pub(crate) fn relative_bandwidth(&self, other: &Self) -> RoundSpread {
        let own = self.mean_bandwidths();
        let others = other.mean_bandwidths();
        let median = RoundSpread::from_values(others.clone()).median;
        let base = |round: usize| if std::ptr::eq(self, other) { median } else { others[round] };
        RoundSpread::from_values(
            (0..own.len().min(others.len())).map(|round| own[round] / base(round)).collect(),
        )
    }

    /// The geometric mean of bus bandwidth over all sizes, per round.
    fn mean_bandwidths(&self) -> Vec<f64> {
        let rounds = self.points.iter().map(|point| point.rounds.len()).min().unwrap_or(0);
        let sizes = self.points.len().max(1) as f64;
        let sum = |round: usize| self.points.iter().map(|point| point.rounds[round].busbw.ln()).sum::<f64>();
        (0..rounds).map(|round| (sum(round) / sizes).exp()).collect()
    }
}

impl SweepResults {
    /// The cells of each collective.
    pub(crate) fn by_collective(&self) -> impl Iterator<Item = &[SweepCell]> {
        self.cells.chunk_by(|a, b| a.collective == b.collective)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(rounds: &[[f64; 2]]) -> SweepCell {
        let mut cell = SweepCell::new(Collective::AllReduce, SweepConfiguration::all()[0]);
        for sizes in rounds {
            for (at, busbw) in sizes.iter().enumerate() {
                let result = RowResult { time_us: 8.0 / busbw, wrong: 1 };
                cell.add_round(at, 1 << at, RowHalf { result, algbw: *busbw, busbw: *busbw });
            }
        }
        cell
    }

    #[test]
    fn a_median_has_its_spread() {
        let of = |values: &[f64]| {
            let RoundSpread { median, low, high } = RoundSpread::from_values(values.to_vec());
            [median, low, high]
        };
        assert_eq!(of(&[3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(of(&[4.0, 1.0]), [2.5, 1.0, 4.0]);
        assert_eq!(of(&[]), [0.0; 3]);
    }

    #[test]
    fn median_half_has_medians_and_summed_errors() {
        let cell = cell(&[[1.0, 9.0], [2.0, 9.0], [4.0, 9.0]]);
        let half = cell.points[0].median_half();
        assert_eq!((half.busbw, half.result.time_us, half.result.wrong), (2.0, 4.0, 3));
        assert_eq!((cell.points[0].block, cell.points[1].block, cell.wrong_count()), (1, 2, 6));
    }

    #[test]
    fn ratio_compares_equal_rounds_over_all_sizes() {
        // The second round was half as fast for both.
        let base = cell(&[[2.0, 8.0], [1.0, 4.0]]);
        let cell = cell(&[[4.0, 4.0], [2.0, 2.0]]);
        let RoundSpread { median, low, high } = cell.relative_bandwidth(&base);
        for ratio in [median, low, high] {
            assert!((ratio - 1.0).abs() < 1e-9, "twice and half: {ratio}");
        }
        let own = base.relative_bandwidth(&base);
        let wanted = [1.0, 2.0 / 3.0, 4.0 / 3.0];
        let close = [own.median, own.low, own.high].iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close, "{own:?}");
    }
}
