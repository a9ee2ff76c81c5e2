//! Benchmarks point-to-point messages: one row per size with latency, bandwidth and message rate, as a table or as
//! JSON.
//!
//! Called by `cmd::bench`.

use std::io::Write as _;

use serde::Serialize;
use trunkline_nccl_host::{P2pCase, P2pMeasured, PluginReport, RankCluster};

use super::plot::PendingPlot;
use super::{BenchSettings, progress};
use crate::bench::BenchError;

/// Warm-up messages of each kind of stream.
const WARMUP_MIN: u32 = 16;

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct P2pLine<'a> {
    collective: &'a str,
    fabric: &'a str,
    near: bool,
    plugin: &'a str,
    device: &'a str,
    interface: &'a str,
    abi: u8,
    ranks: usize,
    bytes: usize,
    receive_min: usize,
    #[serde(rename = "type")]
    dtype: &'a str,
    redop: &'a str,
    in_place: bool,
    time_us: f64,
    algbw: f64,
    busbw: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    latency_max_us: f64,
    one_way_gbs: f64,
    both_way_gbs: f64,
    rate_mps: f64,
    wrong: u64,
}

const COLUMNS: &str = "\
#               half round trip, one in flight     one way, 8 in flight    both ways
#       size       p50       p99       max      bandwidth      rate     each way  #wrong
#        (B)      (us)      (us)      (us)         (GB/s)    (Mmsg/s)     (GB/s)";

/// Runs all sizes and returns the number of wrong bytes.
pub(crate) fn run_p2p(settings: &BenchSettings, mut cluster: RankCluster) -> Result<u64, BenchError> {
    let info = cluster.plugin_report().clone();
    let mut out = std::io::stdout().lock();
    settings.plot.as_ref().map_or(Ok(()), PendingPlot::prepare_file)?;
    if !settings.json {
        writeln!(out, "{}\n{COLUMNS}", settings.table_header("p2p", &info))?;
    }
    let bar = progress::row_bar(settings.sizes.len());
    let mut wrong = 0;
    for bytes in settings.sizes.iter().copied() {
        bar.set_message(format!("{bytes} B"));
        let iterations = settings.iteration_count(bytes, 20, 20_000);
        let case = P2pCase {
            bytes,
            warmup: (iterations / 10).max(settings.warmup).max(WARMUP_MIN),
            iterations,
            seed: bytes as u64,
        };
        let measured = cluster.run_p2p(&case)?;
        wrong += measured.wrong;
        let json = json_line(settings, &info, bytes, &measured)?;
        let line = if settings.json { json.clone() } else { table_row(bytes, &measured) };
        settings.keep_row(json);
        bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush()))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let left = cluster.finish()?;
    settings.write_trace(&mut out, &left, &info)?;
    settings.plot.as_ref().map_or(Ok(()), PendingPlot::draw_rows)?;
    Ok(wrong)
}

fn table_row(bytes: usize, measured: &P2pMeasured) -> String {
    format!(
        "{:>12}  {:>8.3}  {:>8.3}  {:>8.2}  {:>13.3}  {:>10.3}  {:>11.3}  {:>6}",
        bytes,
        measured.latency_p50_us,
        measured.latency_p99_us,
        measured.latency_max_us,
        measured.one_way_gbs,
        measured.rate_mps,
        measured.both_way_gbs,
        measured.wrong,
    )
}

fn json_line(
    settings: &BenchSettings,
    info: &PluginReport,
    bytes: usize,
    measured: &P2pMeasured,
) -> Result<String, BenchError> {
    let line = P2pLine {
        collective: "p2p",
        fabric: super::fabric_name(info),
        near: super::is_near(),
        plugin: &info.name,
        device: &info.device,
        interface: "ncclNet",
        abi: info.abi,
        ranks: 2,
        bytes,
        receive_min: settings.job.receive_min,
        dtype: "uint8",
        redop: "none",
        in_place: false,
        time_us: measured.latency_p50_us,
        algbw: measured.one_way_gbs,
        busbw: measured.both_way_gbs,
        latency_p50_us: measured.latency_p50_us,
        latency_p99_us: measured.latency_p99_us,
        latency_max_us: measured.latency_max_us,
        one_way_gbs: measured.one_way_gbs,
        both_way_gbs: measured.both_way_gbs,
        rate_mps: measured.rate_mps,
        wrong: measured.wrong,
    };
    Ok(serde_json::to_string(&line).map_err(std::io::Error::from)?)
}
