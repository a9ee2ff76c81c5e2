//! One row that `cargo xtask mutants` judges: a planted bug, and tests that must detect it.
//!
//! `bug_table` makes these; `test_programs` builds the tests and `verdict` runs them.

use super::bug_file::BugSuite;

/// A planted bug, and one of its suites.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MutantRow<'a> {
    /// The value of PLANTED_BUG that selects the bug.
    pub(crate) name: &'a str,
    /// The effect of the bug.
    pub(crate) breaks: &'a str,
    /// The tests that must detect it.
    pub(crate) suite: &'a BugSuite,
    /// The crate of those tests, without prefix.
    pub(crate) package: &'a str,
}
