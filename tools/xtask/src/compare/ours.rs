//! Our side: one size of `trunkline bench ... --json`.
//!
//! Only `compare` calls this; it parses the row that the tool prints and verifies that no byte was wrong.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::ComparedWire;
use crate::shell;

/// The figures of one row of the bench.
#[derive(Debug, PartialEq)]
pub(super) struct PointToPoint {
    /// Median half round trip.
    pub(super) latency_us: f64,
    /// Rate in one direction, 1e9 bytes per second.
    pub(super) bandwidth_gbps: f64,
    /// The rate in each direction when both are used at once.
    pub(super) both_way_gbps: f64,
    /// Messages in one direction, in millions per second.
    pub(super) messages_million: f64,
}

/// Runs the point-to-point bench for one size.
///
/// # Errors
/// It fails, prints no row of that size, or moved wrong bytes.
pub(super) fn point_to_point(tool: &Path, wire: ComparedWire, bytes: usize) -> Result<PointToPoint> {
    let (whole, most) = match wire {
        ComparedWire::Shm => (4 << 30, 100_000),
        ComparedWire::Tcp | ComparedWire::Ofi => (2 << 30, 20_000),
    };
    let iterations = (whole / bytes.max(1)).clamp(30, most);
    let out = run_bench(tool, "p2p", bytes, Some(iterations), wire)?;
    read_p2p(&out, bytes).with_context(|| format!("trunkline bench p2p printed: {out}"))
}

/// The figures of the bench of messages inside a host for one size, with the same names, and the copy bandwidth of one
/// core, GB/s.
///
/// # Errors
/// As [`point_to_point`].
pub(super) fn bench_messages(tool: &Path, memory: &str, bytes: usize) -> Result<(PointToPoint, f64)> {
    let iterations = ((8 << 30) / bytes.max(1)).clamp(30, 300_000).to_string();
    let size = bytes.to_string();
    let mut command = Command::new(tool);
    command.args(["bench", "p2p", "--memory", memory, "--json", "-n", "2", "-b", &size, "-e", &size]);
    let out = shell::run_captured(command.args(["--iters", &iterations]))?;
    let read = || -> Result<_> {
        Ok((read_p2p(&out, bytes)?, read_number(&find_row(&out, bytes, None)?, "memcpy_gbs")?))
    };
    read().with_context(|| format!("trunkline bench p2p --memory {memory} printed: {out}"))
}

/// The figures of the bench of one-sided operations for one kind of them.
pub(super) struct RemoteFigures {
    /// Median of single operations; a put with its quiet.
    pub(super) time_us: f64,
    /// Bandwidth of a stream, 1e9 bytes per second.
    pub(super) gbs: f64,
}

/// Runs the bench of one-sided operations for one size: `put` or `get`.
///
/// # Errors
/// As [`point_to_point`].
pub(super) fn bench_remote(
    tool: &Path,
    wire: ComparedWire,
    name: &str,
    bytes: usize,
) -> Result<RemoteFigures> {
    let iterations = ((1 << 30) / bytes.max(1)).clamp(30, 10_000);
    let out = run_bench(tool, "rma", bytes, Some(iterations), wire)?;
    read_remote(&out, name, bytes).with_context(|| format!("trunkline bench rma printed: {out}"))
}

/// Bus bandwidth of a collective on two ranks, GB/s.
///
/// # Errors
/// As [`point_to_point`].
pub(super) fn collective_gbps(tool: &Path, name: &str, bytes: usize, in_place: bool) -> Result<f64> {
    let out = run_bench(tool, name, bytes, None, ComparedWire::Shm)?;
    let row = find_row(&out, bytes, Some(in_place))
        .with_context(|| format!("trunkline bench {name} printed: {out}"))?;
    read_number(&row, "busbw")
}

fn run_bench(
    tool: &Path,
    what: &str,
    bytes: usize,
    iterations: Option<usize>,
    wire: ComparedWire,
) -> Result<String> {
    let size = bytes.to_string();
    let mut command = Command::new(tool);
    command.args(["bench", what, "--json", "-n", "2", "-b", &size, "-e", &size]);
    if what != "rma" {
        // The other programs receive exactly the bytes that are sent.
        command.args(["--receive", "exact"]);
    }
    if let Some(iterations) = iterations {
        command.args(["--iters", &iterations.to_string()]);
    }
    match wire {
        ComparedWire::Shm => {}
        ComparedWire::Tcp => {
            command.env("TRUNKLINE_FABRIC", "soft:tcp").env("NCCL_SOCKET_IFNAME", "=lo");
        }
        ComparedWire::Ofi => {
            command.env("TRUNKLINE_FABRIC", "ofi:tcp").env("TRUNKLINE_OFI_DOMAIN", "lo");
        }
    }
    shell::run_captured(&mut command)
}

fn read_p2p(out: &str, bytes: usize) -> Result<PointToPoint> {
    let row = find_row(out, bytes, None)?;
    Ok(PointToPoint {
        latency_us: read_number(&row, "latency_p50_us")?,
        bandwidth_gbps: read_number(&row, "one_way_gbs")?,
        both_way_gbps: read_number(&row, "both_way_gbs")?,
        messages_million: read_number(&row, "rate_mps")?,
    })
}

fn read_remote(out: &str, name: &str, bytes: usize) -> Result<RemoteFigures> {
    let is_it = |line: &&str| line.contains(&format!("\"collective\":\"{name}\""));
    let rows = out.lines().filter(is_it).collect::<Vec<_>>().join("\n");
    let row = find_row(&rows, bytes, None)?;
    Ok(RemoteFigures {
        time_us: read_number(&row, "latency_p50_us")?,
        gbs: read_number(&row, "one_way_gbs")?,
    })
}

/// The row of that size, and of that placement if one is given.
fn find_row(out: &str, bytes: usize, in_place: Option<bool>) -> Result<Value> {
    let size = u64::try_from(bytes).unwrap_or(u64::MAX);
    let mut rows = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let row = rows.rfind(|row| {
        let is_placed =
            in_place.is_none_or(|wanted| row.get("in_place").and_then(Value::as_bool) == Some(wanted));
        is_placed && row.get("bytes").and_then(Value::as_u64) == Some(size)
    });
    let row = row.with_context(|| format!("no row of {bytes} bytes"))?;
    if row.get("wrong").and_then(Value::as_u64) != Some(0) {
        bail!("the row reports wrong bytes, or no count of them");
    }
    Ok(row)
}

fn read_number(row: &Value, key: &str) -> Result<f64> {
    row.get(key).and_then(Value::as_f64).with_context(|| format!("no number {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"collective":"p2p","bytes":8,"in_place":false,"wrong":0,"latency_p50_us":0.2,
        "one_way_gbs":0.04,"both_way_gbs":0.03,"rate_mps":5.0,"busbw":0.02}"#;

    fn row() -> String {
        ROW.replace('\n', " ")
    }

    #[test]
    fn reads_the_row_of_its_size() {
        let out = format!("noise\n{}\n{}\n", row().replace(":8,", ":64,"), row());
        let p2p = read_p2p(&out, 8).unwrap();
        assert_eq!((p2p.latency_us, p2p.messages_million), (0.2, 5.0));
        assert_eq!((p2p.bandwidth_gbps, p2p.both_way_gbps), (0.04, 0.03));
        assert!(read_p2p(&out, 9).is_err());
    }

    #[test]
    fn reads_the_row_of_its_operation() {
        let put = row().replace("p2p", "put");
        let out = format!("{put}\n{}", row().replace("p2p", "get").replace("0.2,", "0.7,"));
        assert_eq!(read_remote(&out, "put", 8).unwrap().time_us, 0.2);
        assert_eq!(read_remote(&out, "get", 8).unwrap().time_us, 0.7);
        assert!(read_remote(&put, "get", 8).is_err());
    }

    #[test]
    fn reads_the_row_of_its_placement() {
        assert_eq!(read_number(&find_row(&row(), 8, Some(false)).unwrap(), "busbw").unwrap(), 0.02);
        assert!(find_row(&row(), 8, Some(true)).is_err());
    }

    #[test]
    fn wrong_bytes_are_no_figure() {
        assert!(read_p2p(&row().replace("\"wrong\":0", "\"wrong\":1"), 8).is_err());
    }
}
