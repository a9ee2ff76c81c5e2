//! `trunkline bench` over this plugin.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::run::wait;

const LIMIT: Duration = Duration::from_secs(120);

fn trunkline() -> &'static Path {
    static CELL: OnceLock<PathBuf> = OnceLock::new();
    CELL.get_or_init(|| trunkline_tests::command().unwrap())
}

/// Runs a bench to its end: whether it succeeded, its rows, and what it said.
fn bench(program: &Path, args: &str, env: &[(&str, &str)]) -> (bool, Vec<serde_json::Value>, String) {
    let mut command = Command::new(program);
    command.arg("bench").args(args.split_whitespace()).arg("--json");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRUNKLINE_")) {
        command.env_remove(name);
    }
    command.envs(env.iter().copied());
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
    let plugin = trunkline_tests::plugin().unwrap();
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
    std::fs::copy(trunkline_tests::plugin().unwrap(), &plugin).unwrap();
    let args = format!("sendrecv -b 8 -e 64K -f 16 -w 1 -i 3 --plugin {}", plugin.display());
    let (success, rows, said) = bench(&program, &args, &[]);
    assert!(success && !rows.is_empty(), "{said}");
    let ours = |row: &serde_json::Value| row["fabric"] == "soft" && row["plugin"] == "Trunkline";
    assert!(rows.iter().all(|row| row["wrong"] == 0 && ours(row)), "{said}");
    std::fs::remove_file(&plugin).unwrap();
    let (success, rows, said) = bench(&program, &args, &[]);
    assert!(!success && rows.is_empty(), "without the plugin: {said}");
}

/// Without the flush, delayed writes are not there: flushing is what makes the bytes right.
#[test]
fn taking_the_flush_away_gives_wrong_bytes() {
    let plugin = trunkline_tests::plugin().unwrap();
    let delayed = [("TRUNKLINE_SOFT_DELAYED", "1")];
    let args = "sendrecv -b 4K -e 1M -f 16 -w 1 -i 3";
    right(&format!("{args} --flush always"), &delayed);
    right("all_reduce -b 4K -e 256K -f 8 -w 1 -i 3 -n 3 --flush always", &delayed);
    let never = format!("{args} --flush never --plugin {}", plugin.display());
    let (success, rows, said) = bench(trunkline(), &never, &delayed);
    assert!(!success, "a failing exit status: {said}");
    assert!(rows.iter().any(|row| row["wrong"].as_u64().is_some_and(|wrong| wrong > 0)), "{said}");
    // The same without delay is right.
    right(&format!("{args} --flush never"), &[]);
}

#[test]
fn collectives_with_every_setting() {
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
