//! The exceptions of `settings`, in tools/xtask/settings.toml: each has a reason, and one that excuses nothing is a finding.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use walkdir::WalkDir;

use super::row_constant::RowConstant;
use crate::report::CheckFindings;

/// The file, relative to the root.
pub(super) const ALLOW_LIST: &str = "tools/xtask/settings.toml";
/// Fewest characters of a reason.
const REASON_LEN_MIN: usize = 10;
/// Folders that contain no reader: the registry itself, and build outputs.
const SKIPPED_FOLDERS: [&str; 2] = ["crates/settings", "target"];

/// The exceptions, and which of them were needed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsAllowList {
    #[serde(default)]
    read: Vec<AllowedRead>,
    #[serde(default)]
    word: Vec<AllowedWord>,
    #[serde(default)]
    row: Vec<AllowedRow>,
}

/// A function that reads the environment itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedRead {
    file: String,
    function: String,
    reason: String,
    #[serde(skip)]
    is_used: bool,
}

/// Names that begin as settings do and are none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedWord {
    /// With `*` at the end: all names that begin so.
    name: String,
    reason: String,
    #[serde(skip)]
    is_used: bool,
}

/// Rows whose readers use the variable's name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedRow {
    /// A variant of `SettingGroup`: all its rows.
    #[serde(default)]
    group: String,
    /// A variable: its row alone.
    #[serde(default)]
    name: String,
    /// Files and folders that contain the readers.
    readers: Vec<String>,
    reason: String,
    #[serde(skip)]
    is_used: bool,
    /// The words of the readers, once they were needed.
    #[serde(skip)]
    words: Option<BTreeSet<String>>,
}

impl SettingsAllowList {
    /// Reads the list; an empty one if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or is not TOML of that shape.
    pub(super) fn read_list(root: &Path) -> Result<Self> {
        let path = root.join(ALLOW_LIST);
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {ALLOW_LIST}"))?;
        toml::from_str(&text).with_context(|| format!("parsing {ALLOW_LIST}"))
    }

    /// Permits a function to read the environment, if an entry names it; marks the entry as used.
    pub(super) fn permit_read(&mut self, file: &str, function: &str) -> bool {
        let found = self.read.iter_mut().find(|entry| entry.file == file && entry.function == function);
        found.map(|entry| entry.is_used = true).is_some()
    }

    /// Permits a name in a text, if an entry covers it; marks the entry as used.
    pub(super) fn permit_word(&mut self, name: &str) -> bool {
        let covers = |entry: &AllowedWord| match entry.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == entry.name,
        };
        let found = self.word.iter_mut().find(|entry| covers(entry));
        found.map(|entry| entry.is_used = true).is_some()
    }

    /// Permits a row whose constant no source names, if an entry covers it and its readers name the variable; marks the entry
    /// as used.
    ///
    /// # Errors
    /// A file of the readers cannot be read.
    pub(super) fn permit_row(&mut self, root: &Path, row: &RowConstant) -> Result<bool> {
        let covers = |entry: &&mut AllowedRow| entry.group == row.group || entry.name == row.name;
        let Some(entry) = self.row.iter_mut().find(covers) else { return Ok(false) };
        entry.is_used = true;
        let words = match &mut entry.words {
            Some(words) => words,
            words => words.insert(collect_words(root, &entry.readers)?),
        };
        Ok(words.contains(&row.name))
    }

    /// Adds a finding for each entry without a reason, and for each that excused nothing.
    pub(super) fn report_entries(&self, findings: &mut CheckFindings) {
        let reads = self.read.iter().map(|entry| {
            (format!("{} in {}", entry.function, entry.file), entry.reason.as_str(), entry.is_used)
        });
        let words = self.word.iter().map(|entry| (entry.name.clone(), entry.reason.as_str(), entry.is_used));
        let rows = self
            .row
            .iter()
            .map(|entry| (format!("{}{}", entry.group, entry.name), entry.reason.as_str(), entry.is_used));
        for (entry, reason, is_used) in reads.chain(words).chain(rows) {
            if reason.trim().len() < REASON_LEN_MIN {
                findings.add_finding(ALLOW_LIST, format!("{entry} gives no reason"));
            }
            if !is_used {
                findings.add_finding(ALLOW_LIST, format!("{entry} is not needed any more; remove the entry"));
            }
        }
    }
}

/// Collects the words of all texts in files and folders.
fn collect_words(root: &Path, places: &[String]) -> Result<BTreeSet<String>> {
    let mut words = BTreeSet::new();
    let is_wanted = |path: &Path| {
        let inside = path.strip_prefix(root).unwrap_or(path);
        !SKIPPED_FOLDERS.iter().any(|skipped| inside.ends_with(skipped)) && inside != Path::new(ALLOW_LIST)
    };
    for place in places {
        let walk = WalkDir::new(root.join(place)).into_iter();
        for entry in walk.filter_entry(|entry| is_wanted(entry.path())) {
            let entry = entry.with_context(|| format!("reading {place}, which {ALLOW_LIST} names"))?;
            if !entry.file_type().is_file() {
                continue;
            }
            // A file that is no text, such as an input of a fuzz target, names no variable.
            let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
            let found = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.extend(found.filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    Ok(words)
}
