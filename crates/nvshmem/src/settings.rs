//! NVSHMEM's variables for its transport: each is honoured, or rejected with a line. Trunkline's own variables
//! (`trunkline info --params`) take precedence, and configure the rest. Read once, when NVSHMEM loads the library.

use trunkline_proto::limits::RAILS_MAX;

use crate::error::{CallError, Result};

/// The default of the largest number of NICs per PE.
const NICS: usize = 16;
/// The largest number that a variable accepts.
const NUMBER_MAX: usize = 1024;

/// The values of the variables.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TransportSettings {
    /// `NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE`; at most [`RAILS_MAX`] NICs are used.
    pub(crate) nics_max: usize,
    /// `NVSHMEM_DISABLE_GDRCOPY`, inverted.
    pub(crate) gdrcopy: bool,
    /// `NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA`, inverted.
    pub(crate) batches: bool,
    /// Whether `NVSHMEM_DEBUG` enables more than warnings, and `NVSHMEM_DEBUG_SUBSYS` includes transports.
    pub(crate) debug: bool,
    /// Defaults of Trunkline's parameters that follow from NVSHMEM's variables.
    pub(crate) defaults: Vec<(&'static str, String)>,
    /// Lines about variables that have no effect here, or less than requested.
    pub(crate) refused: Vec<String>,
}

/// Variables of other NVSHMEM transports, with the alternative to print.
const REFUSED: &[(&str, &str)] = &[
    ("NVSHMEM_HCA_LIST", "name the NICs by NCCL_IB_HCA or TRUNKLINE_OFI_DOMAIN"),
    ("NVSHMEM_HCA_PE_MAPPING", "NVSHMEM chooses by the places of GPU and NIC"),
    ("NVSHMEM_HCA_PREFIX", "name the NICs by NCCL_IB_HCA"),
    ("NVSHMEM_QP_DEPTH", "see TRUNKLINE_DEPTH"),
    ("NVSHMEM_SRQ_DEPTH", "there is no shared receive queue"),
    ("NVSHMEM_DISABLE_IB_NATIVE_ATOMICS", "see TRUNKLINE_ATOMICS"),
    ("NVSHMEM_LIBFABRIC_SIGNAL_WAIT_SPIN_COUNT", "there is no thread for signals: who serves applies them"),
    (
        "NVSHMEM_DISABLE_LIBFABRIC_EFA_DIRECT",
        "name the provider by TRUNKLINE_FABRIC, as ofi:efa or ofi:efa-direct",
    ),
];

/// Parses a switch of NVSHMEM: unset, 0, n and f are off.
fn parse_switch(value: Option<String>) -> bool {
    value.is_some_and(|value| !matches!(value.bytes().next(), Some(b'0' | b'n' | b'N' | b'f' | b'F')))
}

/// Returns whether a list of subsystems includes transports; after `^` it lists the excluded ones.
fn concerns_transports(list: Option<String>) -> bool {
    let Some(list) = list.filter(|list| !list.is_empty()) else { return true };
    let (excluded, list) = list.strip_prefix('^').map_or((false, &*list), |rest| (true, rest));
    let named =
        |name: &str| ["ALL", "INIT", "TRANSPORT"].iter().any(|of| of.eq_ignore_ascii_case(name.trim()));
    list.split(',').any(named) != excluded
}

impl TransportSettings {
    /// Parses the variables of a process.
    ///
    /// # Errors
    /// [`CallError::Variable`].
    pub(crate) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let number = |name: &'static str| match variable(name) {
            None => Ok(None),
            Some(value) => match value.trim().parse() {
                Ok(number) if (1..=NUMBER_MAX).contains(&number) => Ok(Some(number)),
                _ => Err(CallError::Variable { name, value, expected: "a number from 1 to 1024" }),
            },
        };
        let mut defaults = vec![
            // Kernels change words by their own loads and stores, so no NIC may execute atomics on them.
            ("TRUNKLINE_ATOMICS", "owner".to_owned()),
        ];
        // Variables with Trunkline's own names override these defaults.
        let provider = "NVSHMEM_LIBFABRIC_PROVIDER";
        match variable(provider).as_deref() {
            None => {}
            Some("verbs") => defaults.push(("TRUNKLINE_FABRIC", "verbs".to_owned())),
            Some(name @ ("cxi" | "efa")) => defaults.push(("TRUNKLINE_FABRIC", format!("ofi:{name}"))),
            Some(other) => {
                let expected = "cxi, efa or verbs; TRUNKLINE_FABRIC knows more";
                return Err(CallError::Variable { name: provider, value: other.to_owned(), expected });
            }
        }
        if let Some(batch) = number("NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX")? {
            defaults.push(("TRUNKLINE_PROGRESS_BATCH", batch.to_string()));
        }
        let set = REFUSED.iter().filter(|(name, _)| variable(name).is_some());
        let mut refused: Vec<_> =
            set.map(|(name, instead)| format!("{name} does nothing here: {instead}")).collect();
        let most = "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE";
        let nics_max = number(most)?;
        if let Some(asked) = nics_max.filter(|&asked| asked > RAILS_MAX) {
            refused.push(format!(
                "{most}={asked}: a PE has up to {RAILS_MAX} NICs together here, and more are not used"
            ));
        }
        let level = variable("NVSHMEM_DEBUG").unwrap_or_default();
        let loud = ["INFO", "TRACE"].iter().any(|of| of.eq_ignore_ascii_case(level.trim()));
        Ok(Self {
            nics_max: nics_max.unwrap_or(NICS),
            gdrcopy: !parse_switch(variable("NVSHMEM_DISABLE_GDRCOPY")),
            batches: !parse_switch(variable("NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA")),
            debug: loud && concerns_transports(variable("NVSHMEM_DEBUG_SUBSYS")),
            defaults,
            refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<TransportSettings> {
        let all = variables.to_vec();
        TransportSettings::from_variables(|name| {
            all.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_said_is_what_nvshmem_does() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.nics_max, settings.gdrcopy, settings.debug), (16, true, false));
        assert!(settings.batches);
        assert_eq!(settings.defaults, [("TRUNKLINE_ATOMICS", "owner".to_owned())]);
        assert!(settings.refused.is_empty());
    }

    #[test]
    fn a_persona_chooses_the_network() {
        let fabric = |persona: &str| {
            let defaults = read(&[("NVSHMEM_LIBFABRIC_PROVIDER", persona)]).unwrap().defaults;
            defaults[1..].iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(fabric("verbs"), "TRUNKLINE_FABRIC=verbs");
        assert_eq!(fabric("efa"), "TRUNKLINE_FABRIC=ofi:efa");
        assert_eq!(fabric("cxi"), "TRUNKLINE_FABRIC=ofi:cxi");
        let told = read(&[("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")]).unwrap_err().to_string();
        assert!(
            told.contains("NVSHMEM_LIBFABRIC_PROVIDER=tcp") && told.contains("TRUNKLINE_FABRIC"),
            "{told}"
        );
    }

    #[test]
    fn switches_and_numbers_are_nvshmems() {
        for (value, off) in
            [("0", true), ("no", true), ("False", true), ("1", false), ("", false), ("y", false)]
        {
            assert_eq!(read(&[("NVSHMEM_DISABLE_GDRCOPY", value)]).unwrap().gdrcopy, off, "{value:?}");
            let batches = read(&[("NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA", value)]).unwrap().batches;
            assert_eq!(batches, off, "{value:?}");
        }
        assert_eq!(read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "2")]).unwrap().nics_max, 2);
        for wrong in ["0", "-1", "many", "", "1025"] {
            let error = read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", wrong)]).unwrap_err().to_string();
            assert!(error.contains("a number from 1 to 1024"), "{error}");
        }
        assert!(read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "1024")]).is_ok());
        let batch = read(&[("NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX", "7")]).unwrap().defaults;
        assert!(batch.contains(&("TRUNKLINE_PROGRESS_BATCH", "7".to_owned())));
    }

    #[test]
    fn what_does_nothing_is_said() {
        let all: Vec<_> = REFUSED.iter().map(|(name, _)| (*name, "1")).collect();
        let told = read(&all).unwrap().refused;
        assert_eq!(told.len(), REFUSED.len());
        assert!(
            told.iter()
                .zip(REFUSED)
                .all(|(line, (name, _))| line.starts_with(&format!("{name} does nothing")))
        );
    }

    #[test]
    fn more_nics_than_are_used_are_told() {
        let told = |asked| read(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", asked)]).unwrap().refused;
        assert!(told("4").is_empty());
        let lines = told("5");
        assert!(
            lines.len() == 1 && lines[0].contains("MAX_NIC_PER_PE=5: a PE has up to 4 NICs"),
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
