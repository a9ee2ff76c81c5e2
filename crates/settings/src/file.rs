//! The configuration file: lines `NAME = value`, as in NCCL's `nccl.conf`. Pure: the caller opens the file and passes its bytes.
//!
//! An empty line, and a line whose first character is `#`, has no effect. The name ends at the first `=`. White space around
//! name and value is removed. There are no quotes, no continuation lines, no sections and no references to other variables.

use crate::SettingRow;
use crate::error::{escape_controls, shorten_text};
use crate::rows::{find_row, is_known_name};

/// Most bytes of a file.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// Most lines of a file.
const LINES_MAX: usize = 1_000;
/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 4_096;

/// One setting of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileLine {
    /// The name, a setting's own or an alias.
    pub name: String,
    /// The value, without white space around it.
    pub value: String,
    /// The line, counted from 1.
    pub number: u32,
}

/// The settings of a file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SettingsFile {
    path: String,
    lines: Vec<FileLine>,
}

/// A file cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It is too long.
    #[error("{path}: a configuration file has at most 64 KiB and 1000 lines")]
    Long {
        /// The file.
        path: String,
    },
    /// A line is no setting.
    #[error("{path}:{line}: {fault}; write NAME = value, or # before a comment")]
    Line {
        /// The file.
        path: String,
        /// The line, counted from 1.
        line: u32,
        /// Why it is refused.
        fault: &'static str,
    },
    /// A name has two lines.
    #[error("{path}:{line}: {name} is set in line {first} already; remove one of the two")]
    Twice {
        /// The file.
        path: String,
        /// The second line.
        line: u32,
        /// The first line.
        first: u32,
        /// The name.
        name: String,
    },
    /// A setting that only the environment may contain.
    #[error(
        "{path}:{line}: {name} cannot be set in a file, because it differs between processes; set it in the environment"
    )]
    Misplaced {
        /// The file.
        path: String,
        /// The line.
        line: u32,
        /// The name.
        name: String,
    },
}

impl SettingsFile {
    /// Parses a file; `path` is its name for messages.
    ///
    /// # Errors
    /// [`FileError`]: the first fault.
    pub fn parse(path: &str, bytes: &[u8]) -> Result<Self, FileError> {
        let path = escape_controls(path);
        let too_long = || FileError::Long { path: path.clone() };
        if bytes.len() > FILE_BYTES_MAX {
            return Err(too_long());
        }
        let mut file = Self { path: path.clone(), lines: Vec::new() };
        // The last line may end with a line break, which begins no further line.
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        for (index, bytes) in text.split(|byte| *byte == b'\n').enumerate() {
            if index == LINES_MAX {
                return Err(too_long());
            }
            let number = index as u32 + 1;
            let fault = |fault| FileError::Line { path: path.clone(), line: number, fault };
            if let Some((name, value)) = parse_line(bytes).map_err(fault)? {
                file.add_line(FileLine { name: name.to_owned(), value: value.to_owned(), number })?;
            }
        }
        Ok(file)
    }

    fn add_line(&mut self, line: FileLine) -> Result<(), FileError> {
        let FileLine { name, number, .. } = &line;
        if let Some(first) = self.find_line(name) {
            let first = first.number;
            let name = shorten_text(name);
            return Err(FileError::Twice { path: self.path.clone(), line: *number, first, name });
        }
        if find_row(name).is_some_and(|row| !row.is_allowed_in_file()) {
            return Err(FileError::Misplaced { path: self.path.clone(), line: *number, name: name.clone() });
        }
        self.lines.push(line);
        Ok(())
    }

    /// Returns the path that the file was opened by, for messages: control characters are escaped.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the line that sets a name.
    #[must_use]
    pub fn find_line(&self, name: &str) -> Option<&FileLine> {
        self.lines.iter().find(|line| line.name == name)
    }

    /// Returns all lines with a setting.
    #[must_use]
    pub fn lines(&self) -> &[FileLine] {
        &self.lines
    }

    /// Returns the lines whose names no row has.
    pub fn unknown_lines(&self) -> impl Iterator<Item = &FileLine> {
        self.lines.iter().filter(|line| !is_known_name(&line.name))
    }

    /// Removes the lines that set one of these rows, and returns their names. For settings that name code, if the file's owner
    /// is not trusted.
    pub fn remove_rows(&mut self, is_removed: impl Fn(&SettingRow) -> bool) -> Vec<String> {
        let is_of_row = |line: &FileLine| find_row(&line.name).is_some_and(&is_removed);
        let removed =
            self.lines.iter().filter(|line| is_of_row(line)).map(|line| line.name.clone()).collect();
        self.lines.retain(|line| !is_of_row(line));
        removed
    }
}

/// Parses a line into name and value; `None`: it sets nothing.
fn parse_line(bytes: &[u8]) -> Result<Option<(&str, &str)>, &'static str> {
    if bytes.len() > LINE_BYTES_MAX {
        return Err("the line is longer than 4096 bytes");
    }
    let line = std::str::from_utf8(bytes).map_err(|_| "the line is not UTF-8")?.trim_ascii();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.contains('\0') {
        return Err("the line contains a zero byte");
    }
    if line.starts_with('[') {
        return Err("there are no sections");
    }
    let (name, value) = line.split_once('=').ok_or("the line has no =")?;
    let name = name.trim_ascii_end();
    let value = value.trim_ascii_start();
    if name.starts_with("export ") {
        return Err("the file is not a shell script");
    }
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err("a name consists of letters, digits and _");
    }
    if value.starts_with(['"', '\'']) {
        return Err("quotes would be part of the value");
    }
    Ok(Some((name, value)))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
