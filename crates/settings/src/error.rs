//! Errors of values: each names the variable, the value, where it was set, and the valid values.

use std::fmt;

use crate::SettingSource;

/// Most characters of a value or a name in a message.
const TEXT_CHARS_MAX: usize = 128;
/// Most characters of the description of the valid values.
const EXPECTED_CHARS_MAX: usize = 512;
/// Most errors of one section that are kept.
pub(crate) const ERRORS_MAX: usize = 16;

/// A setting has an invalid value.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{name}={value}: expected {expected}{place}")]
pub struct SettingError {
    name: String,
    value: String,
    expected: String,
    place: String,
}

impl SettingError {
    pub(crate) fn new(name: &str, value: &str, expected: String, source: &SettingSource) -> Self {
        let place = match source {
            SettingSource::File { path, line, .. } => format!(" ({path}:{line})"),
            SettingSource::Environment { .. } | SettingSource::FrontEnd(_) | SettingSource::Default => {
                String::new()
            }
        };
        let expected = escape_characters(&expected, EXPECTED_CHARS_MAX);
        Self { name: name.to_owned(), value: shorten_text(value), expected, place }
    }

    /// Returns the variable.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Returns a value or a name for a message: control characters are escaped, and a long text is cut.
pub(crate) fn shorten_text(text: &str) -> String {
    escape_characters(text, TEXT_CHARS_MAX)
}

/// Returns a text for a message, with its control characters escaped, such as the path of a file that a variable names.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    escape_characters(text, usize::MAX)
}

fn escape_characters(text: &str, chars_max: usize) -> String {
    let mut shown = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == chars_max {
            shown.push_str("...");
            break;
        }
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// The invalid values of a section; never empty, at most 16.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SettingErrors(Vec<SettingError>);

impl SettingErrors {
    /// Returns the errors, or `None` if the list is empty.
    pub(crate) fn from_list(errors: Vec<SettingError>) -> Option<Self> {
        (!errors.is_empty()).then_some(Self(errors))
    }

    /// Returns the errors, in the order of the rows.
    #[must_use]
    pub fn as_slice(&self) -> &[SettingError] {
        &self.0
    }
}

/// Prints one error per line.
impl fmt::Display for SettingErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index > 0 { "\n" } else { "" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingErrors {}

impl From<SettingError> for SettingErrors {
    fn from(error: SettingError) -> Self {
        Self(vec![error])
    }
}
