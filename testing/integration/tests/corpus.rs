//! Runs every file of the committed fuzz corpus through its fuzz target, on the ordinary toolchain.
//!
//! With `TRUNKLINE_CORPUS=write` the generated files are written first; `cargo xtask corpus` does that.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue must stop")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use trunkline_proto::fuzzing::FuzzTarget;

/// Fewest files of a corpus.
const FILES_MIN: usize = 10;

/// Targets that execute lists of actions over real streams, rings and memory. One of their inputs takes the time of a
/// thousand inputs of a parser.
const ACTIONS: &[&str] =
    &["control_stream", "launcher_job", "one_sided", "softnic_queue_pair", "tagged_endpoint"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// Targets of crates that do not use `Target`.
fn named() -> impl Iterator<Item = FuzzTarget> {
    let all = trunkline_bootstrap::fuzzing::TARGETS.iter().chain(trunkline_mem::fuzzing::TARGETS);
    let all = all.chain(trunkline_nccl_host::fuzzing::TARGETS).chain(trunkline_settings::fuzzing::TARGETS);
    all.map(|&(name, check, seeds)| FuzzTarget { name, check, seeds })
}

fn targets() -> impl Iterator<Item = FuzzTarget> {
    let all = trunkline_proto::fuzzing::TARGETS.iter().chain(trunkline_softnic::fuzzing::TARGETS);
    let all = all.chain(trunkline_verbs::fuzzing::TARGETS).chain(trunkline_ofi::fuzzing::TARGETS);
    let all = all.chain(trunkline_engine::fuzzing::TARGETS).chain(trunkline_node::fuzzing::TARGETS);
    let all = all.chain(trunkline::fuzzing::TARGETS).chain(trunkline_runtime::fuzzing::TARGETS);
    all.chain(trunkline_cli::fuzzing::TARGETS).copied().chain(named())
}

/// Names in a folder, without their last `suffix`; empty if the folder does not exist.
fn names(folder: &Path, suffix: &str) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| name.strip_suffix(suffix).unwrap_or(&name).to_owned()).collect()
}

fn seed_name(at: usize) -> String {
    format!("seed-{at:02}")
}

fn write_seeds(target: &FuzzTarget) {
    let folder = folder().join("corpus").join(target.name);
    fs::create_dir_all(&folder).unwrap();
    for old in names(&folder, "").iter().filter(|name| name.starts_with("seed-")) {
        fs::remove_file(folder.join(old)).unwrap();
    }
    for (at, bytes) in (target.seeds)().iter().enumerate() {
        fs::write(folder.join(seed_name(at)), bytes).unwrap();
    }
}

#[test]
fn every_file_is_replayed() {
    let write = std::env::var("TRUNKLINE_CORPUS").is_ok_and(|word| word == "write");
    for target in targets() {
        if write {
            write_seeds(&target);
        }
        let folder = folder().join("corpus").join(target.name);
        let files = names(&folder, "");
        assert!(files.len() >= FILES_MIN, "{} has {} files", folder.display(), files.len());
        for (at, seed) in (target.seeds)().iter().enumerate() {
            let path = folder.join(seed_name(at));
            let found = fs::read(&path).ok();
            assert_eq!(found.as_ref(), Some(seed), "{}: `cargo xtask corpus` writes it", path.display());
        }
        for file in files {
            println!("{} {file}", target.name);
            (target.check)(&fs::read(folder.join(file)).unwrap());
        }
    }
}

#[test]
fn targets_programs_and_folders_are_the_same_list() {
    let known: BTreeSet<String> = targets().map(|target| target.name.to_owned()).collect();
    assert_eq!(names(&folder().join("fuzz_targets"), ".rs"), known);
    assert_eq!(names(&folder().join("corpus"), ""), known);
}

#[test]
fn mutated_seeds_hold_in_every_target() {
    let mut numbers = trunkline_proto::fuzzing::RandomNumbers::new(77);
    for target in targets() {
        for seed in (target.seeds)() {
            for _ in 0..if ACTIONS.contains(&target.name) { 3 } else { 100 } {
                let mut bytes = seed.clone();
                for _ in 0..=numbers.next_below(4) {
                    if !bytes.is_empty() {
                        let at = numbers.next_below(bytes.len());
                        bytes[at] = numbers.next_u64() as u8;
                    }
                }
                (target.check)(&bytes);
            }
        }
    }
}

/// Sequences of actions.
#[test]
fn action_lists_hold() {
    let mut numbers = trunkline_proto::fuzzing::RandomNumbers::new(78);
    for name in ACTIONS {
        let target = targets().find(|target| target.name == *name).unwrap();
        let folder = folder().join("corpus").join(name);
        names(&folder, "").into_iter().for_each(|file| (target.check)(&fs::read(folder.join(file)).unwrap()));
        for _ in 0..40 {
            let script = trunkline_proto::fuzzing::random_script(&mut numbers, 64);
            println!("{name} {script:?}");
            (target.check)(&script);
        }
    }
}

#[test]
#[should_panic(expected = "no fuzz target nothing")]
fn an_unknown_target_is_refused() {
    trunkline_proto::fuzzing::run("nothing", &[]);
}
