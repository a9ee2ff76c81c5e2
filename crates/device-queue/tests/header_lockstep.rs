//! The device header on lanes that run in lockstep, as in a wavefront of AMD's GPUs. `header/wavefront.h` stops a lane
//! that has left a loop until all lanes have left it. It ends the program if a second lane enters a loop in which lanes
//! wait for each other.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

#[allow(dead_code, reason = "the library for acts is not used here")]
#[path = "header/fixture.rs"]
mod fixture;

use std::process::Command;

use fixture::{compile, skip};

/// Runs the program for each operation, in both of its modes. Checks the number of successful operations, of 24, and
/// the number of posted entries.
fn run_operations(test: &str, operations: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("lockstep");
    if !compile("c++", "lockstep.cpp", &["-O2", "-o", program.to_str().unwrap()]) {
        return skip(test, "no C++ compiler (Debian: g++)");
    }
    for (operation, expected) in operations {
        for mode in ["rule", "hang"] {
            let output = Command::new(&program).args([operation, mode]).output().unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{operation}, {mode}: {}, {error}", output.status);
            assert_eq!(told.trim(), *expected, "{operation}, {mode}");
        }
    }
}

/// The queue has room for two entries, so lanes wait for entries that other lanes have reserved.
#[test]
fn lanes_in_lockstep_post_alternately() {
    let operations =
        [("post", "24 24"), ("put", "24 48"), ("shares", "24 48"), ("ring", "24 0"), ("mlx5", "24 48")];
    run_operations("lanes in lockstep post by turns", &operations);
}

/// Lanes of several groups share a wavefront.
#[test]
fn groups_in_lockstep_put_by_their_leaders() {
    run_operations("groups in lockstep put by their leaders", &[("alone", "24 48"), ("groups", "24 24")]);
}

/// The first lane cancels while a thread of another wavefront does not publish; later lanes continue.
#[test]
fn lane_in_lockstep_cancels_its_place() {
    run_operations("a lane in lockstep cancels its place", &[("outsider", "23 25")]);
}
