//! Planted bugs. Each proves that some check sees it; none exists without the feature `mutants`.

/// Which planted bug a machine carries. Chosen at run time, by name, in test builds only.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Mutant(#[cfg(feature = "mutants")] Option<&'static str>, #[cfg(not(feature = "mutants"))] ());

impl Mutant {
    /// No bug.
    pub const NONE: Self = Self(
        #[cfg(feature = "mutants")]
        None,
        #[cfg(not(feature = "mutants"))]
        (),
    );

    /// The bug of that name.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub const fn with_name(name: &'static str) -> Self {
        Self(Some(name))
    }

    /// Whether this bug is planted. Always false, at no cost, without the feature.
    #[inline]
    #[must_use]
    pub fn is_planted(self, name: &str) -> bool {
        #[cfg(feature = "mutants")]
        return self.0 == Some(name);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = name;
            false
        }
    }
}

/// The bug that `cargo xtask mutants` asks for, if any.
#[cfg(test)]
pub(crate) fn planted() -> Mutant {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        // The same bug for another test: one rule's, and that of everything together.
        let name = std::string::String::leak(name);
        return Mutant::with_name(name.strip_prefix("model-").unwrap_or(name));
    }
    Mutant::NONE
}
