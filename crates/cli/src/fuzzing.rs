//! The fuzz targets of this crate. Called by the programs in `testing/fuzz/` and by the test that replays
//! `testing/fuzz/corpus/`; the product does not contain them.

use trunkline_proto::fuzzing::FuzzTarget;

use crate::run::fuzzing as run_frames;

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "launcher_frame", check: run_frames::check_frames, seeds: run_frames::frame_seeds },
    FuzzTarget { name: "launcher_job", check: run_frames::check_job, seeds: run_frames::job_seeds },
];

/// Runs the target with that name.
///
/// # Panics
/// If no target has that name, or if the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}
