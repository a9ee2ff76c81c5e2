//! Pairs of figures and their medians and spreads.
//!
//! Only `compare` calls this; it measures nothing.

/// Whether lower or higher figures are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BetterDirection {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

impl BetterDirection {
    /// Whether a figure is at least as good as a goal.
    pub(super) fn reaches_goal(self, value: f64, goal: f64) -> bool {
        match self {
            Self::Lower => value <= goal,
            Self::Higher => value >= goal,
        }
    }
}

/// Pairs of figures from alternating runs.
#[derive(Debug, Default)]
pub(super) struct FigurePairs {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    ratios: Vec<f64>,
}

/// The figures of a row.
#[derive(Debug, PartialEq)]
pub(super) struct PairSummary {
    /// Our median.
    pub(super) ours: f64,
    /// Smallest and largest of ours.
    pub(super) ours_spread: [f64; 2],
    /// The same for the peer, if there is one.
    pub(super) theirs: Option<PeerSummary>,
}

/// The peer's half of a row.
#[derive(Debug, PartialEq)]
pub(super) struct PeerSummary {
    pub(super) median: f64,
    pub(super) spread: [f64; 2],
    /// Median of the pairs' ratios, ours over theirs.
    pub(super) ratio: f64,
    /// Smallest and largest of those ratios.
    pub(super) ratio_spread: [f64; 2],
}

impl FigurePairs {
    /// Adds one pair, or one figure without a peer.
    pub(super) fn push(&mut self, ours: f64, theirs: Option<f64>) {
        self.ours.push(ours);
        if let Some(theirs) = theirs {
            self.theirs.push(theirs);
            self.ratios.push(ours / theirs);
        }
    }

    /// Medians and spreads; `None` without figures.
    pub(super) fn to_summary(&self) -> Option<PairSummary> {
        let theirs =
            match (median(&self.theirs), spread(&self.theirs), median(&self.ratios), spread(&self.ratios)) {
                (Some(median), Some(spread), Some(ratio), Some(ratio_spread)) => {
                    Some(PeerSummary { median, spread, ratio, ratio_spread })
                }
                _ => None,
            };
        Some(PairSummary { ours: median(&self.ours)?, ours_spread: spread(&self.ours)?, theirs })
    }
}

/// The middle, or the mean of the two middles.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    let is_odd = sorted.len() % 2 == 1;
    Some(if is_odd { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

fn spread(values: &[f64]) -> Option<[f64; 2]> {
    let low = values.iter().copied().min_by(f64::total_cmp)?;
    let high = values.iter().copied().max_by(f64::total_cmp)?;
    Some([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        let mut pairs = FigurePairs::default();
        for (ours, theirs) in [(1.0, 2.0), (3.0, 4.0), (2.0, 2.0)] {
            pairs.push(ours, Some(theirs));
        }
        let summary = pairs.to_summary().unwrap();
        assert_eq!((summary.ours, summary.ours_spread), (2.0, [1.0, 3.0]));
        let theirs = summary.theirs.unwrap();
        assert_eq!((theirs.median, theirs.spread), (2.0, [2.0, 4.0]));
        assert_eq!((theirs.ratio, theirs.ratio_spread), (0.75, [0.5, 1.0]));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(FigurePairs::default().to_summary(), None);
    }

    #[test]
    fn a_row_without_a_peer_has_no_ratio() {
        let mut pairs = FigurePairs::default();
        pairs.push(5.0, None);
        assert_eq!(pairs.to_summary().unwrap().theirs, None);
        assert!(
            BetterDirection::Higher.reaches_goal(5.0, 5.0) && !BetterDirection::Higher.reaches_goal(4.9, 5.0)
        );
        assert!(
            BetterDirection::Lower.reaches_goal(0.2, 0.2) && !BetterDirection::Lower.reaches_goal(0.21, 0.2)
        );
    }
}
