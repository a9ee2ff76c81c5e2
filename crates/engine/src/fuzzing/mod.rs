//! The fuzz targets of this crate, and the inputs they begin with. Called by the programs in `testing/fuzz/` and by the test that replays
//! `testing/fuzz/corpus/`; nothing of this is in the product.

use trunkline_proto::fuzzing::FuzzTarget;

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "control_address",
        check: crate::host::fuzzing::check_address,
        seeds: crate::host::fuzzing::address_seeds,
    },
    FuzzTarget {
        name: "control_stream",
        check: crate::host::fuzzing::check_actions,
        seeds: crate::host::fuzzing::action_seeds,
    },
];

/// Runs the target of this name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}
