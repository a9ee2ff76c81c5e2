//! Benchmarks device queues: a row per size and execution path, then the rows of one size, then a comparison with the
//! goals.
//!
//! Called by `cmd::device`. The ranks are in this process (`ranks`); `measure` has the measurements, `gpu` those on a
//! GPU.

mod gpu;
mod measure;
mod pattern;
mod ranks;

use std::io::Write as _;

use serde::Serialize;

use super::progress;
use super::times::OperationTimes;
use crate::bench::BenchError;
use measure::GoalFigures;

/// Largest put in bytes. It has an entry per GiB, and all its entries fit into a queue at once.
pub(crate) const BYTES_MAX: usize = 64 << 30;
/// Ranks that allocate the largest size at the same time, and the bytes that the process needs beside their memory.
const RANKS: usize = 2;
const BESIDE: usize = 256 << 20;
/// Rows that do not repeat per size and execution path, without those of a GPU.
const ROWS: usize = 24;

/// The parsed arguments.
pub(crate) struct DeviceBenchSettings {
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Timed runs per row; 0 selects a number that fits the size.
    pub(crate) iterations: usize,
    /// Most producers of one queue.
    pub(crate) producers: usize,
    /// Print JSON instead of tables.
    pub(crate) json: bool,
}

impl DeviceBenchSettings {
    /// Bytes of the largest put.
    fn largest_size(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Checks that the host has enough memory for two ranks.
    ///
    /// # Errors
    /// The needed and the available bytes, as text.
    pub(crate) fn check_memory(&self) -> Result<(), String> {
        let needed = self.largest_size().saturating_mul(RANKS).saturating_add(BESIDE);
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        match available_bytes(&text) {
            Some(there) if there < needed && self.largest_size() > BESIDE => Err(format!(
                "{RANKS} ranks need {} MiB of memory, and {} MiB are available; lower -e",
                needed >> 20,
                there >> 20
            )),
            _ => Ok(()),
        }
    }

    /// Estimates the number of rows, for the progress bar.
    fn row_estimate(&self) -> usize {
        let ways = measure::WAYS;
        ways * (4 * self.sizes.len() + 4) + 2 * self.sizes.len() + ROWS
    }
}

/// Parses the bytes available to new programs from `/proc/meminfo` (`MemAvailable`).
fn available_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceBenchError {
    /// The ranks cannot be created.
    #[error("cannot measure with ranks in this process: {0}")]
    Ranks(String),
    /// A queue rejected an entry.
    #[error(transparent)]
    Post(#[from] trunkline_device_queue::ReserveError),
    /// An operation was not posted.
    #[error(transparent)]
    Operation(#[from] trunkline_device_queue::OpError),
    /// An entry or a signal failed or did not arrive.
    #[error(transparent)]
    Wait(#[from] trunkline_device_queue::WaitError),
    /// A queue cannot be created.
    #[error(transparent)]
    Queue(#[from] trunkline_device::QueueError),
    /// A thread of the measurement panicked.
    #[error("a thread of the measurement has panicked; its message is above")]
    Panicked,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DeviceBenchRow {
    bench: &'static str,
    operation: String,
    way: &'static str,
    bytes: usize,
    batch: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_mops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth_gbs: Option<f64>,
    wrong: u64,
    /// Why nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
}

/// A goal and the measured figure.
#[derive(Debug, Serialize)]
struct GoalResult {
    bar: String,
    found: f64,
    wanted: f64,
    unit: &'static str,
    met: bool,
}

const COLUMNS: &str = "\
#                                                    size  batch       p50       p99      rate  bandwidth  #wrong
#                                                     (B)             (us)      (us)    (M/s)     (GB/s)";

impl DeviceBenchRow {
    fn from_times(
        bench: &'static str,
        operation: &str,
        way: &'static str,
        bytes: usize,
        times: OperationTimes,
    ) -> Self {
        let bandwidth = (bytes > 64).then(|| bytes as f64 / times.p50_us / 1e3);
        Self {
            bench,
            operation: operation.to_owned(),
            way,
            bytes,
            batch: 1,
            p50_us: Some(times.p50_us),
            p99_us: Some(times.p99_us),
            rate_mops: None,
            bandwidth_gbs: bandwidth,
            wrong: 0,
            skipped: None,
        }
    }

    /// A row with the reason why nothing was measured.
    fn skipped(bench: &'static str, operation: &str, way: &'static str, reason: String) -> Self {
        Self { skipped: Some(reason), ..Self::from_rate(bench, operation, way, 0, 1, 0.0).without_rate() }
    }

    fn without_rate(self) -> Self {
        Self { rate_mops: None, ..self }
    }

    fn from_rate(
        bench: &'static str,
        operation: &str,
        way: &'static str,
        bytes: usize,
        batch: usize,
        rate: f64,
    ) -> Self {
        Self {
            bench,
            operation: operation.to_owned(),
            way,
            bytes,
            batch,
            p50_us: None,
            p99_us: None,
            rate_mops: Some(rate),
            bandwidth_gbs: None,
            wrong: 0,
            skipped: None,
        }
    }

    /// The same figures as a row of B5, if the operation is one by which modes are compared.
    fn of_mode(&self) -> Option<Self> {
        let is_compared = matches!(self.operation.as_str(), "put + wait" | "puts");
        is_compared.then(|| Self { bench: "B5", ..self.clone() })
    }

    fn to_text(&self) -> String {
        if let Some(reason) = &self.skipped {
            return format!("  {:<3} {:<26} {:<11} SKIPPED: {reason}", self.bench, self.operation, self.way);
        }
        let number =
            |value: Option<f64>, digits| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
        format!(
            "  {:<3} {:<26} {:<11} {:>11}  {:>5}  {:>8}  {:>8}  {:>8}  {:>9}  {:>6}",
            self.bench,
            self.operation,
            self.way,
            self.bytes,
            self.batch,
            number(self.p50_us, 3),
            number(self.p99_us, 3),
            number(self.rate_mops, 2),
            number(self.bandwidth_gbs, 2),
            self.wrong,
        )
    }
}

/// Runs everything and returns the number of wrong bytes.
pub(crate) fn run_device_bench(settings: &DeviceBenchSettings) -> Result<u64, BenchError> {
    let mut out = std::io::stdout().lock();
    let transfer = measure::line_transfer_us()?;
    if !settings.json {
        writeln!(
            out,
            "# device queues: two ranks in this process, a line transfer takes {transfer:.3} us\n#\n{COLUMNS}"
        )?;
    }
    let mut wrong = 0;
    let bar = progress::row_bar(settings.row_estimate());
    let mut print = |row: &DeviceBenchRow| -> Result<(), BenchError> {
        wrong += row.wrong;
        let line = if settings.json {
            serde_json::to_string(row).map_err(std::io::Error::from)?
        } else {
            row.to_text()
        };
        bar.set_message(format!("{} {}, {} B", row.way, row.operation, row.bytes));
        bar.inc(1);
        bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush()))?;
        Ok(())
    };
    let found = measure::measure_all(settings, &mut print)?;
    bar.finish_and_clear();
    for bar in compare_goals(&found, transfer) {
        if settings.json {
            writeln!(out, "{}", serde_json::to_string(&bar).map_err(std::io::Error::from)?)?;
            continue;
        }
        let GoalResult { bar, found, wanted, unit, met } = bar;
        let met = if met { "met" } else { "MISSED" };
        writeln!(out, "# {bar}: {found:.3} of {wanted:.3} {unit}: {met}")?;
    }
    Ok(wrong)
}

/// Unit of a ratio of two times.
const TIMES: &str = "of the time";

/// Compares the measured figures with the goals of device queues: a ratio of two medians of one run, or a time in line
/// transfers of the same run.
fn compare_goals(found: &GoalFigures, transfer: f64) -> Vec<GoalResult> {
    let most = |bar: &str, found: f64, wanted: f64, unit| GoalResult {
        bar: bar.to_owned(),
        found,
        wanted,
        unit,
        met: found <= wanted,
    };
    let least = |bar: &str, found: f64, wanted: f64, unit| GoalResult {
        bar: bar.to_owned(),
        found,
        wanted,
        unit,
        met: found >= wanted,
    };
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { f64::INFINITY };
    vec![
        most("M1, put of 8 B + wait, p50, at most 8 line transfers", found.m1_put_us, 8.0 * transfer, "us"),
        most("M0, put of 8 B + wait, p50", found.m0_put_us, 0.15, "us"),
        least("M1, one queue, batches of 16", found.m1_rate, 5.0, "M entries/s"),
        most("a pass over 1,024 idle queues", found.idle_pass_us, 1.0, "us"),
        most("a poll of the flags of 1,024 idle queues of a GPU", found.idle_flags_us, 1.0, "us"),
        most(
            "a check of one counter against 64 tickets",
            ratio(found.look_counter_ns, found.look_tickets_ns),
            0.125,
            "of the time",
        ),
        most(
            "M1, 64 puts until one counter has them against 64 tickets",
            ratio(found.fan_counter_us, found.fan_tickets_us),
            1.0,
            TIMES,
        ),
        most("M1, a fused counter against a ticket", ratio(found.m1_counter_us, found.m1_put_us), 1.1, TIMES),
        most(
            "M1, a companion's WAIT against a ticket",
            ratio(found.m1_companion_us, found.m1_put_us),
            1.6,
            TIMES,
        ),
        most("M0, a fused counter against a ticket", ratio(found.m0_counter_us, found.m0_put_us), 1.1, TIMES),
        most(
            "M0, a companion's WAIT against a ticket",
            ratio(found.m0_companion_us, found.m0_put_us),
            1.6,
            TIMES,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_compared_the_right_way_round() {
        let found = GoalFigures {
            m1_put_us: 0.7,
            m0_put_us: 0.2,
            m1_rate: 6.0,
            idle_pass_us: 0.5,
            idle_flags_us: 1.5,
            look_counter_ns: 1.0,
            look_tickets_ns: 64.0,
            fan_counter_us: 1.1,
            fan_tickets_us: 1.0,
            m0_counter_us: 0.21,
            m0_companion_us: 0.4,
            m1_counter_us: 0.75,
            m1_companion_us: 1.0,
        };
        let met: Vec<bool> = compare_goals(&found, 0.1).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [true, false, true, true, false, true, false, true, true, true, false]);
        let none = compare_goals(&GoalFigures::default(), 0.1);
        assert!(none.iter().skip(5).all(|bar| !bar.met), "a goal without a measurement is not met");
    }

    #[test]
    fn check_memory_refuses_more_than_is_available() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(available_bytes("MemTotal: 9 kB\n"), None);
        let of = |largest| DeviceBenchSettings {
            sizes: vec![8, largest],
            iterations: 0,
            producers: 4,
            json: true,
        };
        assert_eq!(of(64 << 20).check_memory(), Ok(()));
        assert!(of(1 << 50).check_memory().is_err());
    }
}
