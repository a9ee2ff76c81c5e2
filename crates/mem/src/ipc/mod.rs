//! Memory that other processes of the node may map: one trait for all kinds of it, and the kinds that need no GPU.
//!
//! For whoever drives `trunkline_proto::ipc`: an exporter's "export" and an importer's "map" are calls of [`IpcMemory`] here.
//! [`Host`] is memory of the host in memory files, whose descriptors are passed; [`Private`] is any memory of a process, reached by
//! system calls and mapped by nobody, and [`Xpmem`] the same, attached where the kernel has XPMEM; [`Device`] behaves as a GPU's driver does, without a GPU. [`Cuda`], [`Hip`] and [`LevelZero`] are
//! memory of GPUs by their vendors' drivers, opened at run time; [`AnyMemory`] is whichever a name says. Nothing here keeps what nobody has
//! open, sends anything to another process, or decides what is shared: handles and descriptors are passed by the caller.

mod any;
mod cuda;
mod driven;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guarded;
mod handle;
mod here;
mod hip;
mod host;
mod locks;
mod mapped;
pub(crate) mod mapping;
mod mapping_queue;
mod memfd;
mod memory;
mod private;
mod process;
mod table;
mod window;
mod xpmem;
mod ze;

pub use any::AnyMemory;
pub use cuda::Cuda;
pub use error::{
    Cause, CloseError, CopyError, ExportError, FindError, Meaning, NoMemory, NotClosed, OpenError,
};
pub use handle::{Handle, HandleError};
pub use hip::Hip;
pub use host::{Host, HostError};
pub use mapped::{At, CopyBatch, Export, Mapped, Passing, StagePin, To};
pub use mapping_queue::{MappingAnswer, MappingQueue, MappingRequest, MappingTicket};
pub use memfd::{AllocError, Device, DeviceError, FreeError, Usage, poison};
pub use memory::{Allocation, AllocationId, Caps, IpcMemory, User};
pub use private::Private;
pub use process::{PeerCredentials, peer_credentials, peer_pidfd, process_across};
pub use xpmem::{Attaching, Xpmem};
pub use ze::LevelZero;

use crate::gpu::planted;
