//! `trunkline bench` over this plugin.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::wait;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn trunkline() -> &'static Path {
    static CELL: OnceLock<PathBuf> = OnceLock::new();
    CELL.get_or_init(|| trunkline_integration::command_path().unwrap())
}

/// Runs a bench to its end: returns whether it succeeded, its rows, and its standard error.
pub(crate) fn bench(program: &Path, args: &str, env: &[(&str, &str)]) -> (bool, Vec<Value>, String) {
    let mut command = Command::new(program);
    command.arg("bench").args(args.split_whitespace()).arg("--json");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRUNKLINE_")) {
        command.env_remove(name);
    }
    command.env("TRUNKLINE_HOST_ROOT", crate::run::NO_DEVICES).envs(env.iter().copied());
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let [out, err] = files.each_ref().map(|file| Stdio::from(file.try_clone().unwrap()));
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
    let status = wait(&mut child, Instant::now() + LIMIT);
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let [out, err] = files.map(text);
    let status = status.unwrap_or_else(|| panic!("{command:?} is still running\n{out}\n{err}"));
    let rows = out.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    (status.success(), rows, format!("{command:?}: {status}\n{out}\n{err}"))
}

fn text(mut file: File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

#[track_caller]
fn right(args: &str, env: &[(&str, &str)]) {
    let plugin = trunkline_integration::plugin_path().unwrap();
    let args = format!("{args} --plugin {}", plugin.display());
    let (success, rows, said) = bench(trunkline(), &args, env);
    assert!(success && !rows.is_empty() && rows.iter().all(|row| row["wrong"] == 0), "{said}");
}

/// The plugin under another name, and no other shared library beside it.
#[test]
fn a_renamed_copy_of_the_plugin_benches() {
    let dir = tempfile::tempdir().unwrap();
    let (program, plugin) = (dir.path().join("trunkline"), dir.path().join("copy.so"));
    std::fs::copy(trunkline(), &program).unwrap();
    std::fs::copy(trunkline_integration::plugin_path().unwrap(), &plugin).unwrap();
    let args = format!("sendrecv -b 8 -e 64K -f 16 -w 1 -i 3 --plugin {}", plugin.display());
    let (success, rows, said) = bench(&program, &args, &[]);
    assert!(success && !rows.is_empty(), "{said}");
    let ours = |row: &Value| row["fabric"] == "soft" && row["plugin"] == "Trunkline";
    assert!(rows.iter().all(|row| row["wrong"] == 0 && ours(row)), "{said}");
    std::fs::remove_file(&plugin).unwrap();
    let (success, rows, said) = bench(&program, &args, &[]);
    assert!(!success && rows.is_empty(), "without the plugin: {said}");
}

/// Without the flush, delayed writes stay invisible, and the bytes are wrong.
#[test]
fn bench_without_flush_finds_wrong_bytes() {
    let plugin = trunkline_integration::plugin_path().unwrap();
    let delayed = [("TRUNKLINE_SOFT_DELAYED", "1")];
    let args = "sendrecv -b 4K -e 1M -f 16 -w 1 -i 3";
    right(&format!("{args} --flush always"), &delayed);
    right("all_reduce -b 4K -e 256K -f 8 -w 1 -i 3 -n 3 --flush always", &delayed);
    let never = format!("{args} --flush never --plugin {}", plugin.display());
    let (success, rows, said) = bench(trunkline(), &never, &delayed);
    assert!(!success, "a failing exit status: {said}");
    assert!(rows.iter().any(|row| row["wrong"].as_u64().is_some_and(|wrong| wrong > 0)), "{said}");
    // Without delayed writes, the same bench is right.
    right(&format!("{args} --flush never"), &[]);
}

#[test]
fn collectives_are_right_with_every_setting() {
    let settings: [&[(&str, &str)]; 6] = [
        &[("TRUNKLINE_MATCH", "nic")],
        &[("TRUNKLINE_FABRIC", "soft:shm")],
        &[("TRUNKLINE_SOFT_COPY", "staging")],
        &[("TRUNKLINE_EAGER_MAX", "0")],
        &[("TRUNKLINE_MATCH", "nic"), ("TRUNKLINE_SOFT_DELAYED", "1")],
        &[("TRUNKLINE_SOFT_NICS", "2")],
    ];
    for env in settings {
        for collective in ["all_reduce", "alltoallv"] {
            right(&format!("{collective} -b 8 -e 512K -f 32 -w 1 -i 2 -n 2"), env);
        }
    }
    for version in [6, 9] {
        right(&format!("all_gather -b 8 -e 64K -f 32 -w 1 -i 2 -n 3 --abi {version}"), &[]);
    }
}

const FOUR_NICS: (&str, &str) = ("TRUNKLINE_SOFT_NICS", "4");

/// Fuses NICs through the table of each interface version that supports it.
#[test]
fn a_bench_over_fused_nics_has_no_wrong_byte() {
    let plugin = trunkline_integration::plugin_path().unwrap();
    let all = "soft0+soft1+soft2+soft3";
    for version in 9..=12 {
        for wire in ["soft", "soft:tcp"] {
            for (merge, name) in [("--merge", all), ("--merge 0,2", "soft0+soft2"), ("--merge=3", "soft3")] {
                let what = if version == 12 { "p2p" } else { "all_reduce" };
                let args = format!("{what} -b 8 -e 2M -f 64 -w 1 -i 2 {merge} --abi {version}");
                let args = format!("{args} --plugin {}", plugin.display());
                let env = [FOUR_NICS, ("TRUNKLINE_FABRIC", wire)];
                let (success, rows, said) = bench(trunkline(), &args, &env);
                assert!(success && !rows.is_empty(), "{said}");
                for row in &rows {
                    assert!(row["wrong"] == 0 && row["device"] == name && row["fabric"] == "soft", "{said}");
                    assert_eq!(row["abi"], version, "{said}");
                }
            }
        }
    }
    right("alltoall -n 3 --comms 2 --channels 2 -b 64 -e 64K -f 32 -w 1 -i 2 --merge 1,2,3", &[FOUR_NICS]);
}

/// Ranks on this host use shared memory, although a fabric that carries TCP is selected.
#[test]
fn bench_reports_near_and_finds_no_wrong_byte() {
    if !crate::ofi::has(crate::ofi::NATIVE) {
        return;
    }
    let (plugin, tcp) = (trunkline_integration::plugin_path().unwrap(), [("TRUNKLINE_FABRIC", "ofi:tcp")]);
    for (near, expected) in [("--near", true), ("", false)] {
        let args =
            format!("all_reduce -n 3 -b 8 -e 512K -f 64 -w 1 -i 2 {near} --plugin {}", plugin.display());
        let (success, rows, said) = bench(trunkline(), &args, &tcp);
        assert!(success && !rows.is_empty(), "{said}");
        for row in &rows {
            assert!(row["wrong"] == 0 && row["fabric"] == "ofi" && row["near"] == expected, "{said}");
        }
    }
    let refused = said("p2p --memory host --near").1;
    assert!(refused.contains("leave out --plugin, --abi, --merge, --near"), "{refused}");
}

/// The text of a bench: its standard output and error.
fn said(args: &str) -> (Option<i32>, String) {
    let mut command = Command::new(trunkline());
    command.arg("bench").args(args.split_whitespace()).env(FOUR_NICS.0, FOUR_NICS.1);
    // All NICs on one interface, so that their speeds are equal.
    command.env("NCCL_SOCKET_IFNAME", "=lo");
    command.arg("--plugin").arg(trunkline_integration::plugin_path().unwrap());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_head_names_the_fused_device() {
    let one = said("sendrecv -b 8 -e 8 -w 1 -i 1 --device 1");
    let line = |text: &str| text.lines().find(|line| line.starts_with("# device")).map(str::to_owned);
    let told = line(&one.1).unwrap_or_else(|| panic!("{}", one.1));
    assert!(told.starts_with("# device 1 of 4: soft1, ") && told.ends_with(" Mbit/s"), "{told}");
    let speed: u64 = told.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
    let three = said("sendrecv -b 8 -e 8 -w 1 -i 1 --merge 1,3,0");
    let sum = 3 * speed;
    let expected =
        format!("# device 4 of 5: soft1+soft3+soft0, {sum} Mbit/s, fused of devices 1, 3, 0 by makeVDevice");
    assert_eq!(line(&three.1), Some(expected), "{}", three.1);
}

#[test]
fn invalid_merge_options_name_their_cause() {
    let cases = [
        (
            "all_reduce --merge --abi 8",
            "version 8 of the plugin interface cannot fuse devices; versions 9 to 12 can",
        ),
        ("p2p --merge 0,4", "device 4 does not exist: the plugin has 4"),
        ("p2p --merge 1,1", "devices 1, 1 cannot be fused: makeVDevice returned ncclInvalidArgument"),
        ("p2p --merge 1,1", "the same member twice"),
        ("p2p --merge 0,1,2,3,0 --abi 11", "5 devices are more than the 4 that this version"),
        ("p2p --merge 0,1,2,3,0", "at most 4 members, and 5 were requested"),
        ("p2p --merge 0,one", "not a list of device numbers"),
        ("--merge p2p", "write --merge last"),
        ("p2p --merge 0,1 --device 1", "cannot be used with"),
    ];
    for (args, told) in cases {
        let (code, text) = said(args);
        assert!(code == Some(2) && text.contains(told), "{args}: {code:?}\n{text}");
    }
}

/// A running bench, killed on drop.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One JSON object printed by `trunkline`.
fn look(args: &str) -> Option<Value> {
    let mut command = Command::new(trunkline());
    let output = command.args(args.split_whitespace()).stdin(Stdio::null()).output().unwrap();
    serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
}

/// Whether the process of a status page is a child of that one.
fn is_rank_of(job: u32, process: &Value) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process["pid"])).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|pid| pid.trim() == job.to_string()))
}

/// A rank that shows one group for each direction, with its four members, one of which polled completions of other members.
fn shares(rank: &Value) -> bool {
    let groups = rank["groups"].as_array().unwrap();
    let ways: Vec<_> = groups.iter().filter_map(|group| group["direction"].as_str()).collect();
    let all = groups.iter().all(|group| group["members"] == 4 && group["routed"].as_u64() > Some(0));
    all && (ways == ["send", "recv"] || ways == ["recv", "send"])
}

#[test]
fn a_job_shows_the_queue_pairs_that_its_channels_share() {
    let plugin = trunkline_integration::plugin_path().unwrap();
    let mut command = Command::new(trunkline());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRUNKLINE_")) {
        command.env_remove(name);
    }
    command.env("TRUNKLINE_QP_SHARING", "on").env("TRUNKLINE_QP_GROUPS", "1");
    let args = "bench all_reduce -n 2 --channels 4 -b 64K -e 64K -i 100000000";
    command.args(args.split_whitespace()).arg("--plugin").arg(plugin);
    let job = Job(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + LIMIT;
    let ranks = loop {
        let report = look("top --once --json --comms").expect("a report");
        let all = report["processes"].as_array().unwrap().iter();
        let ranks: Vec<_> = all.filter(|process| is_rank_of(job.0.id(), process)).cloned().collect();
        if ranks.len() == 2 && ranks.iter().all(shares) {
            break ranks;
        }
        assert!(Instant::now() < end, "{ranks:#?}");
    };
    for rank in &ranks {
        let process = look(&format!("info --json --pid {}", rank["pid"])).expect("a report");
        let process = &process["processes"][0];
        assert!(shares(process) && process["process"] == rank["process"], "{process:#}");
        let peer = ranks.iter().find(|other| other["pid"] != rank["pid"]).unwrap();
        for group in [rank, process].iter().flat_map(|shown| shown["groups"].as_array().unwrap()) {
            assert_eq!((&group["dropped"], &group["peer"]), (&0.into(), &peer["process"]), "{rank:#}");
            let riders = rank["comms"].as_array().unwrap().iter();
            let riders = riders.filter(|comm| comm["group"] == group["group"]);
            let ways: Vec<_> = riders.map(|comm| comm["direction"].as_str()).collect();
            assert_eq!(ways, [group["direction"].as_str(); 4], "{rank:#}");
        }
    }
}
