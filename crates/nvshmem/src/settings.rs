//! NVSHMEM's own settings for its transport: each is honoured, or one line reports that it has no effect. The other settings are
//! those of all front ends. Read once, when NVSHMEM loads the library.

use trunkline_proto::limits::RAILS_MAX;
use trunkline_settings::rows::{nvshmem, unused};
use trunkline_settings::{SettingErrors, SettingValues};

/// The values of the settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TransportSettings {
    /// NICs per PE; at most [`RAILS_MAX`] are used.
    pub(crate) nics_max: usize,
    /// Whether GDRCopy is used.
    pub(crate) gdrcopy: bool,
    /// Whether NVSHMEM may pass batch hints.
    pub(crate) batches: bool,
    /// Whether lines at INFO are printed: by the level, for the subsystems that include transports.
    pub(crate) debug: bool,
    /// Lines about settings that have no effect here, or less than requested.
    pub(crate) refused: Vec<String>,
}

/// Returns whether a list of subsystems includes transports; after `^` it lists the excluded ones.
fn concerns_transports(list: Option<String>) -> bool {
    let Some(list) = list else { return true };
    let (excluded, list) = list.strip_prefix('^').map_or((false, &*list), |rest| (true, rest));
    let named =
        |name: &str| ["ALL", "INIT", "TRANSPORT"].iter().any(|of| of.eq_ignore_ascii_case(name.trim()));
    list.split(',').any(named) != excluded
}

impl TransportSettings {
    /// Reads the settings of a process.
    ///
    /// # Errors
    /// [`SettingErrors`]: all settings with invalid values.
    pub(crate) fn from_values(values: &SettingValues) -> Result<Self, SettingErrors> {
        let mut reader = values.reader();
        let asked = reader.number(&nvshmem::NICS_PER_PE) as usize;
        let mut refused = values.describe_ignored(unused::nvshmem::ROWS);
        if asked > RAILS_MAX && values.is_set(&nvshmem::NICS_PER_PE) {
            let name = nvshmem::NICS_PER_PE.name;
            refused.push(format!(
                "{name}={asked}: at most {RAILS_MAX} NICs per PE are used together; set it to {RAILS_MAX}"
            ));
        }
        let level = reader.text(&nvshmem::DEBUG).unwrap_or_default();
        let is_verbose = ["INFO", "TRACE"].iter().any(|of| of.eq_ignore_ascii_case(&level));
        let settings = Self {
            nics_max: asked,
            gdrcopy: !reader.switch(&nvshmem::DISABLE_GDRCOPY),
            batches: !reader.switch(&nvshmem::DISABLE_BATCH_RMA),
            debug: is_verbose && concerns_transports(reader.text(&nvshmem::DEBUG_SUBSYS)),
            refused,
        };
        reader.finish(settings)
    }
}

#[cfg(test)]
mod tests {
    use trunkline_settings::FrontEndKind;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<TransportSettings, SettingErrors> {
        TransportSettings::from_values(&SettingValues::from_lookup(FrontEndKind::Nvshmem, |name| {
            variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into())
        }))
    }

    #[test]
    fn defaults_are_those_of_nvshmem() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.nics_max, settings.gdrcopy, settings.debug), (16, true, false));
        assert!(settings.batches && settings.refused.is_empty());
    }

    #[test]
    fn switches_and_numbers_are_those_of_nvshmem() {
        for (value, is_used) in
            [("0", true), ("no", true), ("False", true), ("1", false), ("", true), ("y", false)]
        {
            assert_eq!(read(&[("NVSHMEM_DISABLE_GDRCOPY", value)]).unwrap().gdrcopy, is_used, "{value:?}");
            let batches = read(&[("NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA", value)]).unwrap().batches;
            assert_eq!(batches, is_used, "{value:?}");
        }
        assert_eq!(read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "2")]).unwrap().nics_max, 2);
        for wrong in ["0", "-1", "many", "1025"] {
            let error = read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", wrong)]).unwrap_err().to_string();
            assert!(error.contains("a number from 1 to 1024"), "{error}");
        }
        assert!(read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "1024")]).is_ok());
    }

    #[test]
    fn settings_without_effect_are_reported() {
        let all: Vec<_> = unused::nvshmem::ROWS.iter().map(|row| (row.name, "1")).collect();
        let refused = read(&all).unwrap().refused;
        assert_eq!(refused.len(), 8);
        assert!(
            refused
                .iter()
                .zip(all)
                .all(|(line, (name, _))| line.starts_with(&format!("{name}=1 has no effect")))
        );
    }

    #[test]
    fn more_nics_than_are_used_are_reported() {
        let refused = |asked| read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", asked)]).unwrap().refused;
        assert!(refused("4").is_empty());
        let lines = refused("5");
        assert!(
            lines.len() == 1 && lines[0].contains("MAX_NIC_PER_PE=5: at most 4 NICs per PE"),
            "{lines:?}"
        );
    }

    #[test]
    fn lines_are_for_who_asks_for_them() {
        let debug = |level, subsys: Option<&str>| {
            let mut variables = vec![("NVSHMEM_DEBUG", level)];
            variables.extend(subsys.map(|subsys| ("NVSHMEM_DEBUG_SUBSYS", subsys)));
            read(&variables).unwrap().debug
        };
        assert!(debug("INFO", None) && debug("trace", Some("")) && !debug("WARN", None));
        assert!(debug("INFO", Some("COLL,TRANSPORT")) && !debug("INFO", Some("COLL,P2P")));
        assert!(debug("INFO", Some("^COLL")) && !debug("INFO", Some("^TRANSPORT,COLL")));
    }
}
