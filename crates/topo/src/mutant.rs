//! Planted bugs. Each proves that some test sees it; the product without the feature `mutants` has none.

/// Whether `cargo xtask mutants` asks for the bug of this name. Without the feature it is never on, and costs nothing.
pub(crate) fn is_planted(name: &str) -> bool {
    cfg!(feature = "mutants") && std::env::var("TRUNKLINE_MUTANT").is_ok_and(|on| on == name)
}
