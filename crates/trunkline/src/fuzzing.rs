//! The fuzz targets of this crate. Called by the programs in `testing/fuzz/` and by the test that replays `testing/fuzz/corpus/`; nothing of this
//! is in the product.

use trunkline_proto::fuzzing::FuzzTarget;

use crate::messages::rank_card;

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "rank_card", check: rank_card::fuzz_card, seeds: rank_card::card_seeds }];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}
