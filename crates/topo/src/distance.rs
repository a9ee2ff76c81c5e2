//! The distance between a GPU and a NIC, by their locations in the PCI tree and their NUMA nodes. Pure; called by
//! `assign` for each pair. It measures nothing.

use std::fmt;

use crate::pci::PciPath;

/// The largest number of NUMA nodes for which Linux can be built.
const NODES_MAX: u16 = 1024;

/// A NUMA node, below 1024.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NumaNode(u16);

impl NumaNode {
    /// Parses the content of a file `numa_node`. `None` for -1, which the kernel writes if the node is unknown, and
    /// for everything else but a number below 1024.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        text.parse().ok().filter(|&node| node < NODES_MAX).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub const fn node_number(self) -> u16 {
        self.0
    }
}

/// The location of a device, as far as it is known.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DeviceLocation {
    /// Its path from a host bridge; `None` if it is on no PCI bus, or if the tree is hidden.
    pub path: Option<PciPath>,
    /// Its NUMA node, if the kernel knows it.
    pub numa: Option<NumaNode>,
}

/// The connection between a GPU and a NIC, the nearest first. The names are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Distance {
    /// One PCIe switch.
    Pix,
    /// Several PCIe bridges, and no host bridge.
    Pxb,
    /// A host bridge: the processor.
    Phb,
    /// Two host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

/// Classes of equally good distances, the best last.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DistanceClass {
    /// [`Distance::Sys`].
    Machine,
    /// [`Distance::Node`].
    Node,
    /// [`Distance::Phb`].
    Bridge,
    /// [`Distance::Pix`] and [`Distance::Pxb`]: no processor on the way.
    Switch,
}

impl Distance {
    /// All distances, the nearest first.
    pub const ALL: [Self; 5] = [Self::Pix, Self::Pxb, Self::Phb, Self::Node, Self::Sys];

    /// Returns the distance from a GPU to a NIC.
    ///
    /// The rule counts the leading bridges that both paths from the host bridge have in common, without the devices
    /// themselves. None in common is [`Distance::Phb`]; all of the GPU's but its last bridge is [`Distance::Pix`];
    /// anything else is [`Distance::Pxb`]. Without a common host bridge, the NUMA nodes decide. Two unknown nodes
    /// count as equal, because the kernel reports -1 on a machine with one node.
    #[must_use]
    pub fn between(gpu: &DeviceLocation, nic: &DeviceLocation) -> Self {
        let shared = match (&gpu.path, &nic.path) {
            (Some(gpu), Some(nic)) if gpu.root_path() == nic.root_path() => Some((gpu.hops(), nic.hops())),
            _ => None,
        };
        let Some((gpu_hops, nic_hops)) = shared else {
            return if gpu.numa == nic.numa { Self::Node } else { Self::Sys };
        };
        let bridges = |hops: &[_]| hops.len() - 1;
        let above = &gpu_hops[..bridges(gpu_hops)];
        let others = &nic_hops[..bridges(nic_hops)];
        let common = above.iter().zip(others).take_while(|(a, b)| a == b).count();
        match common {
            0 => Self::Phb,
            _ if common + 1 == above.len() => Self::Pix,
            _ => Self::Pxb,
        }
    }

    /// Returns the class of the distance.
    #[must_use]
    pub fn distance_class(self) -> DistanceClass {
        match self {
            Self::Pix | Self::Pxb => DistanceClass::Switch,
            Self::Phb => DistanceClass::Bridge,
            Self::Node => DistanceClass::Node,
            Self::Sys => DistanceClass::Machine,
        }
    }

    /// Returns a description for users.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Pix => "through one PCIe switch",
            Self::Pxb => "through several PCIe bridges, not through the processor",
            Self::Phb => "through the processor's host bridge",
            Self::Node => "between host bridges of one NUMA node",
            Self::Sys => "between NUMA nodes",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(path: &str, numa: &str) -> DeviceLocation {
        DeviceLocation { path: PciPath::parse(&format!("devices/{path}")), numa: NumaNode::parse(numa) }
    }

    fn between(gpu: (&str, &str), nic: (&str, &str)) -> Distance {
        Distance::between(&place(gpu.0, gpu.1), &place(nic.0, nic.1))
    }

    /// The rule as published: it compares characters, and counts slashes. Behind the end of a path, nothing is equal.
    fn by_slashes(gpu: &str, nic: &str, one_node: bool) -> Distance {
        let others = nic.bytes().chain(std::iter::repeat(0));
        let mut depth = 0;
        let mut score = 0;
        let mut same = true;
        for (a, b) in gpu.bytes().zip(others) {
            same &= a == b;
            depth += usize::from(a == b'/');
            score += usize::from(a == b'/' && same);
        }
        let by_node = if one_node { Distance::Node } else { Distance::Sys };
        match score {
            0..=3 => by_node,
            4 => Distance::Phb,
            _ if score == depth - 1 => Distance::Pix,
            _ => Distance::Pxb,
        }
    }

    #[test]
    fn nodes_are_numbers_or_unknown() {
        assert_eq!(
            ["0", "3\n", "1023"].map(|text| NumaNode::parse(text).map(NumaNode::node_number)),
            [Some(0), Some(3), Some(1023)]
        );
        for text in ["", "-1", "-1\n", "1024", "99999999999", "one", "0x0", "1 2", "\u{0}"] {
            assert_eq!(NumaNode::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn each_distance_has_its_pci_shape() {
        let gpu = ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:1b:00.0", "0");
        let below_one_switch = ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:19:00.0", "0");
        let behind_one_more = ("pci0000:16/0000:16:01.0/0000:27:00.0/0000:28:01.0/0000:29:00.0", "0");
        let other_port = ("pci0000:16/0000:16:02.0/0000:39:00.0", "0");
        let other_bridge = ("pci0000:20/0000:20:01.0/0000:21:00.0", "0");
        let other_node = ("pci0000:80/0000:80:01.0/0000:81:00.0", "1");
        assert_eq!(
            [below_one_switch, behind_one_more, other_port, other_bridge, other_node]
                .map(|nic| between(gpu, nic)),
            Distance::ALL
        );
    }

    #[test]
    fn two_unknown_nodes_count_as_one() {
        let gpu = "pci0001:00/0001:00:00.0";
        let nic = "pci0101:00/0101:00:00.0";
        assert_eq!(between((gpu, "-1"), (nic, "-1")), Distance::Node);
    }

    #[test]
    fn an_unknown_node_is_not_node_zero() {
        let gpu = "pci0001:00/0001:00:00.0";
        let nic = "pci0101:00/0101:00:00.0";
        assert_eq!(between((gpu, "0"), (nic, "-1")), Distance::Sys);
        assert_eq!(between((gpu, "-1"), (nic, "0")), Distance::Sys);
    }

    #[test]
    fn numa_nodes_decide_if_the_tree_is_hidden() {
        let nowhere = DeviceLocation { path: None, numa: NumaNode::parse("1") };
        let gpu = place("pci0000:16/0000:16:01.0/0000:17:00.0", "1");
        assert_eq!(Distance::between(&gpu, &nowhere), Distance::Node);
        assert_eq!(Distance::between(&nowhere, &nowhere), Distance::Node);
        assert_eq!(Distance::between(&nowhere, &DeviceLocation::default()), Distance::Sys);
    }

    /// Each device is in a domain of its own below a folder of the hypervisor: counting slashes would make them near.
    #[test]
    fn host_bridges_below_a_hypervisor_are_distinct() {
        let path =
            |guid: &str, domain: &str| format!("LNXSYSTM:00/VMBUS:00/{guid}/pci{domain}:00/{domain}:00:00.0");
        let gpu = path("47505500-0001", "0001");
        let nic = path("47505500-0101", "0101");
        assert_eq!(between((&gpu, "0"), (&nic, "0")), Distance::Node);
        assert_eq!(between((&gpu, "0"), (&nic, "1")), Distance::Sys);
    }

    proptest! {
        #[test]
        fn distance_equals_the_published_slash_rule(
            common in prop::collection::vec(0_u8..3, 0..5),
            gpu in prop::collection::vec(0_u8..3, 1..4),
            nic in prop::collection::vec(0_u8..3, 1..4),
            roots in (0_u8..2, 0_u8..2),
            one_node: bool,
        ) {
            let path = |root: u8, end: &[u8]| {
                let hops = common.iter().chain(end).map(|hop| format!("/0000:0{hop}:00.0"));
                format!("/sys/devices/pci0000:0{root}{}", hops.collect::<String>())
            };
            let (gpu, nic) = (path(roots.0, &gpu), path(roots.1, &nic));
            let place = |path: &str, numa: &str| DeviceLocation {
                path: PciPath::parse(path.trim_start_matches("/sys")),
                numa: NumaNode::parse(numa),
            };
            let found = Distance::between(&place(&gpu, "0"), &place(&nic, if one_node { "0" } else { "1" }));
            prop_assert_eq!(found, by_slashes(&gpu, &nic, one_node), "{} {}", gpu, nic);
        }
    }
}
