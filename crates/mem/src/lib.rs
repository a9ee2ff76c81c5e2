//! Memory as the rest of Trunkline sees it: a [`MemoryRange`] is a byte range of a [`MemoryKind`] that can be read, written and
//! copied with bounds checks, whoever owns the bytes. A [`PublishedPage`] is memory that other processes may look at, and
//! [`CounterWords`] are the counters on it, or in memory of one's own. [`gpu`] tells memory of GPUs from other memory. A
//! [`MappedMemory`] is a device's that the CPU has mapped. [`SharedMemory`] is
//! memory that processes of one host have together, [`StaticVariables`] the program's variables made such.
//!
//! Called by every layer above. This crate never registers memory with a NIC (that is a fabric's job) and never
//! looks at what the bytes mean.

mod counter_words;
pub mod gpu;
pub mod ipc;
mod kind;
mod local_port;
mod mapped;
mod memory;
mod memory_file;
mod page;
mod shared_copy;
mod shared_memory;
mod statics;
mod zeros;

pub use counter_words::CounterWords;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use ipc::fuzzing;
pub use kind::MemoryKind;
pub use local_port::defer_port_choice;
pub use mapped::{MappedBytes, MappedMemory, fence_mapped_stores};
pub use memory::{MemoryRange, OutOfBounds};
#[cfg(any(test, feature = "test-utils"))]
pub use memory::{live_heaps, refuse_mappings};
pub use memory_file::create_memory_file;
pub use page::{PageView, PublishedPage, ViewError};
pub use shared_copy::{copy_shared, copy_shared_words};
pub use shared_memory::{MemoryFileId, PeerError, SharedMemory, map_exported};
pub use statics::StaticVariables;
pub use trunkline_proto::reserve::OutOfMemory;
pub use zeros::try_zeros;
