//! The bug that `cargo xtask mutants` asks for in the tests and fuzz targets of this crate. Never in the product, whose bug comes with its
//! parameters.

use crate::Mutant;

/// Returns the bug that the environment names, or none.
pub(crate) fn planted_mutant() -> Mutant {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        return Mutant::with_name(name.leak());
    }
    Mutant::NONE
}
