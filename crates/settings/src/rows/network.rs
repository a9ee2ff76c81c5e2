//! Which network is used, and which interfaces and NICs of it; NICs through libfabric.

use crate::FrontEndKind::Nvshmem;
use crate::SettingKind::{Number, Path, Switch, Text, Word};
use crate::SettingUse::{EnvironmentOnly, LoadsCode};
use crate::{AliasMeaning, SettingAlias};

/// The meanings of NVSHMEM's names of providers.
const NVSHMEM_PROVIDERS: &[(&str, &str)] = &[("cxi", "ofi:cxi"), ("efa", "ofi:efa"), ("verbs", "verbs")];

setting_rows! {
    CONF: "TRUNKLINE_CONF", Network, Path { expected: "a path, or none" }, "/etc/trunkline.conf",
        "the configuration file; a file that is named here must exist; none: no file",
        usage(EnvironmentOnly);
    FABRIC: "TRUNKLINE_FABRIC", Network,
        Text { expected: "auto, soft, soft:shm, soft:tcp, verbs, verbs:DEVICE, ofi or ofi:PROVIDER" }, "auto",
        "the network; auto: EFA or Slingshot, else the software NIC; verbs: RDMA devices; ofi: NICs through libfabric; soft: the software NIC",
        aliases(&[SettingAlias {
            name: "NVSHMEM_LIBFABRIC_PROVIDER",
            kind: Word(&["cxi", "efa", "verbs"]),
            meaning: AliasMeaning::Words(NVSHMEM_PROVIDERS),
            only: Some(Nvshmem),
        }]);
    REQUIRE_NIC: "TRUNKLINE_REQUIRE_NIC", Network, Switch, "0",
        "1: fail instead of using the software NIC; under NCCL set NCCL_NET=Trunkline too, or NCCL continues with its own network";
    AUTO_SOFTWARE_RDMA: "TRUNKLINE_AUTO_SOFTWARE_RDMA", Network, Switch, "0",
        "1: TRUNKLINE_FABRIC=auto counts RDMA devices in software (soft-RoCE, soft-iWARP) as devices";
    NEAR: "TRUNKLINE_NEAR", Network, Switch, "0",
        "1: processes of one host use shared memory beside verbs or ofi; not for GPU memory; soft always does";
    LOCAL_USERS: "TRUNKLINE_LOCAL_USERS", Network, Word(&["same", "any"]), "same",
        "users whose processes on this host may connect; any: ranks run as several users, or in containers with own user namespaces";
    HOST_ROOT: "TRUNKLINE_HOST_ROOT", Network, Path { expected: "a path" }, "/",
        "the folder that contains the sys, proc and dev of the host, for containers that mount them elsewhere";
    FUSE: "TRUNKLINE_FUSE", Nics, Word(&["placed", "all"]), "placed",
        "NICs that NCCL may fuse to one device; placed: those with a known place in the PCI tree";
    SOCKET_IFNAME: "NCCL_SOCKET_IFNAME", Nics,
        Text { expected: "prefixes, separated by commas; ^ before the list: all but these; = before it: whole names" }, "",
        "network interfaces for other hosts; unset: names that begin with ib, else all but lo, docker and virbr, else these";
    SOCKET_FAMILY: "NCCL_SOCKET_FAMILY", Nics, Word(&["AF_INET", "AF_INET6"]), "",
        "the family of addresses; unset: the first address of each interface";
    OFI_LIBRARY: "TRUNKLINE_OFI_LIBRARY", Libfabric,
        Path { expected: "a path, or a name that the dynamic linker finds" }, "libfabric.so.1",
        "the libfabric that is loaded",
        usage(LoadsCode);
    OFI_DOMAIN: "TRUNKLINE_OFI_DOMAIN", Libfabric, Text { expected: "a domain of libfabric, or any" }, "any",
        "the only NIC to use, by libfabric's name of its domain (eth0 over TCP); any: all but the loopback";
    OFI_NICS: "TRUNKLINE_OFI_NICS", Libfabric, Number { min: 1, max: 8 }, "1",
        "NICs that each one is presented as, to test several rails on a host with one NIC";
}
