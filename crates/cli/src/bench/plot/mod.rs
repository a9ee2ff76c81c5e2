//! Draws pictures of benchmark results: rows in, one SVG file out.
//!
//! Called by `cmd::bench` after a run and by `cmd::plot` for saved ones. The rows are the lines that `bench --json`
//! prints; nothing else is read.

pub(crate) mod axis;
mod picture;

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

/// Most runs of one picture: the number of distinct line styles.
pub(crate) const RUNS_MAX: usize = 21;

/// Why the picture cannot be drawn.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum PlotError {
    /// A file cannot be read.
    #[error("{0}: {1}")]
    Read(String, #[source] io::Error),
    /// The picture cannot be written.
    #[error("{path}: {1}", path = .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// A line is not a row of results.
    #[error("{file}:{line}: not a row of `trunkline bench --json`: {source}")]
    Row {
        /// The file's name.
        file: String,
        /// The line's number, from 1.
        line: usize,
        /// The parse error.
        source: serde_json::Error,
    },
    /// A row's value cannot be drawn on a logarithmic axis.
    #[error("{file}:{line}: cannot draw {name} {value} on a logarithmic axis; remove the row")]
    Figure {
        /// The file's name.
        file: String,
        /// The line's number, from 1.
        line: usize,
        /// The field.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A file contains no rows of the requested kind.
    #[error("{0} contains no {1} rows of `trunkline bench --json`")]
    Empty(String, &'static str),
    /// More runs than distinct line styles.
    #[error("cannot draw {0} runs: one picture shows at most {RUNS_MAX}")]
    Many(usize),
}

/// The fields of a row of `bench --json` that a picture needs.
#[derive(Debug, Deserialize)]
struct PlotRow {
    #[serde(flatten)]
    what: RunIdentity,
    bytes: u64,
    in_place: bool,
    time_us: f64,
    busbw: f64,
    latency_p50_us: Option<f64>,
    one_way_gbs: Option<f64>,
}

/// The values that all rows of one run share.
#[derive(Clone, Debug, Deserialize, PartialEq)]
struct RunIdentity {
    collective: String,
    plugin: String,
    fabric: String,
    device: String,
    ranks: u64,
    #[serde(default = "one")]
    comms: u64,
    #[serde(default = "one")]
    channels: u64,
    #[serde(rename = "type")]
    dtype: String,
    redop: String,
    #[serde(default = "nobody")]
    root: i64,
}

const fn one() -> u64 {
    1
}

const fn nobody() -> i64 {
    -1
}

impl RunIdentity {
    fn is_p2p(&self) -> bool {
        ["p2p", "put", "get"].contains(&self.collective.as_str())
    }

    /// The words of the title, the most distinctive first.
    fn title_words(&self) -> [String; 8] {
        let unless = |plain: bool, word: String| if plain { String::new() } else { word };
        let network = format!("{} on {}", self.plugin, self.device);
        [
            self.collective.clone(),
            if self.fabric == self.plugin { network } else { format!("{network} ({})", self.fabric) },
            format!("{} ranks", self.ranks),
            self.dtype.clone(),
            unless(self.redop == "none", self.redop.clone()),
            unless(self.root < 0, format!("root {}", self.root)),
            unless(self.comms == 1, format!("{} communicators", self.comms)),
            unless(self.channels == 1, format!("{} channels", self.channels)),
        ]
    }
}

/// A point of both panels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlotPoint {
    bytes: f64,
    gbs: f64,
    us: f64,
}

/// One line of each panel.
#[derive(Debug)]
pub(crate) struct PlotRun {
    what: RunIdentity,
    /// The name given by the caller, which replaces the one made from the rows.
    name: Option<String>,
    points: Vec<PlotPoint>,
}

/// Reads the runs of a file that `bench --json` wrote; `-` is standard input. A file may contain several runs. A run
/// ends before a row with another identity, or with a size that is not larger.
pub(crate) fn read_runs(path: &str, name: &str, in_place: bool) -> Result<Vec<PlotRun>, PlotError> {
    let failed = |error| PlotError::Read(path.to_owned(), error);
    let input: Box<dyn BufRead> = match path {
        "-" => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(path).map_err(failed)?)),
    };
    let mut runs: Vec<PlotRun> = Vec::new();
    for (at, line) in input.lines().enumerate() {
        let line = line.map_err(failed)?;
        if !line.trim().is_empty() {
            add_row(&mut runs, &line, path, at + 1, in_place)?;
        }
    }
    if runs.is_empty() {
        return Err(PlotError::Empty(path.to_owned(), if in_place { "in-place" } else { "out-of-place" }));
    }
    runs.iter_mut().for_each(|run| run.name = Some(name.to_owned()));
    Ok(runs)
}

/// The picture of a run in progress.
#[derive(Debug)]
pub(crate) struct PendingPlot {
    path: PathBuf,
    lines: RefCell<Vec<String>>,
}

impl PendingPlot {
    /// Creates a picture without rows.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, lines: RefCell::default() }
    }

    /// Checks that the file can be written before a long run begins. An existing file keeps its content.
    pub(crate) fn prepare_file(&self) -> Result<(), PlotError> {
        let opened = File::options().append(true).create(true).open(&self.path);
        opened.map(drop).map_err(|error| PlotError::Write(self.path.clone(), error))
    }

    /// Adds a row, as `--json` prints it.
    pub(crate) fn add_row(&self, line: String) {
        self.lines.borrow_mut().push(line);
    }

    /// Draws all rows.
    pub(crate) fn draw_rows(&self) -> Result<(), PlotError> {
        draw_runs(&self.path, &parse_own_lines(&self.lines.borrow())?)
    }
}

/// Parses lines that this process wrote itself into runs.
fn parse_own_lines(lines: &[String]) -> Result<Vec<PlotRun>, PlotError> {
    let mut runs = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        add_row(&mut runs, line, "this run", at + 1, false)?;
    }
    Ok(runs)
}

/// Appends a row to the last run, or starts the next run with it.
fn add_row(
    runs: &mut Vec<PlotRun>,
    text: &str,
    file: &str,
    line: usize,
    in_place: bool,
) -> Result<(), PlotError> {
    let file = || file.to_owned();
    let row: PlotRow =
        serde_json::from_str(text).map_err(|source| PlotError::Row { file: file(), line, source })?;
    if row.in_place != in_place && !row.what.is_p2p() {
        return Ok(());
    }
    let point = PlotPoint {
        bytes: row.bytes as f64,
        gbs: row.one_way_gbs.unwrap_or(row.busbw),
        us: row.latency_p50_us.unwrap_or(row.time_us),
    };
    for (name, value) in [("bytes", point.bytes), ("the bandwidth", point.gbs), ("the time", point.us)] {
        if value <= 0.0 || !value.is_finite() {
            return Err(PlotError::Figure { file: file(), line, name, value });
        }
    }
    match runs.last_mut() {
        Some(run)
            if run.what == row.what && run.points.last().is_some_and(|last| last.bytes < point.bytes) =>
        {
            run.points.push(point);
        }
        _ => runs.push(PlotRun { what: row.what, name: None, points: vec![point] }),
    }
    Ok(())
}

/// Draws the runs into a file.
pub(crate) fn draw_runs(path: &Path, runs: &[PlotRun]) -> Result<(), PlotError> {
    if runs.is_empty() {
        return Err(PlotError::Empty("this run".to_owned(), "out-of-place"));
    }
    if runs.len() > RUNS_MAX {
        return Err(PlotError::Many(runs.len()));
    }
    let text = picture::render_picture(runs);
    let written = File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| PlotError::Write(path.to_owned(), error))
}

/// Returns the words that all runs share, for the title, and a name of each run for the legend.
fn name_runs(runs: &[PlotRun]) -> (String, Vec<String>) {
    let words: Vec<[String; 8]> = runs.iter().map(|run| run.what.title_words()).collect();
    let same = |at: usize| words.iter().all(|others| others[at] == words[0][at]);
    let join =
        |words: Vec<&str>| words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ");
    let title = join((0..8).filter(|&at| same(at)).map(|at| words[0][at].as_str()).collect());
    let mut names: Vec<String> = Vec::new();
    for (run, words) in runs.iter().zip(&words) {
        let differs = join((0..8).filter(|&at| !same(at)).map(|at| words[at].as_str()).collect());
        // A file with a single run keeps the name that its user chose.
        let alone = runs.iter().filter(|other| other.name == run.name).count() == 1;
        let name = match &run.name {
            Some(name) if alone || differs.is_empty() => name.clone(),
            Some(name) => format!("{name}: {differs}"),
            None if differs.is_empty() => words[1].clone(),
            None => differs,
        };
        let before =
            names.iter().filter(|other| **other == name || other.starts_with(&format!("{name} ("))).count();
        names.push(if before == 0 { name } else { format!("{name} ({})", before + 1) });
    }
    (title, names)
}

#[cfg(test)]
#[path = "plot_tests.rs"]
mod tests;
