//! One-sided communication: a table of puts and gets by size, then what has one size: atomics, signals, quiets, fan-in.
//!
//! Called by `cmd::rma` in each rank; rank 0 prints.

mod measure;
mod raw;

use std::io::{StdoutLock, Write as _};

use indicatif::ProgressBar;
use serde::Serialize;
use trunkline::World;

use super::plot::Pending;
use super::progress;
use super::times::Times;
use crate::cmd::BenchError;
use measure::{Bench, Moved};

/// What the arguments say.
pub(crate) struct Settings {
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Whether bytes and values are checked.
    pub(crate) check: bool,
    /// Timed runs, 0 for a number that fits.
    pub(crate) iterations: usize,
    /// Whether a bare TCP connection is measured, too.
    pub(crate) raw: bool,
    /// Whether operations at a rank that makes no call are measured, too.
    pub(crate) computing: bool,
    /// JSON instead of tables.
    pub(crate) json: bool,
    /// The picture to draw.
    pub(crate) plot: Option<Pending>,
}

/// One line of `--json`, with the names that `bench p2p` has.
#[derive(Debug, Serialize)]
struct Line<'a> {
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

/// A line of the second table: what has one size.
struct One {
    name: String,
    bytes: usize,
    times: Option<Times>,
    /// Millions a second.
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

/// Runs everything; returns how much was wrong, which all ranks know.
pub(crate) fn run(settings: &Settings, world: &World) -> Result<u64, BenchError> {
    settings.plot.as_ref().map_or(Ok(()), Pending::prepare)?;
    let mut out = Printer::new(settings, world)?;
    let bench = Bench::new(world, settings)?;
    let mut moved = Vec::new();
    for &bytes in &settings.sizes {
        out.begins(format!("{bytes} B"));
        let row = bench.moved(bytes)?;
        out.moved(bytes, &row)?;
        moved.push((bytes, row));
    }
    out.line(COLUMNS_ONE)?;
    if settings.raw {
        out.begins("bare TCP".into());
        match raw::round_trips(world, bench.iterations(8))? {
            Some(times) => out.one(&One {
                name: "bare TCP, round trip".into(),
                bytes: 8,
                times: Some(times),
                rate: None,
                wrong: 0,
            })?,
            None => out.line("# bare TCP: the ranks are on different hosts")?,
        }
    }
    for line in 0..Bench::LINES {
        out.begins("one size".into());
        out.one(&bench.one(line)?)?;
    }
    if settings.computing {
        out.begins("a rank that computes".into());
        out.one(&bench.fetch_adds_at_computing_rank()?)?;
    }
    for peers in 1..world.size() {
        out.begins(format!("quiet, {peers} ranks"));
        out.one(&bench.quiet(peers)?)?;
    }
    for callers in 1..world.size() {
        out.begins(format!("fan-in, {callers} ranks"));
        out.one(&bench.fan_in_adds(callers)?)?;
        out.one(&bench.fan_in_puts(callers)?)?;
    }
    out.end(&moved)?;
    bench.wrong_of_all()
}

/// Prints, on rank 0.
struct Printer<'a> {
    settings: &'a Settings,
    world: &'a World,
    out: StdoutLock<'static>,
    bar: ProgressBar,
}

impl<'a> Printer<'a> {
    fn new(settings: &'a Settings, world: &'a World) -> Result<Self, BenchError> {
        let asked_for = usize::from(settings.raw) + usize::from(settings.computing);
        let rows = settings.sizes.len() + asked_for + Bench::LINES + 3 * (world.size() - 1);
        let bar = if world.rank() == 0 { progress::bar(rows) } else { ProgressBar::hidden() };
        let mut printer = Self { settings, world, out: std::io::stdout().lock(), bar };
        let carrier = world.carrier();
        let passive = if world.is_passive() { "passive progress" } else { "no passive progress" };
        printer.line(&format!(
            "# rma: {} ranks, {passive}\n# {} over {}, {} Mbit/s\n#\n{COLUMNS}",
            world.size(),
            carrier.fabric,
            carrier.nics.join("+"),
            carrier.speed_mbps,
        ))?;
        Ok(printer)
    }

    /// What comes next.
    fn begins(&self, what: String) {
        self.bar.set_message(what);
    }

    fn print(&mut self, text: &str) -> Result<(), BenchError> {
        if self.world.rank() == 0 {
            let out = &mut self.out;
            self.bar.suspend(|| writeln!(out, "{text}").and_then(|()| out.flush()))?;
        }
        Ok(())
    }

    /// A line for people.
    fn line(&mut self, text: &str) -> Result<(), BenchError> {
        if self.settings.json { Ok(()) } else { self.print(text) }
    }

    /// A row of the first table.
    fn moved(&mut self, bytes: usize, row: &[Moved; 2]) -> Result<(), BenchError> {
        self.bar.inc(1);
        if self.settings.json {
            for moved in row {
                self.print(&self.json_moved(bytes, moved)?)?;
            }
            return Ok(());
        }
        let [put, get] = row;
        self.print(&format!(
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

    /// A row of the second.
    fn one(&mut self, one: &One) -> Result<(), BenchError> {
        self.bar.inc(1);
        let times = one.times;
        if self.settings.json {
            let line = self.json(Line {
                collective: &one.name,
                bytes: one.bytes,
                time_us: times.map_or_else(|| 1.0 / one.rate.unwrap_or(f64::INFINITY), |times| times.p50_us),
                latency_p50_us: times.map(|times| times.p50_us),
                latency_p99_us: times.map(|times| times.p99_us),
                latency_max_us: times.map(|times| times.max_us),
                rate_mps: one.rate.unwrap_or(0.0),
                wrong: one.wrong,
                ..self.blank()
            })?;
            return self.print(&line);
        }
        let show =
            |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        self.print(&format!(
            "{:>34}  {:>8}  {:>8}  {:>8}  {:>8}  {:>6}",
            one.name,
            show(times.map(|times| times.p50_us), 2),
            show(times.map(|times| times.p99_us), 2),
            show(times.map(|times| times.max_us), 1),
            show(one.rate, 3),
            one.wrong,
        ))
    }

    fn blank(&self) -> Line<'_> {
        Line {
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

    fn json(&self, line: Line<'_>) -> Result<String, BenchError> {
        let device = self.world.carrier().nics.join("+");
        Ok(serde_json::to_string(&Line { device: &device, ..line }).map_err(std::io::Error::from)?)
    }

    fn json_moved(&self, bytes: usize, moved: &Moved) -> Result<String, BenchError> {
        self.json(Line {
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
            ..self.blank()
        })
    }

    /// Draws the picture, if there is to be one: a run for puts and one for gets.
    fn end(&mut self, moved: &[(usize, [Moved; 2])]) -> Result<(), BenchError> {
        self.bar.finish_and_clear();
        let Some(plot) = &self.settings.plot else { return Ok(()) };
        for which in 0..2 {
            for (bytes, row) in moved {
                plot.add(self.json_moved(*bytes, &row[which])?);
            }
        }
        Ok(plot.draw()?)
    }
}
