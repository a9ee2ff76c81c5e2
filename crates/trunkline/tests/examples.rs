//! The examples, as people run them: each starts its own ranks, checks its result and says so. Over each wire of the software NIC,
//! and over libfabric's provider for TCP where there is one; and under `start_ranks` of two and four.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).unwrap().to_owned();
    let built = profile.join("examples").join(name);
    if !built.exists() {
        // A test that is asked for alone has no examples beside it.
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
        // Two ranks over one fabric; over each with `TRUNKLINE_FULL`.
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

/// Lines of a function at the beginning of a line, with its first and its last.
fn lines_of(path: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let function =
        text.lines().skip_while(|line| !(line.contains(&format!(" {name}(")) && line.ends_with('{')));
    function.take_while(|line| *line != "}").count() + 1
}

#[test]
fn kernels_read_in_twenty_lines() {
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
