//! What a host is made of, as far as Trunkline asks: its network interfaces, and which of them to use; its GPUs and NICs,
//! where they are, and which NICs a GPU uses. Front ends ask once, at start, and pass the answer on as values; nothing here
//! opens a socket or moves a byte.

#![forbid(unsafe_code)]

mod assign;
mod choice;
mod distance;
mod interface;
mod pci;
mod rank;
mod speed;
mod sysfs;
mod topology;

pub use assign::{AssignedNic, NicAssignment, PER_GPU_MAX, assign_nics};
pub use choice::{AddressFamily, ChoiceError, InterfaceChoice, InterfaceVariable, VARIABLES};
pub use distance::{DeviceLocation, Distance, DistanceClass, NumaNode};
pub use interface::{NetworkInterface, list_interfaces};
pub use pci::{AddressError, PciAddress, PciPath};
pub use rank::{RankPlacement, gpu_of_rank};
pub use speed::{SPEED_UNKNOWN_MBPS, share_speeds};
pub use sysfs::{GPUS_MAX, NICS_MAX, ReadError, read_numa_node, read_topology};
pub use topology::{DeviceName, GpusBy, NicKind, NodeGpu, NodeNic, NodeTopology};
