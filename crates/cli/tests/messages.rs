//! `trunkline bench p2p --memory host|memfd`: rows, their checks, and what does not go together.

#![expect(clippy::expect_used, reason = "a test that cannot go on stops")]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_trunkline"), "bench"]).args(arguments.split_whitespace());
    command.env("TRUNKLINE_FABRIC", "soft:shm").output().expect("timeout runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn rows_of_both_memories_are_right_and_name_their_interface() {
    for memory in ["host", "memfd"] {
        let arguments = format!("p2p --memory {memory} -b 8 -e 300000 -f 190 -i 40 --json");
        let output = bench(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let rows: Vec<Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        let sizes: Vec<u64> = rows.iter().filter_map(|row| row["bytes"].as_u64()).collect();
        assert_eq!(sizes, [8, 1520, 288_800, 300_000]);
        for row in rows {
            assert_eq!(
                (&row["wrong"], &row["interface"], &row["fabric"]),
                (&0.into(), &"messages".into(), &memory.into())
            );
            for key in ["latency_p50_us", "one_way_gbs", "both_way_gbs", "rate_mps", "memcpy_gbs"] {
                assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key} of {row}");
            }
        }
        let table = text(&bench(&format!("p2p --memory {memory} -b 64 -e 64 -i 20")).stdout);
        assert!(
            table.contains(&format!("{memory} memory")) && table.contains("interface: messages"),
            "{table}"
        );
    }
}

#[test]
fn what_does_not_go_together_is_named() {
    let refused = |arguments: &str, told: &str| {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    };
    refused("all_reduce --memory host", "are for p2p");
    refused("p2p --memory memfd --merge", "by no plugin and no NIC");
    refused("p2p --memory host -b 16 -e 8", "the largest size is smaller");
    refused("p2p --memory host -n 3", "p2p runs between 2 ranks");
}
