//! The provider's configuration, from the environment variables `FI_STRICT_*`. `abi/fabric.rs` reads it at each
//! `fi_getinfo` and once per fabric, never later.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use trunkline_sys::ofi::mr_mode;

/// All variables, each with its name, and its meaning and default.
pub const VARIABLES: &[(&str, &str)] = &[
    ("FI_STRICT_NICS", "number of NICs, 1 to 8, as domains strict0, strict1 and so on; default 1"),
    (
        "FI_STRICT_MR",
        "requirements for registrations, with commas: endpoint, prov_key, allocated, local, virt_addr, or none; \
         default endpoint,prov_key,allocated",
    ),
    ("FI_STRICT_CQ_DATA", "bytes of remote CQ data, 4 or 8; default 8"),
    ("FI_STRICT_PROGRESS", "manual, or auto: each call makes progress on its whole domain; default manual"),
    ("FI_STRICT_TAGGED", "whether tagged messages are supported, 0 or 1; default 1"),
    ("FI_STRICT_WRITEDATA", "0: writes with remote CQ data are offered, but fail with -FI_ENOSYS; default 1"),
    ("FI_STRICT_HMEM", "1: memory of the tests' simulated device can be registered; default 0"),
    (
        "FI_STRICT_ENTRIES",
        "list entries of a NIC; an enabled registration with remote rights uses 2; default 65536",
    ),
    (
        "FI_STRICT_EAGAIN",
        "probability that a call returns -FI_EAGAIN without effect where this is allowed, 0 to 0.99; default 0",
    ),
    (
        "FI_STRICT_REORDER",
        "probability that an operation or a completion overtakes others, 0 to 1; default 0",
    ),
    ("FI_STRICT_DELAY", "microseconds that an operation is delayed before it is sent; default 0"),
    (
        "FI_STRICT_FAIL",
        "op:n, separated by commas: the n-th call (from 1) of op on a fabric fails with -FI_EIO; default none",
    ),
    ("FI_STRICT_INJECT", "most bytes of an injected operation; default 192"),
    ("FI_STRICT_DEPTH", "most outstanding operations, and most posted receives, per endpoint; default 1024"),
    ("FI_STRICT_SEED", "seed of all random decisions; default 1"),
    ("FI_STRICT_REPORT", "file to which violations and accounts are appended; default none"),
    ("FI_STRICT_ABORT", "1: a violation aborts the process; default 0"),
];

/// Calls that `FI_STRICT_FAIL` can make fail.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum FailureStep {
    Fabric,
    Domain,
    Endpoint,
    CqOpen,
    AvOpen,
    AvInsert,
    Enable,
    Getname,
    MrRegattr,
    MrBind,
    MrEnable,
}

impl FailureStep {
    /// All calls, with their names in `FI_STRICT_FAIL`.
    const NAMES: &[(&str, Self)] = &[
        ("fabric", Self::Fabric),
        ("domain", Self::Domain),
        ("endpoint", Self::Endpoint),
        ("cq_open", Self::CqOpen),
        ("av_open", Self::AvOpen),
        ("av_insert", Self::AvInsert),
        ("enable", Self::Enable),
        ("getname", Self::Getname),
        ("mr_regattr", Self::MrRegattr),
        ("mr_bind", Self::MrBind),
        ("mr_enable", Self::MrEnable),
    ];
}

/// The configuration of a fabric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StrictConfig {
    pub(crate) nics: u32,
    /// Bits of [`mr_mode`].
    pub(crate) mr_mode: i32,
    /// Bytes of remote CQ data: 4 or 8.
    pub(crate) cq_data: usize,
    pub(crate) auto_progress: bool,
    pub(crate) tagged: bool,
    pub(crate) writedata: bool,
    pub(crate) hmem: bool,
    pub(crate) entries: u64,
    pub(crate) eagain: f64,
    pub(crate) reorder: f64,
    pub(crate) delay: Duration,
    pub(crate) fail: Vec<(FailureStep, u32)>,
    pub(crate) inject: usize,
    pub(crate) depth: usize,
    pub(crate) seed: u64,
    pub(crate) report: Option<PathBuf>,
    pub(crate) abort: bool,
}

impl Default for StrictConfig {
    fn default() -> Self {
        Self {
            nics: 1,
            mr_mode: mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::ALLOCATED,
            cq_data: 8,
            auto_progress: false,
            tagged: true,
            writedata: true,
            hmem: false,
            entries: 65536,
            eagain: 0.0,
            reorder: 0.0,
            delay: Duration::ZERO,
            fail: Vec::new(),
            inject: 192,
            depth: 1024,
            seed: 1,
            report: None,
            abort: false,
        }
    }
}

/// An unknown variable, or an invalid value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct InvalidVariable {
    name: String,
    value: String,
}

impl fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value } = self;
        match VARIABLES.iter().find(|(known, _)| known == name) {
            Some((_, meaning)) => write!(f, "{name}={value} is invalid; expected: {meaning}"),
            None => write!(f, "{name} is not a variable of this provider"),
        }
    }
}

impl StrictConfig {
    /// Reads the configuration from the environment.
    ///
    /// # Errors
    /// The first variable that is unknown or malformed.
    pub(crate) fn from_env() -> Result<Self, InvalidVariable> {
        let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
        Self::from_pairs(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// Reads the configuration from any pairs of names and values; pairs with other names are ignored.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub(crate) fn from_pairs(pairs: impl Iterator<Item = (String, String)>) -> Result<Self, InvalidVariable> {
        let mut config = Self::default();
        for (name, value) in pairs.filter(|(name, _)| name.starts_with("FI_STRICT_")) {
            if config.set_variable(&name, value.trim()).is_none() {
                return Err(InvalidVariable { name, value });
            }
        }
        Ok(config)
    }

    /// Sets one variable; returns `None` if it is unknown or its value is invalid.
    fn set_variable(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "FI_STRICT_NICS" => self.nics = within_range(value.parse().ok()?, 1, 8)?,
            "FI_STRICT_MR" => self.mr_mode = parse_modes(value)?,
            "FI_STRICT_CQ_DATA" => {
                self.cq_data = value.parse().ok().filter(|bytes| [4, 8].contains(bytes))?
            }
            "FI_STRICT_PROGRESS" => self.auto_progress = parse_choice(value, "manual", "auto")?,
            "FI_STRICT_TAGGED" => self.tagged = parse_choice(value, "0", "1")?,
            "FI_STRICT_WRITEDATA" => self.writedata = parse_choice(value, "0", "1")?,
            "FI_STRICT_HMEM" => self.hmem = parse_choice(value, "0", "1")?,
            "FI_STRICT_ENTRIES" => self.entries = within_range(value.parse().ok()?, 0, 1 << 20)?,
            "FI_STRICT_EAGAIN" => self.eagain = within_range(value.parse().ok()?, 0.0, 0.99)?,
            "FI_STRICT_REORDER" => self.reorder = within_range(value.parse().ok()?, 0.0, 1.0)?,
            "FI_STRICT_DELAY" => {
                self.delay = Duration::from_micros(within_range(value.parse().ok()?, 0, 10_000_000)?);
            }
            "FI_STRICT_FAIL" => self.fail = parse_failures(value)?,
            "FI_STRICT_INJECT" => self.inject = within_range(value.parse().ok()?, 0, 1 << 16)?,
            "FI_STRICT_DEPTH" => self.depth = within_range(value.parse().ok()?, 1, 1 << 16)?,
            "FI_STRICT_SEED" => self.seed = value.parse().ok()?,
            "FI_STRICT_REPORT" => self.report = (!value.is_empty()).then(|| PathBuf::from(value)),
            "FI_STRICT_ABORT" => self.abort = parse_choice(value, "0", "1")?,
            _ => return None,
        }
        Some(())
    }
}

fn within_range<T: PartialOrd>(value: T, low: T, high: T) -> Option<T> {
    (low..=high).contains(&value).then_some(value)
}

/// Returns `false` for one word, `true` for the other, and `None` otherwise.
fn parse_choice(value: &str, no: &str, yes: &str) -> Option<bool> {
    if value == yes {
        return Some(true);
    }
    (value == no).then_some(false)
}

fn parse_modes(value: &str) -> Option<i32> {
    if value == "none" {
        return Some(0);
    }
    value.split(',').try_fold(0, |bits, word| {
        Some(
            bits | match word.trim() {
                "endpoint" => mr_mode::ENDPOINT,
                "prov_key" => mr_mode::PROV_KEY,
                "allocated" => mr_mode::ALLOCATED,
                "local" => mr_mode::LOCAL,
                "virt_addr" => mr_mode::VIRT_ADDR,
                _ => return None,
            },
        )
    })
}

fn parse_failures(value: &str) -> Option<Vec<(FailureStep, u32)>> {
    let one = |word: &str| {
        let (name, n) = word.trim().split_once(':')?;
        let (_, step) = FailureStep::NAMES.iter().find(|(known, _)| *known == name)?;
        Some((*step, n.parse().ok().filter(|n| *n > 0)?))
    };
    value.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<StrictConfig, String> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StrictConfig::from_pairs(pairs).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn malformed_variables_are_reported_with_their_meaning() {
        for (name, meaning) in VARIABLES {
            let said = of(&[(name, "-")]);
            // Every path is valid.
            if *name != "FI_STRICT_REPORT" {
                assert!(said.is_err_and(|said| said.contains(meaning) && said.contains(name)), "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_variable_is_named() {
        assert_eq!(
            of(&[("FI_STRICT_MRS", "none")]),
            Err("FI_STRICT_MRS is not a variable of this provider".to_owned())
        );
        assert_eq!(of(&[("FI_STRICTLY", "1"), ("FI_PROVIDER", "tcp")]), Ok(StrictConfig::default()));
    }

    #[test]
    fn valid_values_are_parsed() {
        let config = of(&[
            ("FI_STRICT_MR", "local, virt_addr"),
            ("FI_STRICT_FAIL", "mr_enable:3,endpoint:1"),
            ("FI_STRICT_EAGAIN", "0.5"),
            ("FI_STRICT_PROGRESS", "auto"),
            ("FI_STRICT_DELAY", "250"),
        ])
        .unwrap();
        assert_eq!(config.mr_mode, mr_mode::LOCAL | mr_mode::VIRT_ADDR);
        assert_eq!(config.fail, [(FailureStep::MrEnable, 3), (FailureStep::Endpoint, 1)]);
        assert!(config.auto_progress && config.eagain == 0.5);
        assert_eq!(config.delay, Duration::from_micros(250));
        assert_eq!(of(&[("FI_STRICT_MR", "none")]).unwrap().mr_mode, 0);
    }

    #[test]
    fn out_of_range_values_are_rejected() {
        for (name, value) in [
            ("FI_STRICT_NICS", "0"),
            ("FI_STRICT_NICS", "9"),
            ("FI_STRICT_CQ_DATA", "16"),
            ("FI_STRICT_EAGAIN", "1"),
            ("FI_STRICT_EAGAIN", "nan"),
            ("FI_STRICT_REORDER", "1.5"),
            ("FI_STRICT_FAIL", "endpoint:0"),
            ("FI_STRICT_FAIL", "nothing:1"),
            ("FI_STRICT_DEPTH", "0"),
            ("FI_STRICT_MR", "endpoint,"),
        ] {
            assert!(of(&[(name, value)]).is_err(), "{name}={value}");
        }
    }
}
