//! One line per size on the terminal: in the columns of nccl-tests, or as JSON. Called by `sweep`.

use std::io;

use console::style;
use serde::Serialize;

use super::SweepPlan;
use super::results::{SweepCell, SweepPoint};
use crate::bench::collective::{self, CollectiveLine};

/// One line of `--json`: the keys of a row of `bench`, with medians over the rounds, and the configuration.
#[derive(Debug, Serialize)]
struct SweepLine<'a> {
    #[serde(flatten)]
    bench: CollectiveLine<'a>,
    /// The configuration's name.
    configuration: String,
    /// Groups; 0: connections share nothing.
    groups: u8,
    depth: u8,
    /// Links per connection.
    qps: u8,
    rounds: usize,
    busbw_min: f64,
    busbw_max: f64,
    /// In use, as the NICs report.
    queue_pairs: u32,
    cqs: u32,
    /// By the formula.
    queue_pairs_expected: u32,
    /// By the formula, at most.
    cqs_expected: u32,
    formula: bool,
}

const COLUMNS: &str = "
#                                                               medians of the rounds             busbw       queue pairs     compl. queues
# config        size         count      type   redop    root     time   algbw   busbw      min     max #wrong  in use formula  in use  at most
#                (B)    (elements)                               (us)  (GB/s)  (GB/s)   (GB/s)  (GB/s)
";

/// The lines above the rows of a collective.
pub(super) fn table_header(plan: &SweepPlan, cell: &SweepCell) -> String {
    let settings = plan.run_settings(cell.collective, cell.configuration);
    format!("{}{COLUMNS}", settings.table_header(&format!("sweep, {}", cell.collective), &cell.info))
}

/// The lines of a cell.
pub(super) fn cell_lines(plan: &SweepPlan, cell: &SweepCell) -> io::Result<String> {
    let line = |point| {
        if plan.common.json { json_line(plan, cell, point) } else { Ok(table_row(plan, cell, point)) }
    };
    cell.points.iter().map(|point| Ok(line(point)? + "\n")).collect()
}

fn table_row(plan: &SweepPlan, cell: &SweepCell, point: &SweepPoint) -> String {
    let settings = plan.run_settings(cell.collective, cell.configuration);
    let half = point.median_half();
    let spread = point.bus_bandwidth();
    let counted = cell.queue_comparison(plan);
    let measured = format!(
        "{:>8}  {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}   {:>6}  {:>6} {:>6}",
        cell.configuration,
        collective::buffer_bytes(&settings, cell.collective, point.block),
        point.block,
        settings.dtype,
        collective::operator_name(&settings, cell.collective),
        collective::root_number(&settings, cell.collective),
        collective::format_time(half.result.time_us),
        collective::format_bandwidth(half.algbw),
        collective::format_bandwidth(half.busbw),
        collective::format_bandwidth(spread.low),
        collective::format_bandwidth(spread.high),
        half.result.wrong,
    );
    let used = counted.used;
    let expected = counted.expected;
    let queues = format!(
        "  {:>6}  {:>6}  {:>6}  {:>7}",
        used.pairs, expected.pairs, used.completion, expected.completion
    );
    // Only terminals show colours, so a misfit also gets a `!`.
    let queues =
        if counted.matches_formula() { queues } else { style(format!("{queues} !")).red().to_string() };
    let measured = if half.result.wrong == 0 { measured } else { style(measured).red().to_string() };
    measured + &queues
}

fn json_line(plan: &SweepPlan, cell: &SweepCell, point: &SweepPoint) -> io::Result<String> {
    let settings = plan.run_settings(cell.collective, cell.configuration);
    let half = point.median_half();
    let spread = point.bus_bandwidth();
    let counted = cell.queue_comparison(plan);
    let line = SweepLine {
        bench: collective::json_line(&settings, cell.collective, &cell.info, point.block, false, half),
        configuration: cell.configuration.to_string(),
        groups: cell.configuration.groups,
        depth: cell.configuration.depth,
        qps: cell.configuration.links,
        rounds: point.rounds.len(),
        busbw_min: spread.low,
        busbw_max: spread.high,
        queue_pairs: counted.used.pairs,
        cqs: counted.used.completion,
        queue_pairs_expected: counted.expected.pairs,
        cqs_expected: counted.expected.completion,
        formula: counted.matches_formula(),
    };
    Ok(serde_json::to_string(&line)?)
}
