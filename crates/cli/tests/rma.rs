//! `trunkline bench rma`: every row, its checks, and failures.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(fabric: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_trunkline"), "bench", "rma"]).args(arguments);
    command.env("TRUNKLINE_FABRIC", fabric).env("NCCL_SOCKET_IFNAME", "=lo");
    command.output().expect("timeout runs")
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let told = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

#[test]
fn rma_bench_prints_every_row_without_errors() {
    for (fabric, ranks) in [("soft:shm", 3), ("soft:tcp", 2)] {
        let count = ranks.to_string();
        let arguments = [
            "-n",
            &count,
            "-b",
            "8",
            "-e",
            "288800",
            "-f",
            "190",
            "-i",
            "20",
            "--raw",
            "--computing",
            "--json",
        ];
        let rows = rows(&bench(fabric, &arguments));
        let names: Vec<&str> = rows.iter().filter_map(|row| row["collective"].as_str()).collect();
        let mut wanted = vec!["put", "get", "put", "get", "put", "get"];
        wanted.extend(["bare TCP, round trip", "fetch-add, 8 B", "compare-swap, 8 B", "swap, 4 B"]);
        wanted.extend(["stream of increments, 8 B", "signal, one way", "put of 8 B with signal, one way"]);
        wanted.extend(["stream of signals", "quiet, nothing to wait for"]);
        wanted.extend(["fetch-add, at a rank that computes", "put of 8 B to 1 rank, quiet"]);
        if ranks == 3 {
            wanted.push("put of 8 B to 2 ranks, quiet");
        }
        for callers in 1..ranks {
            assert!(names.contains(&&*format!("{callers} to one, 8 B fetch-adds")), "{names:?}");
        }
        assert_eq!(names[..wanted.len()], wanted);
        assert_eq!(names.len(), wanted.len() + 2 * (ranks - 1));
        let sizes: Vec<u64> = rows[..6].iter().filter_map(|row| row["bytes"].as_u64()).collect();
        assert_eq!(sizes, [8, 8, 1520, 1520, 288_800, 288_800]);
        for row in &rows {
            assert_eq!(
                (row["wrong"].as_u64(), row["ranks"].as_u64()),
                (Some(0), Some(ranks as u64)),
                "{row}"
            );
            let measured = ["latency_p50_us", "rate_mps"].map(|key| row[key].as_f64().unwrap_or(0.0));
            assert!(measured.iter().any(|&value| value > 0.0), "{row}");
            assert_eq!(row["fabric"], "soft");
        }
    }
}

#[test]
fn a_picture_has_a_run_for_puts_and_one_for_gets() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rma.svg");
    let path = file.to_str().expect("a UTF-8 path");
    let output = bench("soft:shm", &["-e", "512", "-i", "20", "--plot", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("put + quiet") && table.contains("fetch-add, 8 B"), "{table}");
    let picture = std::fs::read_to_string(&file).expect("the picture exists");
    assert!(picture.contains(">put<") && picture.contains(">get<"), "{picture}");
}

#[test]
fn ranks_over_different_fabrics_name_both() {
    let fabrics = "[ $RANK = 0 ] && export TRUNKLINE_FABRIC=soft:shm || export TRUNKLINE_FABRIC=soft:tcp";
    let program = env!("CARGO_BIN_EXE_trunkline");
    let mut command = Command::new("timeout");
    command.args(["120", program, "run", "-n", "2", "--", "sh", "-c"]);
    command.arg(format!("{fabrics}; exec {program} bench rma -e 8")).env("NCCL_SOCKET_IFNAME", "=lo");
    let output = command.output().expect("timeout runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let remedy = "set TRUNKLINE_FABRIC to the same value on all ranks";
    // The launcher may end the other rank before it has printed its line.
    let one = format!("rank 1 uses fabric soft:tcp, this process uses soft:shm: {remedy}");
    let other = format!("rank 0 uses fabric soft:shm, this process uses soft:tcp: {remedy}");
    assert!(!output.status.success() && (text.contains(&one) || text.contains(&other)), "{text}");
}

#[test]
fn invalid_arguments_are_reported_once() {
    let told = |arguments: &[&str]| {
        let output = bench("soft:shm", arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = told(&["-b", "64", "-e", "8"]);
    assert_eq!((code, text.lines().count()), (Some(2), 1), "{text}");
    let output = bench("soft:nowhere", &["-e", "8"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("TRUNKLINE_FABRIC"), "{text}");
}
