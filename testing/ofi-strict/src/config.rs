//! What the provider demands, from environment variables `FI_STRICT_*`. Read by `info.rs` for each question and by
//! `fabric.rs` once for each fabric; never later.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use trunkline_sys::ofi::mr_mode;

/// All variables, each with what it says and its default.
pub const VARIABLES: &[(&str, &str)] = &[
    ("FI_STRICT_NICS", "how many NICs there are, 1 to 8: domains strict0, strict1 and so on; 1"),
    (
        "FI_STRICT_MR",
        "what registrations demand, of endpoint, prov_key, allocated, local, virt_addr, with commas, or none; \
         endpoint,prov_key,allocated",
    ),
    ("FI_STRICT_CQ_DATA", "bytes of remote CQ data, 4 or 8; 8"),
    ("FI_STRICT_PROGRESS", "manual, or auto: then each call makes progress of its whole domain; manual"),
    ("FI_STRICT_TAGGED", "whether there are tagged messages, 0 or 1; 1"),
    ("FI_STRICT_WRITEDATA", "with 0, writes with remote CQ data are offered and end with -FI_ENOSYS; 1"),
    ("FI_STRICT_HMEM", "with 1, memory of the device is registered that the tests' driver stands for; 0"),
    (
        "FI_STRICT_ENTRIES",
        "list entries of a NIC, of which an enabled registration takes 2 if peers may use it; 65536",
    ),
    ("FI_STRICT_EAGAIN", "probability that a call which may says -FI_EAGAIN without effect, 0 to 0.99; 0"),
    ("FI_STRICT_REORDER", "probability that an operation, and a completion, overtakes others, 0 to 1; 0"),
    ("FI_STRICT_DELAY", "microseconds that an operation waits before it goes out; 0"),
    (
        "FI_STRICT_FAIL",
        "op:n, with commas: the n-th call of an operation, from 1, on a fabric fails with -FI_EIO; none",
    ),
    ("FI_STRICT_INJECT", "bytes of an injected operation; 192"),
    ("FI_STRICT_DEPTH", "operations and receives that an endpoint takes at once; 1024"),
    ("FI_STRICT_SEED", "of all that is left to chance; 1"),
    ("FI_STRICT_REPORT", "a file to which violations and accounts are appended; none"),
    ("FI_STRICT_ABORT", "with 1, a violation ends the process; 0"),
];

/// What can be made to fail.
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
    /// All, by their names in `FI_STRICT_FAIL`.
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

/// What is demanded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StrictConfig {
    pub(crate) nics: u32,
    /// Bits of [`mr_mode`].
    pub(crate) mr_mode: i32,
    /// 4 or 8.
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

/// A variable that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct InvalidVariable {
    name: String,
    value: String,
}

impl fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value } = self;
        match VARIABLES.iter().find(|(known, _)| known == name) {
            Some((_, meaning)) => write!(f, "{name}={value} is wrong; it is: {meaning}"),
            None => write!(f, "{name} is no variable of this provider"),
        }
    }
}

impl StrictConfig {
    /// What the environment says.
    ///
    /// # Errors
    /// The first variable that is unknown or malformed.
    pub(crate) fn from_env() -> Result<Self, InvalidVariable> {
        let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
        Self::from_pairs(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// The same of any pairs; those of other names do not count.
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

    /// Sets one; `None` if it is unknown or malformed.
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

/// `false` for one word, `true` for another.
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
    fn every_variable_is_known_and_explained_when_it_is_wrong() {
        for (name, meaning) in VARIABLES {
            let said = of(&[(name, "-")]);
            // A path may be anything.
            if *name != "FI_STRICT_REPORT" {
                assert!(said.is_err_and(|said| said.contains(meaning) && said.contains(name)), "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_variable_is_named() {
        assert_eq!(
            of(&[("FI_STRICT_MRS", "none")]),
            Err("FI_STRICT_MRS is no variable of this provider".to_owned())
        );
        assert_eq!(of(&[("FI_STRICTLY", "1"), ("FI_PROVIDER", "tcp")]), Ok(StrictConfig::default()));
    }

    #[test]
    fn values_are_read() {
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
    fn what_is_out_of_bounds_is_wrong() {
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
