//! One line a size on the terminal: in the columns of nccl-tests, or as JSON. Called by `sweep`.

use std::io;

use console::style;
use serde::Serialize;

use super::Plan;
use super::results::{Cell, Point};
use crate::bench::collective::{self, Line};

/// One line of `--json`: what `bench` tells of a row, with medians over the rounds, and what it was run with.
#[derive(Debug, Serialize)]
struct SweepLine<'a> {
    #[serde(flatten)]
    bench: Line<'a>,
    /// Its name.
    configuration: String,
    /// 0: nothing is shared.
    groups: u8,
    depth: u8,
    /// Links of a connection.
    qps: u8,
    rounds: usize,
    busbw_min: f64,
    busbw_max: f64,
    /// In use, as the NIC counts.
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

/// The lines above a collective's.
pub(super) fn header(plan: &Plan, cell: &Cell) -> String {
    let settings = plan.settings(cell.collective, cell.configuration);
    format!("{}{COLUMNS}", settings.header(&format!("sweep, {}", cell.collective), &cell.info))
}

/// A cell's lines.
pub(super) fn text(plan: &Plan, cell: &Cell) -> io::Result<String> {
    let line = |point| if plan.common.json { json(plan, cell, point) } else { Ok(table(plan, cell, point)) };
    cell.points.iter().map(|point| Ok(line(point)? + "\n")).collect()
}

fn table(plan: &Plan, cell: &Cell, point: &Point) -> String {
    let settings = plan.settings(cell.collective, cell.configuration);
    let half = point.half();
    let spread = point.busbw();
    let counted = cell.counted(plan);
    let measured = format!(
        "{:>8}  {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}   {:>6}  {:>6} {:>6}",
        cell.configuration,
        collective::bytes(&settings, cell.collective, point.block),
        point.block,
        settings.dtype,
        collective::operator(&settings, cell.collective),
        collective::root(&settings, cell.collective),
        collective::time(half.result.time_us),
        collective::bandwidth(half.algbw),
        collective::bandwidth(half.busbw),
        collective::bandwidth(spread.low),
        collective::bandwidth(spread.high),
        half.result.wrong,
    );
    let used = counted.used;
    let expected = counted.expected;
    let queues = format!(
        "  {:>6}  {:>6}  {:>6}  {:>7}",
        used.pairs, expected.pairs, used.completion, expected.completion
    );
    // Colours are for terminals only, the mark is for everybody.
    let queues = if counted.fits() { queues } else { style(format!("{queues} !")).red().to_string() };
    let measured = if half.result.wrong == 0 { measured } else { style(measured).red().to_string() };
    measured + &queues
}

fn json(plan: &Plan, cell: &Cell, point: &Point) -> io::Result<String> {
    let settings = plan.settings(cell.collective, cell.configuration);
    let half = point.half();
    let spread = point.busbw();
    let counted = cell.counted(plan);
    let line = SweepLine {
        bench: collective::line(&settings, cell.collective, &cell.info, point.block, false, half),
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
        formula: counted.fits(),
    };
    Ok(serde_json::to_string(&line)?)
}
