//! The planted bugs of this crate.

/// A planted bug. Without the feature `mutants` it is never on, and costs nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfiMutant(bool);

impl OfiMutant {
    /// The bug with a name; asked for when things are made.
    pub(crate) fn named(name: &str) -> Self {
        Self(cfg!(feature = "mutants") && std::env::var("TRUNKLINE_MUTANT").is_ok_and(|on| on == name))
    }

    /// Whether it is switched on.
    #[inline(always)]
    pub(crate) fn is_on(self) -> bool {
        cfg!(feature = "mutants") && self.0
    }
}
