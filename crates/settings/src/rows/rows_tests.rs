use std::collections::BTreeSet;
use std::ffi::OsString;

use super::*;
use crate::{FrontEndKind, SettingGroup, SettingKind, SettingValues};

const FRONT_ENDS: [FrontEndKind; 5] = [
    FrontEndKind::Nccl,
    FrontEndKind::OpenShmem,
    FrontEndKind::Nvshmem,
    FrontEndKind::Rust,
    FrontEndKind::Command,
];

#[test]
fn own_names_are_unique_and_no_alias() {
    let mut names = BTreeSet::new();
    for row in all_rows() {
        assert!(names.insert(row.name), "{} has two rows", row.name);
    }
    for alias in all_rows().flat_map(|row| row.aliases) {
        assert!(!names.contains(alias.name), "{} is an own name and an alias", alias.name);
        assert!(!alias.name.starts_with("TRUNKLINE_"), "{}", alias.name);
    }
}

#[test]
fn each_default_is_valid_and_survives_a_lookup() {
    for row in all_rows() {
        for front_end in FRONT_ENDS {
            let default = row.default_of(front_end);
            assert!(default.is_empty() || row.kind.is_valid(default), "{}={default}", row.name);
            let set =
                SettingValues::from_lookup(front_end, |name| (name == row.name).then(|| default.into()));
            assert_eq!(set.find(row).unwrap().value, default, "{}", row.name);
        }
    }
}

#[test]
fn numbers_outside_of_the_range_are_rejected() {
    let mut tried = 0;
    for row in all_rows() {
        let (min, max) = match row.kind {
            SettingKind::Number { min, max }
            | SettingKind::Bytes { min, max }
            | SettingKind::Milliseconds { min, max }
            | SettingKind::WordOrNumber { min, max, .. } => (min, max),
            SettingKind::OptionalNumber { max } => (0, max),
            SettingKind::Switch => (0, 1),
            _ => continue,
        };
        tried += 1;
        let find = |value: String| {
            SettingValues::from_lookup(FrontEndKind::Nccl, |name| {
                (name == row.name).then(|| OsString::from(&value))
            })
            .find(row)
        };
        assert_eq!(find(min.to_string()).unwrap().value, min.to_string(), "{}", row.name);
        assert_eq!(find(max.to_string()).unwrap().value, max.to_string(), "{}", row.name);
        let above = find((max + 1).to_string()).unwrap_err();
        assert_eq!(above.to_string(), format!("{}={}: expected {}", row.name, max + 1, row.kind));
        if min > 0 {
            assert!(find((min - 1).to_string()).is_err(), "{}", row.name);
        }
    }
    assert!(tried > 50, "{tried} rows have a range");
}

#[test]
fn each_group_has_rows_and_each_text_is_one_line() {
    for group in SettingGroup::ALL {
        assert!(all_rows().any(|row| row.group == group), "{group:?}");
    }
    for row in all_rows() {
        assert!((10..=160).contains(&row.text.len()), "{}: {} bytes", row.name, row.text.len());
        assert!(!row.text.contains('\n') && !row.text.ends_with('.'), "{}", row.name);
    }
}

#[test]
fn each_alias_translates_to_a_valid_value() {
    for row in all_rows() {
        for alias in row.aliases {
            for value in ["0", "1", "4", "8", "128", "cxi", "verbs", "64K", "-1", "AF_INET6"] {
                if alias.kind.is_valid(value) {
                    let meaning = alias.translate(value, row);
                    assert!(row.kind.is_valid(&meaning), "{}={value} becomes {meaning}", alias.name);
                }
            }
        }
    }
}
