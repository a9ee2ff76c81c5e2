//! `trunkline bench --trace`: the file of a run over two rails, and messages about missing or incomplete traces. A
//! module tests `trunkline selftest`.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

#[path = "trace/selftest.rs"]
mod selftest;

/// Bytes of each message of a run.
const MIB: u64 = 1 << 20;

fn here() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Runs the command in a directory with these settings and no others of ours or of a launcher.
fn trunkline(directory: &TempDir, args: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let foreign = ["TRUNKLINE_", "PMI_", "SLURM_", "OMPI_", "RANK", "WORLD_SIZE", "MASTER_"];
        if foreign.iter().any(|start| name.starts_with(start)) {
            command.env_remove(&*name);
        }
    }
    command.args(args.split_whitespace()).envs(settings.iter().copied());
    command.current_dir(directory.path()).stdin(Stdio::null()).output().expect("the command runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed; returns its standard output and error.
fn right(directory: &TempDir, args: &str, settings: &[(&str, &str)]) -> (String, String) {
    let output = trunkline(directory, args, settings);
    assert!(output.status.success(), "{args}: {}", stderr(&output));
    (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
}

fn read(directory: &TempDir, name: &str) -> Value {
    let text = std::fs::read(directory.path().join(name)).expect("a trace");
    serde_json::from_slice(&text).expect("JSON")
}

/// The events of a kind.
fn events<'a>(trace: &'a Value, ph: &str) -> Vec<&'a Value> {
    let all = trace["traceEvents"].as_array().expect("events");
    all.iter().filter(|event| event["ph"] == ph).collect()
}

fn number(event: &Value, key: &str) -> u64 {
    event[key].as_u64().expect("a number")
}

/// Bytes of the operations on each track, by process and name of the rail.
fn tracks(trace: &Value) -> BTreeMap<(u64, String), u64> {
    let mut tracks = BTreeMap::new();
    let mut names = BTreeMap::new();
    for event in events(trace, "M").into_iter().filter(|event| event["name"] == "thread_name") {
        let name = event["args"]["name"].as_str().expect("a name").to_owned();
        let key = (number(event, "pid"), name);
        assert!(names.insert(number(event, "tid"), key.clone()).is_none(), "a number of its own");
        assert!(tracks.insert(key, 0).is_none(), "one track a rail");
    }
    for event in events(trace, "X") {
        let key = names.get(&number(event, "tid")).expect("a track");
        assert_eq!(key.0, number(event, "pid"));
        *tracks.get_mut(key).expect("a track") += event["args"]["bytes"].as_u64().expect("bytes");
    }
    tracks
}

/// A reader drops an event that reaches over the end of another one on its track.
fn assert_nested(trace: &Value) {
    let mut open: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for event in events(trace, "X") {
        let (ts, dur) = (event["ts"].as_f64().expect("a time"), event["dur"].as_f64().expect("a time"));
        let ends = open.entry(number(event, "tid")).or_default();
        while ends.last().is_some_and(|end| *end <= ts) {
            ends.pop();
        }
        assert!(ends.last().is_none_or(|end| ts + dur <= *end), "{event}");
        ends.push(ts + dur);
    }
}

/// The ranks, as their tracks are headed.
fn processes(trace: &Value) -> Vec<String> {
    let named = events(trace, "M").into_iter().filter(|event| event["name"] == "process_name");
    named.map(|event| event["args"]["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn trace_has_a_track_per_rail_and_rank() {
    let directory = here();
    let settings = [("TRUNKLINE_SOFT_NICS", "2")];
    for wire in ["soft", "soft:tcp"] {
        let args = "bench sendrecv -b 1M -e 1M -w 2 -i 8 --merge --trace t.json";
        let (table, _) = right(&directory, args, &[settings[0], ("TRUNKLINE_FABRIC", wire)]);
        let told = table.lines().find(|line| line.starts_with("# trace t.json: 2 processes, 4 rails, "));
        assert!(told.is_some_and(|line| line.contains("ui.perfetto.dev")), "{table}");
        let trace = read(&directory, "t.json");
        let names = processes(&trace);
        assert!(names[0].starts_with("rank 0 (pid ") && names[1].starts_with("rank 1 (pid "), "{names:?}");
        assert_nested(&trace);
        let tracks = tracks(&trace);
        let rails: Vec<(u64, &str)> = tracks.keys().map(|(pid, name)| (*pid, name.as_str())).collect();
        assert_eq!(rails, [(1, "soft0"), (1, "soft1"), (2, "soft0"), (2, "soft1")]);
        assert!(tracks.values().all(|bytes| *bytes > 0), "{tracks:?}");
        for pid in [1, 2] {
            let moved: u64 = tracks.iter().filter(|((of, _), _)| *of == pid).map(|(_, bytes)| bytes).sum();
            // Warm-up, timed and verified runs, out of place and in place.
            assert!(moved >= 22 * MIB, "{wire}: rank {}: {moved}", pid - 1);
        }
        let about = &trace["otherData"];
        let lost: Vec<u64> = about["processes"]
            .as_array()
            .expect("processes")
            .iter()
            .map(|process| number(process, "lost"))
            .collect();
        assert_eq!(lost, [0, 0]);
        assert!(about["clock"].as_str().is_some_and(|text| text.starts_with("one host")), "{about}");
        let slice = events(&trace, "X")[0];
        for key in ["bytes", "link", "in_flight_us"] {
            assert!(slice["args"][key].is_number(), "{slice}");
        }
        assert!(slice["args"]["status"].is_string() && slice["name"].is_string(), "{slice}");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("a directory").collect();
    assert_eq!(left.len(), 1, "only the trace");
}

/// If another launcher starts the ranks, each needs its own setting.
#[test]
fn a_launched_job_is_traced() {
    let directory = here();
    let program = env!("CARGO_BIN_EXE_trunkline");
    let args = format!("run -n 2 -- {program} bench p2p -b 64K -e 64K -w 1 -i 4 --json --trace t.json");
    // Files that are left over would be here.
    let temporary = directory.path().join("tmp");
    std::fs::create_dir(&temporary).expect("a directory");
    let settings = [("TMPDIR", temporary.to_str().expect("text"))];
    let (rows, _) = right(&directory, &args, &settings);
    assert_eq!(rows.lines().count(), 1, "one row and nothing else: {rows}");
    let trace = read(&directory, "t.json");
    assert_eq!(processes(&trace).len(), 2);
    assert_eq!(tracks(&trace).len(), 2, "one rail each");
    assert_eq!(std::fs::read_dir(&temporary).expect("a directory").count(), 0);
}

#[test]
fn lost_events_are_reported() {
    let directory = here();
    let args = "bench p2p -b 8 -e 8 -w 1 -i 3000 --json --trace t.json";
    let (_, said) = right(&directory, args, &[("TRUNKLINE_TRACE_EVENTS", "1024")]);
    assert!(said.contains("rank 0 has no room for ") && said.contains("TRUNKLINE_TRACE_EVENTS"), "{said}");
    let trace = read(&directory, "t.json");
    let stops: Vec<&Value> = events(&trace, "i").into_iter().filter(|mark| mark["s"] == "p").collect();
    assert_eq!(stops.len(), 2, "one a rank");
    for (rank, stop) in stops.iter().enumerate() {
        let process = &trace["otherData"]["processes"][rank];
        assert_eq!((number(stop, "pid"), number(process, "pid")), (rank as u64 + 1, rank as u64 + 1));
        let lost = number(process, "lost");
        // A ping-pong and streams, of 3000 messages each.
        assert!(lost > 3000 && stop["args"]["lost"] == lost, "{stop} {process}");
        assert_eq!(stop["name"], format!("recording stopped: {lost} events lost"));
        assert_eq!(number(process, "recorded"), 1024);
    }
}

/// Compiles the plugin of that name, which is not ours.
fn compile(directory: &TempDir, name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-host/tests/fixtures").join(name);
    let library = directory.path().join(name).with_extension("so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(cc.status().expect("cc runs").success());
    library.to_str().expect("text").to_owned()
}

#[test]
fn a_plugin_that_records_nothing_is_named() {
    let directory = here();
    let args = format!(
        "bench p2p -b 8 -e 8 -w 1 -i 20 --plugin {} --trace t.json",
        compile(&directory, "mini_plugin.c")
    );
    let (_, said) = right(&directory, &args, &[]);
    let told = "trunkline: no trace: the plugin Mini recorded nothing; use Trunkline's plugin\n";
    assert_eq!(said, told);
    let file = directory.path().join("t.json");
    assert!(!file.exists(), "no empty file");
    let output = trunkline(&directory, &args, &[("MINI_FAIL", "1")]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(!file.exists(), "no file of a run that failed");
    let before = r#"{"traceEvents":[]}"#;
    std::fs::write(&file, before).expect("written");
    right(&directory, &args, &[]);
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), before);
}

#[test]
fn results_are_never_overwritten_by_a_slip() {
    let directory = here();
    let file = directory.path().join("ours.json");
    std::fs::write(&file, r#"{"collective":"p2p"}"#).expect("written");
    let output = trunkline(&directory, "bench p2p --trace ours.json", &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("ours.json exists and is not a trace; remove it, or name another file"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), r#"{"collective":"p2p"}"#);
    // A trace is replaced.
    for _ in 0..2 {
        right(&directory, "bench p2p -b 8 -e 8 -w 1 -i 2 --trace t.json", &[]);
        assert_eq!(processes(&read(&directory, "t.json")).len(), 2);
    }
}

#[test]
fn unwritable_trace_fails_before_the_run() {
    let directory = here();
    let output = trunkline(&directory, "bench p2p --trace nowhere/t.json", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("nowhere/t.json: No such file"), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
}

/// Without the command: each process of a job leaves a whole trace.
#[test]
fn process_writes_its_trace_to_the_named_folder() {
    let directory = here();
    let kept = directory.path().join("a/b");
    let settings = [("TRUNKLINE_TRACE", kept.to_str().expect("text"))];
    right(&directory, "bench p2p -b 64K -e 64K -w 1 -i 4", &settings);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&kept).expect("a directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let trace: Value =
            serde_json::from_slice(&std::fs::read(kept.join(&name)).expect("a file")).expect("JSON");
        assert!(events(&trace, "X").iter().any(|slice| slice["args"]["bytes"] == 65536), "{name}");
        names.push(name);
    }
    let (_, said) = right(&directory, "bench p2p -b 8 -e 8 -w 1 -i 2", &[("TRUNKLINE_TRACE", "/dev/null/x")]);
    assert!(said.contains("the trace cannot be recorded: Not a directory"), "{said}");
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("trunkline-") && name.ends_with(".json")), "{names:?}");
}
