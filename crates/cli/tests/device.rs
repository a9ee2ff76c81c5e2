//! `trunkline bench device`: it prints every row, no byte is wrong, and the goals are compared.

#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[test]
fn device_bench_prints_every_row_without_errors() {
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
        // Five lines for each of two sizes, a signal, and three batches; two and four producers.
        assert_eq!((of_way("B1"), of_way("B2")), (14, 2), "{way}: {out}");
    }
    // Two sizes and three batches per mode. The rows of a GPU are measured, or skipped as one row.
    for way in ["M0", "M1"] {
        let count = rows.iter().filter(|row| row["way"] == way && row["bench"] == "B5").count();
        assert_eq!(count, 5, "{way}: {out}");
    }
    let gpus: Vec<_> = rows.iter().filter(|row| row["way"].as_str().unwrap().starts_with("M2")).collect();
    match &gpus[..] {
        [one] => assert!(one["skipped"].as_str().is_some_and(|reason| !reason.is_empty()), "{out}"),
        all => assert_eq!(all.len(), 10, "{out}"),
    }
    for bench in ["B3", "B4", "B6"] {
        assert!(rows.iter().any(|row| row["bench"] == bench), "{bench}: {out}");
    }
    for way in ["executor", "page"] {
        assert!(rows.iter().any(|row| row["bench"] == "B3" && row["way"] == way), "{way}: {out}");
    }
    assert!(
        bars.len() == 11 && bars.iter().all(|bar| bar["found"].as_f64().is_some_and(|found| found > 0.0))
    );
}

/// The rows of M2, over a stand-in for NVIDIA's driver (`crates/device/tests/m2`). NVRTC compiles the kernels, but host
/// threads run in their place, so the times have no meaning.
#[test]
fn device_bench_measures_a_gpu_if_present() {
    let folder = tempfile::tempdir().unwrap();
    let (driver, kernels) = (folder.path().join("libcuda.so.1"), folder.path().join("kernels.so"));
    let Some(nvrtc) = kept() else { return skip("NVRTC is not kept: run scripts/device-header") };
    let built = build("cc", "stub.c", &driver, &["-Wl,-soname,libcuda.so.1"])
        && build("c++", "kernels.cpp", &kernels, &["-std=c++17"]);
    if !built {
        return skip("no C or C++ compiler");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(["bench", "device", "-b", "8", "-e", "8", "-i", "32", "--json"]);
    let paths = std::env::join_paths([folder.path(), nvrtc.as_path()]).unwrap();
    let output = command.env("LD_LIBRARY_PATH", paths).env("STUB_KERNELS", &kernels).output().unwrap();
    let (out, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for way in ["M2 device", "M2 pinned"] {
        let of_way: Vec<_> = rows.iter().filter(|row| row["way"] == way).collect();
        assert!(
            of_way.len() == 4 && of_way.iter().all(|row| row["bench"] == "B5" && row["wrong"] == 0),
            "{out}"
        );
        let measured = |row: &&Value| row["p50_us"].as_f64().or(row["rate_mops"].as_f64()) > Some(0.0);
        assert!(of_way.iter().all(measured), "{out}");
    }
}

fn build(compiler: &str, source: &str, to: &Path, more: &[&str]) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(compiler);
    command.args(["-O2", "-shared", "-fPIC", "-pthread"]).args(more).arg("-I").arg(root.join("include"));
    command.arg("-o").arg(to).arg(root.join("crates/device/tests/m2").join(source));
    command.status().is_ok_and(|status| status.success())
}

/// The folder of the NVRTC that `scripts/device-header` keeps.
fn kept() -> Option<PathBuf> {
    let home = |under: &str| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(under));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| home(".cache"))?;
    let folders = std::fs::read_dir(cache.join("trunkline")).ok()?;
    let mut found = folders.filter_map(|folder| Some(folder.ok()?.path().join("nvidia/cuda_nvrtc/lib")));
    found.find(|folder| folder.join("libnvrtc.so.12").exists())
}

/// Reports a skip with its reason, which `./test` counts.
fn skip(reason: &str) {
    use std::io::Write as _;
    let name = "bench device over a stand-in GPU";
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|one| one.trim() == "nvrtc"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot note a skip: {noted:?}");
    }
}

#[test]
fn invalid_sizes_of_device_queues_are_refused() {
    for sizes in [["-b", "64", "-e", "8"], ["-b", "8", "-e", "128G"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        let output = command.args(["bench", "device"]).args(sizes).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("sizes"));
    }
}
