//! Times of single operations.

use std::time::Instant;

/// Statistics of many operations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OperationTimes {
    /// The median.
    pub(super) p50_us: f64,
    /// The 99th percentile.
    pub(super) p99_us: f64,
    /// The longest.
    pub(super) max_us: f64,
}

impl OperationTimes {
    /// Computes the statistics of runs of `parts` operations each.
    pub(super) fn from_nanos(mut nanos: Vec<u64>, parts: u32) -> Self {
        nanos.sort_unstable();
        let at = |share: usize| {
            let place = (nanos.len() * share / 100).min(nanos.len().saturating_sub(1));
            nanos.get(place).map_or(0.0, |&nanos| nanos as f64 / 1e3 / f64::from(parts))
        };
        Self { p50_us: at(50), p99_us: at(99), max_us: at(100) }
    }

    /// Times `count` runs of `operation`, after `count / 10 + 1` warm-up runs.
    pub(super) fn time_runs<E>(
        count: usize,
        parts: u32,
        mut operation: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Self, E> {
        let warm_up = warm_up(count);
        let mut nanos = Vec::with_capacity(count);
        for at in 0..warm_up + count {
            let began = Instant::now();
            operation(at)?;
            if at >= warm_up {
                nanos.push(began.elapsed().as_nanos() as u64);
            }
        }
        Ok(Self::from_nanos(nanos, parts))
    }
}

/// The number of warm-up runs before `count` timed ones.
pub(super) fn warm_up(count: usize) -> usize {
    count / 10 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_single_operations() {
        let times = OperationTimes::from_nanos((1..=1000).rev().map(|at| at * 2000).collect(), 2);
        assert_eq!(times, OperationTimes { p50_us: 501.0, p99_us: 991.0, max_us: 1000.0 });
        assert_eq!(
            OperationTimes::from_nanos(vec![5000], 1),
            OperationTimes { p50_us: 5.0, p99_us: 5.0, max_us: 5.0 }
        );
        let mut runs = 0;
        let times = OperationTimes::time_runs(10, 1, |at| {
            assert_eq!(at, runs);
            runs += 1;
            Ok::<_, ()>(())
        });
        assert!(times.is_ok() && runs == 12);
    }
}
