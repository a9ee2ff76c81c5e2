//! RDMA devices: NCCL's InfiniBand variables, also under names of our own, which have priority.

use crate::SettingAlias;
use crate::SettingKind::{Number, OptionalNumber, Switch, Text, Word};

setting_rows! {
    DISABLE: "TRUNKLINE_IB_DISABLE", Rdma, Switch, "0",
        "1: use no RDMA device",
        aliases(&[SettingAlias::same("NCCL_IB_DISABLE", Switch)]);
    HCA: "TRUNKLINE_IB_HCA", Rdma, Text { expected: HCA_EXPECTED }, "",
        "devices and ports to use; ^ before the list: all but these; = before it: whole names; unset: all",
        aliases(&[SettingAlias::same("NCCL_IB_HCA", Text { expected: HCA_EXPECTED })]);
    GID_INDEX: "TRUNKLINE_IB_GID_INDEX", Rdma, OptionalNumber { max: 255 }, "-1",
        "the address of a port, by its index in the GID table; -1: chosen by family, range and RoCE version",
        aliases(&[SettingAlias::same("NCCL_IB_GID_INDEX", OptionalNumber { max: 255 })]);
    ROUTABLE_GID_INDEX: "TRUNKLINE_IB_ROUTABLE_FLID_GID_INDEX", Rdma, Number { min: 0, max: 255 }, "1",
        "on InfiniBand, the index of the address that is used between subnets",
        aliases(&[SettingAlias::same("NCCL_IB_ROUTABLE_FLID_GID_INDEX", Number { min: 0, max: 255 })]);
    ADDR_FAMILY: "TRUNKLINE_IB_ADDR_FAMILY", Rdma, Word(&["AF_INET", "AF_INET6"]), "AF_INET",
        "the family of the address, where the GID table is searched",
        aliases(&[SettingAlias::same("NCCL_IB_ADDR_FAMILY", Word(&["AF_INET", "AF_INET6"]))]);
    ADDR_RANGE: "TRUNKLINE_IB_ADDR_RANGE", Rdma, Text { expected: RANGE_EXPECTED }, "",
        "the range in which the address is, where the GID table is searched; unset: any",
        aliases(&[SettingAlias::same("NCCL_IB_ADDR_RANGE", Text { expected: RANGE_EXPECTED })]);
    ROCE_VERSION: "TRUNKLINE_IB_ROCE_VERSION_NUM", Rdma, Number { min: 1, max: 2 }, "2",
        "the version of RoCE of the address, where the GID table is searched",
        aliases(&[SettingAlias::same("NCCL_IB_ROCE_VERSION_NUM", Number { min: 1, max: 2 })]);
    TIMEOUT: "TRUNKLINE_IB_TIMEOUT", Rdma, Number { min: 1, max: 31 }, "",
        "local ACK timeout: 4.096 us times two to this; unset: the longest whose retries fit into TRUNKLINE_RAIL_TIME_MS, at least 14",
        aliases(&[SettingAlias::same("NCCL_IB_TIMEOUT", Number { min: 1, max: 31 })]);
    RETRY_COUNT: "TRUNKLINE_IB_RETRY_CNT", Rdma, Number { min: 0, max: 7 }, "7",
        "retransmissions of a packet before its link fails",
        aliases(&[SettingAlias::same("NCCL_IB_RETRY_CNT", Number { min: 0, max: 7 })]);
    PKEY: "TRUNKLINE_IB_PKEY", Rdma, Number { min: 0, max: 65535 }, "0",
        "index in the table of partition keys",
        aliases(&[SettingAlias::same("NCCL_IB_PKEY", Number { min: 0, max: 65535 })]);
    SERVICE_LEVEL: "TRUNKLINE_IB_SL", Rdma, OptionalNumber { max: 15 }, "-1",
        "service level; -1: the default, 0",
        aliases(&[SettingAlias::same("NCCL_IB_SL", OptionalNumber { max: 15 })]);
    TRAFFIC_CLASS: "TRUNKLINE_IB_TC", Rdma, OptionalNumber { max: 255 }, "-1",
        "traffic class; -1: the communicator's, else 0",
        aliases(&[SettingAlias::same("NCCL_IB_TC", OptionalNumber { max: 255 })]);
    FIFO_TRAFFIC_CLASS: "TRUNKLINE_IB_FIFO_TC", Rdma, OptionalNumber { max: 255 }, "-1",
        "traffic class of the packets of a connection's receiving end; -1: the connection's",
        aliases(&[SettingAlias::same("NCCL_IB_FIFO_TC", OptionalNumber { max: 255 })]);
    ADAPTIVE_ROUTING: "TRUNKLINE_IB_ADAPTIVE_ROUTING", Rdma, Word(&["-2", "0", "1"]), "-2",
        "1: packets of one write may take several paths; 0: they may not; -2: only on InfiniBand",
        aliases(&[SettingAlias::same("NCCL_IB_ADAPTIVE_ROUTING", Word(&["-2", "0", "1"]))]);
    ADAPTIVE_THRESHOLD: "TRUNKLINE_IB_AR_THRESHOLD", Rdma, Number { min: 0, max: 4_294_967_295 }, "8192",
        "bytes above which, with adaptive routing, a write and its immediate are two requests",
        aliases(&[SettingAlias::same("NCCL_IB_AR_THRESHOLD", Number { min: 0, max: 4_294_967_295 })]);
    ECE_ENABLE: "TRUNKLINE_IB_ECE_ENABLE", Rdma, Switch, "1",
        "1: both ends negotiate extensions of the standard (ECE)",
        aliases(&[SettingAlias::same("NCCL_IB_ECE_ENABLE", Switch)]);
    MERGE_VFS: "TRUNKLINE_IB_MERGE_VFS", Rdma, Switch, "1",
        "1: virtual functions of one card count as one device",
        aliases(&[SettingAlias::same("NCCL_IB_MERGE_VFS", Switch)]);
    MERGE_NICS: "TRUNKLINE_IB_MERGE_NICS", Rdma, Switch, "1",
        "1: NCCL may fuse NICs to one device",
        aliases(&[SettingAlias::same("NCCL_IB_MERGE_NICS", Switch)]);
    USE_INLINE: "TRUNKLINE_IB_USE_INLINE", Rdma, Switch, "1",
        "accepted without effect: small writes are always inline",
        aliases(&[SettingAlias::same("NCCL_IB_USE_INLINE", Switch)]);
    RELAXED_ORDERING: "TRUNKLINE_IB_PCI_RELAXED_ORDERING", Rdma, Number { min: 0, max: 2 }, "2",
        "0: data is ordered strictly on the PCI bus; 1 or 2: relaxed, where rdma-core supports it",
        aliases(&[SettingAlias::same("NCCL_IB_PCI_RELAXED_ORDERING", Number { min: 0, max: 2 })]);
    ASYNC_EVENTS: "TRUNKLINE_IB_RETURN_ASYNC_EVENTS", Rdma, Switch, "1",
        "1: a fatal asynchronous event of a device ends its links",
        aliases(&[SettingAlias::same("NCCL_IB_RETURN_ASYNC_EVENTS", Switch)]);
    GDR_FLUSH_DISABLE: "TRUNKLINE_GDR_FLUSH_DISABLE", Rdma, Switch, "0",
        "1: requested flushes of GPU memory complete at once; for libfabric too",
        aliases(&[SettingAlias::same("NCCL_GDR_FLUSH_DISABLE", Switch)]);
}

/// The valid lists of devices.
const HCA_EXPECTED: &str =
    "at most 32 entries DEVICE[:PORT[:RAIL[:PLANE]]], separated by commas, after ^, = or ^=";
/// The valid ranges of addresses.
const RANGE_EXPECTED: &str = "a range of addresses such as 10.1.0.0/16";
