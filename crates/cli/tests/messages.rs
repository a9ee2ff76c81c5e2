//! `trunkline bench p2p --memory host|cma|memfd|cuda|hip|ze`: rows, their checks, conflicting arguments, and missing
//! drivers.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::MemfdFlags;
use serde_json::Value;

fn bench(arguments: &str) -> Output {
    bench_with(arguments, &[])
}

fn bench_with(arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_trunkline"), "bench"]).args(arguments.split_whitespace());
    command.env("TRUNKLINE_FABRIC", "soft:shm").envs(environment.iter().copied());
    command.output().expect("timeout runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn rows_of_all_memories_are_right_and_name_their_interface() {
    for memory in ["host", "cma", "memfd"] {
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

/// A stand-in driver in a temporary folder, and the file that contains its device.
fn stub(source: &str, library: &str) -> Option<(tempfile::TempDir, OwnedFd)> {
    let folder = tempfile::tempdir().expect("a folder");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mem/tests/ipc/stub").join(source);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-pthread", "-o"]).arg(folder.path().join(library)).arg(from);
    let Ok(status) = cc.status() else {
        println!("SKIPPED messages of memory of GPUs: no cc");
        return None;
    };
    assert!(status.success(), "{source} is compiled");
    let file = rustix::fs::memfd_create("trunkline.stub", MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, 1 << 46).expect("its size");
    let head: Vec<u8> = [64_u64 << 20, 1, 65536, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(rustix::io::pwrite(&file, &head, 0), Ok(32));
    Some((folder, file))
}

#[test]
fn gpu_memory_is_sent_over_stand_in_drivers() {
    let kinds = [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so.7"), ("ze", "libze_loader.so.1")];
    for (memory, library) in kinds {
        let Some((folder, file)) = stub(&format!("{memory}.c"), library) else { return };
        let device = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let folder = folder.path().to_str().expect("a name");
        let arguments = format!("p2p --memory {memory} -b 8 -e 300000 -f 190 -i 40 --json");
        let output = bench_with(&arguments, &[("LD_LIBRARY_PATH", folder), ("STUB_DEVICE", &device)]);
        assert!(output.status.success(), "{memory}: {}", text(&output.stderr));
        let rows: Vec<Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(rows.len(), 4);
        for row in rows {
            assert_eq!((&row["wrong"], &row["fabric"]), (&0.into(), &memory.into()));
        }
    }
}

#[test]
fn missing_gpu_driver_or_device_is_named() {
    for (memory, library) in
        [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so.7"), ("ze", "libze_loader.so.1")]
    {
        let output = bench(&format!("p2p --memory {memory} -b 8 -e 8 -i 20"));
        if output.status.success() {
            // This machine has one.
            continue;
        }
        let told = text(&output.stderr);
        assert!(told.contains("install") || told.contains("does not exist"), "{told}");
        assert!(told.contains(library) || told.contains("driver"), "{told}");
    }
}

#[test]
fn conflicting_arguments_are_refused_with_a_reason() {
    let refused = |arguments: &str, told: &str| {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    };
    refused("all_reduce --memory host", "work with p2p only");
    refused("p2p --memory memfd --merge", "uses no plugin and no NIC");
    refused("p2p --memory host -b 16 -e 8", "the largest size is smaller");
    refused("p2p --memory host -n 3", "p2p runs between 2 ranks");
}

#[test]
fn a_selftest_checks_memory_of_gpus() {
    let Some((folder, file)) = stub("cuda.c", "libcuda.so.1") else { return };
    let device = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    // A host whose only hardware is a GPU.
    let root = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(root.path().join("dev")).expect("a folder");
    std::fs::write(root.path().join("dev/nvidiactl"), "").expect("a file");
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_trunkline"), "selftest", "--quick", "--only", "gpu", "--root"]);
    command.arg(root.path()).env("LD_LIBRARY_PATH", folder.path()).env("STUB_DEVICE", device);
    let output = command.output().expect("timeout runs");
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert!(report.contains("| `gpu-cuda` | passed |"), "{report}");
    assert!(report.contains("| `gpu-hip` | SKIPPED |  | no GPU of AMD |"), "{report}");
}
