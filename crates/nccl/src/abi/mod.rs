//! The C side: one file for each ABI version, the calls that versions share, the logger, and the end of the library.
//!
//! The unit tests of this crate leave out the exported functions: they never call them, and compiling them would take
//! most of the time.

#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod context;
pub(crate) mod log;
pub(crate) mod unload;
#[cfg(not(test))]
mod v10;
#[cfg(not(test))]
mod v11;
#[cfg(not(test))]
mod v12;
#[cfg(not(test))]
mod v6;
#[cfg(not(test))]
mod v7;
#[cfg(not(test))]
mod v8;
#[cfg(not(test))]
mod v9;

pub(crate) use trunkline_sys::nccl_net::{
    NET_RECVS_MAX, NET_SIZE_BYTES_MAX, NetAttr, PTR_CUDA, PTR_DMABUF, PTR_HOST,
};
