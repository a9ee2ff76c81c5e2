//! `trunkline selftest`: its report, checks that fail, hang or are not reached, omitted checks, and its usage errors.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{compile, here, stderr, trunkline};

/// A quick selftest of a host without hardware; its report is in `report.md` and `report.json`.
fn selftest(directory: &TempDir, args: &str, settings: &[(&str, &str)]) -> Output {
    let root = directory.path().join("root");
    std::fs::create_dir_all(&root).expect("a folder");
    let args = format!("selftest --quick --root {} --report report.md {args}", root.display());
    trunkline(directory, &args, settings)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn read(directory: &TempDir, name: &str) -> String {
    std::fs::read_to_string(directory.path().join(name)).expect(name)
}

fn report(directory: &TempDir) -> Value {
    serde_json::from_str(&read(directory, "report.json")).expect("one JSON object")
}

fn checks(report: &Value) -> &Vec<Value> {
    report["checks"].as_array().expect("checks")
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    checks(report).iter().find(|check| check["name"] == name).expect(name)
}

fn status<'a>(report: &'a Value, name: &str) -> &'a str {
    check(report, name)["status"].as_str().expect("a status")
}

/// The rows of each table of a Markdown text, heads included. Each row must have the number of cells of its table's
/// rule.
fn tables(text: &str) -> Vec<Vec<Vec<String>>> {
    let cells = |line: &str| {
        let line = line.replace("\\|", "\u{1}");
        let inner = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")).expect("a whole row");
        inner.split(" | ").map(|cell| cell.trim().replace('\u{1}', "|")).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for table in lines.chunk_by(|a, b| a.starts_with('|') == b.starts_with('|')) {
        let [head, rule, rows @ ..] = table else { continue };
        if !head.starts_with('|') {
            continue;
        }
        let rule = cells(rule);
        assert!(rule.iter().all(|cell| cell.trim_end_matches(':').chars().all(|letter| letter == '-')));
        let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).map(|line| cells(line)).collect();
        assert!(all.iter().all(|row| row.len() == rule.len()), "{all:?}");
        found.push(all);
    }
    found
}

/// A script in the place of a remote shell; its path has no blanks.
fn remote_shell(directory: &TempDir, script: &str) -> String {
    let path = directory.path().join("rsh");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    path.display().to_string()
}

/// Writes its process id and that of a process in a separate session, and waits.
const HANGS: &str = "setsid sleep 60 >/dev/null 2>&1 & echo $$ $! >\"${0%/*}/pids.new\"; mv \"${0%/*}/pids.new\" \"${0%/*}/pids\"; wait";

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_quick_selftest_reports_every_check() {
    let directory = here();
    let output = selftest(&directory, "--only info,verbs,efa,cxi,gpu-cuda,soft", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("soft-p2p: passed in"), "{}", stderr(&output));

    let report = report(&directory);
    assert_eq!(
        (&report["schema"], &report["quick"], &report["names"]),
        (&1.into(), &true.into(), &false.into())
    );
    assert_eq!((&report["limit_s"], report["version"].is_string()), (&600.into(), true));
    for name in
        ["info", "soft-p2p", "soft-all_reduce", "soft-four_ranks", "soft-merge", "soft-shared", "soft-rma"]
    {
        assert_eq!(status(&report, name), "passed");
        assert!(check(&report, name)["seconds"].as_f64() > Some(0.0), "{name}");
    }
    for name in ["soft-p2p", "soft-all_reduce", "soft-merge", "soft-shared", "soft-rma"] {
        let check = check(&report, name);
        let figures = check["figures"].as_array().expect("figures");
        assert!(
            figures.iter().any(|figure| figure["unit"] == "us" && figure["value"].as_f64() > Some(0.0)),
            "{check}"
        );
        assert!(figures.iter().any(|figure| figure["unit"] == "GB/s"), "{check}");
        let rows = check["rows"].as_array().expect("rows");
        assert!(!rows.is_empty() && rows.iter().all(|row| row["wrong"] == 0 && row["fabric"] == "soft"));
    }
    for (name, reason) in [
        ("verbs-p2p", "no RDMA device"),
        ("efa-rma", "no EFA device"),
        ("cxi-open", "no Slingshot NIC"),
        ("gpu-cuda", "no GPU of NVIDIA"),
        ("soft-hosts-p2p", "no second host"),
    ] {
        assert_eq!(status(&report, name), "skipped");
        assert!(check(&report, name)["reason"].as_str().expect("a reason").contains(reason), "{name}");
    }

    let text = read(&directory, "report.md");
    assert!(
        text.starts_with("### Trunkline selftest: 7 passed, 0 failed, 38 skipped, 0 not reached\n"),
        "{text}"
    );
    let tables = tables(&text);
    assert_eq!(tables.len(), 2, "{text}");
    let facts: Vec<&str> = tables[0].iter().map(|row| &*row[0]).collect();
    for fact in [
        "Trunkline",
        "machine",
        "locked memory (ulimit -l)",
        "rdma-core",
        "libfabric",
        "RDMA devices",
        "GPUs",
    ] {
        assert!(facts.contains(&fact), "{fact}: {text}");
    }
    assert_eq!(tables[1][0], ["check", "result", "seconds", "figures"]);
    let p2p = tables[1].iter().find(|row| row[0] == "`soft-p2p`").expect("a row");
    assert!(p2p[1] == "passed" && p2p[3].contains("median latency") && p2p[3].contains("GB/s"), "{p2p:?}");
    assert!(tables[1].iter().any(|row| row[0].contains("`verbs-open`") && row[1] == "SKIPPED"), "{text}");
}

#[test]
fn a_selftest_without_a_file_prints_its_report() {
    let directory = here();
    let output = trunkline(&directory, "selftest --quick --only info,soft-p2p --json own.json", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("### Trunkline selftest: 2 passed"), "{}", stdout(&output));
    assert!(read(&directory, "own.json").contains("\"soft-p2p\""));
    // `--list` runs no check.
    let output = trunkline(&directory, "selftest --list", &[]);
    assert!(output.status.success() && stdout(&output).contains("\nsoft-p2p "), "{}", stdout(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn failed_check_does_not_stop_others() {
    let directory = here();
    let [plugin, target] = ["corrupt_plugin.c", "mini_plugin.c"].map(|name| compile(&directory, name));
    let set = [("TRUNKLINE_PLUGIN", &*plugin), ("CORRUPT_TARGET", &*target), ("CORRUPT_MIN", "16")];
    let output = selftest(&directory, "--only soft-p2p,soft-rma", &set);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = report(&directory);
    assert_eq!((status(&report, "soft-p2p"), status(&report, "soft-rma")), ("failed", "passed"));
    let reason = check(&report, "soft-p2p")["reason"].as_str().expect("a reason");
    assert!(reason.ends_with("bytes or elements were wrong"), "{reason}");
    let text = read(&directory, "report.md");
    assert!(text.contains("| `soft-p2p` | **FAILED** |") && text.contains("<summary>soft-p2p: "), "{text}");

    // An unknown fabric fails every check.
    let output =
        selftest(&directory, "--only soft-p2p,soft-all_reduce", &[("TRUNKLINE_FABRIC", "soft:nowhere")]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = read(&directory, "report.md");
    assert!(text.starts_with("### Trunkline selftest: 0 passed, 2 failed"), "{text}");
    assert_eq!(text.matches("\n$ TRUNKLINE_FABRIC=soft:nowhere trunkline bench").count(), 2, "{text}");
    assert!(text.contains("ended with status 2: trunkline: rank "), "{text}");
}

#[test]
fn a_report_names_no_host_user_address_or_home() {
    let directory = here();
    let home = directory.path().display().to_string();
    let shell = remote_shell(&directory, "echo \"ann@$(uname -n) 10.9.8.7 $HOME/secret\" >&2; exit 7");
    let set = [("HOME", &*home), ("USER", "ann")];
    let args = format!("--only soft-hosts-p2p,soft-p2p --hosts red.example,blue --rsh {shell}");
    let output = selftest(&directory, &args, &set);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(status(&report(&directory), "soft-p2p"), "passed");
    for file in ["report.md", "report.json"] {
        let text = read(&directory, file);
        assert!(text.contains("<user>@<host> <address> <home>"), "{text}");
        for name in ["ann@", "red.example", "blue", "10.9.8.7", &*home] {
            assert!(!text.contains(name), "{name}: {text}");
        }
    }
    assert!(read(&directory, "report.md").contains("--names keeps them"));

    let output = selftest(&directory, &format!("{args} --names"), &set);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = read(&directory, "report.md");
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for name in
        [&*format!("ann@{node} 10.9.8.7 {home}/secret"), "red.example", &*format!("| host | {node} |")]
    {
        assert!(text.contains(name), "{name}: {text}");
    }
}

#[test]
fn a_check_over_its_limit_ends_with_its_processes() {
    let directory = here();
    let shell = remote_shell(&directory, HANGS);
    let begun = Instant::now();
    let args = format!("--only soft-hosts-p2p,soft-p2p --hosts red,blue --rsh {shell} --check-limit 5");
    let output = selftest(&directory, &args, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(begun.elapsed() < Duration::from_secs(45), "the remote shell would stay for a minute");
    let pids = read(&directory, "pids");
    assert!(!pids.split_whitespace().any(alive), "{pids}");
    let report = report(&directory);
    assert_eq!(status(&report, "soft-hosts-p2p"), "failed");
    let reason = check(&report, "soft-hosts-p2p")["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("took longer than "), "{reason}");
    assert_eq!(checks(&report).len(), 2);
}

#[test]
fn checks_after_the_whole_limit_are_not_reached() {
    let directory = here();
    let shell = remote_shell(&directory, HANGS);
    let args = format!("--only soft-hosts,soft-rma --hosts red,blue --rsh {shell} --limit 1");
    let output = selftest(&directory, &args, &[]);
    // Nothing has failed, as nothing has run to its end.
    assert!(output.status.success(), "{}", stderr(&output));
    let report = report(&directory);
    assert!(
        checks(&report).len() == 5 && checks(&report).iter().all(|check| check["status"] == "not_reached")
    );
    let text = read(&directory, "report.md");
    assert!(
        text.contains("| not reached |  | the time limit of all checks has passed (--limit) |"),
        "{text}"
    );
}

#[test]
fn an_interrupted_selftest_reports_its_finished_checks() {
    let directory = here();
    let shell = remote_shell(&directory, HANGS);
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args([
        "selftest",
        "--quick",
        "--only",
        "info,soft-hosts-p2p,soft-hosts-rma",
        "--report",
        "report.md",
    ]);
    command.args(["--hosts", "red,blue", "--rsh", &shell]).current_dir(directory.path());
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let pids = directory.path().join("pids");
    wait_for(&pids);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal can be sent");
    let status_code = child.wait().expect("it ends").code();
    assert_eq!(status_code, Some(128 + 15));
    let pids = read(&directory, "pids");
    assert!(!pids.split_whitespace().any(alive), "{pids}");
    let report = report(&directory);
    assert_eq!(status(&report, "info"), "passed");
    for name in ["soft-hosts-p2p", "soft-hosts-rma"] {
        assert_eq!(status(&report, name), "not_reached");
    }
}

fn wait_for(path: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < until, "{} is not written", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_hosts_are_checked_by_the_remote_shell() {
    let directory = here();
    let shell = remote_shell(&directory, "shift; exec \"$@\"");
    let args = format!("--only soft-hosts --hosts red,blue --rsh {shell}");
    let output = selftest(&directory, &args, &[]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), read(&directory, "report.md"));
    let report = report(&directory);
    assert_eq!(checks(&report).len(), 4);
    assert!(checks(&report).iter().all(|check| check["status"] == "passed"), "{report}");
    let notes = check(&report, "soft-hosts-open")["notes"].to_string();
    assert!(notes.contains("NIC soft0 of soft"), "{notes}");
}

#[test]
fn hardware_of_the_host_is_listed() {
    let directory = here();
    for (path, text) in [
        ("sys/class/infiniband/mlx5_9/fw_ver", "22.31.1014\n"),
        ("sys/class/infiniband/mlx5_9/hca_type", "MT4125\n"),
        ("sys/class/infiniband/mlx5_9/ports/1/state", "4: ACTIVE\n"),
        ("sys/class/infiniband/mlx5_9/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("sys/class/infiniband/mlx5_9/ports/1/link_layer", "InfiniBand\n"),
        ("dev/infiniband/uverbs0", ""),
        ("usr/lib64/libibverbs.so.1", ""),
    ] {
        let path = directory.path().join("root").join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let output = selftest(&directory, "--only info", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let tables = tables(&read(&directory, "report.md"));
    let device = tables[0].iter().find(|row| row[0] == "RDMA device mlx5_9").expect("a fact");
    let told = "MT4125; driver no PCI driver; firmware 22.31.1014; port 1: InfiniBand, 100 Gb/sec (4X EDR), 4: ACTIVE";
    assert_eq!(device[1], told);
    let list = stdout(&selftest(&directory, "--list", &[]));
    let line = |name: &str| list.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
    assert!(!line("verbs-p2p ").contains("SKIPPED"), "{list}");
    assert!(line("verbs-merge ").contains("SKIPPED: fewer than two active RDMA ports"), "{list}");
}

#[test]
fn usage_errors_run_no_check() {
    let directory = here();
    let refused = |args: &str, set: &[(&str, &str)]| {
        let output = trunkline(&directory, &format!("selftest {args}"), set);
        assert_eq!(output.status.code(), Some(2), "{args}");
        assert!(!stderr(&output).contains("passed"), "{args}");
        stderr(&output)
    };
    assert!(refused("--only sof", &[]).contains("unknown check; use one of info, verbs-open"));
    assert!(refused("--hosts one", &[]).contains("does not name two hosts"));
    assert!(refused("--rsh ssh", &[]).contains("--hosts"));
    assert!(refused("--report x.json", &[]).contains("name the same file"));
    assert!(refused("--report nowhere/x.md", &[]).contains("nowhere/x.md: No such file"));
    assert!(refused("--limit 0", &[]).contains("--limit"));
    assert!(refused("", &[("TRUNKLINE_PLUGIN", "/nowhere.so")]).contains("/nowhere.so"));
    let launched =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    assert!(refused("", &launched).contains("selftest starts its ranks itself"));
}
