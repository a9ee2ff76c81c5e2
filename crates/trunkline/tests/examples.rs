//! The examples as users run them: each starts its own ranks, checks its result and prints a last line that ends with
//! "OK". They run over each wire of the software NIC, and over libfabric's provider for TCP where libfabric is
//! installed, as four ranks. Over one wire they also run as two; with `TRUNKLINE_FULL`, over all.

#![allow(clippy::unwrap_used, reason = "a panic ends the test")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use trunkline_bootstrap::{JobSecret, free_port, trunkline_run};

fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).unwrap().to_owned();
    let built = profile.join("examples").join(name);
    if !built.exists() {
        // A run of this test program alone has not built the examples.
        let status = Command::new(env!("CARGO"))
            .args(["build", "--package", "trunkline", "--example", name])
            .env("CARGO_TARGET_DIR", profile.parent().unwrap())
            .status();
        assert!(status.unwrap().success());
    }
    built
}

fn run(name: &str, ranks: usize, fabric: &str) -> Output {
    let mut command = Command::new("timeout");
    command.arg("120").arg(example(name)).arg(ranks.to_string());
    command.env("TRUNKLINE_FABRIC", fabric).env("NCCL_SOCKET_IFNAME", "=lo");
    command.env("TRUNKLINE_OFI_DOMAIN", "lo").output().unwrap()
}

fn all(name: &str) {
    let libfabric = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let libfabric = libfabric.iter().any(|folder| PathBuf::from(folder).join("libfabric.so.1").exists());
    if !libfabric {
        println!("SKIPPED ofi:tcp: libfabric is not installed (Debian: libfabric1)");
    }
    for fabric in
        ["soft:shm", "soft:tcp", "ofi:tcp"].into_iter().filter(|&name| libfabric || name != "ofi:tcp")
    {
        // Two ranks only over one fabric, unless `TRUNKLINE_FULL` is set.
        let few = (fabric == "soft:shm" || std::env::var_os("TRUNKLINE_FULL").is_some()).then_some(2);
        for ranks in few.into_iter().chain([4]) {
            let output = run(name, ranks, fabric);
            let (out, errors) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let what = format!("{name}, {ranks} ranks over {fabric}: {out}{errors}");
            assert!(output.status.success() && out.trim_end().ends_with(": OK"), "{what}");
            assert!(out.contains(&format!("{ranks} ranks")), "{what}");
        }
    }
}

#[test]
fn halo_exchange() {
    all("halo_exchange");
}

#[test]
fn histogram() {
    all("histogram");
}

#[test]
fn work_queue() {
    all("work_queue");
}

#[test]
fn device_ring() {
    all("device_ring");
}

#[test]
fn device_dispatch() {
    all("device_dispatch");
}

#[test]
fn device_halo() {
    all("device_halo");
}

#[test]
fn device_guest() {
    all("device_guest");
}

/// The line that rank 0 prints for an invalid value.
const WRONG: &str = "TRUNKLINE_DEPTH=x: expected a number from 32 to 32768";

#[test]
fn wrong_setting_of_all_ranks_is_printed_once() {
    let mut command = Command::new("timeout");
    command.arg("120").arg(example("histogram")).arg("4").env("TRUNKLINE_DEPTH", "x");
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), format!("trunkline: all 4 ranks: {WRONG}\n"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn wrong_setting_of_one_rank_fails_all() {
    let port = free_port().unwrap();
    let secret = JobSecret::random().unwrap().to_hex();
    let start = |rank: usize| {
        let mut command = Command::new("timeout");
        command.arg("120").arg(example("histogram")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env(trunkline_run::RANK, rank.to_string()).env(trunkline_run::SIZE, "3");
        command.env(trunkline_run::STORE, format!("127.0.0.1:{port}")).env(trunkline_run::SECRET, &secret);
        if rank == 2 {
            command.env("TRUNKLINE_DEPTH", "x");
        }
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(start).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let errors: Vec<_> = outputs.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect();
    assert_eq!(errors, [&format!("trunkline: rank 2: {WRONG}\n"), "", ""]);
    assert!(outputs.iter().all(|output| output.status.code() == Some(1)), "{outputs:?}");
}

/// Counts the lines of a function that is not indented, its first and last included.
fn lines_of(path: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let function =
        text.lines().skip_while(|line| !(line.contains(&format!(" {name}(")) && line.ends_with('{')));
    function.take_while(|line| *line != "}").count() + 1
}

#[test]
fn example_kernels_have_at_most_twenty_lines() {
    let twins = "../device-queue/tests/header/window_kernels.h";
    for (path, name) in [
        ("examples/device_ring.rs", "ring_sum"),
        ("examples/device_dispatch.rs", "dispatch"),
        ("examples/device_halo.rs", "simulate"),
        (twins, "ring_sum"),
        (twins, "dispatch"),
        (twins, "halo"),
    ] {
        let lines = lines_of(path, name);
        assert!((10..=20).contains(&lines), "{name} of {path}: {lines} lines");
    }
}
