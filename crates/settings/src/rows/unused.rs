//! Variables of NCCL's RDMA transport, of Sandia OpenSHMEM and of NVSHMEM's transports that have no effect here. A process
//! that sets one gets a line in its log, once.

use crate::SettingKind::{self, Ignored};

/// A variable of NCCL's failover.
const fn failover(same: &'static [&'static str]) -> SettingKind {
    Ignored {
        same,
        instead: "a connection over several rails leaves a failed one, and uses it again once it works; see TRUNKLINE_RAIL_TIME_MS",
    }
}

/// A variable of a behaviour that is fixed here.
const fn fixed(instead: &'static str) -> SettingKind {
    Ignored { same: &[], instead }
}

/// Variables of NCCL's RDMA transport.
pub mod nccl {
    use super::*;

    setting_rows! {
        DMABUF_ENABLE: "NCCL_DMABUF_ENABLE", Unused, Ignored { same: &["1"], instead: "GPU memory is registered as a dma-buf where that is possible, else by its address" }, "", "without effect here";
        IB_DATA_DIRECT: "NCCL_IB_DATA_DIRECT", Unused, Ignored { same: &["0"], instead: "a NIC's data-direct function is used like any other" }, "", "without effect here";
        IB_WARN_RAIL_LOCAL: "NCCL_IB_WARN_RAIL_LOCAL", Unused, Ignored { same: &["0"], instead: "rails are paired by their numbers, without a warning" }, "", "without effect here";
        IB_DEVICE_PCI_ORDER: "NCCL_IB_DEVICE_PCI_ORDER", Unused, Ignored { same: &["0"], instead: "devices have the order of rdma-core" }, "", "without effect here";
        IB_OOO_RQ: "NCCL_IB_OOO_RQ", Unused, Ignored { same: &["0"], instead: "receives are consumed in order" }, "", "without effect here";
        IB_PREPOST_RECEIVE_WORK_REQUESTS: "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", Unused, Ignored { same: &["1", "-2"], instead: "receives are always posted in advance" }, "", "without effect here";
        IB_RECEIVER_SIDE_MATCHING_SCHEME: "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", Unused, Ignored { same: &["1", "-2"], instead: "an immediate names its receive" }, "", "without effect here";
        IB_SUBNET_AWARE_ROUTING: "NCCL_IB_SUBNET_AWARE_ROUTING", Unused, Ignored { same: &["0"], instead: "rails are paired by their numbers; on InfiniBand a link between subnets uses a router" }, "", "without effect here";
        IB_SUBNET_PREFIX_LEN: "NCCL_IB_SUBNET_PREFIX_LEN", Unused, Ignored { same: &[], instead: "rails are paired by their numbers, not by subnets" }, "", "without effect here";
        IB_RESILIENCY_PORT_FAILOVER: "NCCL_IB_RESILIENCY_PORT_FAILOVER", Unused, failover(&["1"]), "", "without effect here";
        IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS: "NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY: "NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY: "NCCL_IB_RESILIENCY_PORT_RECOVERY", Unused, failover(&["1"]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_START_DELAY: "NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL: "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE: "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE: "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT: "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT: "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", Unused, failover(&[]), "", "without effect here";
        IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX: "NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", Unused, failover(&[]), "", "without effect here";
    }
}

/// Variables of Sandia OpenSHMEM.
pub mod sandia {
    use super::*;

    /// The replacement of settings of a network.
    const NETWORK: SettingKind = fixed("TRUNKLINE_FABRIC and the settings of that network apply");
    /// The replacement of the choice of an algorithm.
    const ALGORITHM: SettingKind = fixed("each collective call chooses its algorithm");

    setting_rows! {
        BOUNCE_SIZE: "SHMEM_BOUNCE_SIZE", Unused, fixed("the stages of each context have a fixed size"), "", "without effect here";
        MAX_BOUNCE_BUFFERS: "SHMEM_MAX_BOUNCE_BUFFERS", Unused, fixed("the stages of each context have a fixed size"), "", "without effect here";
        OFI_PROVIDER: "SHMEM_OFI_PROVIDER", Unused, NETWORK, "", "without effect here";
        OFI_FABRIC: "SHMEM_OFI_FABRIC", Unused, NETWORK, "", "without effect here";
        OFI_DOMAIN: "SHMEM_OFI_DOMAIN", Unused, NETWORK, "", "without effect here";
        OFI_TX_POLL_LIMIT: "SHMEM_OFI_TX_POLL_LIMIT", Unused, NETWORK, "", "without effect here";
        OFI_RX_POLL_LIMIT: "SHMEM_OFI_RX_POLL_LIMIT", Unused, NETWORK, "", "without effect here";
        OFI_STX_MAX: "SHMEM_OFI_STX_MAX", Unused, NETWORK, "", "without effect here";
        OFI_STX_THRESHOLD: "SHMEM_OFI_STX_THRESHOLD", Unused, NETWORK, "", "without effect here";
        OFI_STX_ALLOCATOR: "SHMEM_OFI_STX_ALLOCATOR", Unused, NETWORK, "", "without effect here";
        OFI_STX_DISABLE_PRIVATE: "SHMEM_OFI_STX_DISABLE_PRIVATE", Unused, NETWORK, "", "without effect here";
        OFI_STX_AUTO: "SHMEM_OFI_STX_AUTO", Unused, NETWORK, "", "without effect here";
        OFI_DISABLE_MULTIRAIL: "SHMEM_OFI_DISABLE_MULTIRAIL", Unused, NETWORK, "", "without effect here";
        OFI_DISABLE_SINGLE_EP: "SHMEM_OFI_DISABLE_SINGLE_EP", Unused, NETWORK, "", "without effect here";
        COLL_CROSSOVER: "SHMEM_COLL_CROSSOVER", Unused, ALGORITHM, "", "without effect here";
        COLL_SIZE_CROSSOVER: "SHMEM_COLL_SIZE_CROSSOVER", Unused, ALGORITHM, "", "without effect here";
        COLL_RADIX: "SHMEM_COLL_RADIX", Unused, ALGORITHM, "", "without effect here";
        BARRIER_ALGORITHM: "SHMEM_BARRIER_ALGORITHM", Unused, ALGORITHM, "", "without effect here";
        BCAST_ALGORITHM: "SHMEM_BCAST_ALGORITHM", Unused, ALGORITHM, "", "without effect here";
        REDUCE_ALGORITHM: "SHMEM_REDUCE_ALGORITHM", Unused, ALGORITHM, "", "without effect here";
        SCAN_ALGORITHM: "SHMEM_SCAN_ALGORITHM", Unused, ALGORITHM, "", "without effect here";
        COLLECT_ALGORITHM: "SHMEM_COLLECT_ALGORITHM", Unused, ALGORITHM, "", "without effect here";
        FCOLLECT_ALGORITHM: "SHMEM_FCOLLECT_ALGORITHM", Unused, ALGORITHM, "", "without effect here";
        TEAMS_MAX: "SHMEM_TEAMS_MAX", Unused, fixed("the number of teams has a fixed limit"), "", "without effect here";
    }
}

/// Variables of NVSHMEM's transports.
pub mod nvshmem {
    use super::*;

    setting_rows! {
        HCA_LIST: "NVSHMEM_HCA_LIST", Unused, fixed("name the NICs by TRUNKLINE_IB_HCA or TRUNKLINE_OFI_DOMAIN"), "", "without effect here";
        HCA_PE_MAPPING: "NVSHMEM_HCA_PE_MAPPING", Unused, fixed("NVSHMEM chooses by the PCI places of GPU and NIC"), "", "without effect here";
        HCA_PREFIX: "NVSHMEM_HCA_PREFIX", Unused, fixed("name the NICs by TRUNKLINE_IB_HCA"), "", "without effect here";
        QP_DEPTH: "NVSHMEM_QP_DEPTH", Unused, fixed("use TRUNKLINE_DEPTH"), "", "without effect here";
        SRQ_DEPTH: "NVSHMEM_SRQ_DEPTH", Unused, fixed("there is no shared receive queue"), "", "without effect here";
        DISABLE_IB_NATIVE_ATOMICS: "NVSHMEM_DISABLE_IB_NATIVE_ATOMICS", Unused, fixed("use TRUNKLINE_ATOMICS"), "", "without effect here";
        LIBFABRIC_SIGNAL_WAIT_SPIN_COUNT: "NVSHMEM_LIBFABRIC_SIGNAL_WAIT_SPIN_COUNT", Unused, fixed("no thread waits for signals: the thread that makes progress applies them"), "", "without effect here";
        DISABLE_LIBFABRIC_EFA_DIRECT: "NVSHMEM_DISABLE_LIBFABRIC_EFA_DIRECT", Unused, fixed("name the provider by TRUNKLINE_FABRIC, as ofi:efa or ofi:efa-direct"), "", "without effect here";
    }
}
