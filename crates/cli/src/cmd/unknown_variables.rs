//! Detects environment variables that have our prefix and are unknown; most are typing errors. Called by `info`.

use trunkline_engine::TABLE;
use trunkline_verbs::VerbsConfig;

use crate::locate;

/// Variables of the bench and the tests, which are not parameters of the engine.
const OTHERS: [&str; 8] = [
    locate::VARIABLE,
    "TRUNKLINE_SEED",
    "TRUNKLINE_SEEDS",
    "TRUNKLINE_FULL",
    "TRUNKLINE_CORPUS",
    "TRUNKLINE_REQUIRE",
    "TRUNKLINE_SKIP_LOG",
    "TRUNKLINE_PANIC",
];

/// Prints warnings.
pub(super) fn print_warnings(warnings: &[String]) {
    for warning in warnings {
        eprintln!("trunkline: warning: {warning}");
    }
}

/// A warning for each variable with our prefix that no code reads.
pub(super) fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let of_devices: Vec<String> = VerbsConfig::variable_names().collect();
    let known =
        || TABLE.iter().map(|row| row.name).chain(OTHERS).chain(of_devices.iter().map(String::as_str));
    let set_for_others = |name: &str| {
        ["TRUNKLINE_TEST_", "TRUNKLINE_NETHOST_", "TRUNKLINE_JOB_"].iter().any(|set| name.starts_with(set))
    };
    let mut strange: Vec<String> = names
        .filter(|name| name.starts_with("TRUNKLINE_") && !set_for_others(name) && !known().any(|k| k == name))
        .collect();
    strange.sort();
    let line = |name: &String| {
        let near = TABLE.iter().map(|row| row.name).chain([locate::VARIABLE]);
        match near.map(|k| (edit_distance(name, k), k)).min().filter(|(far, _)| *far <= 3) {
            Some((_, close)) => format!("{name} is not a setting; did you mean {close}?"),
            None => format!("{name} is not a setting; --params lists them all"),
        }
    };
    strange.iter().map(line).collect()
}

/// The edit distance of two words: the number of letters to insert, delete or change.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
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
    use super::{edit_distance, unknown_variables};

    #[test]
    fn a_slip_of_the_finger_is_named() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        let names = [
            "HOME",
            "TRUNKLINE_JOB_RANK",
            "TRUNKLINE_DEPHT",
            "TRUNKLINE_DEPTH",
            "TRUNKLINE_PLUGIN",
            "TRUNKLINE_BANANA",
        ];
        assert_eq!(
            unknown_variables(names.map(str::to_owned).into_iter()),
            [
                "TRUNKLINE_BANANA is not a setting; --params lists them all",
                "TRUNKLINE_DEPHT is not a setting; did you mean TRUNKLINE_DEPTH?",
            ]
        );
    }
}
