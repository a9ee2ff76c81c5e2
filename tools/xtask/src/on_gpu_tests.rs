//! Tests of the script `scripts/on-gpu`, with checks of their own: a run with failures, limits and signals, and the
//! pack.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shell;

/// How long a test waits for a state.
const PATIENCE: Duration = Duration::from_secs(60);

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("scripts")
}

/// Whether this system has the program; if not, `./test` lists the skip.
fn has(program: &str) -> bool {
    let found = shell::find_program(program).is_some();
    if !found {
        println!("SKIPPED on-gpu: {program} is not installed");
    }
    found
}

/// A check made of shell text, without requirements.
fn check(name: &str, text: &str, limit_s: f64) -> Value {
    json!({"name": name, "shows": "a claim of a test", "command": ["/bin/sh", "-c", text], "limit_s": limit_s, "needs": []})
}

fn passes(name: &str) -> Value {
    check(name, "echo 'test result: ok. 3 passed; 0 failed'", 30.0)
}

/// A run of some checks: its files, and how it ended.
struct Trial {
    folder: tempfile::TempDir,
}

impl Trial {
    fn new(checks: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("checks"), Value::from(checks).to_string()).unwrap();
        Self { folder }
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(scripts().join("on-gpu"));
        command.arg("--checks").arg(self.folder.path().join("checks"));
        command.arg("--out").arg(self.folder.path()).args(more);
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    fn markdown(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("on-gpu.md")).unwrap()
    }

    fn results(&self) -> Value {
        let text = std::fs::read_to_string(self.folder.path().join("on-gpu.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Name, outcome and reason of each check.
    fn outcomes(&self) -> Vec<[String; 3]> {
        let results = self.results();
        let word = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let checks = results["checks"].as_array().unwrap();
        checks.iter().map(|check| ["name", "outcome", "reason"].map(|key| word(check, key))).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for the number that a check writes into a file.
fn written_number(path: &Path) -> u32 {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        if let Some(number) = found {
            return number;
        }
        assert!(Instant::now() < until, "{} is not written", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has ended; its parent may not have reaped it yet.
fn ends(pid: u32) {
    let until = Instant::now() + PATIENCE;
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
    };
    while runs() {
        assert!(Instant::now() < until, "process {pid} still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn failing_check_does_not_stop_others() {
    if !has("python3") {
        return;
    }
    let trial = Trial::new(&[
        check("fails", "echo 'test a::b ... FAILED'; echo 'the end'; exit 101", 30.0),
        check("dies", "kill -SEGV $$", 30.0),
        json!({"name": "missing", "shows": "", "command": ["/nowhere/at/all"], "limit_s": 30, "needs": []}),
        passes("passes"),
    ]);
    let output = trial.run(&[]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", text(&output.stderr));
    let outcomes = trial.outcomes();
    assert_eq!(outcomes[0], ["fails", "failed", "failed tests: a::b"]);
    assert_eq!(outcomes[1], ["dies", "failed", "it ended with signal 11: "]);
    assert!(outcomes[2][1] == "failed" && outcomes[2][2].contains("/nowhere/at/all"), "{outcomes:?}");
    assert_eq!(outcomes[3], ["passes", "passed", ""]);
    let results = trial.results();
    assert_eq!(results["counts"], json!({"passed": 1, "failed": 3, "skipped": 0}));
    assert_eq!(results["checks"][3]["tests"], 3);
    let tail: Vec<_> = results["checks"][0]["tail"].as_array().unwrap().iter().collect();
    assert_eq!(tail, ["test a::b ... FAILED", "the end"]);
    // `./test` finds failures and counts by these lines.
    assert!(said.contains("\ntest fails ... FAILED\n") && said.contains("\ntest passes ... ok\n"), "{said}");
    assert!(said.ends_with("\ntest result: FAILED. 1 passed; 3 failed; 0 ignored\n"), "{said}");
}

#[test]
fn a_check_over_its_limit_is_killed_with_its_children() {
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("child");
    let hangs = format!("sleep 1000 & echo $! > {}.part; mv {0}.part {0}; wait", file.display());
    // It gets SIGTERM first, so that it can end the processes that it has started elsewhere.
    let told = folder.path().join("told");
    let ends_well = format!("trap 'echo 1 > {}; exit' TERM; sleep 1000 & wait", told.display());
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let trial = Trial::new(&[
        check("hangs", &hangs, 2.0),
        check("ends well", &ends_well, 2.0),
        check("stubborn", stubborn, 1.0),
        passes("passes"),
    ]);
    let began = Instant::now();
    assert_eq!(trial.run(&[]).status.code(), Some(1));
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(trial.outcomes()[0], ["hangs", "failed", "it exceeded its limit of 2 s"]);
    assert_eq!(trial.outcomes()[1], ["ends well", "failed", "it exceeded its limit of 2 s"]);
    assert_eq!(trial.outcomes()[2], ["stubborn", "failed", "it exceeded its limit of 1 s"]);
    assert_eq!(trial.outcomes()[3][1], "passed");
    ends(written_number(&file));
    assert_eq!(written_number(&told), 1);
}

#[test]
fn the_limit_of_a_run_lists_unreached_checks() {
    if !has("python3") {
        return;
    }
    let trial = Trial::new(&[passes("first"), check("long", "sleep 1000", 500.0), passes("later")]);
    // Five seconds of it are reserved for the end, and no check starts in the five seconds before that.
    let output = trial.run(&["--limit", "12"]);
    assert_eq!(output.status.code(), Some(0), "unreached checks are not failures");
    let outcomes = trial.outcomes();
    assert_eq!(outcomes[0], ["first", "passed", ""]);
    assert_eq!(outcomes[1], ["long", "skipped", "not finished: the run's 12 s were over"]);
    assert_eq!(outcomes[2], ["later", "skipped", "not reached: the run's 12 s were over"]);
    assert!(text(&output.stdout).contains("test later ... ignored, not reached: the run's 12 s were over"));
    assert!(trial.results()["seconds"].as_f64().unwrap() < 12.0);
}

#[test]
fn a_signal_ends_the_run_and_the_results_remain() {
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let hangs = format!("echo $$ > {}.part; mv {0}.part {0}; exec sleep 1000", file.display());
    let trial = Trial::new(&[passes("first"), check("hangs", &hangs, 500.0), passes("later")]);
    let mut run: Child = trial.command(&[]).stdout(Stdio::null()).spawn().unwrap();
    let pid = written_number(&file);
    let target = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(target, rustix::process::Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    ends(pid);
    let outcomes = trial.outcomes();
    assert_eq!(outcomes[0][1], "passed");
    assert_eq!(outcomes[1], ["hangs", "skipped", "not finished: the run was ended by a signal"]);
    assert_eq!(outcomes[2], ["later", "skipped", "not reached: the run was ended by a signal"]);
}

#[test]
fn a_check_is_judged_by_the_tests_that_ran() {
    if !has("python3") {
        return;
    }
    let rows = |name: &str, text: &str| {
        let mut check = check(name, &format!("echo '{text}'"), 30.0);
        check["counts"] = "rows".into();
        check["row"] = "\"M2\"".into();
        check
    };
    let none = check("none", "echo 'test result: ok. 0 passed; 0 failed'", 30.0);
    let figures = r#"echo '{"net": "socket", "gbs": 2.5}'; echo 'test result: ok. 1 passed; 0 failed'"#;
    let skips = "echo 'one: no device' >> $TRUNKLINE_SKIP_LOG; echo 'test result: ok. 2 passed; 0 failed'";
    let all = format!("{skips}; echo 'two: no device' >> $TRUNKLINE_SKIP_LOG");
    let absent = check("absent", "echo 'install PyTorch'; exit 77", 30.0);
    let checks = [
        none,
        check("some", skips, 30.0),
        check("all", &all, 30.0),
        absent,
        rows("right", r#"{"way": "M2", "wrong": 0}"#),
        rows("wrong", r#"{"way": "M2", "wrong": 1}"#),
        rows("other", r#"{"way": "M1", "wrong": 0}"#),
        rows("left out", r#"{"way": "M2", "skipped": "no NVRTC"}"#),
        check("figures", figures, 30.0),
    ];
    let trial = Trial::new(&checks);
    assert_eq!(trial.run(&[]).status.code(), Some(1));
    let expected = [
        ["none", "failed", "no test ran"],
        ["some", "passed", ""],
        ["all", "skipped", "one: no device"],
        ["absent", "skipped", "install PyTorch"],
        ["right", "passed", ""],
        ["wrong", "failed", "rows have wrong bytes"],
        ["other", "failed", "no row has \"M2\""],
        ["left out", "failed", "the program skipped it: no NVRTC"],
        ["figures", "passed", ""],
    ];
    assert_eq!(trial.outcomes(), expected);
    let results = trial.results();
    assert_eq!(
        (&results["checks"][1]["tests"], &results["checks"][1]["skips"][0]),
        (&1.into(), &"one: no device".into())
    );
    assert_eq!(results["checks"][4]["rows"], json!([{"way": "M2", "wrong": 0}]));
    assert_eq!(results["checks"][8]["rows"], json!([{"net": "socket", "gbs": 2.5}]));
}

#[test]
fn a_missing_requirement_is_a_failure() {
    if !has("python3") {
        return;
    }
    let mut needs = passes("needs");
    needs["needs"] = json!(["bogus"]);
    let trial = Trial::new(&[passes("passes"), needs]);
    let outcome = |require: &str| {
        let code = trial.command(&[]).env("TRUNKLINE_REQUIRE", require).output().unwrap().status.code();
        (code, trial.outcomes()[1][1].clone())
    };
    assert_eq!(outcome("soft"), (Some(0), "skipped".to_owned()));
    assert_eq!(outcome("soft,bogus"), (Some(1), "failed".to_owned()));
}

/// Over the library that replaces the driver, whose attributes are known.
#[test]
fn a_run_begins_with_the_device_api_attributes() {
    if !has("python3") || !has("cc") || !has("c++") {
        return;
    }
    let mut real = passes("real");
    real["needs"] = json!(["gpu", "torch"]);
    let mut stands = passes("stands");
    stands["stand_in"] = json!({"driver": "kernels"});
    let trial = Trial::new(&[real, stands]);
    let output = trial.run(&["--stand-in"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let lines: Vec<_> = said.lines().collect();
    let first = [
        "card: stand-in driver",
        "  GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: no",
        "  DMA_BUF_SUPPORTED: no",
        "  VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: yes",
        "  CAN_USE_64_BIT_STREAM_MEM_OPS: yes",
    ];
    assert_eq!(lines[..first.len()], first);
    let head =
        lines.iter().take_while(|line| !line.starts_with("test ")).copied().collect::<Vec<_>>().join("\n");
    assert!(
        head.contains("\n  GDRCopy: ") && head.contains("\n  BAR1: ") && head.contains("CUDA 12.4"),
        "{head}"
    );
    assert_eq!(trial.outcomes()[0], ["real", "skipped", "the stand-in has no PyTorch"]);
    assert_eq!(trial.outcomes()[1][1], "passed");
    let (results, table) = (trial.results(), trial.markdown());
    assert_eq!((&results["schema"], &results["stand_in"]), (&1.into(), &true.into()));
    assert_eq!(results["machine"]["compute_capability"], "9.0");
    assert_eq!(results["machine"]["attributes"]["VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"], 1);
    for row in [
        "this says nothing about hardware",
        "| driver, CUDA | ",
        "| compute capability | 9.0 |",
        "| commit | ",
        "| DMA_BUF_SUPPORTED | no |",
        "| real | skipped: the stand-in has no PyTorch |",
        "| stands | passed | 3 |",
    ] {
        assert!(table.contains(row), "{row}: {table}");
    }
}

#[test]
fn a_machine_without_a_gpu_is_a_skip() {
    if !has("python3") || Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let mut needs = passes("needs");
    needs["needs"] = json!(["gpu"]);
    let output = Trial::new(&[needs]).run(&[]);
    assert_eq!(output.status.code(), Some(77));
    assert!(text(&output.stdout).lines().last().unwrap().contains("--stand-in runs the checks without one"));
}

/// `scripts/on-gpu` runs it on hosts with a GPU.
#[test]
fn nvshmem_without_a_driver_is_a_skip() {
    if !has("python3") || Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let output =
        Command::new(scripts().join("nvshmem-one-gpu")).env_remove("TRUNKLINE_REQUIRE").output().unwrap();
    assert_eq!(output.status.code(), Some(77));
    assert!(text(&output.stdout).starts_with("no driver of NVIDIA: libcuda.so.1"));
}

/// The sizes and offsets are those that NVSHMEM's headers assert.
#[test]
fn structures_for_nvshmem_have_its_layout() {
    if !has("python3") {
        return;
    }
    let lines = "import ctypes, importlib.machinery, importlib.util\n\
                 loader = importlib.machinery.SourceFileLoader('one', sys.argv[1])\n\
                 one = importlib.util.module_from_spec(importlib.util.spec_from_loader('one', loader))\n\
                 loader.exec_module(one)\n\
                 sizes = [ctypes.sizeof(of) for of in [one.UniqueId, one.UniqueIdArgs, one.InitArgs, one.InitAttr]]\n\
                 print(sizes, one.InitAttr.args.offset, one.InitArgs.uid_args.offset, one.versioned(one.InitAttr).version)";
    let output = python(lines, &[&scripts().join("nvshmem-one-gpu")]);
    assert_eq!(text(&output.stdout), "[128, 24, 128, 144] 16 8 65680\n", "{}", text(&output.stderr));
}

/// Runs lines of Python beside the script's modules.
fn python(lines: &str, arguments: &[&Path]) -> Output {
    let head = "import sys, pathlib\nsys.dont_write_bytecode = True\nfrom on_gpu import checks, pack\n";
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{head}{lines}")]).args(arguments).env("PYTHONPATH", scripts());
    command.output().unwrap()
}

#[test]
fn pack_has_a_limit_and_unpacks_unchanged() {
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [source, packed, back] = ["source", "packed", "back"].map(|name| folder.path().join(name));
    std::fs::create_dir(&source).unwrap();
    // Bytes that do not compress: the compressed size of a MiB is a MiB.
    let mut word = 1_u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 56) as u8
    };
    let noise: Vec<u8> = (0..1 << 20).map(|_| next()).collect();
    std::fs::write(source.join("tests"), &noise).unwrap();
    let write = |max_mib: f64| {
        let lines = format!(
            "head = {{'commit': 'c', 'changed': False, 'profile': 'dev', 'tests': {{'a': 1}}}}\n\
             try: pack.write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), head, {max_mib})\n\
             except pack.PackError as error: sys.exit(str(error))"
        );
        python(&lines, &[&packed, &source])
    };
    let refused = write(0.9);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("the pack would have 1.0 MiB, and at most 0.9 MiB travel"));
    assert!(!packed.exists(), "half a pack is none");
    assert!(write(1.1).status.success());
    let unpack = || {
        let lines = "try: print(pack.unpack(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))[0]['commit'])\n\
                     except pack.PackError as error: sys.exit(str(error))";
        let output = python(lines, &[&packed, &back]);
        let found = std::fs::read(back.join("tests")).ok();
        std::fs::remove_dir_all(&back).ok();
        (text(&output.stdout), text(&output.stderr), found)
    };
    let (said, _, found) = unpack();
    assert!(said == "c\n" && found.as_ref() == Some(&noise));
    let manifest = std::fs::read_to_string(packed.join("manifest.json")).unwrap();
    let with = |key: &str, value: Value| {
        let mut whole: Value = serde_json::from_str(&manifest).unwrap();
        *whole.pointer_mut(key).unwrap() = value;
        std::fs::write(packed.join("manifest.json"), whole.to_string()).unwrap();
        unpack().1
    };
    assert!(with("/schema", 2.into()).contains("schema 2, and this script reads 1"));
    assert!(with("/host", "pdp11".into()).contains("the pack is for pdp11"));
    assert!(with("/files/0/sha256", "0".into()).contains("tests is not the file that was packed"));
    std::fs::write(packed.join("manifest.json"), &manifest).unwrap();
    std::fs::write(packed.join("tests.xz"), "no archive").unwrap();
    assert!(unpack().1.contains("unpacking tests: "));
}

#[test]
fn a_check_whose_tests_were_renamed_is_refused() {
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("tests");
    let script = "#!/bin/sh\necho 'new::name: test'\necho 'other: test'\n";
    std::fs::write(&binary, script).unwrap();
    std::fs::set_permissions(&binary, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let count = |filter: &str| {
        let lines = format!(
            "check = checks.Check('c', '', ('{{pack}}/tests', '{filter}'), 1)\n\
             try: print(pack.count_tests(check, pathlib.Path(sys.argv[1])))\n\
             except pack.PackError as error: sys.exit(str(error))"
        );
        let output = python(&lines, &[folder.path()]);
        text(&output.stdout) + &text(&output.stderr)
    };
    assert_eq!(count("new::name"), "2\n");
    assert!(count("old::name").contains("check c: no test is named old::name"));
}

#[test]
fn the_table_is_listed_and_arguments_are_checked() {
    if !has("python3") {
        return;
    }
    let script =
        |arguments: &[&str]| Command::new(scripts().join("on-gpu")).args(arguments).output().unwrap();
    let list = text(&script(&["--list"]).stdout);
    assert!(list.starts_with("nccl ") && list.lines().count() > 10, "{list}");
    let only = text(&script(&["--list", "--only", "windows,messages"]).stdout);
    let names: Vec<_> = only.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["windows", "messages"]);
    let unknown = script(&["--only", "bogus"]);
    assert!(unknown.status.code() == Some(2) && text(&unknown.stderr).contains("no check is named bogus"));
    assert_eq!(script(&["--bogus"]).status.code(), Some(2));
    let help = text(&script(&["--help"]).stdout);
    for word in ["--pack", "--stand-in", "--only", "on-gpu.json is one object", "docs/status.md"] {
        assert!(help.contains(word), "{word}");
    }
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial::new(&[passes("passes")]);
    let missing = trial.command(&["--folder"]).arg(folder.path()).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("scripts/on-gpu --pack makes one on a machine with Rust"));
}

/// A library as NCCL's: two sections of device code, each a chain of containers with images of several architectures.
const LIBRARY: &str = "
import struct
from on_gpu import wheel
def image(arch, text, kind=2):
    text = text.ljust(64, b'.')
    return struct.pack('<HHIQ12xI32x', kind, 1, 64, len(text), arch) + text
def container(*images):
    return struct.pack('<IHHQ', 0xBA55ED50, 1, 16, len(b''.join(images))) + b''.join(images)
def library(linked, parts):
    names = b'\\0.nv_fatbin\\0__nv_relfatbin\\0.names\\0'
    at = 64
    table, body = [bytes(64)], b''
    for name, data in [(1, linked), (12, parts), (27, names)]:
        table.append(struct.pack('<IIQQQQ24x', name, 1, 0, 0, at + len(body), len(data)))
        body += data
    body += bytes(-len(body) % 8)
    head = b'\\x7fELF\\x02\\x01'.ljust(40, b'\\0') + struct.pack('<Q', at + len(body)) + bytes(10) + struct.pack('<3H', 64, 4, 3)
    return bytearray(head + body + b''.join(table))
def kept(made, arch):
    try: print(wheel.keep_arch(made, arch), end=' ')
    except wheel.FormatError as error: print(error)
linked = container(image(80, b'linked-80'), image(90, b'linked-90')) + bytes(8) + container(image(90, b'text-90', 1))
made = library(linked, container(image(80, b'part-80'), image(90, b'part-90')))
length, head = len(made), bytes(made[:64])
";

#[test]
fn only_the_code_of_one_architecture_stays_in_nccl() {
    if !has("python3") {
        return;
    }
    let lines = "
kept(made, 90)
print([word in made for word in [b'linked-80', b'part-80', b'linked-90', b'part-90', b'text-90']], len(made) == length, made[:64] == head)
kept(library(linked, b''), 100)
kept(library(linked + b'anything', b''), 90)
kept(library(linked[:-8], b''), 90)
kept(library(container(image(90, b'a', 7)), b''), 90)
kept(bytearray(b'no library'), 90)
";
    let output = python(&format!("{LIBRARY}{lines}"), &[]);
    let expected = "(3, 2) [False, False, True, True, True] True True\n\
                    the library has no code for architecture 100\n\
                    no container of images at offset 488\n\
                    no container of images at offset 344\n\
                    no image at offset 80\n\
                    the library is no 64-bit little-endian ELF file\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}
