//! Extracts the few figures of a check for its row in the report from the lines of `--json`. Pure; called by
//! `selftest`.

use serde::Serialize;
use serde_json::Value;

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct KeyFigure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The size at which it was measured.
    pub(crate) bytes: Option<u64>,
    /// The operation, if a check has several.
    pub(crate) operation: Option<String>,
}

/// The source of a figure: its name, the keys of a row that may hold it, its unit.
struct FigureSource {
    name: &'static str,
    keys: &'static [&'static str],
    unit: &'static str,
}

/// The time of a single operation, from the first row, whose size is the smallest. Collectives have only the mean of
/// all runs.
const LATENCY: FigureSource =
    FigureSource { name: "median latency", keys: &["latency_p50_us", "p50_us"], unit: "us" };
const TIME: FigureSource = FigureSource { name: "mean time", keys: &["time_us"], unit: "us" };
/// Figures of which the largest of all rows is shown.
const PEAKS: [FigureSource; 3] = [
    FigureSource { name: "peak", keys: &["one_way_gbs", "busbw", "bandwidth_gbs"], unit: "GB/s" },
    FigureSource { name: "peak each way", keys: &["both_way_gbs"], unit: "GB/s" },
    FigureSource { name: "rate", keys: &["rate_mps", "rate_mops"], unit: "M/s" },
];

/// Returns the figures of a check's rows; empty without rows.
pub(crate) fn key_figures(rows: &[Value]) -> Vec<KeyFigure> {
    // Rows of 0 bytes measure no transfer.
    let rows: Vec<&Value> = rows.iter().filter(|row| row["bytes"] != 0).collect();
    let is_mixed = rows.windows(2).any(|pair| operation_name(pair[0]) != operation_name(pair[1]));
    let all = |source| rows.iter().filter_map(move |row| read_figure(source, row, is_mixed));
    let latency = all(&LATENCY).next().or_else(|| all(&TIME).next());
    let peak = |source| {
        let positive = all(source).filter(|figure| figure.value > 0.0);
        positive.reduce(|most, one| if one.value > most.value { one } else { most })
    };
    latency.into_iter().chain(PEAKS.iter().filter_map(peak)).collect()
}

fn read_figure(source: &FigureSource, row: &Value, is_mixed: bool) -> Option<KeyFigure> {
    let value = source.keys.iter().find_map(|key| row.get(key)?.as_f64())?;
    let bytes = row.get("bytes").and_then(Value::as_u64);
    let operation = operation_name(row).filter(|_| is_mixed);
    Some(KeyFigure { name: source.name, value, unit: source.unit, bytes, operation })
}

/// The operation that a row measures: `put`; for device queues with their mode: `put + wait, M1`.
fn operation_name(row: &Value) -> Option<String> {
    let text = |key: &str| row.get(key).and_then(Value::as_str);
    match (text("operation"), text("way")) {
        (Some(operation), Some(way)) => Some(format!("{operation}, {way}")),
        (operation, _) => operation.or_else(|| text("collective")).map(str::to_owned),
    }
}

impl KeyFigure {
    /// `median latency 1.25 us (8 B)`.
    pub(crate) fn to_text(&self) -> String {
        let digits = if self.value >= 100.0 { 0 } else { 2 };
        let with: Vec<String> =
            self.bytes.map(format_size).into_iter().chain(self.operation.clone()).collect();
        let with = if with.is_empty() { String::new() } else { format!(" ({})", with.join(", ")) };
        format!("{} {:.digits$} {}{with}", self.name, self.value, self.unit)
    }
}

fn format_size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// The NICs that `trunkline info --json` lists, and whether they reach memory of GPUs.
pub(crate) fn info_notes(info: &Value) -> Vec<String> {
    let list = |key: &str| info[key].as_array().into_iter().flatten();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let nics = list("nics").map(|nic| {
        let speed = nic["speed_mbps"].as_u64().unwrap_or(0) / 1000;
        format!("NIC {} of {}, {speed} Gb/s", text(nic, "name"), text(nic, "fabric"))
    });
    let gpus = list("gpus").map(|row| {
        let state = if row["present"] == true { "yes" } else { "no" };
        format!("GPU memory by {}: {state}, {}", text(row, "name"), text(row, "note"))
    });
    let is_chosen = |row: &&Value| row["chosen"] == true;
    let fabrics = list("fabrics").filter(is_chosen).map(|row| text(row, "note"));
    let warnings = list("warnings").filter_map(|line| Some(format!("warning: {}", line.as_str()?)));
    fabrics.chain(nics).chain(gpus).chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_the_smallest_latency_and_the_peaks() {
        let rows = [
            json!({"bytes": 8, "latency_p50_us": 1.25, "one_way_gbs": 0.5, "both_way_gbs": 0.5, "rate_mps": 4.0}),
            json!({"bytes": 64, "latency_p50_us": 2.0, "one_way_gbs": 1.5, "both_way_gbs": 2.5, "rate_mps": 3.0}),
            json!({"bytes": 1 << 20, "latency_p50_us": 99.0, "one_way_gbs": 120.4, "both_way_gbs": 9.0}),
        ];
        let text: Vec<String> = key_figures(&rows).iter().map(KeyFigure::to_text).collect();
        let wanted = [
            "median latency 1.25 us (8 B)",
            "peak 120 GB/s (1 MiB)",
            "peak each way 9.00 GB/s (1 MiB)",
            "rate 4.00 M/s (8 B)",
        ];
        assert_eq!(text, wanted);
        let collective = key_figures(&[json!({"bytes": 2048, "time_us": 7.5, "busbw": 0.25})]);
        let text: Vec<String> = collective.iter().map(KeyFigure::to_text).collect();
        assert_eq!(text, ["mean time 7.50 us (2 KiB)", "peak 0.25 GB/s (2 KiB)"]);
        let mixed = [
            json!({"collective": "quiet", "bytes": 0, "latency_p50_us": 0.1}),
            json!({"collective": "put", "bytes": 8, "latency_p50_us": 1.5}),
            json!({"collective": "swap", "bytes": 4, "latency_p50_us": 1.0}),
            json!({"operation": "puts", "way": "M1", "bytes": 8, "rate_mops": 2.0}),
        ];
        let text: Vec<String> = key_figures(&mixed).iter().map(KeyFigure::to_text).collect();
        assert_eq!(text, ["median latency 1.50 us (8 B, put)", "rate 2.00 M/s (8 B, puts, M1)"]);
        assert_eq!(key_figures(&[json!({"bar": "x", "found": 1.0})]), []);
    }
}
