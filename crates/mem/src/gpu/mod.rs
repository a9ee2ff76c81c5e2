//! Memory of GPUs: which device's memory an address names, and its export as a dma-buf, for a NIC to reach it.
//!
//! Used by whoever registers buffers with a NIC. A [`Gpu`] is a vendor's driver, opened at run time and held by its owner,
//! [`Gpus`] are those of all vendors; where there is none, [`Missing`] says why. Nothing here waits for a device or keeps
//! what it learned: an answer is true until the memory is freed. It allocates only what [`Gpu::lend`] is asked for.

mod copies;
pub(crate) mod cuda;
mod device;
mod dmabuf;
mod driver;
mod error;
mod free_count;
mod gdrcopy;
mod gpus;
pub(crate) mod hip;
mod lent;
pub(crate) mod library;
mod pointer;
mod sync_memops;

pub use copies::{Copies, CopyError};
pub use device::{
    Arg, Device, DeviceError, LaunchError, MOVES_MAX, Mover, Pinned, Program, RangeError, Running,
};
pub use dmabuf::{DmaBuf, Export, ExportError, Mapping, Refusal};
pub use driver::{Gpu, Vendor};
pub(crate) use error::planted;
pub use error::{CallError, LookError, Missing};
pub use free_count::FreeCount;
pub use gdrcopy::{Gdr, GdrError};
pub use gpus::Gpus;
pub use pointer::{Allocation, Pointer, PointerKind};
