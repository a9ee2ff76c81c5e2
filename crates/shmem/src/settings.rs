//! OpenSHMEM's own settings, beside those that all front ends have. They are read once, when the library starts.

use trunkline_settings::rows::{shmem, unused};
use trunkline_settings::{SettingErrors, SettingKind, SettingValues};

/// The values of OpenSHMEM's settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ShmemSettings {
    /// Bytes of the symmetric heap.
    pub(crate) heap: u64,
    /// Whether to print all settings of this group with their values.
    pub(crate) info: bool,
    /// Whether to print the version of the library.
    pub(crate) version: bool,
    /// Whether to log lines at INFO.
    pub(crate) debug: bool,
    /// One line per variable of another library that is set and has no effect.
    pub(crate) ignored: Vec<String>,
}

impl ShmemSettings {
    /// Reads the settings of a process.
    ///
    /// # Errors
    /// [`SettingErrors`]: all settings with invalid values.
    pub(crate) fn from_values(values: &SettingValues) -> Result<Self, SettingErrors> {
        let mut reader = values.reader();
        let settings = Self {
            heap: reader.number(&shmem::SYMMETRIC_SIZE),
            info: reader.switch(&shmem::INFO),
            version: reader.switch(&shmem::VERSION),
            debug: reader.switch(&shmem::DEBUG),
            ignored: values.describe_ignored(unused::sandia::ROWS),
        };
        reader.finish(settings)
    }

    /// Returns the text of `SHMEM_INFO`: OpenSHMEM's settings with their values.
    pub(crate) fn help_text(values: &SettingValues) -> String {
        let mut reader = values.reader();
        let mut lines = Vec::new();
        for row in shmem::ROWS {
            let value = match row.kind {
                SettingKind::LooseSwitch if reader.switch(row) => "on".to_owned(),
                SettingKind::LooseSwitch => "off".to_owned(),
                _ => reader.number(row).to_string(),
            };
            lines.push(format!("{}={value}\n    {} [default: {}]", row.name, row.text, row.default));
            let aliases: Vec<&str> = row.aliases.iter().map(|alias| alias.name).collect();
            lines.push(format!("    also: {}; expected {}", aliases.join(", "), row.kind));
        }
        lines.push("TRUNKLINE_*\n    the network and everything else: `trunkline info --params`".to_owned());
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use trunkline_settings::FrontEndKind;

    use super::*;

    fn values_of(pairs: &[(&str, &str)]) -> SettingValues {
        SettingValues::from_lookup(FrontEndKind::OpenShmem, |name| {
            pairs.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into())
        })
    }

    fn settings_of(pairs: &[(&str, &str)]) -> Result<ShmemSettings, SettingErrors> {
        ShmemSettings::from_values(&values_of(pairs))
    }

    #[test]
    fn variables_of_other_libraries_are_named() {
        let set = [("SHMEM_BOUNCE_SIZE", "2K"), ("SHMEM_TEAMS_MAX", "10"), ("SHMEM_DEBUG", "1")];
        let ignored = settings_of(&set).unwrap().ignored;
        assert_eq!(ignored.len(), 2);
        assert!(ignored[0].starts_with("SHMEM_BOUNCE_SIZE=2K has no effect: "), "{ignored:?}");
        assert!(settings_of(&[]).unwrap().ignored.is_empty());
    }

    #[test]
    fn heap_has_three_names_and_a_limit() {
        let heap = |pairs: &[(&str, &str)]| settings_of(pairs).map(|settings| settings.heap);
        assert_eq!(heap(&[]), Ok(512 << 20));
        assert_eq!(heap(&[("SHMEM_SYMMETRIC_SIZE", "")]), Ok(512 << 20), "empty is unset");
        assert_eq!(heap(&[("SMA_SYMMETRIC_SIZE", "1.5G")]), Ok(3 << 29));
        assert_eq!(heap(&[("SMA_SYMMETRIC_SIZE", "1m"), ("SHMEM_SYMMETRIC_SIZE", "2m")]), Ok(2 << 20));
        assert_eq!(heap(&[("SHMEM_SYMMETRIC_HEAP_SIZE", "64T")]), Ok(1 << 46));
        for wrong in ["0", "x", "65T", "-1"] {
            let error = heap(&[("SHMEM_SYMMETRIC_SIZE", wrong)]).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("SHMEM_SYMMETRIC_SIZE={wrong}: expected bytes from 1 to 64T, with K, M, G or T")
            );
        }
    }

    #[test]
    fn switches_are_off_by_few_words() {
        for (value, is_on) in [
            ("0", false),
            ("no", false),
            ("False", false),
            ("1", true),
            ("yes", true),
            ("", false),
            ("on", true),
        ] {
            assert_eq!(settings_of(&[("SHMEM_INFO", value)]).unwrap().info, is_on, "{value}");
        }
        assert!(!settings_of(&[]).unwrap().version && settings_of(&[("SMA_VERSION", "y")]).unwrap().version);
    }

    #[test]
    fn help_text_has_each_setting_with_its_value() {
        let text = ShmemSettings::help_text(&values_of(&[("SMA_DEBUG", "1"), ("SMA_SYMMETRIC_SIZE", "1M")]));
        for line in ["SHMEM_SYMMETRIC_SIZE=1048576\n", "SHMEM_DEBUG=on\n", "SHMEM_INFO=off\n", "SMA_INFO"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
