//! The topology of a host: its GPUs, NICs and network interfaces, their locations, the NICs that a GPU uses, and the
//! interfaces that software NICs use.
//!
//! Front ends and `trunkline topo` call it once, at start, and pass the result on as values. It opens no socket and
//! transfers no data.
//!
//! - `sysfs.rs` is the only part that opens files; it returns a [`NodeTopology`]. `pci.rs`, `distance.rs`: locations
//!   and distances.
//! - `assign.rs`, `rank.rs`: the NICs of a GPU, and of a rank of a job. Both are pure.
//! - `interface.rs`, `choice.rs`, `speed.rs`: interfaces, the user's choice of them (`NCCL_SOCKET_IFNAME`), and the
//!   speed that software NICs report.
//!
//! For a GPU, [`read_topology`] lists GPUs and NICs with their PCI paths and NUMA nodes, and [`assign_nics`] computes
//! distances and assigns NICs. docs/topology.md defines the rules.

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
pub use choice::{AddressFamily, ChoiceError, InterfaceChoice};
pub use distance::{DeviceLocation, Distance, DistanceClass, NumaNode};
pub use interface::{NetworkInterface, list_interfaces};
pub use pci::{AddressError, PciAddress, PciPath};
pub use rank::{RankPlacement, gpu_of_rank};
pub use speed::{SPEED_UNKNOWN_MBPS, share_speeds};
pub use sysfs::{GPUS_MAX, NICS_MAX, ReadError, read_numa_node, read_topology};
pub use topology::{DeviceName, GpusBy, NicKind, NodeGpu, NodeNic, NodeTopology};
