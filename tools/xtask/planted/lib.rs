//! Reads at run time which planted bug is selected. `cargo xtask mutants weave` writes this crate into the woven tree,
//! whose edited crates call it; no product depends on it.

use std::sync::OnceLock;

/// The variable that names the selected bug.
const CHOICE: &str = "PLANTED_BUG";

/// Returns whether the environment variable `PLANTED_BUG` names this bug. The variable is read once per process, so
/// a later call costs an atomic load and a comparison of lengths.
#[inline]
pub fn is_planted(name: &str) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var(CHOICE).ok());
    chosen.as_deref() == Some(name)
}
