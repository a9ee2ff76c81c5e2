//! `mutants/<crate>.toml`: planted bugs as edits of the product, and the tests that must detect them.
//!
//! `bug_table` reads all of them. The format is described in docs/mutants.md; nothing here reads a source.

use std::collections::BTreeMap;

use serde::Deserialize;

/// One file of bugs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BugFile {
    /// Tests that must detect bugs, by name.
    #[serde(default)]
    pub(crate) suite: BTreeMap<String, BugSuite>,
    /// The bugs, in the order of weaving.
    #[serde(default)]
    pub(crate) bug: Vec<PlantedBug>,
}

/// Tests that must detect a bug.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BugSuite {
    /// The crate whose tests they are, without prefix; left out: the crate of the file's name.
    pub(crate) package: Option<String>,
    /// `lib`, or the name of an integration test or a binary.
    #[serde(default = "default_target")]
    pub(crate) target: String,
    /// A filter of libtest, which must match at least one test.
    pub(crate) test: String,
    /// Takes `test` as a whole name.
    #[serde(default)]
    pub(crate) exact: bool,
    /// More environment for the run.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// More crates to build woven, which the tests open at run time.
    #[serde(default)]
    pub(crate) build: Vec<String>,
    /// Seconds after which a run counts as a detection.
    #[serde(default = "default_limit")]
    pub(crate) limit_s: u64,
}

/// The target of a suite that names none.
pub(crate) fn default_target() -> String {
    "lib".to_owned()
}

/// The time limit of a suite that names none, in seconds.
const fn default_limit() -> u64 {
    120
}

/// One bug.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlantedBug {
    /// The value of PLANTED_BUG that selects it.
    pub(crate) name: String,
    /// Its effect, for the table of results.
    pub(crate) breaks: String,
    /// The suites of this file that must detect it.
    pub(crate) suites: Vec<String>,
    /// Its edits.
    #[serde(default)]
    pub(crate) edit: Vec<BugEdit>,
}

/// One edit as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BugEdit {
    /// The source, relative to the root.
    pub(crate) file: String,
    /// The item around the anchor; left out: the whole file.
    #[serde(rename = "in")]
    pub(crate) item: Option<String>,
    /// A larger piece around the anchor, which occurs once where the anchor alone does not.
    pub(crate) within: Option<String>,
    swap: Option<String>,
    with: Option<String>,
    insert: Option<String>,
    before: Option<String>,
    after: Option<String>,
}

/// The change that an edit makes at its anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditAction {
    /// The text replaces the anchor.
    Swap,
    /// The text is added before the anchor.
    InsertBefore,
    /// The text is added after the anchor.
    InsertAfter,
}

/// One edit, its keys checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EditRequest<'a> {
    /// The change.
    pub(crate) action: EditAction,
    /// The tokens to find.
    pub(crate) anchor: &'a str,
    /// The text of the bug.
    pub(crate) text: &'a str,
}

impl BugEdit {
    /// Reads the edit's keys.
    ///
    /// # Errors
    /// Their combination is invalid: the message lists the allowed combinations.
    pub(crate) fn read_request(&self) -> Result<EditRequest<'_>, String> {
        let keys = (&self.swap, &self.with, &self.insert, &self.before, &self.after);
        let (action, anchor, text) = match keys {
            (Some(anchor), Some(text), None, None, None) => (EditAction::Swap, anchor, text),
            (None, None, Some(text), Some(anchor), None) => (EditAction::InsertBefore, anchor, text),
            (None, None, Some(text), None, Some(anchor)) => (EditAction::InsertAfter, anchor, text),
            _ => {
                return Err(
                    "an edit has `swap` and `with`, or `insert` and `before`, or `insert` and `after`"
                        .to_owned(),
                );
            }
        };
        if anchor.trim().is_empty() {
            return Err("its anchor is empty".to_owned());
        }
        if action != EditAction::Swap && text.trim().is_empty() {
            return Err("its `insert` is empty".to_owned());
        }
        Ok(EditRequest { action, anchor, text })
    }
}
