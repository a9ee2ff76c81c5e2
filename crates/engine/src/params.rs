//! Every parameter: name, type, default, range, meaning. Read once, passed as values; `trunkline info --params` prints
//! the table.

mod table;

use std::ffi::OsString;
use std::path::PathBuf;

use crate::host::LocalUsers;
use trunkline_proto::limits::EAGER_CREDITS_MAX;
use trunkline_proto::pool::config::{PoolConfig, PoolConfigError, SharingMode};
use trunkline_proto::tagged::MethodChoice;
use trunkline_proto::time::Duration;

pub use table::TABLE;

/// The component that pairs sends with receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MatchBy {
    /// The engine, by clear-to-send records in a mailbox.
    Mailbox,
    /// The NIC, where it can.
    Nic,
}

/// The component that executes atomics of one-sided communication.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExecuteBy {
    /// The NIC, for 8-byte words, where every process has exactly one NIC that executes atomics without calls of the process;
    /// else the owner of the word.
    Auto,
    /// As [`ExecuteBy::Auto`], also where the NIC needs calls of the owner.
    Nic,
    /// The word's owner.
    Owner,
}

/// The engine's parameters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EngineParams {
    /// The component that pairs sends with receives.
    pub match_by: MatchBy,
    /// Largest message, in bytes, that may be sent before its receive is known.
    pub eager_max: u32,
    /// Maximum number of such messages in flight per comm.
    pub eager_credits: u32,
    /// Maximum time between the death of a peer and the failure of requests to it.
    pub peer_time: Duration,
    /// Time without a response of the network after which a link with pending operations is left.
    pub rail_time: Duration,
    /// Time without a connect call after which an attempt is given up; counted while the process makes calls.
    pub connect_time: Duration,
    /// Maximum number of outstanding operations per link.
    pub depth: u32,
    /// Links of a comm over each of its rails, up to four in total.
    pub links_per_rail: u32,
    /// As `links_per_rail`, for connections with RCCL's point-to-point hint; 0 uses `links_per_rail`.
    pub p2p_links_per_rail: u32,
    /// Whether a long message is spread over the links of one rail.
    pub split: bool,
    /// Minimum bytes of a piece of a message that is spread over several links.
    pub stripe_min: u32,
    /// Maximum number of comms of this process.
    pub comms_max: u32,
    /// Maximum number of regions registered with one comm.
    pub regions_max: u32,
    /// Fruitless polls of a lane per check of its peer's control stream.
    pub idle_polls: u32,
    /// The component that executes atomics of one-sided communication.
    pub execute_by: ExecuteBy,
    /// Which processes of a host access each other's symmetric heaps by loads and stores.
    pub shared_heap: SharedHeap,
    /// Whether they access each other's static variables of the program too.
    pub shared_statics: bool,
    /// Completions that one-sided communication processes from one NIC before it polls the next.
    pub progress_batch: u32,
    /// Bytes of a symmetric heap, for front ends that have one.
    pub heap_bytes: u64,
    /// The fabric, by name.
    pub fabric: FabricName,
    /// The device of that fabric, if one was named.
    pub device: Option<String>,
    /// The software NIC is an error, whether it was requested or is the only one.
    pub require_nic: bool,
    /// RDMA devices in software (soft-RoCE, soft-iWARP) count as devices if no fabric is named.
    pub counts_software_rdma: bool,
    /// The root of the host's system folders (`sys`, `proc`, `dev`).
    pub host_root: PathBuf,
    /// The method by which long messages between ranks of this host are copied.
    pub node_copy: MethodChoice,
    /// Connections inside this host use shared memory, whatever fabric reaches other hosts.
    pub near: bool,
    /// NICs without a place in the PCI tree are fused to one device too, if the front end fuses NICs.
    pub fuses_all: bool,
    /// The users whose processes may share local control sockets with this one.
    pub local_users: LocalUsers,
    /// A thread makes progress for idle callers.
    pub progress_thread: bool,
    /// Other programs can read counters and comms on a status page.
    pub status: bool,
    /// The file into which the front end writes the traffic of each rail; `None`: nothing is recorded.
    pub trace: Option<PathBuf>,
    /// Maximum number of events in that file.
    pub trace_events: u32,
    /// Whether and how comms share queue pairs.
    pub sharing: SharingParams,
    /// The software NIC's own parameters.
    pub soft: SoftParams,
    /// Parameters of NICs through libfabric.
    pub ofi: OfiParams,
}

/// The processes that access symmetric memory by loads and stores.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharedHeap {
    /// Processes of one host.
    Host,
    /// No process: the fabric transfers everything.
    Nobody,
    /// Processes of one host whose numbers, divided by this, are equal: each such block counts as a host.
    Of(u32),
}

/// A fabric, by the users' name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FabricName {
    /// The best one available.
    Auto,
    /// The software NIC, by any wire that reaches the peer.
    Soft,
    /// The software NIC over shared memory, even inside one process.
    SoftShm,
    /// The software NIC over TCP, even inside one host.
    SoftTcp,
    /// RDMA devices, through rdma-core.
    Verbs,
    /// Any provider of libfabric.
    Ofi,
}

/// Parameters of the sharing of queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharingParams {
    /// Whether comms share.
    pub sharing: SharingMode,
    /// Groups of queue pairs that comms of one direction towards one peer share, 1 to 8.
    pub groups: u8,
    /// The queue depth of a group as a multiple of one comm's, 1 to 255.
    pub depth_multiplier: u8,
    /// Maximum number of queue pairs per NIC for this process; 0: all of the NIC's.
    pub budget: u32,
}

impl SharingParams {
    /// Returns the configuration of the pool of groups.
    ///
    /// # Errors
    /// [`PoolConfigError`] names the value that is out of range; values from [`EngineParams::from_lookup`] never are.
    pub const fn pool_config(&self) -> Result<PoolConfig, PoolConfigError> {
        PoolConfig::new(self.sharing, self.groups, self.depth_multiplier)
    }
}

impl Default for SharingParams {
    fn default() -> Self {
        Self { sharing: SharingMode::Off, groups: 4, depth_multiplier: 1, budget: 0 }
    }
}

/// Parameters of the software NIC; zero means its own default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SoftParams {
    /// Number of NICs of this host.
    pub nics: u32,
    /// The transfer method of large messages to another process.
    pub copy: SoftCopy,
    /// Written data becomes visible only by a flush.
    pub delayed: bool,
    /// NICs accept dma-bufs that the CPU can map.
    pub takes_dmabufs: bool,
    /// Maximum number of queue pairs of a NIC.
    pub max_qp: u32,
    /// Number of pipelines of a NIC.
    pub pipelines: u32,
    /// Maximum number of regions of a NIC.
    pub max_mr: u32,
}

/// Parameters of NICs through libfabric.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OfiParams {
    /// The provider, by libfabric's name; `None`: one with hardware.
    pub provider: Option<String>,
    /// A library to open instead of the system's.
    pub library: Option<PathBuf>,
    /// The only domain to use.
    pub domain: Option<String>,
    /// The number of NICs that each existing one is presented as, 1 to 8.
    pub nics: u32,
}

impl Default for OfiParams {
    fn default() -> Self {
        Self { provider: None, library: None, domain: None, nics: 1 }
    }
}

/// How the software NIC transfers large messages to another process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SoftCopy {
    /// Each connection measures the fastest method for each size.
    #[default]
    Auto,
    /// Through the shared ring.
    Staging,
    /// The receiver reads the sender's memory.
    Pull,
    /// The receiver reads one part, the sender writes the other.
    Share,
}

impl Default for EngineParams {
    fn default() -> Self {
        Self {
            match_by: MatchBy::Mailbox,
            eager_max: 4096,
            eager_credits: EAGER_CREDITS_MAX as u32,
            peer_time: Duration::from_secs(10),
            rail_time: Duration::from_secs(3),
            connect_time: Duration::from_secs(300),
            depth: 512,
            links_per_rail: 1,
            p2p_links_per_rail: 0,
            split: true,
            stripe_min: 64 * 1024,
            comms_max: 8192,
            regions_max: 65536,
            idle_polls: 1024,
            execute_by: ExecuteBy::Auto,
            shared_heap: SharedHeap::Host,
            shared_statics: true,
            progress_batch: 32,
            heap_bytes: 64 << 20,
            fabric: FabricName::Auto,
            device: None,
            require_nic: false,
            counts_software_rdma: false,
            host_root: PathBuf::from("/"),
            node_copy: MethodChoice::Learned,
            local_users: LocalUsers::Same,
            near: false,
            fuses_all: false,
            progress_thread: false,
            status: true,
            trace: None,
            trace_events: 1 << 18,
            sharing: SharingParams::default(),
            soft: SoftParams::default(),
            ofi: OfiParams::default(),
        }
    }
}

/// One row of the table of parameters.
#[derive(Clone, Copy, Debug)]
pub struct ParamRow {
    /// The environment variable.
    pub name: &'static str,
    /// Other names for it. The variable itself has priority, then these in their order.
    pub aliases: &'static [ParamAlias],
    /// The type of its value.
    pub kind: &'static str,
    /// The value when it is not set.
    pub default: &'static str,
    /// Allowed values.
    pub range: &'static str,
    /// Its effect.
    pub doc: &'static str,
    set: fn(&mut EngineParams, &str) -> Result<(), ()>,
}

/// A name of a parameter in other libraries.
#[derive(Clone, Copy, Debug)]
pub struct ParamAlias {
    /// The environment variable.
    pub name: &'static str,
    /// The type of its value, which may differ from its row's.
    pub kind: &'static str,
    /// Allowed values.
    pub range: &'static str,
    /// Translates a value to the one of the row's own variable.
    means: fn(&str) -> Result<&str, ()>,
}

/// The setting of a row.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ParamSetting {
    /// The variable that was set: the row's own, or one of its aliases.
    pub name: &'static str,
    /// The value, in the format of the row's own variable.
    pub value: String,
}

/// The value of a variable is not allowed by its row.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{name}={value}: expected {kind}, {range}")]
pub struct ParamsError {
    name: &'static str,
    value: String,
    kind: &'static str,
    range: &'static str,
}

impl ParamRow {
    /// Returns the setting of the first of the row's names for which `lookup` has a value; `None`: the default applies. A value
    /// of the row's own name is not checked yet.
    ///
    /// # Errors
    /// [`ParamsError`] names the variable, if its value is not UTF-8 or is invalid for this alias.
    pub fn find_setting(
        &self,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<ParamSetting>, ParamsError> {
        let own =
            ParamAlias { name: self.name, kind: self.kind, range: self.range, means: |value| Ok(value) };
        for ParamAlias { name, kind, range, means } in std::iter::once(&own).chain(self.aliases).copied() {
            let Some(set) = lookup(name) else { continue };
            let meant = set.to_str().ok_or(()).and_then(means).map(str::to_owned);
            let error = |()| ParamsError { name, value: set.to_string_lossy().into_owned(), kind, range };
            return meant.map(|value| Some(ParamSetting { name, value })).map_err(error);
        }
        Ok(None)
    }
}

impl EngineParams {
    /// Returns the defaults, changed by the values of `lookup` for each name of the [`TABLE`] and its aliases.
    ///
    /// # Errors
    /// [`ParamsError`] names the first variable with an invalid value; one that is not UTF-8 is invalid too.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ParamsError> {
        let mut params = Self::default();
        for row in TABLE {
            let Some(ParamSetting { name, value }) = row.find_setting(&lookup)? else { continue };
            let ParamRow { kind, range, .. } = *row;
            (row.set)(&mut params, &value).map_err(|()| ParamsError { name, value, kind, range })?;
        }
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::tagged::CopyMethod;

    use super::*;

    #[test]
    fn defaults_in_the_table_are_the_defaults() {
        let params = EngineParams::from_lookup(|name| {
            TABLE.iter().find(|row| row.name == name).map(|row| row.default.into())
        });
        assert_eq!(params, Ok(EngineParams::default()));
    }

    #[test]
    fn who_copies_inside_a_node_is_said_by_a_word() {
        let of = |value: &str| {
            EngineParams::from_lookup(|name| (name == "TRUNKLINE_NODE_COPY").then(|| value.into()))
        };
        let methods =
            [("pull", CopyMethod::Pull), ("turns", CopyMethod::Turns), ("stage", CopyMethod::Stage)];
        for (word, method) in methods {
            assert_eq!(of(word).unwrap().node_copy, MethodChoice::Fixed(method));
        }
        assert_eq!(of("auto").unwrap().node_copy, MethodChoice::Learned);
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for (name, value) in [
            ("TRUNKLINE_MATCH", "cat"),
            ("TRUNKLINE_EAGER_MAX", "-1"),
            ("TRUNKLINE_DEPTH", "31"),
            ("TRUNKLINE_QP_SHARING", "1"),
            ("RCCL_IB_QP_SHARING_ENABLE", "2"),
            ("TRUNKLINE_QP_GROUPS", "0"),
            ("TRUNKLINE_QP_GROUPS", "9"),
            ("RCCL_ANP_COMM_NGROUPS", "9"),
            ("RCCL_IB_COMM_NGROUPS", "-1"),
            ("TRUNKLINE_QP_DEPTH_MULTIPLIER", "0"),
            ("RCCL_ANP_QP_DEPTH_MULTIPLIER", "256"),
            ("RCCL_IB_QP_DEPTH_MULTIPLIER", ""),
            ("TRUNKLINE_QP_BUDGET", "1048577"),
            ("TRUNKLINE_FABRIC", "ofi:"),
            ("TRUNKLINE_FABRIC", "verbs:"),
            ("TRUNKLINE_FABRIC", "ofi,tcp"),
            ("TRUNKLINE_OFI_NICS", "0"),
            ("TRUNKLINE_OFI_NICS", "9"),
            ("TRUNKLINE_NODE_COPY", "push"),
            ("TRUNKLINE_NODE_COPY", ""),
        ] {
            let error = EngineParams::from_lookup(|n| (n == name).then(|| value.into())).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{name}={value}: expected ")), "{error}");
        }
    }

    fn sharing(set: &[(&str, &str)]) -> SharingParams {
        let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        EngineParams::from_lookup(value).unwrap().sharing
    }

    #[test]
    fn each_alias_means_what_its_users_know() {
        use SharingMode::{Off, On};
        let usual = SharingParams::default();
        for name in ["RCCL_ANP_COMM_NGROUPS", "RCCL_IB_COMM_NGROUPS"] {
            let groups = |n: &str| sharing(&[(name, n)]);
            assert_eq!(groups("0"), SharingParams { sharing: Off, ..usual }, "{name}");
            assert_eq!(groups("1"), SharingParams { sharing: On, groups: 1, ..usual }, "{name}");
            assert_eq!(groups("8"), SharingParams { sharing: On, groups: 8, ..usual }, "{name}");
        }
        for (value, sharing_is) in [("0", Off), ("1", On)] {
            let set = sharing(&[("RCCL_IB_QP_SHARING_ENABLE", value)]);
            assert_eq!(set, SharingParams { sharing: sharing_is, ..usual });
        }
        for name in ["RCCL_ANP_QP_DEPTH_MULTIPLIER", "RCCL_IB_QP_DEPTH_MULTIPLIER"] {
            assert_eq!(sharing(&[(name, "7")]), SharingParams { depth_multiplier: 7, ..usual }, "{name}");
        }
    }

    #[test]
    fn links_mean_what_users_of_other_transports_know() {
        let of = |name: &str, value: &str| {
            let params = EngineParams::from_lookup(|asked| (asked == name).then(|| value.into())).unwrap();
            (params.links_per_rail, params.p2p_links_per_rail, params.split)
        };
        assert_eq!(of("", ""), (1, 0, true));
        for (value, links) in [("1", 1), ("4", 4), ("5", 4), ("128", 4)] {
            assert_eq!(of("NCCL_IB_QPS_PER_CONNECTION", value), (links, 0, true));
            assert_eq!(of("RCCL_IB_QPS_PER_P2P", value), (1, links, true));
        }
        assert_eq!(of("NCCL_IB_SPLIT_DATA_ON_QPS", "0"), (1, 0, false));
        assert_eq!(of("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), (1, 0, true));
    }

    #[test]
    fn a_fabric_may_be_named_with_what_is_used_of_it() {
        let of = |value: &str| {
            let params =
                EngineParams::from_lookup(|asked| (asked == "TRUNKLINE_FABRIC").then(|| value.into()))
                    .unwrap();
            (params.fabric, params.device, params.ofi.provider)
        };
        assert_eq!(of("verbs:mlx5_0"), (FabricName::Verbs, Some("mlx5_0".to_owned()), None));
        assert_eq!(of("ofi"), (FabricName::Ofi, None, None));
        for provider in ["tcp", "strict", "tcp;ofi_rxm"] {
            assert_eq!(of(&format!("ofi:{provider}")), (FabricName::Ofi, None, Some(provider.to_owned())));
        }
    }

    #[test]
    fn what_libfabric_is_told_is_read() {
        let of = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
            EngineParams::from_lookup(value).unwrap().ofi
        };
        let set = [
            ("TRUNKLINE_OFI_LIBRARY", "/opt/lib/libfabric.so.1"),
            ("TRUNKLINE_OFI_DOMAIN", "eth0"),
            ("TRUNKLINE_OFI_NICS", "8"),
        ];
        let library = Some("/opt/lib/libfabric.so.1".into());
        let domain = Some("eth0".to_owned());
        assert_eq!(of(&set), OfiParams { provider: None, library, domain, nics: 8 });
        let usual = [
            ("TRUNKLINE_OFI_LIBRARY", "libfabric.so.1"),
            ("TRUNKLINE_OFI_DOMAIN", "any"),
            ("TRUNKLINE_OFI_NICS", "1"),
        ];
        assert_eq!(of(&usual), OfiParams::default());
        let empty = [("TRUNKLINE_OFI_LIBRARY", ""), ("TRUNKLINE_OFI_DOMAIN", "")];
        assert_eq!(of(&empty), OfiParams::default());
    }

    #[test]
    fn our_own_name_counts_before_an_alias() {
        use SharingMode::{Auto, Off, On};
        let of = |set: &[(&str, &str)]| {
            let SharingParams { sharing, groups, depth_multiplier, .. } = sharing(set);
            (sharing, groups, depth_multiplier)
        };
        let anp = ("RCCL_ANP_COMM_NGROUPS", "2");
        assert_eq!(of(&[("TRUNKLINE_QP_SHARING", "off"), anp]), (Off, 2, 1));
        assert_eq!(of(&[("TRUNKLINE_QP_SHARING", "auto"), anp]), (Auto, 2, 1));
        assert_eq!(of(&[("RCCL_IB_QP_SHARING_ENABLE", "0"), anp]), (Off, 2, 1));
        assert_eq!(of(&[("TRUNKLINE_QP_GROUPS", "5"), anp]), (On, 5, 1), "an alias for two rows");
        assert_eq!(of(&[("RCCL_IB_COMM_NGROUPS", "6"), anp]), (On, 2, 1), "the first alias");
        let depth = ("RCCL_IB_QP_DEPTH_MULTIPLIER", "9");
        assert_eq!(of(&[("RCCL_ANP_QP_DEPTH_MULTIPLIER", "3"), depth]), (Off, 4, 3));
        assert_eq!(of(&[("TRUNKLINE_QP_DEPTH_MULTIPLIER", "2"), depth]), (Off, 4, 2));
        // A name without effect is not checked either.
        assert_eq!(
            of(&[("TRUNKLINE_QP_DEPTH_MULTIPLIER", "2"), ("RCCL_IB_QP_DEPTH_MULTIPLIER", "x")]),
            (Off, 4, 2)
        );
    }

    #[test]
    fn what_is_read_is_a_configuration() {
        for (groups, depth) in [("1", "1"), ("8", "255")] {
            let set = sharing(&[
                ("TRUNKLINE_QP_SHARING", "on"),
                ("TRUNKLINE_QP_GROUPS", groups),
                ("TRUNKLINE_QP_DEPTH_MULTIPLIER", depth),
                ("TRUNKLINE_QP_BUDGET", "1048576"),
            ]);
            assert_eq!(set.budget, 1 << 20);
            let groups = groups.parse().unwrap();
            let depth = depth.parse().unwrap();
            assert_eq!(set.pool_config(), PoolConfig::new(SharingMode::On, groups, depth));
            assert!(set.pool_config().is_ok());
        }
    }

    #[test]
    fn names_are_given_once() {
        let names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
        for row in TABLE {
            assert_eq!(names.iter().filter(|name| **name == row.name).count(), 1, "{}", row.name);
            assert!(row.aliases.iter().all(|alias| !alias.name.starts_with("TRUNKLINE_")), "{}", row.name);
        }
    }

    #[test]
    fn a_trace_goes_to_a_directory_or_nowhere() {
        let trace = |value: &str| {
            EngineParams::from_lookup(|n| (n == "TRUNKLINE_TRACE").then(|| value.into())).unwrap().trace
        };
        assert_eq!((trace(""), trace("off")), (None, None));
        assert_eq!(trace("./off"), Some(PathBuf::from("./off")));
        for value in ["1023", "67108865", "all"] {
            assert!(
                EngineParams::from_lookup(|n| (n == "TRUNKLINE_TRACE_EVENTS").then(|| value.into())).is_err()
            );
        }
    }

    #[test]
    fn a_value_that_is_no_text_is_a_bad_value() {
        use std::os::unix::ffi::OsStringExt as _;
        for row in TABLE {
            // The default, with a byte that UTF-8 never contains.
            let value = [row.default.as_bytes(), b"\xff"].concat();
            let read =
                EngineParams::from_lookup(|n| (n == row.name).then(|| OsString::from_vec(value.clone())));
            let text = read.unwrap_err().to_string();
            assert!(text.starts_with(&format!("{}={}\u{fffd}: expected ", row.name, row.default)), "{text}");
            for alias in row.aliases {
                let read = EngineParams::from_lookup(|n| {
                    (n == alias.name).then(|| OsString::from_vec(b"1\xff".to_vec()))
                });
                let text = read.unwrap_err().to_string();
                assert!(text.starts_with(&format!("{}=1\u{fffd}: expected ", alias.name)), "{text}");
            }
        }
    }
}
