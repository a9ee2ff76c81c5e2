//! The environment variables of OpenSHMEM, beside Trunkline's own. They are read once, when the library starts.

use crate::error::{Result, ShmemError};

/// The default size of the symmetric heap in bytes.
const HEAP: u64 = 512 << 20;
/// The largest size of the symmetric heap in bytes.
const HEAP_MAX: u64 = 1 << 46;

/// Variables of Sandia OpenSHMEM without effect here: Trunkline's own settings choose the network, and collectives
/// choose their algorithms.
const OF_OTHERS: [&str; 24] = [
    "SHMEM_BOUNCE_SIZE",
    "SHMEM_MAX_BOUNCE_BUFFERS",
    "SHMEM_OFI_PROVIDER",
    "SHMEM_OFI_FABRIC",
    "SHMEM_OFI_DOMAIN",
    "SHMEM_OFI_TX_POLL_LIMIT",
    "SHMEM_OFI_RX_POLL_LIMIT",
    "SHMEM_OFI_STX_MAX",
    "SHMEM_OFI_STX_THRESHOLD",
    "SHMEM_OFI_STX_ALLOCATOR",
    "SHMEM_OFI_STX_DISABLE_PRIVATE",
    "SHMEM_OFI_STX_AUTO",
    "SHMEM_OFI_DISABLE_MULTIRAIL",
    "SHMEM_OFI_DISABLE_SINGLE_EP",
    "SHMEM_COLL_CROSSOVER",
    "SHMEM_COLL_SIZE_CROSSOVER",
    "SHMEM_COLL_RADIX",
    "SHMEM_BARRIER_ALGORITHM",
    "SHMEM_BCAST_ALGORITHM",
    "SHMEM_REDUCE_ALGORITHM",
    "SHMEM_SCAN_ALGORITHM",
    "SHMEM_COLLECT_ALGORITHM",
    "SHMEM_FCOLLECT_ALGORITHM",
    "SHMEM_TEAMS_MAX",
];

/// The values of OpenSHMEM's variables.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ShmemSettings {
    /// `SHMEM_SYMMETRIC_SIZE`, in bytes.
    pub(crate) heap: u64,
    /// `SHMEM_INFO`: print all variables with their values.
    pub(crate) info: bool,
    /// `SHMEM_VERSION`: print the version of the library.
    pub(crate) version: bool,
    /// `SHMEM_DEBUG`: log details.
    pub(crate) debug: bool,
    /// Variables of other libraries that are set and have no effect.
    pub(crate) ignored: Vec<&'static str>,
}

impl ShmemSettings {
    /// Returns the text of `SHMEM_INFO`: all variables with their values.
    pub(crate) fn help_text(&self) -> String {
        let Self { heap, info, version, debug, .. } = self;
        let on = |switch: &bool| if *switch { "on" } else { "off" };
        let info = on(info);
        let version = on(version);
        let debug = on(debug);
        format!(
            "\
SHMEM_SYMMETRIC_SIZE={heap}
    bytes of the symmetric heap of each PE [default: 512M]; K, M, G and T are powers of 1024, and 1.5G is right, too.
    SMA_SYMMETRIC_SIZE and SHMEM_SYMMETRIC_HEAP_SIZE are older names.
SHMEM_INFO={info}
    print this
SHMEM_VERSION={version}
    print the version of the library
SHMEM_DEBUG={debug}
    print more than warnings
A switch is off if its value begins with 0, n or f, and on with any other.
TRUNKLINE_*
    the network and all else: `trunkline info --params`"
        )
    }

    /// Parses the variables of a process.
    ///
    /// # Errors
    /// [`ShmemError::Variable`].
    pub(crate) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let named = |name: &'static str| variable(name).map(|value| (name, value));
        let heap = ["SHMEM_SYMMETRIC_SIZE", "SHMEM_SYMMETRIC_HEAP_SIZE", "SMA_SYMMETRIC_SIZE"];
        let heap = match heap.into_iter().find_map(named) {
            None => HEAP,
            Some((name, value)) => parse_size(&value).ok_or(ShmemError::Variable {
                name,
                value,
                expected: "a number of bytes from 1 to 64T, with K, M, G or T",
            })?,
        };
        let on = |name: &str, older: &str| {
            variable(name).or_else(|| variable(older)).is_some_and(|value| parse_switch(&value))
        };
        Ok(Self {
            heap,
            info: on("SHMEM_INFO", "SMA_INFO"),
            version: on("SHMEM_VERSION", "SMA_VERSION"),
            debug: on("SHMEM_DEBUG", "SMA_DEBUG"),
            ignored: OF_OTHERS.into_iter().filter(|name| variable(name).is_some()).collect(),
        })
    }
}

/// Parses a switch: on, unless the value begins like `0`, `no` or `false`.
fn parse_switch(value: &str) -> bool {
    !value.starts_with(['0', 'n', 'N', 'f', 'F'])
}

/// Parses a size: a number with an optional fraction and unit.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    (bytes >= 1.0 && bytes <= HEAP_MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_other_libraries_are_named() {
        let set = [("SHMEM_BOUNCE_SIZE", "2K"), ("SHMEM_TEAMS_MAX", "10"), ("SHMEM_DEBUG", "1")];
        assert_eq!(of(&set).unwrap().ignored, ["SHMEM_BOUNCE_SIZE", "SHMEM_TEAMS_MAX"]);
        assert!(of(&[]).unwrap().ignored.is_empty());
    }

    fn of(pairs: &[(&str, &str)]) -> Result<ShmemSettings> {
        ShmemSettings::from_variables(|name| {
            pairs.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn sizes_have_units_and_points() {
        let heap = |value| of(&[("SHMEM_SYMMETRIC_SIZE", value)]).map(|settings| settings.heap).ok();
        assert_eq!(heap("4096"), Some(4096));
        assert_eq!(
            (heap("1k"), heap("2M"), heap("1.5G"), heap("1T")),
            (Some(1 << 10), Some(2 << 20), Some(3 << 29), Some(1 << 40))
        );
        assert_eq!((heap("3 MB"), heap("7KiB"), heap("12b")), (Some(3 << 20), Some(7 << 10), Some(12)));
        for wrong in ["", "0", "x", "1x", "-1", "1.2.3", "65T", "nan", "inf", "1e9"] {
            assert_eq!(heap(wrong), None, "{wrong}");
        }
        assert_eq!(of(&[]).unwrap().heap, 512 << 20);
        assert_eq!(of(&[("SMA_SYMMETRIC_SIZE", "1m")]).unwrap().heap, 1 << 20);
        assert_eq!(
            of(&[("SMA_SYMMETRIC_SIZE", "1m"), ("SHMEM_SYMMETRIC_SIZE", "2m")]).unwrap().heap,
            2 << 20
        );
    }

    #[test]
    fn switches_are_off_by_few_words() {
        for (value, is) in [
            ("0", false),
            ("no", false),
            ("False", false),
            ("1", true),
            ("yes", true),
            ("", true),
            ("on", true),
        ] {
            assert_eq!(of(&[("SHMEM_INFO", value)]).unwrap().info, is, "{value}");
        }
        assert!(!of(&[]).unwrap().version && of(&[("SMA_VERSION", "y")]).unwrap().version);
    }
}
