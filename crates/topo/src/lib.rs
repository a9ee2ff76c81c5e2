//! What a host is made of, as far as Trunkline asks: its network interfaces, and which of them to use; its GPUs and NICs,
//! where they are, and which NICs a GPU uses. Front ends ask once, at start, and pass the answer on as values; nothing here
//! opens a socket or moves a byte.

#![forbid(unsafe_code)]

mod assign;
mod choice;
mod distance;
mod interface;
mod mutant;
mod pci;
mod rank;
mod speed;
mod sysfs;
mod topology;

pub use assign::{Assignment, PER_GPU_MAX, Pick, assign};
pub use choice::{Choice, ChoiceError, Family, VARIABLES, Variable};
pub use distance::{Class, Distance, NumaNode, Place};
pub use interface::{Interface, interfaces};
pub use pci::{AddressError, PciAddress, PciPath};
pub use rank::{RankPlacement, gpu_of_rank};
pub use speed::{SPEED_UNKNOWN_MBPS, share_speeds};
pub use sysfs::{GPUS_MAX, NICS_MAX, ReadError, read, read_numa_node};
pub use topology::{Gpu, GpusBy, Name, Nic, NicKind, Topology};
