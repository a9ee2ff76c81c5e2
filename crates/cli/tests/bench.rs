//! `trunkline bench` over plugins in C: every collective, rank count, type, operator and setting, and failures. The
//! plugins are compiled here with `cc` from `crates/nccl-host/tests/fixtures`.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const COLLECTIVES: [&str; 10] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "reduce",
    "broadcast",
    "alltoall",
    "alltoallv",
    "gather",
    "scatter",
    "sendrecv",
];

/// Compiles a fixture once.
fn fixture(cell: &'static OnceLock<PathBuf>, name: &str) -> &'static Path {
    cell.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../nccl-host/tests/fixtures")
            .join(name)
            .with_extension("c");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = directory.join(format!("{name}.so"));
        // Another test process may use the finished file, so the new file replaces it by one rename.
        let fresh = directory.join(format!("{name}-{}.so", std::process::id()));
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&fresh)
            .arg(&source)
            .arg("-ldl")
            .status()
            .expect("cc runs");
        assert!(status.success(), "cc {}", source.display());
        std::fs::rename(&fresh, &library).expect("a file can be renamed");
        library
    })
}

fn mini() -> &'static Path {
    static CELL: OnceLock<PathBuf> = OnceLock::new();
    fixture(&CELL, "mini_plugin")
}

fn corrupt() -> &'static Path {
    static CELL: OnceLock<PathBuf> = OnceLock::new();
    fixture(&CELL, "corrupt_plugin")
}

fn trunkline(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(args.split_whitespace()).env_remove("TRUNKLINE_PLUGIN").stdin(Stdio::null());
    command
}

fn bench(args: &str) -> Command {
    let mut command = trunkline(&format!("bench {args}"));
    command.arg("--plugin").arg(mini());
    command
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a bench that must be right, and returns its rows.
fn right(command: &mut Command) -> Vec<Value> {
    let output = command.arg("--json").output().expect("the command runs");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        stderr(&output),
        String::from_utf8_lossy(&output.stdout)
    );
    let rows = rows(&output);
    assert!(!rows.is_empty());
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{row}");
    }
    rows
}

fn all_collectives(ranks: usize, extra: &str) {
    for collective in COLLECTIVES {
        let args = format!("{collective} -n {ranks} -b 4 -e 300K -f 23 -w 1 -i 2 --chunk 8K {extra}");
        let rows = right(&mut bench(&args));
        assert!(rows.iter().any(|row| row["in_place"] == true), "{collective}");
        assert!(rows.iter().any(|row| row["in_place"] == false), "{collective}");
        assert_eq!(rows[0]["collective"], collective);
        assert_eq!((&rows[0]["fabric"], &rows[0]["plugin"]), (&"Mini".into(), &"Mini".into()));
        assert_eq!(rows[0]["ranks"], ranks);
    }
}

#[test]
fn all_collectives_with_two_ranks() {
    all_collectives(2, "");
}

#[test]
fn all_collectives_with_three_ranks_and_two_channels() {
    all_collectives(3, "--root 2 --channels 2");
}

#[test]
fn all_collectives_with_four_ranks() {
    all_collectives(4, "-d half --root 1");
}

#[test]
fn all_collectives_with_eight_ranks() {
    all_collectives(8, "-d uint8 -o max");
}

#[test]
fn sixteen_ranks_share_two_processors() {
    for collective in ["all_reduce", "alltoallv"] {
        right(&mut bench(&format!("{collective} -n 16 -b 64 -e 64K -f 1024 -w 1 -i 2")));
    }
}

#[test]
fn two_communicators_run_at_once() {
    all_collectives(2, "--comms 2 --channels 2 -d int64");
}

#[test]
fn every_type_and_operator_gives_right_data() {
    let types =
        ["int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "bfloat16", "float", "double"];
    for dtype in types {
        for op in ["sum", "prod", "max", "min", "avg"] {
            for collective in ["all_reduce", "reduce_scatter"] {
                let args = format!("{collective} -n 3 -d {dtype} -o {op} -b 8 -e 9000 -f 1024 -w 0 -i 1");
                let rows = right(&mut bench(&args));
                assert_eq!(rows[0]["type"], dtype);
                assert_eq!(rows[0]["redop"], op);
            }
        }
    }
}

#[test]
fn older_interface_and_other_memory_give_right_data() {
    for extra in ["--abi 8", "--memory shared", "--memory huge", "--device 0 --check 3"] {
        let rows = right(&mut bench(&format!("all_gather -n 3 -b 1K -e 1M -f 32 -w 1 -i 2 {extra}")));
        assert_eq!(rows[0]["abi"], if extra.contains("abi") { 8 } else { 11 });
    }
}

#[test]
fn repeated_calls_and_flushes_keep_data_right() {
    for (name, extra) in [("MINI_STUTTER", ""), ("MINI_FLUSH", ""), ("MINI_FLUSH", "--flush never")] {
        for collective in ["all_reduce", "alltoall", "sendrecv"] {
            let args = format!("{collective} -n 4 -b 64 -e 256K -f 64 -w 1 -i 2 --chunk 16K {extra}");
            right(bench(&args).env(name, "1"));
        }
    }
    right(&mut bench("broadcast -n 4 -b 64 -e 256K -f 64 -w 1 -i 2 --flush always"));
}

#[test]
fn point_to_point_has_every_figure() {
    let rows = right(&mut bench("p2p -b 8 -e 8M -f 64 -i 20"));
    for row in &rows {
        for key in
            ["latency_p50_us", "latency_p99_us", "latency_max_us", "one_way_gbs", "both_way_gbs", "rate_mps"]
        {
            assert!(row[key].as_f64().expect(key) > 0.0, "{key} in {row}");
        }
        assert_eq!(row["collective"], "p2p");
    }
}

/// As NCCL's proxy posts them. The plugin here checks that each receive has the length that its variable states.
#[test]
fn receives_have_a_whole_step_unless_exact() {
    for what in ["p2p -b 8 -e 3M -f 700", "all_reduce -b 8 -e 3M -f 700", "alltoallv -n 3 -b 12 -e 64K -f 99"]
    {
        let run = |receive: &str, variable: &str, value: &str| {
            let mut command = bench(&format!("{what} -w 1 -i 2 {receive}"));
            command.env(variable, value);
            command
        };
        assert_eq!(right(&mut run("", "MINI_ROOM", "1048576"))[0]["receive_min"], 1 << 20);
        assert_eq!(right(&mut run("--receive exact", "MINI_EXACT", "1"))[0]["receive_min"], 0);
        right(&mut run("--receive 64K", "MINI_ROOM", "65536"));
        for (receive, variable, value) in
            [("exact", "MINI_ROOM", "1048576"), ("1M", "MINI_EXACT", "1"), ("64K", "MINI_ROOM", "65537")]
        {
            let mut command = run(&format!("--receive {receive}"), variable, value);
            let output = command.output().expect("the command runs");
            assert_eq!(output.status.code(), Some(2), "{command:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_changed_byte_behind_a_message_is_wrong() {
    let mut command = bench("p2p -b 100 -e 100 -i 2 --json");
    let output = command.env("MINI_SPILL", "1").output().expect("the command runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(rows(&output)[0]["wrong"].as_u64() >= Some(8), "a byte of each receive");
}

#[test]
fn the_table_has_the_columns_of_nccl_tests() {
    let output = bench("all_reduce -b 1K -e 64K -f 8 -w 1 -i 2").output().expect("the command runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let data: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(data.len(), 3, "{text}");
    for line in data {
        assert_eq!(line.split_whitespace().count(), 13, "{line}");
    }
    for word in ["algbw", "busbw", "#wrong", "out-of-place", "in-place", "# Avg bus bandwidth"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(output.stderr.is_empty(), "no progress bar when no terminal: {}", stderr(&output));
}

#[test]
fn one_wrong_byte_is_counted_and_fails() {
    for what in
        ["all_reduce", "all_gather", "alltoallv", "reduce -o max", "sendrecv -d half", "gather", "p2p"]
    {
        let output = trunkline(&format!("bench {what} -b 4K -e 4K -w 1 -i 2 --json"))
            .arg("--plugin")
            .arg(corrupt())
            .env("CORRUPT_TARGET", mini())
            .env("CORRUPT_MIN", "16")
            .output()
            .expect("the command runs");
        assert_eq!(output.status.code(), Some(1), "{what}: {}", stderr(&output));
        let wrong: u64 = rows(&output).iter().map(|row| row["wrong"].as_u64().expect("a number")).sum();
        assert!(wrong > 0, "{what}");
        // One byte of each message: at most one element of each of a few messages.
        assert!(wrong < 200, "{what}: {wrong}");
    }
}

#[test]
fn a_missing_plugin_is_named() {
    let output = trunkline("bench all_reduce --plugin /nowhere/libnccl-net-x.so").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nowhere/libnccl-net-x.so"), "{}", stderr(&output));

    let directory = tempfile::tempdir().expect("a directory");
    let copy = directory.path().join("renamed");
    std::fs::copy(env!("CARGO_BIN_EXE_trunkline"), &copy).expect("a copy");
    let output = Command::new(&copy)
        .args(["bench", "all_reduce"])
        .env_remove("TRUNKLINE_PLUGIN")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("libtrunkline_nccl.so") && message.contains("--plugin"), "{message}");
}

#[test]
fn invalid_plugin_and_missing_version_are_refused() {
    let output = trunkline("bench all_reduce --plugin Cargo.toml").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot load the plugin"), "{}", stderr(&output));

    let output = bench("all_reduce --abi 9").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no ncclNetPlugin_v9; it has v11, v8"), "{}", stderr(&output));
}

#[test]
fn merge_error_distinguishes_plugin_from_interface_version() {
    let output = bench("all_reduce --merge").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let told = "devices 0 cannot be fused: the plugin's table has no makeVDevice";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
    let output = bench("all_reduce --merge --abi 8").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("version 8 of the plugin interface cannot fuse"), "{}", stderr(&output));
}

#[test]
fn a_failing_call_is_named_with_its_rank() {
    let output = bench("all_reduce -n 4 -e 1K").env("MINI_FAIL", "2").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("rank 2: to rank 3: isend returned ncclSystemError (2)"), "{message}");
}

#[test]
fn stalled_run_ends_at_its_limit() {
    let start = Instant::now();
    let output =
        bench("all_reduce -e 1K --row-timeout 1").env("MINI_HANG", "1").output().expect("the command runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no answer within 1 s from rank 0, 1"), "{}", stderr(&output));
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Process ids of a process's children.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn a_killed_rank_ends_the_run_at_once() {
    let mut parent = bench("all_reduce -n 3 -b 1M -e 1M -w 1 -i 1000000")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let start = Instant::now();
    while children(parent.id()).len() < 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "no ranks");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Well into the run.
    std::thread::sleep(Duration::from_millis(500));
    let victims = children(parent.id());
    let victim = Pid::from_raw(victims[1] as i32).expect("a process id");
    kill_process(victim, Signal::KILL).expect("it can be killed");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = parent.try_wait().expect("the command can be waited for") {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the run does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(2));
    let output = parent.wait_with_output().expect("its output");
    assert!(stderr(&output).contains("rank 1 died: killed by signal 9"), "{}", stderr(&output));
    for pid in victims {
        assert!(!Path::new(&format!("/proc/{pid}/exe")).exists(), "rank {pid} still runs");
    }
}

#[test]
fn sharing_fits_sixteen_communicators_into_64_queue_pairs() {
    let job = |sharing: &str| {
        let args = "bench all_reduce -n 2 --comms 16 --channels 4 -b 4K -e 64K -f 16 --iters 3 --json";
        let mut command = trunkline(args);
        command.env("TRUNKLINE_SOFT_MAX_QP", "64").env("TRUNKLINE_QP_SHARING", sharing);
        command.output().expect("it runs")
    };
    let alone = job("off");
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(!alone.status.success() && rows(&alone).is_empty(), "{said}");
    assert!(said.contains("all 64 queue pairs of the NIC are in use"), "the limit: {said}");
    assert!(said.contains("let them share (TRUNKLINE_QP_SHARING=on)"), "the remedy: {said}");
    for sharing in ["on", "auto"] {
        let shared = job(sharing);
        assert!(shared.status.success(), "{sharing}: {}", String::from_utf8_lossy(&shared.stderr));
        let rows = rows(&shared);
        assert_eq!(rows.len(), 4, "{sharing}");
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{sharing}: {rows:?}");
    }
}
