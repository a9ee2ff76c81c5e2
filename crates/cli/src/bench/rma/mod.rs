//! Benchmarks one-sided communication: a table of puts and gets by size, then a table of operations of one size:
//! atomics, signals, quiets, fan-in.
//!
//! Called by `cmd::rma` in each rank; rank 0 prints.

mod measure;
mod tcp_ping;

use std::io::{StdoutLock, Write as _};

use indicatif::ProgressBar;
use serde::Serialize;
use trunkline::World;

use super::plot::PendingPlot;
use super::progress;
use super::times::OperationTimes;
use crate::bench::BenchError;
use measure::{RmaBench, TransferResult};

/// The parsed arguments.
pub(crate) struct RmaBenchSettings {
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Whether bytes and values are checked.
    pub(crate) check: bool,
    /// Timed runs; 0 selects a number that fits the size.
    pub(crate) iterations: usize,
    /// Whether a bare TCP connection is measured, too.
    pub(crate) raw: bool,
    /// Whether operations at a rank that makes no call are measured, too.
    pub(crate) computing: bool,
    /// Print JSON instead of tables.
    pub(crate) json: bool,
    /// The picture to draw.
    pub(crate) plot: Option<PendingPlot>,
}

/// One line of `--json`, with the keys of `bench p2p`.
#[derive(Debug, Serialize)]
struct RmaLine<'a> {
    collective: &'a str,
    fabric: &'a str,
    plugin: &'a str,
    device: &'a str,
    ranks: usize,
    bytes: usize,
    #[serde(rename = "type")]
    dtype: &'a str,
    redop: &'a str,
    in_place: bool,
    time_us: f64,
    algbw: f64,
    busbw: f64,
    latency_p50_us: Option<f64>,
    latency_p99_us: Option<f64>,
    latency_max_us: Option<f64>,
    one_way_gbs: f64,
    rate_mps: f64,
    wrong: u64,
}

/// A line of the second table, which has operations of one size.
struct FixedSizeResult {
    name: String,
    bytes: usize,
    times: Option<OperationTimes>,
    /// Millions of operations per second.
    rate: Option<f64>,
    wrong: u64,
}

const COLUMNS: &str = "\
#                put + quiet                  get              put stream             get stream
#       size       p50       p99       p50       p99  bandwidth      rate  bandwidth      rate  #wrong
#        (B)      (us)      (us)      (us)      (us)     (GB/s)    (M/s)     (GB/s)    (M/s)";

const COLUMNS_ONE: &str = "\
#
#                                          p50       p99       max      rate  #wrong
#                                         (us)      (us)      (us)    (M/s)";

/// Runs everything; returns the number of errors of all ranks, on all ranks.
pub(crate) fn run_rma(settings: &RmaBenchSettings, world: &World) -> Result<u64, BenchError> {
    settings.plot.as_ref().map_or(Ok(()), PendingPlot::prepare_file)?;
    let mut out = RmaPrinter::new(settings, world)?;
    let bench = RmaBench::new(world, settings)?;
    let mut moved = Vec::new();
    for &bytes in &settings.sizes {
        out.announce_step(format!("{bytes} B"));
        let row = bench.measure_transfers(bytes)?;
        out.print_transfers(bytes, &row)?;
        moved.push((bytes, row));
    }
    out.print_line(COLUMNS_ONE)?;
    if settings.raw {
        out.announce_step("bare TCP".into());
        match tcp_ping::round_trips(world, bench.iteration_count(8))? {
            Some(times) => out.print_result(&FixedSizeResult {
                name: "bare TCP, round trip".into(),
                bytes: 8,
                times: Some(times),
                rate: None,
                wrong: 0,
            })?,
            None => out.print_line("# bare TCP: not measured, because the ranks are on different hosts")?,
        }
    }
    for line in 0..RmaBench::LINES {
        out.announce_step("one size".into());
        out.print_result(&bench.measure_line(line)?)?;
    }
    if settings.computing {
        out.announce_step("a rank that computes".into());
        out.print_result(&bench.fetch_adds_at_computing_rank()?)?;
    }
    for peers in 1..world.size() {
        out.announce_step(format!("quiet, {peers} ranks"));
        out.print_result(&bench.measure_quiet(peers)?)?;
    }
    for callers in 1..world.size() {
        out.announce_step(format!("fan-in, {callers} ranks"));
        out.print_result(&bench.fan_in_adds(callers)?)?;
        out.print_result(&bench.fan_in_puts(callers)?)?;
    }
    out.finish_plot(&moved)?;
    bench.wrong_of_all()
}

/// Prints rows on rank 0; does nothing on other ranks.
struct RmaPrinter<'a> {
    settings: &'a RmaBenchSettings,
    world: &'a World,
    out: StdoutLock<'static>,
    bar: ProgressBar,
}

impl<'a> RmaPrinter<'a> {
    fn new(settings: &'a RmaBenchSettings, world: &'a World) -> Result<Self, BenchError> {
        let asked_for = usize::from(settings.raw) + usize::from(settings.computing);
        let rows = settings.sizes.len() + asked_for + RmaBench::LINES + 3 * (world.size() - 1);
        let bar = if world.rank() == 0 { progress::row_bar(rows) } else { ProgressBar::hidden() };
        let mut printer = Self { settings, world, out: std::io::stdout().lock(), bar };
        let carrier = world.carrier();
        let passive = if world.is_passive() { "passive progress" } else { "no passive progress" };
        printer.print_line(&format!(
            "# rma: {} ranks, {passive}\n# {} over {}, {} Mbit/s\n#\n{COLUMNS}",
            world.size(),
            carrier.fabric,
            carrier.nics.join("+"),
            carrier.speed_mbps,
        ))?;
        Ok(printer)
    }

    /// Shows the next step in the progress bar.
    fn announce_step(&self, what: String) {
        self.bar.set_message(what);
    }

    fn print_text(&mut self, text: &str) -> Result<(), BenchError> {
        if self.world.rank() == 0 {
            let out = &mut self.out;
            self.bar.suspend(|| writeln!(out, "{text}").and_then(|()| out.flush()))?;
        }
        Ok(())
    }

    /// Prints a line of text, unless JSON was requested.
    fn print_line(&mut self, text: &str) -> Result<(), BenchError> {
        if self.settings.json { Ok(()) } else { self.print_text(text) }
    }

    /// Prints a row of the first table.
    fn print_transfers(&mut self, bytes: usize, row: &[TransferResult; 2]) -> Result<(), BenchError> {
        self.bar.inc(1);
        if self.settings.json {
            for moved in row {
                self.print_text(&self.json_transfer(bytes, moved)?)?;
            }
            return Ok(());
        }
        let [put, get] = row;
        self.print_text(&format!(
            "{bytes:>12}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>9.3} {:>9.3}  {:>9.3} {:>9.3}  {:>6}",
            put.times.p50_us,
            put.times.p99_us,
            get.times.p50_us,
            get.times.p99_us,
            put.gbs,
            put.rate,
            get.gbs,
            get.rate,
            put.wrong + get.wrong,
        ))
    }

    /// Prints a row of the second table.
    fn print_result(&mut self, one: &FixedSizeResult) -> Result<(), BenchError> {
        self.bar.inc(1);
        let times = one.times;
        if self.settings.json {
            let line = self.json_line(RmaLine {
                collective: &one.name,
                bytes: one.bytes,
                time_us: times.map_or_else(|| 1.0 / one.rate.unwrap_or(f64::INFINITY), |times| times.p50_us),
                latency_p50_us: times.map(|times| times.p50_us),
                latency_p99_us: times.map(|times| times.p99_us),
                latency_max_us: times.map(|times| times.max_us),
                rate_mps: one.rate.unwrap_or(0.0),
                wrong: one.wrong,
                ..self.blank_line()
            })?;
            return self.print_text(&line);
        }
        let show =
            |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        self.print_text(&format!(
            "{:>34}  {:>8}  {:>8}  {:>8}  {:>8}  {:>6}",
            one.name,
            show(times.map(|times| times.p50_us), 2),
            show(times.map(|times| times.p99_us), 2),
            show(times.map(|times| times.max_us), 1),
            show(one.rate, 3),
            one.wrong,
        ))
    }

    fn blank_line(&self) -> RmaLine<'_> {
        RmaLine {
            collective: "",
            fabric: self.world.carrier().fabric,
            plugin: "Trunkline",
            device: "",
            ranks: self.world.size(),
            bytes: 0,
            dtype: "uint8",
            redop: "none",
            in_place: false,
            time_us: 0.0,
            algbw: 0.0,
            busbw: 0.0,
            latency_p50_us: None,
            latency_p99_us: None,
            latency_max_us: None,
            one_way_gbs: 0.0,
            rate_mps: 0.0,
            wrong: 0,
        }
    }

    fn json_line(&self, line: RmaLine<'_>) -> Result<String, BenchError> {
        let device = self.world.carrier().nics.join("+");
        Ok(serde_json::to_string(&RmaLine { device: &device, ..line }).map_err(std::io::Error::from)?)
    }

    fn json_transfer(&self, bytes: usize, moved: &TransferResult) -> Result<String, BenchError> {
        self.json_line(RmaLine {
            collective: moved.name,
            bytes,
            time_us: moved.times.p50_us,
            algbw: moved.gbs,
            busbw: moved.gbs,
            latency_p50_us: Some(moved.times.p50_us),
            latency_p99_us: Some(moved.times.p99_us),
            latency_max_us: Some(moved.times.max_us),
            one_way_gbs: moved.gbs,
            rate_mps: moved.rate,
            wrong: moved.wrong,
            ..self.blank_line()
        })
    }

    /// Draws the picture, if one was requested: a run for puts and one for gets.
    fn finish_plot(&mut self, moved: &[(usize, [TransferResult; 2])]) -> Result<(), BenchError> {
        self.bar.finish_and_clear();
        let Some(plot) = &self.settings.plot else { return Ok(()) };
        for which in 0..2 {
            for (bytes, row) in moved {
                plot.add_row(self.json_transfer(*bytes, &row[which])?);
            }
        }
        Ok(plot.draw_rows()?)
    }
}
