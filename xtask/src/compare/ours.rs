//! Our side: one size of `trunkline bench p2p --json`.
//!
//! Only `compare` calls this; it reads the row that the tool prints and verifies that no byte was wrong.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell;

/// What one row of the bench says.
#[derive(Debug, PartialEq)]
pub(super) struct PointToPoint {
    /// Median half round trip.
    pub(super) latency_us: f64,
    /// One-way rate, 1e9 bytes a second.
    pub(super) bandwidth_gbps: f64,
    /// One-way messages, in millions a second.
    pub(super) messages_million: f64,
}

/// Runs the bench for one size.
///
/// # Errors
/// When it fails, prints no row of that size, or moved wrong bytes.
pub(super) fn run(tool: &Path, bytes: usize) -> Result<PointToPoint> {
    let size = bytes.to_string();
    let mut command = Command::new(tool);
    command.args(["bench", "p2p", "--json", "--min-bytes", &size, "--max-bytes", &size]);
    let out = shell::output(&mut command)?;
    parse(&out, bytes).with_context(|| format!("trunkline bench p2p said: {out}"))
}

fn parse(out: &str, bytes: usize) -> Result<PointToPoint> {
    let mut rows = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let size = u64::try_from(bytes).unwrap_or(u64::MAX);
    let row = rows.rfind(|row| row.get("bytes").and_then(Value::as_u64) == Some(size));
    let row = row.with_context(|| format!("no row of {bytes} bytes"))?;
    if row.get("wrong").and_then(Value::as_u64) != Some(0) {
        bail!("the row does not say that no byte was wrong");
    }
    let number = |key: &str| row.get(key).and_then(Value::as_f64).with_context(|| format!("no number {key}"));
    Ok(PointToPoint {
        latency_us: number("latency_p50_us")?,
        bandwidth_gbps: number("one_way_gbs")?,
        messages_million: number("rate_mps")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str =
        r#"{"collective":"p2p","bytes":8,"wrong":0,"latency_p50_us":0.2,"one_way_gbs":0.04,"rate_mps":5.0}"#;

    #[test]
    fn reads_the_row_of_its_size() {
        let out = format!("noise\n{}\n{ROW}\n", ROW.replace(":8,", ":64,"));
        let wanted = PointToPoint { latency_us: 0.2, bandwidth_gbps: 0.04, messages_million: 5.0 };
        assert_eq!(parse(&out, 8).unwrap(), wanted);
        assert!(parse(&out, 9).is_err());
    }

    #[test]
    fn wrong_bytes_are_no_figure() {
        assert!(parse(&ROW.replace("\"wrong\":0", "\"wrong\":1"), 8).is_err());
    }
}
