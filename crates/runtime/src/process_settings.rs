//! The settings of this process: its environment, the configuration file, and the engine's parameters from both. Each front end
//! reads them once, when it starts. The environment is never changed.

use std::ffi::OsString;

use trunkline_engine::EngineParams;
use trunkline_settings::{FrontEndKind, SettingErrors, SettingValues, find_unknown_names};

use crate::ChooseError;
use crate::environment_names::read_own_names;
use crate::settings_file::{ProcessIdentity, read_settings_file};

/// The settings of a process, and the engine's parameters.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// The engine's parameters. A front end may change them after it read the settings.
    pub params: EngineParams,
    values: SettingValues,
    warnings: Vec<String>,
}

impl ProcessSettings {
    /// Reads the environment and the configuration file.
    ///
    /// # Errors
    /// [`ChooseError::Settings`]: invalid values among those that each front end needs. The settings of a network are checked
    /// when it is opened. [`ChooseError::File`]: the configuration file cannot be used.
    pub fn from_process(front_end: FrontEndKind) -> Result<Self, ChooseError> {
        let (values, warnings) = read_values(front_end)?;
        Ok(Self { params: EngineParams::from_settings(&values)?, values, warnings })
    }

    /// Returns settings with the variables that `look_up` returns, and with none of this process: for tests.
    ///
    /// # Errors
    /// [`SettingErrors`], as [`ProcessSettings::from_process`].
    pub fn from_lookup(
        front_end: FrontEndKind,
        look_up: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SettingErrors> {
        let values = SettingValues::from_lookup(front_end, look_up);
        Ok(Self { params: EngineParams::from_settings(&values)?, values, warnings: Vec::new() })
    }

    /// Returns the values, for sections that this crate does not read.
    #[must_use]
    pub fn setting_values(&self) -> &SettingValues {
        &self.values
    }

    /// Returns one line per name that is no setting, and per part of the file that is not used.
    #[must_use]
    pub fn warning_lines(&self) -> &[String] {
        &self.warnings
    }
}

/// Reads the values of this process without checking them, and the warnings about names and the file.
///
/// # Errors
/// [`ChooseError::File`].
pub fn read_values(front_end: FrontEndKind) -> Result<(SettingValues, Vec<String>), ChooseError> {
    let mut values = SettingValues::from_lookup(front_end, |name| std::env::var_os(name));
    let mut warnings = Vec::new();
    if let Some(file) = read_settings_file(&values, ProcessIdentity::of_this_process(), &mut warnings)? {
        values = values.with_file(file);
    }
    warnings.extend(
        find_unknown_names(read_own_names().into_iter(), values.file()).iter().map(ToString::to_string),
    );
    Ok((values, warnings))
}
