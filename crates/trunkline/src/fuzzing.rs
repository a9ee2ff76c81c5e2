//! The fuzz targets of this crate. The programs in `testing/fuzz/` and the test that replays `testing/fuzz/corpus/`
//! call them; the product does not contain this module.

use trunkline_proto::fuzzing::FuzzTarget;

use crate::messages::rank_card;

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "rank_card", check: rank_card::fuzz_card, seeds: rank_card::card_seeds }];

/// Runs the target with that name.
///
/// # Panics
/// If there is no such target, or the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}
