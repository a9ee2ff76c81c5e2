//! Opens the configuration file: `TRUNKLINE_CONF`, else /etc/trunkline.conf if it exists. `crates/settings` parses it.
//!
//! The file decides which code a process loads and which network it uses, so one that other users can change is refused. Nothing
//! is read in a program with raised rights (setuid, setgid). Opening never blocks: a FIFO or a device is refused.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use trunkline_settings::rows::network;
use trunkline_settings::{
    FILE_BYTES_MAX, FileError, FoundValue, SettingErrors, SettingSource, SettingUse, SettingValues,
    SettingsFile, escape_controls,
};

use crate::ChooseError;

/// The value of `TRUNKLINE_CONF` that means no file.
const NO_FILE: &str = "none";

/// Rights of the group, and of all other users, to write.
const WRITE_GROUP: u32 = 0o020;
const WRITE_OTHERS: u32 = 0o002;

/// The configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsFileError {
    /// It cannot be opened or read.
    #[error("cannot read the configuration file {path}: {source}; correct TRUNKLINE_CONF, or set it to none")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// It is a folder, a device or a FIFO.
    #[error("the configuration file {path} is no regular file; correct TRUNKLINE_CONF, or set it to none")]
    NotRegular {
        /// The file.
        path: String,
    },
    /// Other users may change it.
    #[error(
        "the configuration file {path} has mode {mode:04o}, so others may change it; run chmod go-w {path}"
    )]
    Writable {
        /// The file.
        path: String,
        /// Its rights.
        mode: u32,
    },
    /// It contains a line that is no setting.
    #[error(transparent)]
    Parse(#[from] FileError),
}

/// Whether the path of the file was requested, or is the default.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PathOrigin {
    /// `TRUNKLINE_CONF` names it.
    Requested,
    /// It is /etc/trunkline.conf.
    Default,
}

/// The numbers of the user and the group of a process: of the user who started it, and of the one whose rights it has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ProcessIdentity {
    real_user: u32,
    effective_user: u32,
    real_group: u32,
    effective_group: u32,
}

impl ProcessIdentity {
    /// Returns that of this process.
    pub(crate) fn of_this_process() -> Self {
        Self {
            real_user: rustix::process::getuid().as_raw(),
            effective_user: rustix::process::geteuid().as_raw(),
            real_group: rustix::process::getgid().as_raw(),
            effective_group: rustix::process::getegid().as_raw(),
        }
    }

    /// Returns whether the process has rights that its user lacks: the program's file is setuid or setgid.
    fn has_raised_rights(self) -> bool {
        self.real_user != self.effective_user || self.real_group != self.effective_group
    }
}

/// Reads the configuration file of a process with these variables; `None`: there is none.
pub(crate) fn read_settings_file(
    values: &SettingValues,
    identity: ProcessIdentity,
    warnings: &mut Vec<String>,
) -> Result<Option<SettingsFile>, ChooseError> {
    if identity.has_raised_rights() {
        return Ok(None);
    }
    let FoundValue { value, source } = values.find(&network::CONF).map_err(SettingErrors::from)?;
    if value == NO_FILE {
        return Ok(None);
    }
    let origin = if source == SettingSource::Default { PathOrigin::Default } else { PathOrigin::Requested };
    Ok(open_settings_file(Path::new(&value), origin, identity, warnings)?)
}

fn open_settings_file(
    path: &Path,
    origin: PathOrigin,
    identity: ProcessIdentity,
    warnings: &mut Vec<String>,
) -> Result<Option<SettingsFile>, SettingsFileError> {
    let name = escape_controls(&path.display().to_string());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(error) if origin == PathOrigin::Default => {
            if error != rustix::io::Errno::NOENT {
                warnings.push(format!("{name} is not used: {error}"));
            }
            return Ok(None);
        }
        Err(error) => return Err(SettingsFileError::Read { path: name, source: error.into() }),
    };
    let read_error = |source: io::Error| SettingsFileError::Read { path: name.clone(), source };
    let stat = rustix::fs::fstat(&file).map_err(|error| read_error(error.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        // The usual way to say that no file is to be read.
        FileType::CharacterDevice if path == Path::new("/dev/null") => return Ok(None),
        _ => return Err(SettingsFileError::NotRegular { path: name }),
    }
    let refused = match origin {
        PathOrigin::Default => WRITE_GROUP | WRITE_OTHERS,
        PathOrigin::Requested => WRITE_OTHERS,
    };
    if stat.st_mode & refused != 0 {
        return Err(SettingsFileError::Writable { path: name, mode: stat.st_mode & 0o7777 });
    }
    let mut bytes = Vec::new();
    // One byte more than is allowed, so that the parser finds a file that is too long.
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(read_error)?;
    let mut parsed = SettingsFile::parse(&name, &bytes)?;
    if origin == PathOrigin::Requested && !may_name_code(&stat, identity) {
        let removed = parsed.remove_rows(|row| row.usage == SettingUse::LoadsCode);
        warnings.extend(removed.iter().map(|setting| {
            format!(
                "{name}: {setting} is not used, because the file may belong to or be changed by another user"
            )
        }));
    }
    Ok(Some(parsed))
}

/// Returns whether a file may select code that a process loads: only root or the process's own user can change it.
fn may_name_code(stat: &Stat, identity: ProcessIdentity) -> bool {
    let is_trusted = stat.st_uid == 0 || stat.st_uid == identity.effective_user;
    is_trusted && stat.st_mode & WRITE_GROUP == 0
}

#[cfg(test)]
#[path = "settings_file_tests.rs"]
mod tests;
