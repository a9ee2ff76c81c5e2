//! The transport as NVSHMEM uses it: a program of C++ plays its host and proxy for several PEs, over every network that is here, in both versions of the
//! interface. Compiled here with the system's compiler.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A run that takes longer is killed, and the test fails.
const LIMIT: Duration = Duration::from_secs(100);

/// What is set.
type Way = &'static [(&'static str, &'static str)];

const AUTO: Way = &[("TRUNKLINE_FABRIC", "soft")];
const SHM: Way = &[("TRUNKLINE_FABRIC", "soft:shm")];
const TCP: Way = &[("TRUNKLINE_FABRIC", "soft:tcp")];
const THREE_NICS: Way = &[("TRUNKLINE_FABRIC", "soft:tcp"), ("TRUNKLINE_SOFT_NICS", "3")];
const OFI: Way = &[("TRUNKLINE_FABRIC", "ofi:tcp")];
const RXM: Way = &[("TRUNKLINE_FABRIC", "ofi:tcp;ofi_rxm")];

/// Says that something was not run, and why.
fn skip(what: &str, why: &str) {
    println!("SKIPPED {what}: {why}");
    if let Ok(log) = std::env::var("TRUNKLINE_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        file.write_all(format!("{what}: {why}\n").as_bytes()).unwrap();
    }
}

/// Whether libfabric can be used here, or has to be.
fn ofi() -> bool {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let there = folders.iter().any(|folder| Path::new(folder).join("libfabric.so.1").exists());
    let list = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    let required = list.split(',').any(|word| word == "ofi");
    if !there && !required {
        skip("NVSHMEM's transport over ofi", "no libfabric (Debian: libfabric1)");
    }
    there || required
}

/// The program for a version of the interface.
fn program(version: u8) -> &'static Path {
    static MADE: [OnceLock<(tempfile::TempDir, PathBuf)>; 2] = [const { OnceLock::new() }; 2];
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let (source, made) =
            (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness"), folder.path().join("harness"));
        let mut command = Command::new("c++");
        command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.arg(format!("-DINTERFACE={version}")).arg(source.join("harness.cpp"));
        let output = command.arg("-o").arg(&made).arg("-ldl").output();
        let output = output.unwrap_or_else(|error| panic!("a C++ compiler is needed: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, made)
    };
    &MADE[usize::from(version == 6)].get_or_init(make).1
}

/// The library that is tested.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().join("libtrunkline_nvshmem.so")
}

/// Drivers of a GPU and of GDRCopy that are none, beside the enforcing provider of libfabric, which reaches that GPU.
fn fakes() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let (folder, here) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
        for (library, source) in [
            ("libcuda.so.1", here.join("../tests/tests/gpu/fake_cuda.c")),
            ("libgdrapi.so.2", here.join("tests/harness/fake_gdr.c")),
        ] {
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(folder.path().join(library)).arg(source);
            assert!(cc.arg(format!("-Wl,-soname,{library}")).status().unwrap().success(), "{library}");
        }
        strict_fi::place_in(folder.path()).unwrap();
        folder
    };
    MADE.get_or_init(make).path()
}

/// Runs a scenario; what it printed, and whether it ended by itself.
fn run(version: u8, pes: usize, scenario: &str, way: Way) -> Output {
    let mut command = Command::new(program(version));
    command.arg(library()).arg(pes.to_string()).arg(scenario).envs(way.iter().copied());
    if way.iter().any(|(name, _)| *name == "HARNESS_GPU") {
        command.env("LD_LIBRARY_PATH", fakes()).env("FI_PROVIDER_PATH", fakes());
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{scenario} does not end: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Runs a scenario in each way, which has to end well; what was said on the last.
fn passes(version: u8, scenario: &str, ways: &[(Way, usize)]) -> String {
    let ofi = ofi();
    let mut said = String::new();
    for &(way, pes) in ways.iter().filter(|(way, _)| ofi || *way != OFI && *way != RXM) {
        let output = run(version, pes, scenario, way);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{scenario}, version {version}, {pes} PEs, {way:?}: {}: {said}",
            output.status
        );
    }
    said
}

const ALL: [(Way, usize); 8] =
    [(AUTO, 2), (AUTO, 4), (SHM, 2), (TCP, 2), (TCP, 4), (THREE_NICS, 2), (OFI, 2), (RXM, 2)];

#[test]
fn the_host_moves_bytes() {
    passes(4, "moves", &ALL);
    passes(6, "moves", &[(TCP, 2)]);
}

#[test]
fn kernels_change_words_and_get_what_they_were() {
    passes(4, "atomics", &ALL);
    passes(6, "atomics", &[(AUTO, 2), (TCP, 4)]);
}

#[test]
fn signals_come_after_data_and_fences_order() {
    passes(4, "signals", &ALL);
    passes(6, "signals", &[(AUTO, 2), (TCP, 4)]);
}

#[test]
fn memory_is_added_while_the_proxy_works_and_given_back() {
    passes(4, "growth", &ALL);
    passes(6, "growth", &[(AUTO, 4)]);
}

#[test]
fn misuse_is_refused_with_a_line() {
    let said = passes(4, "misuse", &[(AUTO, 2)]);
    for line in [
        "nvshmemt_init: NVSHMEM asks for version 70000 of its transport interface",
        "quiet: connect_endpoints was not called, or failed",
        "connect_endpoints: a device was chosen that there is not",
        "rma: there is no such PE",
        "rma: 8 bytes at 0x",
        "rma: no handle of the other PE's memory",
        "not a handle of Trunkline's",
        "amo: a word of 8 bytes at offset 0x4",
        "amo: an atomic of kind 99 on 8 bytes: there is none",
        "put_signal: a signal sets a word or adds to it",
        "get_mem_handle: no memory to register",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    passes(6, "misuse", &[(AUTO, 2)]);
}

#[test]
fn who_waits_for_a_pe_that_is_gone_is_told() {
    let said = passes(4, "death", &[(AUTO, 2), (SHM, 3), (TCP, 2), (OFI, 2)]);
    assert!(said.contains("member 1"), "{said}");
    passes(6, "death", &[(TCP, 4)]);
}

#[test]
fn all_of_it_in_a_row_by_more_pes() {
    passes(4, "all", &[(AUTO, 8), (THREE_NICS, 4)]);
    passes(6, "all", &[(TCP, 8)]);
}

/// NVSHMEM's variables: what does nothing is said, and what cannot be ends it before anything is made.
#[test]
fn variables_are_honoured_or_refused() {
    let said = passes(
        4,
        "moves",
        &[(&[("TRUNKLINE_FABRIC", "soft"), ("NVSHMEM_HCA_LIST", "mlx5_0:1"), ("NVSHMEM_DEBUG", "INFO")], 2)],
    );
    assert!(said.contains("NVSHMEM_HCA_LIST does nothing here: name the NICs by NCCL_IB_HCA"), "{said}");
    assert!(said.contains("2 PEs over soft"), "{said}");
    let output = run(4, 2, "moves", &[("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("NVSHMEM_LIBFABRIC_PROVIDER=tcp: expected cxi, efa or verbs"),
        "{said}"
    );
    // Trunkline's own come first.
    passes(4, "moves", &[(&[("NVSHMEM_LIBFABRIC_PROVIDER", "verbs"), ("TRUNKLINE_FABRIC", "soft:tcp")], 2)]);
    let one = &[
        ("TRUNKLINE_FABRIC", "soft"),
        ("TRUNKLINE_SOFT_NICS", "3"),
        ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "1"),
        ("NVSHMEM_DEBUG", "INFO"),
    ];
    let said = passes(4, "moves", &[(one, 2)]);
    assert!(said.contains("over soft, soft2, "), "{said}");
}

/// Set for a heap on the GPU that is none.
macro_rules! gpu {
    ($fabric:literal $(, $name:literal = $value:literal)*) => {
        &[("HARNESS_GPU", "1"), ("TRUNKLINE_FABRIC", $fabric) $(, ($name, $value))*]
    };
}

/// Where no NIC reaches the GPU: all goes by GDRCopy's mapping.
#[test]
fn heaps_on_a_gpu_go_over_any_network_by_a_mapping() {
    for scenario in ["moves", "atomics", "signals"] {
        passes(4, scenario, &[(gpu!("soft:tcp"), 2), (gpu!("soft"), 3), (gpu!("ofi:tcp"), 2)]);
    }
    for (why, way) in [
        ("NVSHMEM_DISABLE_GDRCOPY is set", gpu!("soft", "NVSHMEM_DISABLE_GDRCOPY" = "1")),
        ("the kernel module gdrdrv is not loaded", gpu!("soft", "FAKE_GDR_GONE" = "1")),
    ] {
        let way: Way = way;
        let output = run(4, 2, "moves", way);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(why) && said.contains("no NIC in use reaches it"),
            "{said}"
        );
    }
}

/// Where NICs reach it: the heap is the NIC's, and words are changed by a mapping, or by copies where there is none.
#[test]
fn heaps_on_a_gpu_that_nics_reach_are_theirs() {
    if !ofi() {
        return;
    }
    macro_rules! strict {
        ($($name:literal = $value:literal),*) => {
            gpu!("ofi:strict", "FI_PROVIDER" = "strict", "FI_STRICT_HMEM" = "1", "FI_STRICT_ABORT" = "1", "HARNESS_FLUSH" = "1" $(, $name = $value)*)
        };
    }
    for (scenario, copies) in [("moves", false), ("atomics", true), ("signals", true)] {
        passes(6, scenario, &[(strict!("HARNESS_COPIES" = "0"), 2)]);
        let without: Way = if copies {
            strict!("FAKE_GDR_GONE" = "1", "HARNESS_COPIES" = "1")
        } else {
            strict!("FAKE_GDR_GONE" = "1", "HARNESS_COPIES" = "0")
        };
        passes(6, scenario, &[(without, 2)]);
    }
    passes(4, "atomics", &[(strict!("NVSHMEM_DISABLE_GDRCOPY" = "1", "HARNESS_COPIES" = "1"), 2)]);
}
