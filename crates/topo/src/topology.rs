//! The topology of a node: its GPUs and NICs, and their locations. A value independent of the files it was read from;
//! `sysfs` and tests construct it. Front ends and `trunkline topo` query it for assignments.

use std::fmt;

use crate::assign::{NicAssignment, assign_nics};
use crate::distance::DeviceLocation;
use crate::pci::PciAddress;

/// Most letters of a device name.
const NAME_MAX: usize = 64;

/// A device name: 1 to 64 visible ASCII letters without slashes.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DeviceName(String);

impl DeviceName {
    /// Checks a name; `None` if it is invalid.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let seen = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        let fits =
            (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(seen) && text != "." && text != "..";
        fits.then(|| Self(text.to_owned()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A GPU.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeGpu {
    /// Its PCI address, which identifies it.
    pub address: PciAddress,
    /// Its location.
    pub place: DeviceLocation,
    /// PCI vendor and device numbers, if they can be read.
    pub id: Option<(u16, u16)>,
}

/// The interface by which a NIC is used.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum NicKind {
    /// InfiniBand, RoCE or EFA: a device of `/sys/class/infiniband`.
    Rdma,
    /// Slingshot: a device of `/sys/class/cxi`.
    Cxi,
    /// Only a network interface.
    Interface,
}

/// A NIC.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeNic {
    /// The kernel's name for it.
    pub name: DeviceName,
    /// The interface by which it is used.
    pub kind: NicKind,
    /// Its location; on no bus if it is software, or if the tree is hidden.
    pub place: DeviceLocation,
    /// Network interfaces of the same PCI function.
    pub interfaces: Vec<DeviceName>,
    /// Speed of its first port in Mb/s, if the kernel reports it.
    pub speed_mbps: Option<u32>,
}

impl NodeNic {
    /// Returns its PCI address.
    #[must_use]
    pub fn pci_address(&self) -> Option<PciAddress> {
        self.place.path.as_ref().map(crate::pci::PciPath::device_address)
    }

    /// Returns the tier of the NIC; only the best tier is assigned. RDMA is before other NICs, and hardware RDMA
    /// before software RDMA.
    fn nic_tier(&self) -> u8 {
        match (self.kind, self.pci_address().is_some()) {
            (NicKind::Rdma | NicKind::Cxi, true) => 0,
            (NicKind::Rdma | NicKind::Cxi, false) => 1,
            (NicKind::Interface, _) => 2,
        }
    }
}

/// How the GPUs were found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum GpusBy {
    /// By the devices that GPU drivers are bound to.
    Driver,
    /// By vendor and class of all PCI devices, because no driver shows any: some containers hide the drivers.
    Class,
    /// By the caller, because the node shows none.
    Caller,
    /// No GPU was found.
    #[default]
    Nobody,
}

/// The GPUs and NICs of a node, each in the order that breaks ties: GPUs by address; NICs by address and name, those
/// without an address last. Every process that reads the same node gets an equal value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeTopology {
    gpus: Vec<NodeGpu>,
    gpus_by: GpusBy,
    nics: Vec<NodeNic>,
    unusable: usize,
}

impl NodeTopology {
    /// Creates the topology from GPUs and NICs in any order. Duplicates are removed: GPUs with the same address, and
    /// NICs with the same kind and name.
    #[must_use]
    pub fn new(mut gpus: Vec<NodeGpu>, gpus_by: GpusBy, mut nics: Vec<NodeNic>) -> Self {
        gpus.sort_by_key(|gpu| gpu.address);
        gpus.dedup_by_key(|gpu| gpu.address);
        nics.sort_by(|a, b| {
            let key = |nic: &NodeNic| (nic.pci_address().is_none(), nic.pci_address());
            (key(a), &a.name, a.kind).cmp(&(key(b), &b.name, b.kind))
        });
        nics.dedup_by(|a, b| (a.kind, &a.name) == (b.kind, &b.name));
        Self { gpus, gpus_by, nics, unusable: 0 }
    }

    pub(crate) fn with_unusable(self, unusable: usize) -> Self {
        Self { unusable, ..self }
    }

    /// Returns the GPUs, by address.
    #[must_use]
    pub fn gpus(&self) -> &[NodeGpu] {
        &self.gpus
    }

    /// Returns how the GPUs were found.
    #[must_use]
    pub fn gpus_by(&self) -> GpusBy {
        self.gpus_by
    }

    /// Returns the NICs, by address and name.
    #[must_use]
    pub fn nics(&self) -> &[NodeNic] {
        &self.nics
    }

    /// Returns the number of devices that were left out because their names are invalid.
    #[must_use]
    pub const fn unusable_count(&self) -> usize {
        self.unusable
    }

    /// Returns the row of a GPU.
    #[must_use]
    pub fn find_gpu(&self, address: PciAddress) -> Option<usize> {
        self.gpus.binary_search_by_key(&address, |gpu| gpu.address).ok()
    }

    /// Returns the NICs that are divided among the GPUs: the best tier of those that `takes` accepts. RDMA devices on
    /// a bus are first, then RDMA devices in software, then network interfaces. NICs slower than half of the fastest
    /// are left out: a transfer spread over both would wait for the slow one.
    #[must_use]
    pub fn candidate_nics(&self, takes: impl Fn(&NodeNic) -> bool) -> Vec<usize> {
        let taken = || self.nics.iter().enumerate().filter(|(_, nic)| takes(nic));
        let best = taken().map(|(_, nic)| nic.nic_tier()).min();
        let of_tier = || taken().filter(|(_, nic)| Some(nic.nic_tier()) == best);
        let fastest = of_tier().filter_map(|(_, nic)| nic.speed_mbps).max().unwrap_or(0);
        let is_fast = |nic: &NodeNic| nic.speed_mbps.is_none_or(|speed| speed.saturating_mul(2) >= fastest);
        of_tier().filter(|(_, nic)| is_fast(nic)).map(|(at, _)| at).collect()
    }

    /// Assigns NICs of `candidates` to each GPU, at most `most` per GPU. The result contains indices into
    /// [`Self::nics`].
    ///
    /// All processes of a node that select the same candidates get the same result, because the caller is not an
    /// input.
    #[must_use]
    pub fn assign_nics(&self, candidates: &[usize], most: usize) -> NicAssignment {
        let gpus: Vec<DeviceLocation> = self.gpus.iter().map(|gpu| gpu.place.clone()).collect();
        let known: Vec<usize> = candidates.iter().copied().filter(|&at| at < self.nics.len()).collect();
        let nics: Vec<DeviceLocation> = known.iter().map(|&at| self.nics[at].place.clone()).collect();
        assign_nics(&gpus, &nics, most).renumber_nics(&known, self.nics.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pci::PciPath;

    fn place(path: &str) -> DeviceLocation {
        DeviceLocation { path: PciPath::parse(&format!("devices/{path}")), numa: None }
    }

    fn gpu(bus: u8) -> NodeGpu {
        let address = format!("0000:{bus:02x}:00.0");
        NodeGpu {
            place: place(&format!("pci0000:00/0000:00:01.0/{address}")),
            address: address.parse().unwrap(),
            id: None,
        }
    }

    fn nic(kind: NicKind, name: &str, path: &str) -> NodeNic {
        NodeNic {
            name: DeviceName::new(name).unwrap(),
            kind,
            place: place(path),
            interfaces: Vec::new(),
            speed_mbps: None,
        }
    }

    fn names(topology: &NodeTopology, of: &[usize]) -> Vec<String> {
        of.iter().map(|&at| topology.nics()[at].name.to_string()).collect()
    }

    #[test]
    fn device_names_of_the_kernel_are_valid() {
        for text in ["mlx5_0", "a", "ib0.8001", &"n".repeat(NAME_MAX)] {
            assert_eq!(DeviceName::new(text).unwrap().as_str(), text);
        }
        for text in ["", ".", "..", "a/b", "a b", "a\n", "\u{1b}[31m", "caf\u{e9}", &"n".repeat(NAME_MAX + 1)]
        {
            assert_eq!(DeviceName::new(text), None, "{text:?}");
        }
    }

    #[test]
    fn gpus_and_nics_are_sorted_by_address() {
        let nics = vec![
            nic(NicKind::Rdma, "nowhere", "virtual"),
            nic(NicKind::Rdma, "mlx5_9", "pci0000:00/0000:00:09.0"),
            nic(NicKind::Rdma, "mlx5_10", "pci0000:00/0000:00:02.0"),
            nic(NicKind::Rdma, "mlx5_1", "pci0000:00/0000:00:02.0"),
        ];
        let topology = NodeTopology::new(vec![gpu(9), gpu(0x10), gpu(9), gpu(3)], GpusBy::Driver, nics);
        let gpus: Vec<_> = topology.gpus().iter().map(|gpu| gpu.address.to_string()).collect();
        assert_eq!(gpus, ["0000:03:00.0", "0000:09:00.0", "0000:10:00.0"]);
        assert_eq!(names(&topology, &[0, 1, 2, 3]), ["mlx5_1", "mlx5_10", "mlx5_9", "nowhere"]);
        assert_eq!(topology.find_gpu("0000:09:00.0".parse().unwrap()), Some(1));
        assert_eq!(topology.find_gpu("0000:0a:00.0".parse().unwrap()), None);
    }

    #[test]
    fn only_the_best_tier_is_assigned() {
        let bus = |device: u8| format!("pci0000:00/0000:00:{device:02x}.0");
        let nics = vec![
            nic(NicKind::Interface, "eth0", &bus(1)),
            nic(NicKind::Rdma, "rxe0", "virtual"),
            nic(NicKind::Cxi, "cxi0", &bus(3)),
            nic(NicKind::Rdma, "mlx5_0", &bus(2)),
            nic(NicKind::Interface, "hv0", "vmbus"),
        ];
        let topology = NodeTopology::new(vec![gpu(9)], GpusBy::Driver, nics);
        let best = |takes: fn(&NodeNic) -> bool| names(&topology, &topology.candidate_nics(takes));
        assert_eq!(best(|_| true), ["mlx5_0", "cxi0"]);
        assert_eq!(best(|nic| nic.name.as_str() != "mlx5_0"), ["cxi0"]);
        assert_eq!(best(|nic| nic.kind != NicKind::Cxi && nic.name.as_str() != "mlx5_0"), ["rxe0"]);
        assert_eq!(best(|nic| nic.kind == NicKind::Interface), ["eth0", "hv0"]);
        assert!(best(|_| false).is_empty());
    }

    #[test]
    fn assigned_nics_are_indices_into_all_nics() {
        let nics = vec![
            nic(NicKind::Interface, "eth0", "pci0000:00/0000:00:01.0"),
            nic(NicKind::Rdma, "mlx5_0", "pci0000:00/0000:00:02.0"),
        ];
        let topology = NodeTopology::new(vec![gpu(9)], GpusBy::Driver, nics);
        let result = topology.assign_nics(&topology.candidate_nics(|_| true), 16);
        assert_eq!((result.gpu_nics(0)[0].nic, result.user_count(0), result.user_count(1)), (1, 0, 1));
        // A candidate that is out of range is ignored.
        assert!(topology.assign_nics(&[7], 16).gpu_nics(0).is_empty());
    }

    proptest! {
        #[test]
        fn order_of_discovery_is_irrelevant(
            gpus in Just((0..12_u8).collect::<Vec<_>>()).prop_shuffle(),
            nics in Just((0..12_u8).collect::<Vec<_>>()).prop_shuffle(),
            counts in (1_usize..12, 1_usize..12),
        ) {
            let of = |gpus: &[u8], nics: &[u8]| {
                let nics = nics.iter().map(|&at| nic(NicKind::Rdma, &format!("mlx5_{at}"), &format!("pci0000:00/0000:00:0{}.0/0000:{:02x}:00.0", at % 3, 0x40 + at / 2)));
                let topology = NodeTopology::new(gpus.iter().map(|&bus| gpu(bus)).collect(), GpusBy::Driver, nics.collect());
                let result = topology.assign_nics(&topology.candidate_nics(|_| true), PER_GPU);
                (topology, result)
            };
            let (gpus, nics) = (&gpus[..counts.0], &nics[..counts.1]);
            let sorted = |of: &[u8]| { let mut of = of.to_vec(); of.sort_unstable(); of };
            prop_assert_eq!(of(gpus, nics), of(&sorted(gpus), &sorted(nics)));
        }
    }

    const PER_GPU: usize = 16;
}
