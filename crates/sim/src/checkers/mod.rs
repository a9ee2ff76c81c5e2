//! What must be true of every run, one file a property. Fed by the cluster with what the engines did; they look at
//! memory and counts themselves, and never at how the engine works.

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
    /// The checker that saw it.
    pub checker: &'static str,
    /// What it saw.
    pub text: String,
}

impl fmt::Display for PropertyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.text)
    }
}

/// Whether a property held.
pub(crate) type PropertyResult = Result<(), PropertyViolation>;
