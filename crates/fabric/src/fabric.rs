//! A kind of network, and the NICs it found. The engine reads it when it starts; never on the data path.

use trunkline_proto::wire::fabric::ChosenFabric;
use trunkline_proto::wire::status::NicUsage;

use crate::{Caps, Rail, RailConfig, RailOpenError};

/// One NIC port of a fabric, as a user may see it listed.
#[derive(Clone, Debug)]
pub struct NicPort {
    /// Short name, unique on this host: `soft0`, `mlx5_0`.
    pub name: String,
    /// Path of the device in sysfs, where it has one.
    pub pci_path: Option<String>,
    /// Equal for ports of the same physical card.
    pub guid: u64,
    /// Port number, from 1.
    pub port: u32,
    /// Speed in Mb/s.
    pub speed_mbps: u32,
    /// Latency in microseconds, 0 if not known.
    pub latency_us: f32,
    /// Its guarantees and limits.
    pub caps: Caps,
}

/// A kind of network.
pub trait Fabric: Send + Sync + 'static {
    /// An open NIC port with its links and completion queue.
    type Rail: Rail;

    /// The name users choose it by: `soft`, `verbs`, `ofi`.
    fn fabric_name(&self) -> &'static str;

    /// The part of its name behind the colon: `tcp` of `soft:tcp`, `efa` of `ofi:efa`. Empty without a qualifier.
    fn name_qualifier(&self) -> &str {
        ""
    }

    /// Both parts of the name, as peers receive it.
    fn chosen_fabric(&self) -> ChosenFabric {
        ChosenFabric::new(self.fabric_name(), self.name_qualifier())
    }

    /// The NICs that were found; their order never changes.
    fn nics(&self) -> &[NicPort];

    /// Whether several NICs may be used as one: users can disable that.
    fn can_fuse_nics(&self) -> bool {
        true
    }

    /// Returns the NIC for connections inside this host, if the fabric has one. It carries only those. A connection uses it, and no other NIC, if
    /// both ends have one and meet inside the host.
    fn intra_host_nic(&self) -> Option<usize> {
        None
    }

    /// Returns the resources of a NIC that this process uses, as the NIC itself counts them; all zeros for an unknown NIC. Called when
    /// connections and regions are created and ended.
    fn nic_usage(&self, nic: usize) -> NicUsage;

    /// Opens NIC number `nic` for one caller.
    ///
    /// # Errors
    /// [`RailOpenError`] names the limit or the system call.
    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, RailOpenError>;
}
