//! Runs collectives and prints one row per size, out of place and in place, in nccl-tests' columns or as JSON.
//!
//! Called by `cmd::bench`.

use std::io::Write as _;

use serde::Serialize;
use trunkline_nccl_host::{
    Collective, CollectiveCase, PluginReport, RankCluster, RankLaunchError, RowResult,
};

use super::plot::PendingPlot;
use super::{BenchSettings, progress};
use crate::bench::BenchError;

/// One line of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct CollectiveLine<'a> {
    collective: &'a str,
    fabric: &'a str,
    near: bool,
    plugin: &'a str,
    device: &'a str,
    abi: u8,
    ranks: usize,
    comms: usize,
    channels: usize,
    bytes: usize,
    receive_min: usize,
    count: usize,
    #[serde(rename = "type")]
    dtype: &'a str,
    redop: &'a str,
    root: i64,
    in_place: bool,
    time_us: f64,
    algbw: f64,
    busbw: f64,
    wrong: u64,
}

/// One half of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowHalf {
    /// The measured time and the wrong elements.
    pub(crate) result: RowResult,
    /// Size over time, in GB/s: algbw of nccl-tests.
    pub(crate) algbw: f64,
    /// `algbw` times the factor of the collective, in GB/s.
    pub(crate) busbw: f64,
}

/// Runs all rows and returns the number of wrong elements.
pub(crate) fn run_collective(
    settings: &BenchSettings,
    collective: Collective,
    mut cluster: RankCluster,
) -> Result<u64, BenchError> {
    let info = cluster.plugin_report().clone();
    let mut out = std::io::stdout().lock();
    settings.plot.as_ref().map_or(Ok(()), PendingPlot::prepare_file)?;
    if !settings.json {
        writeln!(out, "{}\n{COLUMNS}", settings.table_header(collective.name(), &info))?;
    }
    let rows = row_blocks(settings, collective);
    let bar = progress::row_bar(rows.len());
    let mut wrong = 0;
    let mut bus_sum = 0.0;
    for block in rows.iter().copied() {
        bar.set_message(format!("{} B", buffer_bytes(settings, collective, block)));
        let mut halves = Vec::new();
        for in_place in [false, true] {
            let half = run_half(&mut cluster, settings, collective, block, in_place)?;
            wrong += half.result.wrong;
            bus_sum += half.busbw;
            halves.push(half);
            let line = json_line(settings, collective, &info, block, in_place, half);
            let line = serde_json::to_string(&line).map_err(std::io::Error::from)?;
            if settings.json {
                writeln!(out, "{line}")?;
                out.flush()?;
            }
            settings.keep_row(line);
        }
        if !settings.json {
            // The progress bar and the table may share a terminal.
            let line = table_row(settings, collective, block, &halves);
            bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush()))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let left = cluster.finish()?;
    if !settings.json {
        let average = bus_sum / (2 * rows.len()).max(1) as f64;
        let verdict = if settings.check == 0 {
            "not checked"
        } else if wrong == 0 {
            "OK"
        } else {
            "FAILED"
        };
        writeln!(
            out,
            "# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:.4}\n#"
        )?;
    }
    settings.write_trace(&mut out, &left, &info)?;
    settings.plot.as_ref().map_or(Ok(()), PendingPlot::draw_rows)?;
    Ok(wrong)
}

/// The blocks (elements of one rank's part) of all rows, without duplicates.
pub(crate) fn row_blocks(settings: &BenchSettings, collective: Collective) -> Vec<usize> {
    let size = settings.dtype.element_bytes();
    let block = |bytes: &usize| collective.element_counts((bytes / size).max(1), settings.job.ranks).block;
    let mut blocks: Vec<usize> = settings.sizes.iter().map(block).collect();
    blocks.dedup();
    blocks
}

/// Bytes of the larger buffer.
pub(crate) fn buffer_bytes(settings: &BenchSettings, collective: Collective, block: usize) -> usize {
    collective.algorithm_bytes(block, settings.job.ranks) * settings.dtype.element_bytes()
}

/// Runs one half of a row: out of place, or in place.
pub(crate) fn run_half(
    cluster: &mut RankCluster,
    settings: &BenchSettings,
    collective: Collective,
    block: usize,
    in_place: bool,
) -> Result<RowHalf, RankLaunchError> {
    let total = buffer_bytes(settings, collective, block);
    let case = CollectiveCase {
        collective,
        dtype: settings.dtype,
        op: settings.op,
        block,
        root: settings.job.root,
        in_place,
        warmup: settings.warmup,
        iterations: settings.iteration_count(total, 20, 200),
        checks: settings.check,
        seed: (block as u64) << 1 | u64::from(in_place),
    };
    let result = cluster.run_collective(&case)?;
    let moved = (total * settings.job.comms) as f64;
    let algbw = if result.time_us > 0.0 { moved / result.time_us / 1e3 } else { 0.0 };
    Ok(RowHalf { result, algbw, busbw: algbw * collective.bus_factor(settings.job.ranks) })
}

/// The operator's name; `none` for collectives without one.
pub(crate) fn operator_name(settings: &BenchSettings, collective: Collective) -> &'static str {
    if collective.is_reduction() { settings.op.name() } else { "none" }
}

/// The root's rank; -1 for collectives without one.
pub(crate) fn root_number(settings: &BenchSettings, collective: Collective) -> i64 {
    if collective.has_root() { settings.job.root as i64 } else { -1 }
}

/// One half of a row as an object of `--json`.
pub(crate) fn json_line<'a>(
    settings: &'a BenchSettings,
    collective: Collective,
    info: &'a PluginReport,
    block: usize,
    in_place: bool,
    half: RowHalf,
) -> CollectiveLine<'a> {
    CollectiveLine {
        collective: collective.name(),
        fabric: super::fabric_name(info),
        near: super::is_near(),
        plugin: &info.name,
        device: &info.device,
        abi: info.abi,
        ranks: settings.job.ranks,
        comms: settings.job.comms,
        channels: settings.job.channels,
        bytes: buffer_bytes(settings, collective, block),
        receive_min: settings.job.receive_min,
        count: block,
        dtype: settings.dtype.name(),
        redop: operator_name(settings, collective),
        root: root_number(settings, collective),
        in_place,
        time_us: half.result.time_us,
        algbw: half.algbw,
        busbw: half.busbw,
        wrong: half.result.wrong,
    }
}

const COLUMNS: &str = "\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)";

fn table_row(settings: &BenchSettings, collective: Collective, block: usize, halves: &[RowHalf]) -> String {
    let mut line = format!(
        "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}",
        buffer_bytes(settings, collective, block),
        block,
        settings.dtype,
        operator_name(settings, collective),
        root_number(settings, collective),
    );
    for half in halves {
        let wrong = if settings.check == 0 { String::from("N/A") } else { half.result.wrong.to_string() };
        line += &format!(
            "  {:>7}  {:>6}  {:>6} {wrong:>6}",
            format_time(half.result.time_us),
            format_bandwidth(half.algbw),
            format_bandwidth(half.busbw),
        );
    }
    line
}

/// Formats a time with three or more digits in at most seven characters, as nccl-tests does.
pub(crate) fn format_time(microseconds: f64) -> String {
    match microseconds {
        t if t >= 10_000.0 => format!("{t:.0}"),
        t if t >= 100.0 => format!("{t:.1}"),
        t => format!("{t:.2}"),
    }
}

/// Formats a bandwidth in GB/s.
pub(crate) fn format_bandwidth(gbs: f64) -> String {
    format!("{gbs:.2}")
}
