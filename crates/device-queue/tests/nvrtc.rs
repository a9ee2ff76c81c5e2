//! Kernels that are compiled when a program starts: to machine code, or to an error if there is no compiler, but never
//! with a panic. The compiler is that of `scripts/device-header`, a wheel of PyPI, or the system's.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

use std::path::PathBuf;
use std::process::Command;

use trunkline_device_queue::nvrtc::{self, CompileError};
use trunkline_device_queue::{header, kernels};

/// The folder of the library that `scripts/device-header` keeps.
fn kept() -> Option<PathBuf> {
    let home = |under: &str| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(under));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| home(".cache"))?;
    let folders = std::fs::read_dir(cache.join("trunkline")).ok()?;
    let mut found = folders.filter_map(|folder| Some(folder.ok()?.path().join("nvidia/cuda_nvrtc/lib")));
    found.find(|folder| folder.join("libnvrtc.so.12").exists())
}

/// Runs a test of this file in its own process, because the loader reads its search path when a process starts.
fn again(test: &str, folder: &std::ffi::OsStr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("TRUNKLINE_TEST_NVRTC", "1");
    let output = command.env("LD_LIBRARY_PATH", folder).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_again() -> bool {
    std::env::var_os("TRUNKLINE_TEST_NVRTC").is_some()
}

fn skip(name: &str, reason: &str) {
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|one| one.trim() == "nvrtc"), "{name} must run: {reason}");
    say_skipped(name, reason);
}

fn say_skipped(name: &str, reason: &str) {
    use std::io::Write as _;
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}

/// No compiler is installed.
#[test]
fn missing_compiler_is_an_error() {
    if !is_again() {
        return again("missing_compiler_is_an_error", std::ffi::OsStr::new(""));
    }
    match nvrtc::check_available() {
        Ok(()) => say_skipped("kernels without NVRTC", "the system has it"),
        Err(error) => {
            let text = error.to_string();
            assert!(matches!(error, CompileError::Missing(_)) && text.contains("install it"), "{text}");
            assert_eq!(kernels::compile_kernels(90), Err(error));
        }
    }
}

/// Another library has the compiler's name, for each name that releases use.
#[test]
fn compiler_without_its_functions_is_an_error() {
    let name = "compiler_without_its_functions_is_an_error";
    if !is_again() {
        for library in ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"] {
            let (folder, sources) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let source = sources.path().join("empty.c");
            std::fs::write(&source, "int nvrtcVersion(int *a, int *b) { return *a = *b = 0; }\n").unwrap();
            let to = folder.path().join(library);
            let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&to).arg(&source).status();
            match compiled {
                Ok(status) if status.success() => again(name, folder.path().as_os_str()),
                other => return skip("an NVRTC without functions", &format!("no cc: {other:?}")),
            }
        }
        return;
    }
    let folder = std::env::var_os("LD_LIBRARY_PATH").unwrap();
    let library = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().file_name();
    let Err(error) = nvrtc::check_available() else { return say_skipped(name, "the system has it") };
    let expected = format!("{} has no nvrtcCreateProgram", library.display());
    assert!(error.to_string().contains(&expected), "{error}, not {expected}");
}

/// Asserts that an image is machine code for one architecture and has every kernel of this crate.
fn assert_has_kernels(image: &nvrtc::KernelImage, architecture: u32) {
    assert_eq!(image.architecture, architecture);
    assert!(image.bytes.starts_with(b"\x7fELF"), "the image must be machine code");
    for kernel in ["operations", "flood", "exchange", "endure", "stop", "ping", "ring", "dispatch", "halo"] {
        let symbol = format!("\0{kernel}\0");
        let found = image.bytes.windows(symbol.len()).any(|bytes| bytes == symbol.as_bytes());
        assert!(found, "the image must have {kernel}");
    }
}

#[test]
fn kernels_are_compiled_for_the_architecture() {
    let name = "kernels_are_compiled_for_the_architecture";
    if !is_again() {
        return match (kept(), nvrtc::check_available()) {
            (Some(folder), _) => again(name, folder.as_os_str()),
            (None, Ok(())) => again(name, std::ffi::OsStr::new("")),
            (None, Err(reason)) => skip("kernels compiled by NVRTC", &reason.to_string()),
        };
    }
    for architecture in [80, 90] {
        assert_has_kernels(&kernels::compile_kernels(architecture).unwrap(), architecture);
    }
    // NVRTC 13 no longer compiles for Volta, and its error lists the architectures that it has.
    match kernels::compile_kernels(70) {
        Ok(image) => assert_has_kernels(&image, 70),
        Err(CompileError::Architecture { asked: 70, known }) => {
            assert!(known.iter().all(|architecture| *architecture > 70), "{known:?}");
        }
        Err(error) => panic!("{error}"),
    }
    // For an architecture that is newer than the compiler, it produces PTX of the newest one that it knows.
    let image = kernels::compile_kernels(999).unwrap();
    assert!(image.architecture < 999 && image.bytes.windows(8).any(|bytes| bytes == b".version"));
    assert!(matches!(kernels::compile_kernels(60), Err(CompileError::Architecture { asked: 60, .. })));
    let text = "#include \"trunkline/device.h\"\nextern \"C\" __global__ void broken() { nothing(); }";
    match nvrtc::compile_text(text, "broken.cu", 90, &[]) {
        Err(CompileError::Compile { log, .. }) => {
            assert!(log.contains("broken.cu(2)") && log.contains("nothing"), "{log}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(nvrtc::compile_text("a\0b", "zero.cu", 90, &[]), Err(CompileError::Text));
    assert_eq!(nvrtc::compile_text("", "zero.cu", 90, &["A=\0"]), Err(CompileError::Text));
    let defined = "#if LEVEL != 3\n#error no level\n#endif\nextern \"C\" __global__ void fine() {}";
    assert!(nvrtc::compile_text(defined, "fine.cu", 90, &["LEVEL=3"]).is_ok());
    assert_eq!(header::FILES[0].name, "trunkline/device.h");
}
