//! Memory that other processes of the node may map: one trait for all kinds of it, and the kinds that need no GPU.
//!
//! Used by drivers of `trunkline_proto::ipc`: an exporter's "export" and an importer's "map" are calls of [`IpcMemory`].
//!
//! - [`HostMemory`]: memory of the host in memory files, shared by descriptor.
//! - [`PrivateMemory`]: any memory of a process, copied by system calls and never mapped.
//! - [`XpmemMemory`]: the same memory, attached where the kernel has XPMEM.
//! - [`MemfdDevice`]: a simulated GPU driver.
//! - [`CudaMemory`], [`HipMemory`] and [`LevelZero`]: memory of GPUs, by their vendors' drivers, opened at run time.
//! - [`AnyMemory`]: one of these, selected by name.
//!
//! No code here caches memory that is not open, sends data to another process, or decides which memory is shared: the caller passes handles and
//! descriptors.

mod address_window;
mod any;
mod cuda;
mod driver_memory;
mod error;
mod fault_guard;
mod fork_guard;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handle;
mod hip;
mod host;
mod locks;
pub(crate) mod mapping;
mod mapping_queue;
mod memfd;
mod memory;
mod private;
mod process;
mod table;
mod transfer;
mod xpmem;
mod ze;

pub use any::AnyMemory;
pub use cuda::CudaMemory;
pub use error::{
    CallFailure, CloseError, CopyError, ExportError, FailureClass, FindAllocationError, HandleOpenError,
    NoMemory, NotClosed,
};
pub use handle::{IpcHandle, IpcHandleError};
pub use hip::HipMemory;
pub use host::{HostError, HostMemory};
pub use mapping_queue::{MappingAnswer, MappingQueue, MappingRequest, MappingTicket};
pub use memfd::{AllocError, DeviceUsage, FreeError, MemfdDevice, MemfdError, poison_word};
pub use memory::{IpcAllocation, IpcAllocationId, IpcCaps, IpcMemory, MappingUser};
pub use private::PrivateMemory;
pub use process::{PeerCredentials, peer_credentials, peer_pidfd, process_across};
pub use transfer::{CopyBatch, CopyPlace, CopyTarget, ExportedHandle, HandlePassing, OpenedHandle, StagePin};
pub use xpmem::{AttachCounts, XpmemMemory};
pub use ze::LevelZero;
