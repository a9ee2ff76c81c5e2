//! The properties of every run, with one file per property. The cluster reports the engines' results; the checkers
//! read memory and counts themselves, and never the engine's internal state.

pub(crate) mod bounded;
pub(crate) mod bytes;
pub(crate) mod groups;
pub(crate) mod leaks;
pub(crate) mod once;
pub(crate) mod order;

use std::fmt;

/// A property that did not hold.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PropertyViolation {
    /// The checker that found it.
    pub checker: &'static str,
    /// The description.
    pub text: String,
}

impl fmt::Display for PropertyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.text)
    }
}

/// Whether a property held.
pub(crate) type PropertyResult = Result<(), PropertyViolation>;
