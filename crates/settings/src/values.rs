//! The values of one process: which texts are set, the source of each, and how a front end reads them.

use std::ffi::OsString;
use std::fmt;

use crate::error::{ERRORS_MAX, shorten_text};
use crate::kind::{is_negative, parse_bytes, parse_number};
use crate::rows::all_rows;
use crate::{
    FrontEndKind, SettingAlias, SettingError, SettingErrors, SettingKind, SettingRow, SettingUse,
    SettingsFile,
};

/// The source of a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SettingSource {
    /// No name is set.
    Default,
    /// No name is set, and the front end has a default of its own.
    FrontEnd(FrontEndKind),
    /// A variable of the environment.
    Environment {
        /// The setting's own name, or an alias.
        name: &'static str,
    },
    /// A line of the configuration file.
    File {
        /// The setting's own name, or an alias.
        name: &'static str,
        /// The file.
        path: String,
        /// The line, counted from 1.
        line: u32,
    },
}

/// The value of a setting.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FoundValue {
    /// The value, in the form of the row's own name; empty: none.
    pub value: String,
    /// Its source.
    pub source: SettingSource,
}

/// The texts that are set in a process.
#[derive(Clone)]
pub struct SettingValues {
    front_end: FrontEndKind,
    environment: Vec<(&'static str, OsString)>,
    file: Option<SettingsFile>,
}

/// A text that is set under one name.
struct SetText {
    alias: SettingAlias,
    text: Result<String, String>,
    source: SettingSource,
}

impl SettingValues {
    /// Collects the variables of all rows. `look_up` returns the text of a variable, if it is set.
    pub fn from_lookup(front_end: FrontEndKind, look_up: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut environment: Vec<(&'static str, OsString)> = Vec::new();
        for alias in all_rows().flat_map(|row| row.names(front_end)) {
            let is_new = !environment.iter().any(|(name, _)| *name == alias.name);
            environment.extend(look_up(alias.name).filter(|_| is_new).map(|text| (alias.name, text)));
        }
        Self { front_end, environment, file: None }
    }

    /// Adds a configuration file. Its values apply where the environment sets none.
    #[must_use]
    pub fn with_file(mut self, file: SettingsFile) -> Self {
        self.file = Some(file);
        self
    }

    /// Returns the front end that reads them.
    #[must_use]
    pub fn front_end(&self) -> FrontEndKind {
        self.front_end
    }

    /// Returns the configuration file, if one is used.
    #[must_use]
    pub fn file(&self) -> Option<&SettingsFile> {
        self.file.as_ref()
    }

    /// Returns the value of a setting that applies.
    ///
    /// # Errors
    /// [`SettingError`]: the name that applies has an invalid value, or one that is not UTF-8.
    pub fn find(&self, row: &SettingRow) -> Result<FoundValue, SettingError> {
        match self.find_text(row) {
            Some(SetText { alias, text, source }) => {
                let error = |value: &str| {
                    SettingError::new(alias.name, show_value(row, value), alias.kind.to_string(), &source)
                };
                let text = text.map_err(|lossy| error(&lossy))?;
                let value = alias.kind.trim(&text);
                if !alias.kind.is_valid(value) {
                    return Err(error(value));
                }
                Ok(FoundValue { value: alias.translate(value, row).into_owned(), source })
            }
            None => {
                let value = row.default_of(self.front_end).to_owned();
                let is_own = row.own_defaults.iter().any(|(of, _)| *of == self.front_end);
                let source =
                    if is_own { SettingSource::FrontEnd(self.front_end) } else { SettingSource::Default };
                Ok(FoundValue { value, source })
            }
        }
    }

    /// Returns the text that applies, before any check: the environment's under each name, then the file's.
    fn find_text(&self, row: &SettingRow) -> Option<SetText> {
        let keeps_empty = row.usage == SettingUse::EmptyIsValue;
        let in_environment = row.names(self.front_end).filter_map(|alias| {
            let (name, text) = self.environment.iter().find(|(name, _)| *name == alias.name)?;
            let text = text.clone().into_string().map_err(|text| text.to_string_lossy().into_owned());
            Some(SetText { alias, text, source: SettingSource::Environment { name } })
        });
        let in_file = row.names(self.front_end).filter_map(|alias| {
            let file = self.file.as_ref()?;
            let found = file.find_line(alias.name)?;
            let source =
                SettingSource::File { name: alias.name, path: file.path().to_owned(), line: found.number };
            Some(SetText { alias, text: Ok(found.value.clone()), source })
        });
        let counts = |set: &SetText| {
            let is_blank = |text: &String| text.trim_ascii().is_empty();
            keeps_empty || !set.text.as_ref().is_ok_and(is_blank)
        };
        in_environment.chain(in_file).find(counts)
    }

    /// Returns whether some name of a setting is set, in the environment or in the file.
    #[must_use]
    pub fn is_set(&self, row: &SettingRow) -> bool {
        self.find_text(row).is_some()
    }

    /// Returns one line for each variable that is set and has no effect here, unless it requests the behaviour that is used anyway.
    #[must_use]
    pub fn describe_ignored(&self, rows: &[SettingRow]) -> Vec<String> {
        let line = |row: &SettingRow| {
            let SettingKind::Ignored { same, instead } = row.kind else { return None };
            let SetText { alias, text, .. } = self.find_text(row)?;
            let value = text.unwrap_or_else(|lossy| lossy);
            let value = value.trim_ascii();
            let line = || format!("{}={} has no effect: {instead}", alias.name, shorten_text(value));
            (!same.contains(&value)).then(line)
        };
        rows.iter().filter_map(line).collect()
    }

    /// Returns a reader for the rows of one section.
    #[must_use]
    pub fn reader(&self) -> SectionReader<'_> {
        SectionReader { values: self, errors: Vec::new() }
    }
}

/// Prints the names of the variables and the file. A value may be a secret.
impl fmt::Debug for SettingValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        f.debug_struct("SettingValues")
            .field("front_end", &self.front_end)
            .field("environment", &names)
            .field("file", &self.file)
            .finish()
    }
}

/// Returns a value for a message; that of a secret is not shown.
fn show_value<'a>(row: &SettingRow, value: &'a str) -> &'a str {
    match row.usage {
        SettingUse::Secret => "(set)",
        SettingUse::Usual
        | SettingUse::LoadsCode
        | SettingUse::EnvironmentOnly
        | SettingUse::EmptyIsValue => value,
    }
}

/// Reads several settings. After an invalid value it continues with the default, so that all errors are found.
#[derive(Debug)]
pub struct SectionReader<'a> {
    values: &'a SettingValues,
    errors: Vec<SettingError>,
}

impl SectionReader<'_> {
    /// Returns the text of a setting; `None`: it has no value.
    pub fn text(&mut self, row: &SettingRow) -> Option<String> {
        let found = self.values.find(row);
        let value = match found {
            Ok(FoundValue { value, .. }) => value,
            Err(error) => {
                self.add_error(error);
                row.default_of(self.values.front_end).to_owned()
            }
        };
        (!value.is_empty() || row.usage == SettingUse::EmptyIsValue && self.values.is_set(row))
            .then_some(value)
    }

    /// Returns a number, or the number of bytes or milliseconds; 0 if there is no value.
    pub fn number(&mut self, row: &SettingRow) -> u64 {
        self.optional_number(row).unwrap_or(0)
    }

    /// Returns a number; `None`: no value is set, or a negative one.
    pub fn optional_number(&mut self, row: &SettingRow) -> Option<u64> {
        let text = self.text(row)?;
        match row.kind {
            SettingKind::OptionalNumber { .. } if is_negative(&text) => None,
            SettingKind::Bytes { .. } => parse_bytes(&text),
            _ => parse_number(&text),
        }
    }

    /// Returns whether a switch is on.
    pub fn switch(&mut self, row: &SettingRow) -> bool {
        let text = self.text(row);
        match row.kind {
            SettingKind::LooseSwitch => text.is_some_and(|text| !text.starts_with(['0', 'n', 'N', 'f', 'F'])),
            _ => text.as_deref() == Some("1"),
        }
    }

    /// Returns the meaning of a word. `meanings` has each word of the row; a word without a meaning is an error. After an error
    /// it returns `default`.
    pub fn choose<T: Copy>(&mut self, row: &SettingRow, default: T, meanings: &[(&str, T)]) -> T {
        let text = self.text(row).unwrap_or_default();
        if let Some((_, meaning)) = meanings.iter().find(|(word, _)| *word == text) {
            return *meaning;
        }
        self.reject(row, row.kind.to_string());
        default
    }

    /// Records that the value of a setting is invalid, for a rule that its type does not express.
    pub fn reject(&mut self, row: &SettingRow, expected: impl Into<String>) {
        let Some(SetText { alias, text, source }) = self.values.find_text(row) else {
            let value = row.default_of(self.values.front_end);
            return self.add_error(SettingError::new(
                row.name,
                value,
                expected.into(),
                &SettingSource::Default,
            ));
        };
        let text = text.unwrap_or_else(|lossy| lossy);
        let shown = show_value(row, alias.kind.trim(&text));
        self.add_error(SettingError::new(alias.name, shown, expected.into(), &source));
    }

    fn add_error(&mut self, error: SettingError) {
        if self.errors.len() < ERRORS_MAX && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Returns the structure that was read.
    ///
    /// # Errors
    /// [`SettingErrors`]: all invalid values that this reader met.
    pub fn finish<T>(self, made: T) -> Result<T, SettingErrors> {
        match SettingErrors::from_list(self.errors) {
            None => Ok(made),
            Some(errors) => Err(errors),
        }
    }
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
