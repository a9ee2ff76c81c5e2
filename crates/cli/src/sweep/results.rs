//! What was measured: for each collective and configuration a list of sizes, and for each size one figure a round. Pure.

use trunkline_nccl_host::{Collective, PluginInfo, RowResult};

use super::Plan;
use super::configuration::Configuration;
use super::formula::{self, Counted, Seen};
use crate::bench::collective::Half;

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// By collective, then by configuration.
    pub(crate) cells: Vec<Cell>,
}

/// One collective with one configuration.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) collective: Collective,
    pub(crate) configuration: Configuration,
    /// What the ranks loaded.
    pub(crate) info: PluginInfo,
    /// One for each size.
    pub(crate) points: Vec<Point>,
    /// What was seen of each rank.
    seen: Vec<Seen>,
}

/// One size.
#[derive(Debug)]
pub(crate) struct Point {
    /// Elements of a rank's part.
    pub(crate) block: usize,
    /// What each round gave.
    pub(crate) rounds: Vec<Half>,
}

/// A figure with its spread over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// Of some figures; none at all are zero.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |at: usize| values.get(at).copied().unwrap_or(0.0);
        let last = values.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), low: at(0), high: at(last) }
    }
}

impl Point {
    /// Bus bandwidth in GB/s.
    pub(crate) fn busbw(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|half| half.busbw).collect())
    }

    /// The median of each figure, and all wrong elements.
    pub(crate) fn half(&self) -> Half {
        let median = |of: fn(&Half) -> f64| Spread::of(self.rounds.iter().map(of).collect()).median;
        Half {
            result: RowResult {
                time_us: median(|half| half.result.time_us),
                wrong: self.rounds.iter().map(|half| half.result.wrong).sum(),
            },
            algbw: median(|half| half.algbw),
            busbw: median(|half| half.busbw),
        }
    }
}

impl Cell {
    /// One that has nothing yet.
    pub(crate) fn new(collective: Collective, configuration: Configuration) -> Self {
        Self { collective, configuration, info: PluginInfo::default(), points: Vec::new(), seen: Vec::new() }
    }

    /// Takes what a round gave for the size number `at`.
    pub(crate) fn add(&mut self, at: usize, block: usize, half: Half) {
        if self.points.len() == at {
            self.points.push(Point { block, rounds: Vec::new() });
        }
        self.points[at].rounds.push(half);
    }

    /// Takes what a round's ranks loaded, and what was seen of them.
    pub(crate) fn saw(&mut self, info: &PluginInfo, ranks: &[Seen]) {
        self.info = info.clone();
        self.seen.resize(ranks.len(), Seen::default());
        for (before, now) in self.seen.iter_mut().zip(ranks) {
            *before = before.most(*now);
        }
    }

    /// Wrong elements.
    pub(crate) fn wrong(&self) -> u64 {
        self.points.iter().map(|point| point.half().result.wrong).sum()
    }

    /// What the rank to speak of has in use, and should have.
    pub(crate) fn counted(&self, plan: &Plan) -> Counted {
        let ranks: Vec<Counted> = (0..self.seen.len()).map(|rank| self.counted_of(plan, rank)).collect();
        // What was not seen used nothing, which does not fit.
        formula::foremost(&ranks).unwrap_or_else(|| self.counted_of(plan, 0))
    }

    /// What one rank has in use, and should have.
    pub(crate) fn counted_of(&self, plan: &Plan, rank: usize) -> Counted {
        let job = &plan.common.job;
        let peers = self.collective.peers(rank, job.ranks, job.root);
        let seen = self.seen.get(rank).copied().unwrap_or_default();
        formula::beside(seen, self.configuration, plan.connections(), peers)
    }

    /// Bus bandwidth beside another cell's: in each round the geometric mean over all sizes.
    ///
    /// Rounds are compared with the same round of the other, which ran minutes apart at most; beside itself a cell is
    /// compared with the median of its rounds, which shows how much the machine wavers.
    pub(crate) fn beside(&self, other: &Self) -> Spread {
        let own = self.means();
        let others = other.means();
        let median = Spread::of(others.clone()).median;
        let base = |round: usize| if std::ptr::eq(self, other) { median } else { others[round] };
        Spread::of((0..own.len().min(others.len())).map(|round| own[round] / base(round)).collect())
    }

    /// The geometric mean of bus bandwidth over all sizes, by round.
    fn means(&self) -> Vec<f64> {
        let rounds = self.points.iter().map(|point| point.rounds.len()).min().unwrap_or(0);
        let sizes = self.points.len().max(1) as f64;
        let sum = |round: usize| self.points.iter().map(|point| point.rounds[round].busbw.ln()).sum::<f64>();
        (0..rounds).map(|round| (sum(round) / sizes).exp()).collect()
    }
}

impl Results {
    /// The cells of each collective.
    pub(crate) fn collectives(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunk_by(|a, b| a.collective == b.collective)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(rounds: &[[f64; 2]]) -> Cell {
        let mut cell = Cell::new(Collective::AllReduce, Configuration::all()[0]);
        for sizes in rounds {
            for (at, busbw) in sizes.iter().enumerate() {
                let result = RowResult { time_us: 8.0 / busbw, wrong: 1 };
                cell.add(at, 1 << at, Half { result, algbw: *busbw, busbw: *busbw });
            }
        }
        cell
    }

    #[test]
    fn a_median_has_its_spread() {
        let of = |values: &[f64]| {
            let Spread { median, low, high } = Spread::of(values.to_vec());
            [median, low, high]
        };
        assert_eq!(of(&[3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(of(&[4.0, 1.0]), [2.5, 1.0, 4.0]);
        assert_eq!(of(&[]), [0.0; 3]);
    }

    #[test]
    fn a_size_has_medians_and_all_that_was_wrong() {
        let cell = cell(&[[1.0, 9.0], [2.0, 9.0], [4.0, 9.0]]);
        let half = cell.points[0].half();
        assert_eq!((half.busbw, half.result.time_us, half.result.wrong), (2.0, 4.0, 3));
        assert_eq!((cell.points[0].block, cell.points[1].block, cell.wrong()), (1, 2, 6));
    }

    #[test]
    fn a_ratio_is_of_the_same_round_and_a_mean_over_sizes() {
        // The second round was half as fast for both.
        let base = cell(&[[2.0, 8.0], [1.0, 4.0]]);
        let cell = cell(&[[4.0, 4.0], [2.0, 2.0]]);
        let Spread { median, low, high } = cell.beside(&base);
        for ratio in [median, low, high] {
            assert!((ratio - 1.0).abs() < 1e-9, "twice and half: {ratio}");
        }
        let own = base.beside(&base);
        let wanted = [1.0, 2.0 / 3.0, 4.0 / 3.0];
        let close = [own.median, own.low, own.high].iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close, "{own:?}");
    }
}
