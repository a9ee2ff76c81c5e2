//! Properties of all rows, with random values.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use proptest::prelude::*;

use crate::kind::parse_bytes;
use crate::rows::{all_rows, unused};
use crate::{
    FileError, FrontEndKind, SettingKind, SettingSource, SettingValues, SettingsFile, find_unknown_names,
};

const FRONT_ENDS: [FrontEndKind; 5] = [
    FrontEndKind::Nccl,
    FrontEndKind::OpenShmem,
    FrontEndKind::Nvshmem,
    FrontEndKind::Rust,
    FrontEndKind::Command,
];

/// Returns a valid value of a type, another one for most other numbers.
fn make_value(kind: SettingKind, number: u64) -> String {
    let within = |min: u64, max: u64| (min + number % (max - min + 1)).to_string();
    match kind {
        SettingKind::Switch => within(0, 1),
        SettingKind::LooseSwitch => ["0", "1", "no", "yes", "False"][number as usize % 5].to_owned(),
        SettingKind::Number { min, max }
        | SettingKind::Bytes { min, max }
        | SettingKind::Milliseconds { min, max } => within(min, max),
        SettingKind::OptionalNumber { max } => within(0, max),
        SettingKind::Word(words) => words[number as usize % words.len()].to_owned(),
        SettingKind::WordOrNumber { words, min, max } => match number % 2 {
            0 => words[number as usize / 2 % words.len()].to_owned(),
            _ => within(min, max),
        },
        SettingKind::Text { .. } | SettingKind::Path { .. } | SettingKind::Ignored { .. } => {
            format!("x{number}")
        }
    }
}

/// Returns the number of bytes that a decimal fraction times `1 << shift` is, rounded down. It doubles the decimal digits, so no
/// number is too large for it.
fn multiply_exactly(whole: &str, fraction: &str, shift: u32) -> Option<u64> {
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).rev().map(|byte| byte - b'0').collect();
    for _ in 0..shift {
        let mut carry = 0;
        for digit in &mut digits {
            let sum = *digit * 2 + carry;
            (*digit, carry) = (sum % 10, sum / 10);
        }
        digits.push(carry);
    }
    // A number without a whole part is below one.
    digits.push(0);
    let kept: String = digits[fraction.len()..].iter().rev().map(|digit| char::from(b'0' + digit)).collect();
    kept.parse().ok()
}

/// A text without zero bytes, as the environment contains them, often with control characters.
fn any_text() -> impl Strategy<Value = OsString> {
    let byte = prop_oneof![Just(0x1b_u8), Just(b'\n'), Just(0x7f), 1..=255_u8, b'0'..=b'z'];
    let bytes = proptest::collection::vec(byte, 0..600);
    let control = "[0-9a-zA-Z\u{80}-\u{9f}\u{1b}.:,^=-]{0,300}".prop_map(String::into_bytes);
    prop_oneof![bytes, control].prop_map(OsString::from_vec)
}

fn has_controls(text: &str) -> bool {
    text.contains(char::is_control)
}

proptest! {
    // A failed case is slow, so the search for a smaller one is short.
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 8, ..ProptestConfig::default() })]

    #[test]
    fn environment_precedes_the_file_for_each_name(ours in any::<u64>(), theirs in any::<u64>()) {
        for front_end in FRONT_ENDS {
            for row in all_rows() {
                for written in row.names(front_end) {
                    let line = format!("{} = {}", written.name, make_value(written.kind, theirs));
                    let parsed = SettingsFile::parse("f", line.as_bytes());
                    if !row.is_allowed_in_file() {
                        prop_assert!(matches!(parsed, Err(FileError::Misplaced { line: 1, .. })), "{line}");
                        continue;
                    }
                    let file = parsed.unwrap();
                    for set in row.names(front_end) {
                        let value = make_value(set.kind, ours);
                        let values = |text: &str| {
                            SettingValues::from_lookup(front_end, |name| (name == set.name).then(|| text.into()))
                                .with_file(file.clone())
                        };
                        let found = values(&value).find(row).unwrap();
                        prop_assert_eq!(found.source, SettingSource::Environment { name: set.name });
                        prop_assert_eq!(found.value, set.translate(&value, row));
                        let found = values(" ").find(row).unwrap();
                        let source = SettingSource::File { name: written.name, path: "f".to_owned(), line: 1 };
                        prop_assert_eq!(found.source, source);
                    }
                }
            }
        }
    }

    #[test]
    fn messages_contain_no_control_characters(text in any_text(), path in any_text()) {
        let path = path.to_string_lossy();
        // NVSHMEM's transport knows more names than the others.
        for front_end in [FrontEndKind::Nccl, FrontEndKind::Nvshmem] {
            // The names that are the nth of their row.
            for nth in 0..4 {
                let names: Vec<_> = all_rows().filter_map(|row| row.names(front_end).nth(nth)).collect();
                let values = SettingValues::from_lookup(front_end, |name| {
                    names.iter().any(|one| one.name == name).then(|| text.clone())
                });
                for row in all_rows() {
                    let mut reader = values.reader();
                    reader.text(row);
                    reader.reject(row, text.to_string_lossy());
                    for error in reader.finish(()).unwrap_err().as_slice() {
                        prop_assert!(!has_controls(&error.to_string()), "{error:?}");
                    }
                }
                for rows in [unused::nccl::ROWS, unused::sandia::ROWS, unused::nvshmem::ROWS] {
                    let lines = values.describe_ignored(rows);
                    prop_assert!(!lines.iter().any(|line| has_controls(line)), "{lines:?}");
                }
            }
        }
        let value = text.to_string_lossy().replace('\n', "\t");
        for line in [format!("TRUNKLINE_DEPTH={value}"), format!("X={value}"), value] {
            let unknown = match SettingsFile::parse(&path, line.as_bytes()) {
                Ok(file) => {
                    let values = SettingValues::from_lookup(FrontEndKind::Nccl, |_| None);
                    let depth = values.with_file(file.clone()).find(&crate::rows::connections::DEPTH);
                    prop_assert!(depth.err().is_none_or(|error| !has_controls(&error.to_string())));
                    find_unknown_names(std::iter::once(format!("TRUNKLINE_{line}")), Some(&file))
                }
                Err(error) => {
                    prop_assert!(!has_controls(&error.to_string()), "{error:?}");
                    find_unknown_names(std::iter::once(format!("TRUNKLINE_{line}")), None)
                }
            };
            prop_assert!(!unknown.iter().any(|one| has_controls(&one.to_string())), "{unknown:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn bytes_agree_with_exact_arithmetic(
        whole in prop_oneof!["[0-9]{0,21}", any::<u64>().prop_map(|number| number.to_string()), "[0-9]{1,8}"],
        point in "[.]?",
        fraction in prop_oneof![Just(String::new()), "[0-9]{1,9}", "[09]{1,9}", "[0-9]{1,12}"],
        unit in prop_oneof![
            Just(("", 0)), Just(("B", 0)), Just(("k", 10)), Just(("KiB", 10)), Just((" M", 20)), Just(("mb", 20)),
            Just(("G", 30)), Just(("  GIB", 30)), Just(("T", 40)), Just(("tB", 40)),
        ],
    ) {
        let point = if fraction.is_empty() { point.as_str() } else { "." };
        let text = format!("{whole}{point}{fraction}{}", unit.0);
        let is_valid = fraction.len() <= 9 && whole.len() + fraction.len() > 0;
        let exact = if is_valid { multiply_exactly(&whole, &fraction, unit.1) } else { None };
        prop_assert_eq!(parse_bytes(&text), exact, "{}", text);
    }
}
