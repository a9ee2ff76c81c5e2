//! The parameters of software NICs, as values: read once when the fabric is created, never on the data path.

use std::net::{IpAddr, Ipv4Addr};

use trunkline_proto::time::Duration;

/// Sizes, limits and modes of all NICs of one [`SoftFabric`](crate::SoftFabric).
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Number of NICs.
    pub nics: usize,
    /// Most queue pairs of one NIC.
    pub max_qp: u32,
    /// Pipelines of one NIC, 1 to [`SoftConfig::PIPELINES_MAX`]. Each has `max_qp / pipelines` queue pairs, so that
    /// badly placed links exhaust one early, as on a hardware NIC with two pipelines.
    pub pipelines: u32,
    /// Most completions that may be owed by one rail: signalled operations and posted receives.
    pub max_cqe: u32,
    /// Most operations outstanding on one link, and most posted receives.
    pub max_depth: u32,
    /// Most regions of one NIC.
    pub max_mr: u32,
    /// Most reads and atomics one link executes for its peer at once.
    pub max_reads: u32,
    /// Descriptors in a link's ring; a power of two.
    pub slots: u32,
    /// Bytes in a link's payload ring; a power of two.
    pub payload: u32,
    /// Most bytes that one descriptor stages in the payload ring.
    pub segment: u32,
    /// The copy method for large messages to another process.
    pub copy: CopyMode,
    /// The wire that connects links.
    pub wire: WireMode,
    /// Addresses of this host, by which other hosts reach it: of the first NIC, the second and so on, repeating from the start
    /// if there are more NICs. Empty: only this host reaches it.
    pub addresses: Vec<IpAddr>,
    /// Mb/s that each NIC reports; [`SoftConfig::SPEED_UNKNOWN_MBPS`] for NICs beyond the list. They limit nothing.
    pub speeds_mbps: Vec<u32>,
    /// Longest time that a send may wait for a posted receive before it fails; `None` waits for ever.
    pub receiver_wait: Option<Duration>,
    /// Remote writes into relaxed regions land only when a flush on their link completes.
    pub delayed_visibility: bool,
    /// Whether NICs register memory of devices as dma-bufs, which they map. Used instead of NICs that reach GPUs, with stand-in drivers whose dma-bufs are
    /// ordinary memory of the host.
    pub takes_dmabufs: bool,
    /// Remote addresses are virtual addresses instead of offsets from the start of the region.
    pub virtual_addresses: bool,
    /// Position of the first descriptor of each ring and number of each rail's first completion; for tests of
    /// wrap-around.
    pub start_position: u64,
}

/// The copy method for large messages to another process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyMode {
    /// Each link learns for each size which of the other methods is the fastest.
    Auto,
    /// Two pipelined copies through the payload ring.
    Staging,
    /// One copy by the receiver, straight out of the sender's memory, where the system allows it.
    Pull,
    /// As [`CopyMode::Pull`], but the sender writes a part of each large message while the receiver reads the rest.
    Share,
}

/// The wire that connects links.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WireMode {
    /// Direct access inside one fabric, shared memory between processes of one host, otherwise TCP.
    Auto,
    /// Shared memory, even inside one fabric, and nothing else.
    Shm,
    /// TCP, even inside one host; through the loopback interface, where no address is given.
    Tcp,
}

impl SoftConfig {
    /// Returns the address of a NIC; `None` if other hosts do not reach it.
    pub(crate) fn nic_address(&self, nic: usize) -> Option<IpAddr> {
        let loopback = || (self.wire == WireMode::Tcp).then_some(Ipv4Addr::LOCALHOST.into());
        let index = nic.checked_rem(self.addresses.len());
        match self.wire {
            WireMode::Shm => None,
            WireMode::Auto | WireMode::Tcp => index.map(|index| self.addresses[index]).or_else(loopback),
        }
    }

    /// Returns the Mb/s that a NIC reports.
    pub(crate) fn speed_mbps(&self, nic: usize) -> u32 {
        self.speeds_mbps.get(nic).copied().unwrap_or(Self::SPEED_UNKNOWN_MBPS)
    }

    /// Mb/s of a NIC whose interface is not known; the assumption of NCCL's socket transport.
    pub const SPEED_UNKNOWN_MBPS: u32 = 10_000;

    /// Most pipelines of one NIC.
    pub const PIPELINES_MAX: u32 = 64;

    /// Returns the queue pairs of one pipeline; `None` if the number of pipelines is invalid.
    pub(crate) fn pipeline_qps(&self) -> Option<u32> {
        let asked = (1..=Self::PIPELINES_MAX).contains(&self.pipelines);
        (asked && self.max_qp >= self.pipelines).then(|| self.max_qp / self.pipelines)
    }
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            nics: 1,
            max_qp: 4096,
            pipelines: 1,
            max_cqe: 1 << 20,
            max_depth: 8192,
            max_mr: 16384,
            max_reads: 16,
            slots: 256,
            payload: 512 << 10,
            segment: 16 << 10,
            copy: CopyMode::Auto,
            wire: WireMode::Auto,
            addresses: Vec::new(),
            speeds_mbps: Vec::new(),
            receiver_wait: None,
            delayed_visibility: false,
            takes_dmabufs: false,
            virtual_addresses: false,
            start_position: 0,
        }
    }
}
