//! The types of values: which texts are valid, how a message describes them, and the parsers. Used by `values`, and by readers
//! that print types and ranges.

use std::fmt;

/// The type and range of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SettingKind {
    /// 0 or 1.
    Switch,
    /// Off if the value begins with 0, n or f in either case, else on.
    LooseSwitch,
    /// A whole number, also in hexadecimal digits after `0x`.
    Number {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A whole number from 0 on; a negative number counts as no value.
    OptionalNumber {
        /// The largest.
        max: u64,
    },
    /// A number of bytes, with an optional fraction and a unit of 1,024.
    Bytes {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A time in milliseconds.
    Milliseconds {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
    },
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, or a number.
    WordOrNumber {
        /// The words.
        words: &'static [&'static str],
        /// The smallest number.
        min: u64,
        /// The largest number.
        max: u64,
    },
    /// A text with rules of its own, which its reader checks.
    Text {
        /// The valid values, for messages.
        expected: &'static str,
    },
    /// The same for the path of a file or folder. White space belongs to it.
    Path {
        /// The valid values, for messages.
        expected: &'static str,
    },
    /// A variable of another library without effect here.
    Ignored {
        /// Values that request the behaviour that is used anyway.
        same: &'static [&'static str],
        /// The behaviour that is used, or the setting to use instead.
        instead: &'static str,
    },
}

impl SettingKind {
    /// Returns the word for the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Switch | Self::LooseSwitch => "switch",
            Self::Number { .. } | Self::OptionalNumber { .. } => "number",
            Self::Bytes { .. } => "bytes",
            Self::Milliseconds { .. } => "milliseconds",
            Self::Word(_) | Self::WordOrNumber { .. } => "word",
            Self::Text { .. } => "text",
            Self::Path { .. } => "path",
            Self::Ignored { .. } => "ignored",
        }
    }

    /// Returns whether a value is valid, as far as the type alone determines it.
    #[must_use]
    pub fn is_valid(self, value: &str) -> bool {
        let in_range = |number: Option<u64>, min, max| number.is_some_and(|n| (min..=max).contains(&n));
        match self {
            Self::Switch => matches!(value, "0" | "1"),
            Self::Number { min, max } | Self::Milliseconds { min, max } => {
                in_range(parse_number(value), min, max)
            }
            Self::OptionalNumber { max } => is_negative(value) || in_range(parse_number(value), 0, max),
            Self::Bytes { min, max } => in_range(parse_bytes(value), min, max),
            Self::Word(words) => words.contains(&value),
            Self::WordOrNumber { words, min, max } => {
                words.contains(&value) || in_range(parse_number(value), min, max)
            }
            Self::LooseSwitch | Self::Text { .. } | Self::Path { .. } | Self::Ignored { .. } => true,
        }
    }

    /// Returns the value without the white space that does not belong to it.
    pub(crate) fn trim(self, value: &str) -> &str {
        match self {
            Self::Path { .. } => value,
            _ => value.trim_ascii(),
        }
    }
}

/// Prints the valid values, to follow "expected".
impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Switch => f.write_str("0 or 1"),
            Self::LooseSwitch => f.write_str("0, n... or f... for off, any other text for on"),
            Self::Number { min, max } => write!(f, "a number from {min} to {max}"),
            Self::OptionalNumber { max } => write!(f, "a number from 0 to {max}, or -1 for none"),
            Self::Bytes { min, max } => {
                write!(f, "bytes from {} to {}, with K, M, G or T", BytesText(min), BytesText(max))
            }
            Self::Milliseconds { min, max } => write!(f, "milliseconds from {min} to {max}"),
            Self::Word(words) => write_words(f, words, ""),
            Self::WordOrNumber { words, min, max } => {
                write_words(f, words, &format!("a number from {min} to {max}"))
            }
            Self::Text { expected } | Self::Path { expected } => f.write_str(expected),
            Self::Ignored { .. } => f.write_str("anything; it has no effect"),
        }
    }
}

/// Writes `a, b or c`; `last` is a further item, if it is not empty.
fn write_words(f: &mut fmt::Formatter<'_>, words: &[&str], last: &str) -> fmt::Result {
    let mut all = words.to_vec();
    all.extend(Some(last).filter(|last| !last.is_empty()));
    match all.as_slice() {
        [] => Ok(()),
        [one] => f.write_str(one),
        [first @ .., last] => write!(f, "{} or {last}", first.join(", ")),
    }
}

/// A number of bytes with the largest unit that divides it.
struct BytesText(u64);

impl fmt::Display for BytesText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The units of bytes, and the bits by which a number moves.
const UNITS: [(&str, u32); 4] = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];

/// Digits after the point that are read; more are refused.
const FRACTION_DIGITS_MAX: u32 = 9;

/// Parses a whole number: decimal digits, or hexadecimal digits after `0x`.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` accepts a sign in front.
    if digits.starts_with(['+', '-']) { None } else { u64::from_str_radix(digits, radix).ok() }
}

/// Returns whether a text is a negative whole number.
pub(crate) fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').and_then(parse_number).is_some_and(|number| number > 0)
}

/// Parses bytes: `4096`, `64K`, `1.5G`, `3 MiB`. A fraction that is no whole number of bytes is rounded down.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_ascii_start().to_ascii_uppercase();
    let prefix = UNITS.iter().find_map(|(name, shift)| Some((*shift, unit.strip_prefix(name)?)));
    let shift = match prefix {
        Some((shift, "" | "B" | "IB")) => shift,
        None if matches!(unit.as_str(), "" | "B") => 0,
        Some(_) | None => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = fraction.len() as u32;
    if digits > FRACTION_DIGITS_MAX || whole.len() + fraction.len() == 0 {
        return None;
    }
    // As in C, one of the two parts may be left out: `.5M`, `2.M`.
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    // The fraction is below one unit, so the sum of both parts fits wherever the whole part does.
    let rest = (fraction << shift) / 10_u128.pow(digits);
    whole.checked_mul(1 << shift)?.checked_add(rest as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_fractions() {
        for (text, bytes) in [
            ("4096", Some(4096)),
            ("0", Some(0)),
            ("1k", Some(1 << 10)),
            ("2M", Some(2 << 20)),
            ("1.5G", Some(3 << 29)),
            ("1T", Some(1 << 40)),
            ("3 MB", Some(3 << 20)),
            ("7KiB", Some(7 << 10)),
            ("12b", Some(12)),
            ("0.1K", Some(102)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("16777216T", None),
            ("16777215.999999999T", Some(u64::MAX - 1099)),
            // Its product with 2^40 and 10^9 does not fit into 128 bits.
            ("309485009821345069.000000000T", None),
            ("5iB", None),
            ("", None),
            (".5M", Some(1 << 19)),
            ("2.M", Some(2 << 20)),
            (".", None),
            (".K", None),
            ("x", None),
            ("1x", None),
            ("-1", None),
            ("1.2.3", None),
            ("nan", None),
            ("1e9", None),
            ("1.0000000001K", None),
        ] {
            assert_eq!(parse_bytes(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        for (text, number) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("0x7fff", Some(0x7fff)),
            ("0XF", Some(15)),
            ("0x", None),
            ("0x-1", None),
            ("+1", None),
            ("-1", None),
            ("1 2", None),
            ("", None),
        ] {
            assert_eq!(parse_number(text), number, "{text:?}");
        }
        assert!(is_negative("-1") && !is_negative("-0") && !is_negative("1") && !is_negative("-x"));
    }

    #[test]
    fn kinds_describe_their_values() {
        let text = |kind: SettingKind| kind.to_string();
        assert_eq!(text(SettingKind::Number { min: 0, max: 8 }), "a number from 0 to 8");
        assert_eq!(text(SettingKind::Word(&["off", "on", "auto"])), "off, on or auto");
        let kind = SettingKind::WordOrNumber { words: &["on", "off"], min: 1, max: 9 };
        assert_eq!(text(kind), "on, off or a number from 1 to 9");
        let kind = SettingKind::Bytes { min: 0, max: 3 << 20 };
        assert_eq!(text(kind), "bytes from 0 to 3M, with K, M, G or T");
        assert_eq!(BytesText(4097).to_string(), "4097");
    }
}
