//! The engine's parameters. Front ends read them once, from the settings of `crates/settings`, and pass them as values.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::host::LocalUsers;
use trunkline_proto::limits::EAGER_CREDITS_MAX;
use trunkline_proto::pool::config::{PoolConfig, PoolConfigError, SharingMode};
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::Duration;
use trunkline_settings::rows::{connections, diagnosis, network, one_sided, soft};
use trunkline_settings::{FrontEndKind, SectionReader, SettingErrors, SettingValues};

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

impl EngineParams {
    /// Reads the parameters from the settings of a process.
    ///
    /// # Errors
    /// [`SettingErrors`]: all settings with invalid values.
    pub fn from_settings(values: &SettingValues) -> Result<Self, SettingErrors> {
        let mut reader = values.reader();
        let usual = Self::default();
        let (fabric, device, provider) = read_fabric(&mut reader);
        let params = Self {
            match_by: reader.choose(
                &connections::MATCH,
                usual.match_by,
                &[("nic", MatchBy::Nic), ("mailbox", MatchBy::Mailbox), ("auto", MatchBy::Mailbox)],
            ),
            eager_max: reader.number(&connections::EAGER_MAX) as u32,
            eager_credits: reader.number(&connections::EAGER_CREDITS) as u32,
            peer_time: Duration::from_millis(reader.number(&connections::PEER_TIME)),
            rail_time: Duration::from_millis(reader.number(&connections::RAIL_TIME)),
            connect_time: Duration::from_millis(reader.number(&connections::CONNECT_TIME)),
            depth: reader.number(&connections::DEPTH) as u32,
            links_per_rail: reader.number(&connections::LINKS_PER_RAIL) as u32,
            p2p_links_per_rail: reader.number(&connections::P2P_LINKS_PER_RAIL) as u32,
            split: reader.choose(&connections::SPLIT, usual.split, &[("on", true), ("off", false)]),
            stripe_min: reader.number(&connections::STRIPE_MIN) as u32,
            comms_max: reader.number(&connections::COMMS_MAX) as u32,
            regions_max: reader.number(&connections::REGIONS_MAX) as u32,
            idle_polls: usual.idle_polls,
            execute_by: reader.choose(
                &one_sided::ATOMICS,
                usual.execute_by,
                &[("auto", ExecuteBy::Auto), ("nic", ExecuteBy::Nic), ("owner", ExecuteBy::Owner)],
            ),
            shared_heap: read_shared_heap(&mut reader),
            shared_statics: reader.switch(&one_sided::SHARED_STATICS),
            progress_batch: reader.number(&one_sided::PROGRESS_BATCH) as u32,
            heap_bytes: reader.number(&one_sided::HEAP_BYTES),
            fabric,
            device,
            require_nic: reader.switch(&network::REQUIRE_NIC),
            counts_software_rdma: reader.switch(&network::AUTO_SOFTWARE_RDMA),
            host_root: reader.text(&network::HOST_ROOT).map_or(usual.host_root, PathBuf::from),
            node_copy: reader.choose(
                &connections::NODE_COPY,
                usual.node_copy,
                &[
                    ("auto", MethodChoice::Learned),
                    ("pull", MethodChoice::Fixed(CopyMethod::Pull)),
                    ("turns", MethodChoice::Fixed(CopyMethod::Turns)),
                    ("stage", MethodChoice::Fixed(CopyMethod::Stage)),
                ],
            ),
            local_users: reader.choose(
                &network::LOCAL_USERS,
                usual.local_users,
                &[("same", LocalUsers::Same), ("any", LocalUsers::Any)],
            ),
            near: reader.switch(&network::NEAR),
            fuses_all: reader.choose(&network::FUSE, usual.fuses_all, &[("placed", false), ("all", true)]),
            progress_thread: reader.switch(&connections::PROGRESS_THREAD),
            status: reader.switch(&diagnosis::STATUS),
            trace: reader.text(&diagnosis::TRACE).filter(|path| path != "off").map(PathBuf::from),
            trace_events: reader.number(&diagnosis::TRACE_EVENTS) as u32,
            sharing: SharingParams::from_reader(&mut reader),
            soft: SoftParams::from_reader(&mut reader),
            ofi: OfiParams::from_reader(&mut reader, provider),
        };
        reader.finish(params)
    }

    /// Reads the parameters from variables alone, without a configuration file: for tests, and for tools that describe one
    /// variable.
    ///
    /// # Errors
    /// As [`EngineParams::from_settings`].
    pub fn from_lookup(look_up: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingErrors> {
        Self::from_settings(&SettingValues::from_lookup(FrontEndKind::Command, look_up))
    }
}

/// Reads the fabric, with the RDMA device and libfabric's provider that may follow its name.
fn read_fabric(reader: &mut SectionReader<'_>) -> (FabricName, Option<String>, Option<String>) {
    let text = reader.text(&network::FABRIC).unwrap_or_default();
    let (name, detail) = match text.split_once(':') {
        Some((name @ ("verbs" | "ofi"), detail)) if !detail.is_empty() => (name, Some(detail.to_owned())),
        _ => (text.as_str(), None),
    };
    let fabric = match name {
        "auto" => FabricName::Auto,
        "soft" => FabricName::Soft,
        "soft:shm" => FabricName::SoftShm,
        "soft:tcp" => FabricName::SoftTcp,
        "verbs" => return (FabricName::Verbs, detail, None),
        "ofi" => return (FabricName::Ofi, None, detail),
        _ => {
            reader.reject(&network::FABRIC, network::FABRIC.kind.to_string());
            FabricName::Auto
        }
    };
    (fabric, None, None)
}

fn read_shared_heap(reader: &mut SectionReader<'_>) -> SharedHeap {
    let text = reader.text(&one_sided::SHARED_HEAP);
    match text.as_deref() {
        Some("off") => SharedHeap::Nobody,
        Some("on") | None => SharedHeap::Host,
        Some(_) => SharedHeap::Of(reader.number(&one_sided::SHARED_HEAP) as u32),
    }
}

impl SharingParams {
    fn from_reader(reader: &mut SectionReader<'_>) -> Self {
        let words = [("off", SharingMode::Off), ("on", SharingMode::On), ("auto", SharingMode::Auto)];
        Self {
            sharing: reader.choose(&connections::QP_SHARING, SharingMode::Off, &words),
            groups: reader.number(&connections::QP_GROUPS) as u8,
            depth_multiplier: reader.number(&connections::QP_DEPTH_MULTIPLIER) as u8,
            budget: reader.number(&connections::QP_BUDGET) as u32,
        }
    }
}

impl SoftParams {
    fn from_reader(reader: &mut SectionReader<'_>) -> Self {
        let words = [
            ("auto", SoftCopy::Auto),
            ("staging", SoftCopy::Staging),
            ("pull", SoftCopy::Pull),
            ("share", SoftCopy::Share),
        ];
        Self {
            nics: reader.number(&soft::NICS) as u32,
            copy: reader.choose(&soft::COPY, SoftCopy::Auto, &words),
            delayed: reader.switch(&soft::DELAYED),
            takes_dmabufs: reader.switch(&soft::DMABUF),
            max_qp: reader.number(&soft::MAX_QP) as u32,
            pipelines: reader.number(&soft::PIPELINES) as u32,
            max_mr: reader.number(&soft::MAX_MR) as u32,
        }
    }
}

impl OfiParams {
    fn from_reader(reader: &mut SectionReader<'_>, provider: Option<String>) -> Self {
        let library = reader.text(&network::OFI_LIBRARY);
        Self {
            provider,
            library: library.filter(|name| name != network::OFI_LIBRARY.default).map(PathBuf::from),
            domain: reader.text(&network::OFI_DOMAIN).filter(|name| name != "any"),
            nics: reader.number(&network::OFI_NICS) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_the_rows_are_the_defaults_of_the_engine() {
        assert_eq!(EngineParams::from_lookup(|_| None), Ok(EngineParams::default()));
        let set = |name: &str| trunkline_settings::rows::find_row(name).map(|row| row.default.into());
        assert_eq!(EngineParams::from_lookup(set), Ok(EngineParams::default()));
        assert_eq!(connections::EAGER_CREDITS.default, EAGER_CREDITS_MAX.to_string());
    }

    #[test]
    fn a_front_end_with_passive_ranks_has_a_progress_thread() {
        let of = |front_end, set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
            EngineParams::from_settings(&SettingValues::from_lookup(front_end, value)).unwrap()
        };
        assert!(
            of(FrontEndKind::OpenShmem, &[]).progress_thread && of(FrontEndKind::Rust, &[]).progress_thread
        );
        assert!(
            !of(FrontEndKind::Nccl, &[]).progress_thread && !of(FrontEndKind::Nvshmem, &[]).progress_thread
        );
        assert!(!of(FrontEndKind::Rust, &[("TRUNKLINE_PROGRESS_THREAD", "0")]).progress_thread);
        assert_eq!(of(FrontEndKind::Nvshmem, &[]).execute_by, ExecuteBy::Owner);
        let batch = [("NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX", "7")];
        assert_eq!(of(FrontEndKind::Nvshmem, &batch).progress_batch, 7);
        assert_eq!(of(FrontEndKind::Nccl, &batch).progress_batch, 32);
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
            ("TRUNKLINE_QP_BUDGET", "1048577"),
            ("TRUNKLINE_FABRIC", "ofi:"),
            ("TRUNKLINE_FABRIC", "verbs:"),
            ("TRUNKLINE_FABRIC", "ofi,tcp"),
            ("TRUNKLINE_OFI_NICS", "0"),
            ("TRUNKLINE_OFI_NICS", "9"),
            ("TRUNKLINE_NODE_COPY", "push"),
            ("TRUNKLINE_SHARED_HEAP", "65537"),
            ("TRUNKLINE_FABRIC", "soft:"),
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
}
