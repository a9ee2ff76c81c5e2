//! Names that resemble settings and have no row; most are typing errors. Called once per process, for a warning.

use crate::SettingsFile;
use crate::error::shorten_text;
use crate::rows::{all_rows, is_known_name};

/// The prefix of the names that are all ours.
const PREFIX: &str = "TRUNKLINE_";

/// Prefixes of names for tests, which have no rows.
pub const TEST_PREFIXES: [&str; 3] = ["TRUNKLINE_TEST_", "TRUNKLINE_NETHOST_", "TRUNKLINE_REFUSALS_"];

/// The number of edits up to which a name is proposed for another one.
const EDITS_MAX: usize = 3;

/// A name without a row.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnknownSetting {
    /// The name.
    pub name: String,
    /// The file and the line, if it is not in the environment.
    pub place: Option<String>,
}

/// Prints a warning.
impl std::fmt::Display for UnknownSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        let name = shorten_text(&self.name);
        match nearest_name(&self.name) {
            Some(near) => write!(f, "{name} is not a setting; did you mean {near}?"),
            None => write!(f, "{name} is not a setting; `trunkline info --params` lists them all"),
        }
    }
}

/// Returns the names of an environment that begin as ours do and have no row, and all such names of the file, sorted.
pub fn find_unknown_names(
    environment: impl Iterator<Item = String>,
    file: Option<&SettingsFile>,
) -> Vec<UnknownSetting> {
    let is_for_tests = |name: &String| TEST_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let in_environment = environment
        .filter(|name| name.starts_with(PREFIX) && !is_for_tests(name) && !is_known_name(name))
        .map(|name| UnknownSetting { name, place: None });
    let mut unknown: Vec<_> = in_environment.collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    unknown.extend(file.iter().flat_map(|file| {
        file.unknown_lines().map(|line| UnknownSetting {
            name: line.name.clone(),
            place: Some(format!("{}:{}", file.path(), line.number)),
        })
    }));
    unknown
}

/// Returns the name of a row, or an alias, that differs from `name` by at most three edits, and by less than a quarter of its
/// length.
#[must_use]
pub fn nearest_name(name: &str) -> Option<&'static str> {
    let names =
        all_rows().flat_map(|row| std::iter::once(row.name).chain(row.aliases.iter().map(|a| a.name)));
    let edits_max = EDITS_MAX.min(name.len() / 4);
    // Each letter more is an edit. So a long name costs no search.
    let similar = names.filter(|known| known.len().abs_diff(name.len()) <= edits_max);
    let near = similar.map(|known| (edit_distance(name, known), known)).min()?;
    (near.0 <= edits_max).then_some(near.1)
}

/// Returns the number of letters to insert, delete or change between two words.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_changed_letters() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", ""), 3);
    }

    #[test]
    fn long_names_are_cut_and_not_compared() {
        let names = (0..50).map(|number| format!("TRUNKLINE_\u{1b}{number}{}", "x".repeat(20_000)));
        for one in find_unknown_names(names, None) {
            let text = one.to_string();
            assert!(text.starts_with("TRUNKLINE_\\u{1b}") && text.len() < 250, "{text}");
        }
    }

    #[test]
    fn warning_names_the_nearest_setting() {
        let names = [
            "HOME",
            "TRUNKLINE_TEST_X",
            "TRUNKLINE_JOB_RANK",
            "TRUNKLINE_DEPHT",
            "TRUNKLINE_DEPTH",
            "TRUNKLINE_PLUGIN",
            "TRUNKLINE_IB_HCA",
            "TRUNKLINE_BANANA",
        ];
        let file = SettingsFile::parse("f", b"TRUNKLINE_DEPTH=32\nSHMEM_SYMETRIC_SIZE=1\nX=1").unwrap();
        let lines: Vec<String> = find_unknown_names(names.map(str::to_owned).into_iter(), Some(&file))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "TRUNKLINE_BANANA is not a setting; `trunkline info --params` lists them all",
                "TRUNKLINE_DEPHT is not a setting; did you mean TRUNKLINE_DEPTH?",
                "f:2: SHMEM_SYMETRIC_SIZE is not a setting; did you mean SHMEM_SYMMETRIC_SIZE?",
                "f:3: X is not a setting; `trunkline info --params` lists them all",
            ]
        );
    }
}
