//! The fuzz targets of this crate. Called by the programs in `testing/fuzz/` and by the test that replays `testing/fuzz/corpus/`; nothing of this
//! is in the product.

use trunkline_proto::fuzzing::Target;

use crate::run::fuzzing as run_frames;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "launcher_frame", check: run_frames::frames, seeds: run_frames::frame_seeds },
    Target { name: "launcher_job", check: run_frames::job, seeds: run_frames::job_seeds },
];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}
