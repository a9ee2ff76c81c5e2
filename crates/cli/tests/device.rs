//! `trunkline bench device`: every line is there, nothing is wrong, and the goals are compared.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::process::Command;

use serde_json::Value;

#[test]
fn every_line_is_there_and_nothing_is_wrong() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(["bench", "device", "-b", "8", "-e", "4K", "-f", "512", "-i", "32", "--json"]);
    let output = command.output().unwrap();
    let (out, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (bars, rows): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.get("bar").is_some());
    assert!(rows.iter().all(|row| row["wrong"] == 0), "{out}");
    for way in ["M0", "M1", "M1 soft:shm", "M1 soft:tcp"] {
        let of_way =
            |bench: &str| rows.iter().filter(|row| row["way"] == way && row["bench"] == bench).count();
        // Four lines for each of two sizes, a signal, and three batches; two and four producers.
        assert_eq!((of_way("B1"), of_way("B2")), (12, 2), "{way}: {out}");
    }
    for bench in ["B3", "B4", "B6"] {
        assert!(rows.iter().any(|row| row["bench"] == bench), "{bench}: {out}");
    }
    assert!(bars.len() == 9 && bars.iter().all(|bar| bar["found"].as_f64().is_some_and(|found| found > 0.0)));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for sizes in [["-b", "64", "-e", "8"], ["-b", "8", "-e", "1G"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        let output = command.args(["bench", "device"]).args(sizes).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("sizes"));
    }
}
