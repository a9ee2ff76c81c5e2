//! The fuzz targets of this crate, and their seed inputs. Called by the programs in `testing/fuzz/` and by the test
//! that replays `testing/fuzz/corpus/`; never part of the product.

mod endpoint;
mod node;

use trunkline_proto::fuzzing::FuzzTarget;

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "tagged_endpoint", check: endpoint::fuzz_endpoints, seeds: endpoint::action_seeds },
    FuzzTarget { name: "ipc_node", check: node::fuzz_node, seeds: node::node_seeds },
];

/// Runs the target of that name on an input.
///
/// # Panics
/// If the target is unknown, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}
