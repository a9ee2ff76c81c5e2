//! The table of parameters, one row each. Read by [`EngineParams::from_lookup`](super::EngineParams::from_lookup) and printed by
//! `trunkline info --params`; contains no current values.

use std::path::PathBuf;

use trunkline_proto::limits::{EAGER_CREDITS_MAX, GROUPS_ASKED_MAX};
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::Duration;

use crate::host::LocalUsers;

use super::{ExecuteBy, FabricName, MatchBy, ParamAlias, ParamRow, SharedHeap, SoftCopy};

/// The libfabric of the system.
const LIBRARY: &str = "libfabric.so.1";

/// Every parameter of the engine.
pub const TABLE: &[ParamRow] = &[
    ParamRow {
        name: "TRUNKLINE_FABRIC",
        aliases: &[],
        kind: "name",
        default: "auto",
        range: "auto, soft, soft:shm, soft:tcp, verbs, verbs:DEVICE, ofi or ofi:PROVIDER",
        doc: "the network to use; auto is ofi where there is EFA or Slingshot, else soft, and with a warning where there are RDMA devices, which the NCCL plugin \
              leaves to NCCL; soft:shm and soft:tcp use only that wire; verbs are RDMA devices, or just the one that is named; ofi are NICs through libfabric, \
              by a provider of hardware or the one that is named",
        set: |params, value| {
            let named = |prefix| value.strip_prefix(prefix);
            let (fabric, device, provider) = match (named("verbs:"), named("ofi:")) {
                (Some(""), _) | (_, Some("")) => return Err(()),
                (Some(device), _) => ("verbs", Some(device.to_owned()), None),
                (None, Some(provider)) => ("ofi", None, Some(provider.to_owned())),
                (None, None) => (value, None, None),
            };
            (params.device, params.ofi.provider) = (device, provider);
            params.fabric = match fabric {
                "auto" => FabricName::Auto,
                "soft" => FabricName::Soft,
                "soft:shm" => FabricName::SoftShm,
                "soft:tcp" => FabricName::SoftTcp,
                "verbs" => FabricName::Verbs,
                "ofi" => FabricName::Ofi,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_REQUIRE_NIC",
        aliases: &[],
        kind: "boolean",
        default: "0",
        range: "0 or 1",
        doc: "1: fail instead of using the software NIC; under NCCL set NCCL_NET=Trunkline too, or NCCL continues with its own transport",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.require_nic = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_LOCAL_USERS",
        aliases: &[],
        kind: "name",
        default: "same",
        range: "same or any",
        doc: "whose processes on this host may connect to the control socket, as the kernel names them: only those of this process's user, or those of every \
              user; all ranks of a job on a host need any if they run as different users, or in containers with user namespaces of their own",
        set: |params, value| {
            params.local_users = match value {
                "same" => LocalUsers::Same,
                "any" => LocalUsers::Any,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_AUTO_SOFTWARE_RDMA",
        aliases: &[],
        kind: "boolean",
        default: "0",
        range: "0 or 1",
        doc: "1: RDMA devices in software (soft-RoCE, soft-iWARP) count as devices for TRUNKLINE_FABRIC=auto",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.counts_software_rdma = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_HOST_ROOT",
        aliases: &[],
        kind: "directory",
        default: "/",
        range: "a path",
        doc: "where auto looks for the sys, proc and dev folders that name the host's devices; for containers that see them elsewhere, and for tests",
        set: |params, value| {
            params.host_root = if value.is_empty() { return Err(()) } else { value.into() };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_MATCH",
        aliases: &[],
        kind: "word",
        default: "auto",
        range: "nic, mailbox or auto",
        doc: "who pairs sends with receives: the NIC where it can, or the engine by a mailbox; auto is mailbox",
        set: |params, value| {
            params.match_by = match value {
                "nic" => MatchBy::Nic,
                "mailbox" | "auto" => MatchBy::Mailbox,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_EAGER_MAX",
        aliases: &[],
        kind: "bytes",
        default: "4096",
        range: "0 to 65536",
        doc: "largest message sent before its receive is known; 0 always waits",
        set: |params, value| parse_number(value, 0, 65536).map(|n| params.eager_max = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_EAGER_CREDITS",
        aliases: &[],
        kind: "number",
        default: "32",
        range: "0 to 32",
        doc: "eager messages a connection may have under way",
        set: |params, value| {
            parse_number(value, 0, EAGER_CREDITS_MAX as u64).map(|n| params.eager_credits = n as u32)
        },
    },
    ParamRow {
        name: "TRUNKLINE_PEER_TIME_MS",
        aliases: &[],
        kind: "milliseconds",
        default: "10000",
        range: "10 to 3600000",
        doc: "longest time between a peer's death and the error on its requests; where a whole host is silent, up to 2 s more",
        set: |params, value| {
            parse_number(value, 10, 3_600_000).map(|n| params.peer_time = Duration::from_millis(n))
        },
    },
    ParamRow {
        name: "TRUNKLINE_RAIL_TIME_MS",
        aliases: &[],
        kind: "milliseconds",
        default: "3000",
        range: "1000 to 3600000",
        doc: "how long the network may leave a link of data unanswered before it counts as cut",
        set: |params, value| {
            parse_number(value, 1_000, 3_600_000).map(|n| params.rail_time = Duration::from_millis(n))
        },
    },
    ParamRow {
        name: "TRUNKLINE_CONNECT_TIME_MS",
        aliases: &[],
        kind: "milliseconds",
        default: "300000",
        range: "1000 to 3600000",
        doc: "how long a connection that is being made may be left alone before it is given up",
        set: |params, value| {
            parse_number(value, 1_000, 3_600_000).map(|n| params.connect_time = Duration::from_millis(n))
        },
    },
    ParamRow {
        name: "TRUNKLINE_DEPTH",
        aliases: &[],
        kind: "number",
        default: "512",
        range: "32 to 32768",
        doc: "operations a link may have outstanding",
        set: |params, value| parse_number(value, 32, 32768).map(|n| params.depth = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_HEAP_BYTES",
        aliases: &[],
        kind: "bytes",
        default: "67108864",
        range: "4096 to 1099511627776",
        doc: "symmetric heap of each rank, for one-sided programs; memory is taken only as it is used, but where a NIC pins it",
        set: |params, value| parse_number(value, 4096, 1 << 40).map(|n| params.heap_bytes = n),
    },
    ParamRow {
        name: "TRUNKLINE_LINKS_PER_RAIL",
        aliases: &[ParamAlias {
            name: "NCCL_IB_QPS_PER_CONNECTION",
            kind: "number",
            range: "1 to 128",
            means: |value| parse_number(value, 1, 128).map(|n| if n > 4 { "4" } else { value }),
        }],
        kind: "number",
        default: "1",
        range: "1 to 4",
        doc: "links over each rail of a connection, four in all at most; over TCP more than one helps where the network \
              slows or loses within single streams",
        set: |params, value| parse_number(value, 1, 4).map(|n| params.links_per_rail = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_P2P_LINKS_PER_RAIL",
        aliases: &[ParamAlias {
            name: "RCCL_IB_QPS_PER_P2P",
            kind: "number",
            range: "0 to 128",
            means: |value| parse_number(value, 0, 128).map(|n| if n > 4 { "4" } else { value }),
        }],
        kind: "number",
        default: "0",
        range: "0 to 4",
        doc: "the same for connections that RCCL says are point to point; 0: as for others",
        set: |params, value| parse_number(value, 0, 4).map(|n| params.p2p_links_per_rail = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_SPLIT",
        aliases: &[ParamAlias {
            name: "NCCL_IB_SPLIT_DATA_ON_QPS",
            kind: "boolean",
            range: "0 or 1",
            means: |value| parse_number(value, 0, 1).map(|n| if n == 1 { "on" } else { "off" }),
        }],
        kind: "word",
        default: "on",
        range: "on or off",
        doc: "whether a long message is spread over the links of a rail; over rails it is in any case",
        set: |params, value| {
            params.split = match value {
                "on" => true,
                "off" => false,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_STRIPE_MIN",
        aliases: &[],
        kind: "bytes",
        default: "65536",
        range: "1 to 1073741824",
        doc: "fewest bytes of a piece of a message that is spread over several rails; rounded up to a multiple of 128",
        set: |params, value| parse_number(value, 1, 1 << 30).map(|n| params.stripe_min = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_COMMS_MAX",
        aliases: &[],
        kind: "number",
        default: "8192",
        range: "1 to 65535",
        doc: "connections of this process",
        set: |params, value| parse_number(value, 1, 65535).map(|n| params.comms_max = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_REGIONS_MAX",
        aliases: &[],
        kind: "number",
        default: "65536",
        range: "1 to 16777216",
        doc: "regions registered with one connection",
        set: |params, value| parse_number(value, 1, 1 << 24).map(|n| params.regions_max = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_ATOMICS",
        aliases: &[],
        kind: "word",
        default: "auto",
        range: "nic, owner or auto",
        doc: "who executes one-sided atomics of 8 bytes: the rank that has the word, or its NIC where every rank has one that can, and no other; auto is the NIC where it needs no call of the rank",
        set: |params, value| {
            params.execute_by = match value {
                "auto" => ExecuteBy::Auto,
                "nic" => ExecuteBy::Nic,
                "owner" => ExecuteBy::Owner,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_SHARED_HEAP",
        aliases: &[],
        kind: "word",
        default: "on",
        range: "on, off or 1 to 65536",
        doc: "OpenSHMEM: processes of one host reach each other's symmetric memory by loads and stores; off: by the fabric, as others; a number: only so many in a row do, as if they were a host",
        set: |params, value| {
            params.shared_heap = match (value, value.parse()) {
                ("on", _) => SharedHeap::Host,
                ("off", _) => SharedHeap::Nobody,
                (_, Ok(count @ 1..=65536)) => SharedHeap::Of(count),
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_SHARED_STATICS",
        aliases: &[],
        kind: "boolean",
        default: "1",
        range: "0 or 1",
        doc: "OpenSHMEM: the program's static variables are shared as the heap is, in place; 0: others reach them through the fabric",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.shared_statics = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_PROGRESS_BATCH",
        aliases: &[ParamAlias {
            name: "NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX",
            kind: "number",
            range: "1 to 1024",
            means: |value| Ok(value),
        }],
        kind: "number",
        default: "32",
        range: "1 to 1024",
        doc: "what is taken from one NIC before the next has its turn, in one-sided communication",
        set: |params, value| parse_number(value, 1, 1024).map(|n| params.progress_batch = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_NEAR",
        aliases: &[],
        kind: "boolean",
        default: "0",
        range: "0 or 1",
        doc: "connect processes of one host by the software NIC's shared memory, whatever NICs reach other hosts; not for memory of GPUs. \
              For verbs and ofi: soft does so anyhow",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.near = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_PROGRESS_THREAD",
        aliases: &[],
        kind: "boolean",
        default: "0",
        range: "0 or 1",
        doc: "keep a thread that goes on with connections whose owner makes no call for a while; it sleeps in between",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.progress_thread = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_STATUS",
        aliases: &[],
        kind: "boolean",
        default: "1",
        range: "0 or 1",
        doc: "keep a page of counters that other programs of this user may read, as `trunkline top` does",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.status = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_TRACE",
        aliases: &[],
        kind: "directory",
        default: "off",
        range: "a path, or off",
        doc: "record what goes over each rail; each process leaves a file there that Perfetto opens, as `trunkline bench --trace` does",
        set: |params, value| {
            params.trace = Some(value).filter(|path| !["", "off"].contains(path)).map(PathBuf::from);
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_TRACE_EVENTS",
        aliases: &[],
        kind: "number",
        default: "262144",
        range: "1024 to 67108864",
        doc: "events of a process that are recorded, 40 bytes each, two or three a message; later ones are counted as lost",
        set: |params, value| parse_number(value, 1 << 10, 1 << 26).map(|n| params.trace_events = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_QP_SHARING",
        aliases: &[
            ParamAlias {
                name: "RCCL_IB_QP_SHARING_ENABLE",
                kind: "boolean",
                range: "0 or 1",
                means: |value| parse_number(value, 0, 1).map(|n| if n == 1 { "on" } else { "off" }),
            },
            groups_alias("RCCL_ANP_COMM_NGROUPS", sharing_from_count),
            groups_alias("RCCL_IB_COMM_NGROUPS", sharing_from_count),
        ],
        kind: "word",
        default: "off",
        range: "off, on or auto",
        doc: "whether connections between two processes share queue pairs; auto: where more than half of a NIC's are in use",
        set: |params, value| {
            params.sharing.sharing = match value {
                "off" => SharingMode::Off,
                "on" => SharingMode::On,
                "auto" => SharingMode::Auto,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_QP_GROUPS",
        aliases: &[
            groups_alias("RCCL_ANP_COMM_NGROUPS", groups_from_count),
            groups_alias("RCCL_IB_COMM_NGROUPS", groups_from_count),
        ],
        kind: "number",
        default: "4",
        range: "1 to 8",
        doc: "groups of queue pairs that the connections of one direction towards one process share",
        set: |params, value| {
            parse_number(value, 1, GROUPS_ASKED_MAX.into()).map(|n| params.sharing.groups = n as u8)
        },
    },
    ParamRow {
        name: "TRUNKLINE_QP_DEPTH_MULTIPLIER",
        aliases: &[depth_alias("RCCL_ANP_QP_DEPTH_MULTIPLIER"), depth_alias("RCCL_IB_QP_DEPTH_MULTIPLIER")],
        kind: "number",
        default: "1",
        range: "1 to 255",
        doc: "how many times as deep as the queues of one connection those of a group are, up to what the NIC has",
        set: |params, value| parse_number(value, 1, 255).map(|n| params.sharing.depth_multiplier = n as u8),
    },
    ParamRow {
        name: "TRUNKLINE_QP_BUDGET",
        aliases: &[],
        kind: "number",
        default: "0",
        range: "0 to 1048576",
        doc: "queue pairs of each NIC that this process may use; 0 is as many as the NIC has",
        set: |params, value| parse_number(value, 0, 1 << 20).map(|n| params.sharing.budget = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_NODE_COPY",
        aliases: &[],
        kind: "word",
        default: "auto",
        range: "auto, pull, turns or stage",
        doc: "who copies long tagged messages inside a host, of memory that the other rank reaches: the receiver, both ranks in turns, or both by way of a stage; auto learns",
        set: |params, value| {
            params.node_copy = match value {
                "auto" => MethodChoice::Learned,
                "pull" => MethodChoice::Fixed(CopyMethod::Pull),
                "turns" => MethodChoice::Fixed(CopyMethod::Turns),
                "stage" => MethodChoice::Fixed(CopyMethod::Stage),
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_FUSE",
        aliases: &[],
        kind: "word",
        default: "placed",
        range: "placed or all",
        doc: "which NICs makeVDevice makes one of: those whose place in the PCI tree is known, or all. NCCL, which asks for that by itself, finds no way from a GPU \
              to what is made of NICs without one",
        set: |params, value| {
            params.fuses_all = match value {
                "placed" => false,
                "all" => true,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_NICS",
        aliases: &[],
        kind: "number",
        default: "0",
        range: "0 to 16",
        doc: "software NICs of this host; 0 is one",
        set: |params, value| parse_number(value, 0, 16).map(|n| params.soft.nics = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_COPY",
        aliases: &[],
        kind: "word",
        default: "auto",
        range: "auto, staging, pull or share",
        doc: "how large messages reach another process: through the shared ring, read by the receiver, or copied by both; auto learns",
        set: |params, value| {
            params.soft.copy = match value {
                "auto" => SoftCopy::Auto,
                "staging" => SoftCopy::Staging,
                "pull" => SoftCopy::Pull,
                "share" => SoftCopy::Share,
                _ => return Err(()),
            };
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_DELAYED",
        aliases: &[],
        kind: "boolean",
        default: "0",
        range: "0 or 1",
        doc: "written data can be seen only after a flush, as on some accelerators; for tests",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.soft.delayed = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_DMABUF",
        aliases: &[],
        kind: "boolean",
        default: "0",
        range: "0 or 1",
        doc: "software NICs take dma-bufs that the CPU can map, in the place of NICs that reach GPUs; for tests",
        set: |params, value| parse_number(value, 0, 1).map(|n| params.soft.takes_dmabufs = n == 1),
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_MAX_QP",
        aliases: &[],
        kind: "number",
        default: "0",
        range: "0 to 1048576",
        doc: "queue pairs of a software NIC; 0 is its default",
        set: |params, value| parse_number(value, 0, 1 << 20).map(|n| params.soft.max_qp = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_PIPELINES",
        aliases: &[],
        kind: "number",
        default: "0",
        range: "0 to 64",
        doc: "pipelines of a software NIC, which share its queue pairs; 0 is one",
        set: |params, value| parse_number(value, 0, 64).map(|n| params.soft.pipelines = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_SOFT_MAX_MR",
        aliases: &[],
        kind: "number",
        default: "0",
        range: "0 to 1048576",
        doc: "regions of a software NIC; 0 is its default",
        set: |params, value| parse_number(value, 0, 1 << 20).map(|n| params.soft.max_mr = n as u32),
    },
    ParamRow {
        name: "TRUNKLINE_OFI_LIBRARY",
        aliases: &[],
        kind: "file",
        default: "libfabric.so.1",
        range: "a path, or a name that the dynamic linker finds",
        doc: "the libfabric that is opened for ofi",
        set: |params, value| {
            params.ofi.library = Some(value).filter(|name| !["", LIBRARY].contains(name)).map(PathBuf::from);
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_OFI_DOMAIN",
        aliases: &[],
        kind: "name",
        default: "any",
        range: "a domain of libfabric, or any",
        doc: "the only NIC that ofi uses, as libfabric names its domain: eth0 over TCP; any: all but the loopback",
        set: |params, value| {
            params.ofi.domain = Some(value).filter(|name| !["", "any"].contains(name)).map(str::to_owned);
            Ok(())
        },
    },
    ParamRow {
        name: "TRUNKLINE_OFI_NICS",
        aliases: &[],
        kind: "number",
        default: "1",
        range: "1 to 8",
        doc: "how many NICs ofi makes of each that is there; for tests of several on a host with one",
        set: |params, value| parse_number(value, 1, 8).map(|n| params.ofi.nics = n as u32),
    },
];

fn parse_number(value: &str, min: u64, max: u64) -> Result<u64, ()> {
    let n: u64 = value.trim().parse().map_err(|_| ())?;
    if (min..=max).contains(&n) { Ok(n) } else { Err(()) }
}

/// The number of groups in RCCL's form, which also selects whether to share: 0 means no.
const fn groups_alias(name: &'static str, means: fn(&str) -> Result<&str, ()>) -> ParamAlias {
    ParamAlias { name, kind: "number", range: "0 to 8", means }
}

/// Returns the sharing mode for such a number.
fn sharing_from_count(value: &str) -> Result<&str, ()> {
    parse_number(value, 0, GROUPS_ASKED_MAX.into()).map(|n| if n > 0 { "on" } else { "off" })
}

/// Returns the number of groups for such a number: 0 keeps the default.
fn groups_from_count(value: &str) -> Result<&str, ()> {
    parse_number(value, 0, GROUPS_ASKED_MAX.into()).map(|n| if n > 0 { value } else { "4" })
}

/// The multiplier in RCCL's form, which has the same meaning here.
const fn depth_alias(name: &'static str) -> ParamAlias {
    ParamAlias {
        name,
        kind: "number",
        range: "1 to 255",
        means: |value| parse_number(value, 1, 255).map(|_| value),
    }
}
