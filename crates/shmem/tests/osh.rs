//! `oshcc`, `oshcxx` and `oshrun`, built and installed: the translation of their arguments, and C and C++ programs that
//! they compile, link and run. The compilers are the system's.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[path = "../src/osh/words.rs"]
mod words;

const OSHCC: &str = env!("CARGO_BIN_EXE_oshcc");
const OSHCXX: &str = env!("CARGO_BIN_EXE_oshcxx");
const OSHRUN: &str = env!("CARGO_BIN_EXE_oshrun");

/// Returns the launcher that `oshrun` runs. Cargo builds it with the whole workspace, not with this package.
fn launcher() -> PathBuf {
    let launcher = Path::new(OSHRUN).with_file_name("trunkline");
    assert!(
        launcher.is_file(),
        "{} is missing: run `cargo build -p trunkline-cli` first",
        launcher.display()
    );
    launcher
}

/// A program whose PEs put their numbers to the next PE; in C++ by overloads.
const PROGRAM: &str = r#"
    #include <shmem.h>
    #include <stdio.h>
    static int got = -1;
    int main(void) {
        shmem_init();
        int me = shmem_my_pe(), n = shmem_n_pes();
        PUT(&got, me, (me + 1) % n);
        shmem_barrier_all();
        printf("%d of %d got %d\n", me, n, got);
        shmem_finalize();
        return got != (me + n - 1) % n;
    }"#;

/// Reports a skipped test and the reason.
fn skip(what: &str, why: &str) {
    println!("SKIPPED {what}: {why}");
    if let Ok(log) = std::env::var("TRUNKLINE_SKIP_LOG") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        writeln!(file, "{what}: {why}").unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Removes the variables of this test run from a command: the job, and folders of other builds.
fn clean(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for name in ["RANK", "WORLD_SIZE", "PMI_FD", "TRUNKLINE_JOB_RANK", "LD_LIBRARY_PATH", "OSHCC", "OSHCXX"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).env("SHMEM_SYMMETRIC_SIZE", "16M");
    command
}

/// Runs a command, checks that it succeeds, and returns its output.
fn well(command: &mut Command) -> String {
    let output: Output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// Creates a folder beside the programs, so that hard links work, with the source of a program.
fn folder() -> (tempfile::TempDir, [(PathBuf, &'static str); 2]) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sources = [("ring.c", "-DPUT=shmem_int_p"), ("ring.cpp", "-DPUT=shmem_p")];
    let sources = sources.map(|(name, put)| {
        fs::write(folder.path().join(name), PROGRAM).unwrap();
        (folder.path().join(name), put)
    });
    (folder, sources)
}

/// Runs a program as two PEs, and checks that each received the other's number.
fn runs(oshrun: impl AsRef<Path>, program: &Path) {
    let said = well(clean(oshrun).args(["-np", "2"]).arg(program));
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 of 2 got 1", "1 of 2 got 0"]);
}

#[test]
fn c_and_cxx_programs_compile_link_and_run() {
    let (folder, sources) = folder();
    for (compiler, (source, put)) in [OSHCC, OSHCXX].into_iter().zip(sources) {
        let program = folder.path().join("program");
        well(clean(compiler).args(["-O1", "-Wall", "-Werror", put]).arg(&source).arg("-o").arg(&program));
        runs(OSHRUN, &program);
        // Compiles and links in two steps, as builds do.
        let object = folder.path().join("object.o");
        well(clean(compiler).args([put, "-c"]).arg(&source).arg("-o").arg(&object));
        well(clean(compiler).arg(&object).arg("-o").arg(&program));
        runs(OSHRUN, &program);
    }
}

/// Builds programs with an installation in the layout of `cargo xtask dist`: by its compilers, and by pkg-config's
/// flags.
#[test]
fn installed_compilers_and_pkg_config_build_programs() {
    let (folder, sources) = folder();
    let dist = folder.path().join("dist");
    let shmem = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["bin", "lib/pkgconfig", "include"] {
        fs::create_dir_all(dist.join(name)).unwrap();
    }
    let launcher = launcher();
    for program in [OSHCC, OSHCXX, OSHRUN].map(Path::new).into_iter().chain([launcher.as_path()]) {
        let name = program.file_name().unwrap();
        let to = dist.join("bin").join(name);
        fs::hard_link(program, &to).or_else(|_| fs::copy(program, &to).map(drop)).unwrap();
    }
    std::os::unix::fs::symlink("oshcxx", dist.join("bin/oshc++")).unwrap();
    for name in ["shmem.h", "pshmem.h"] {
        fs::copy(shmem.join("include").join(name), dist.join("include").join(name)).unwrap();
    }
    let built = Path::new(OSHRUN).parent().unwrap();
    let library = [built.join("deps/libtrunkline_shmem.so"), built.join("libtrunkline_shmem.so")];
    let library = library.iter().find(|file| file.is_file()).unwrap();
    fs::copy(library, dist.join("lib/libtrunkline-shmem.so")).unwrap();
    let config = fs::read_to_string(shmem.join("trunkline-shmem.pc")).unwrap();
    fs::write(dist.join("lib/pkgconfig/trunkline-shmem.pc"), config.replace("@VERSION@", "1")).unwrap();
    let (bin, program) = (dist.join("bin"), folder.path().join("program"));
    for (compiler, (source, put)) in ["oshcc", "oshc++"].into_iter().zip(&sources) {
        let linked = well(clean(bin.join(compiler)).arg("--showme:link"));
        assert!(linked.contains("-ltrunkline-shmem") && linked.contains("dist/lib"), "{linked}");
        well(clean(bin.join(compiler)).arg(put).arg(source).arg("-o").arg(&program));
        runs(bin.join("oshrun"), &program);
    }
    if !Command::new("pkg-config").arg("--version").output().is_ok_and(|run| run.status.success()) {
        return skip("programs by pkg-config's flags", "no pkg-config (Debian: pkgconf)");
    }
    let mut command = clean("pkg-config");
    command.env("PKG_CONFIG_PATH", dist.join("lib/pkgconfig")).args(["--cflags", "--libs"]);
    let flags = well(command.arg("trunkline-shmem"));
    for (compiler, (source, put)) in ["cc", "c++"].into_iter().zip(&sources) {
        fs::remove_file(&program).unwrap();
        let mut command = clean(compiler);
        command.arg(put).arg(source).arg("-o").arg(&program).args(flags.split_whitespace());
        well(&mut command);
        runs(bin.join("oshrun"), &program);
    }
}

fn os(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

#[test]
fn np_is_translated_only_before_the_program() {
    for (given, passed) in [
        ("-np 2 ./p", "-n 2 ./p"),
        ("-n 2 ./p -np 3", "-n 2 ./p -np 3"),
        ("--hosts a,b -np 2 ./p", "--hosts a,b -n 2 ./p"),
        ("--hosts=a,b -np 2 ./p -np", "--hosts=a,b -n 2 ./p -np"),
        ("--env A=1 --label --rsh ssh -np 4 ./p 3 -np 2", "--env A=1 --label --rsh ssh -n 4 ./p 3 -np 2"),
        ("--env -np -np 2 ./p", "--env -np -n 2 ./p"),
        ("-np 2 -- ./p -np 3", "-n 2 -- ./p -np 3"),
        ("-n2 7 -np", "-n2 7 -np"),
    ] {
        assert_eq!(words::of_launcher(os(given)), os(passed), "{given}");
    }
    // The launcher accepts the translated arguments.
    let mut command = clean(OSHRUN);
    let output =
        command.args(["--hosts", "localhost:2", "-np", "2", "sh", "-c", "echo PE"]).output().unwrap();
    assert_eq!(text(&output.stdout), "PE\nPE\n", "{}", text(&output.stderr));
}

#[test]
fn launcher_options_with_a_value_are_known() {
    let help = well(clean(launcher()).args(["run", "--help"]));
    let mut found = 0;
    for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-') && line.contains('<')) {
        let names = line.split('<').next().unwrap_or_default();
        for name in names.split([',', ' ']).filter(|name| name.starts_with('-')) {
            found += 1;
            assert!(words::TAKE_A_VALUE.contains(&name), "{line}");
        }
    }
    assert_eq!(found, words::TAKE_A_VALUE.len(), "{help}");
}

#[test]
fn compilers_link_the_library_only_when_linking() {
    for (line, links) in [
        ("a.c", true),
        ("-v a.c -o a", true),
        ("-O2 -I x a.o", true),
        ("-x c -", true),
        ("-lother", true),
        ("@file", true),
        ("-v", false),
        ("--version", false),
        ("-dumpversion", false),
        ("-v -I x -o a", false),
        ("-v -Xlinker map", false),
        ("-v -Xassembler x", false),
        ("-v --param max-gcse-memory=5", false),
        ("-c a.c", false),
        ("-S a.c", false),
        ("-E a.c", false),
        ("-MM a.c", false),
        ("", false),
    ] {
        assert_eq!(words::links(&os(line)), links, "{line}");
        for compiler in [OSHCC, OSHCXX] {
            let shown = well(clean(compiler).arg("--showme").args(os(line)));
            assert_eq!(shown.contains("-ltrunkline"), links, "{compiler} {line}: {shown}");
        }
    }
    // If a library were linked, the linker would report that `main` is missing.
    for version in ["-v", "--version", "-dumpversion"] {
        well(clean(OSHCC).arg(version));
    }
}
