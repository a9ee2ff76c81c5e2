//! Settings that the command itself reads, beside those of the libraries that it loads.

use trunkline_runtime::{ChooseError, FrontEndKind, read_values};
use trunkline_settings::rows::network;
use trunkline_settings::{SettingErrors, SettingRow};

/// Returns the value of a setting; `None`: it has none.
///
/// # Errors
/// [`ChooseError::Settings`], [`ChooseError::File`]: the value or the configuration file is invalid.
pub(crate) fn read_setting(row: &SettingRow) -> Result<Option<String>, ChooseError> {
    let (values, _) = read_values(FrontEndKind::Command)?;
    let found = values.find(row).map_err(SettingErrors::from)?;
    Ok(Some(found.value).filter(|value| !value.is_empty()))
}

/// Returns the fabric that the user named; `None`: none, `auto`, or an invalid setting, which the library reports that opens the
/// network.
pub(crate) fn named_fabric() -> Option<String> {
    read_setting(&network::FABRIC).ok().flatten().filter(|name| name != network::FABRIC.default)
}
