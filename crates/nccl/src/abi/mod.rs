//! The C side: one file for each ABI version, the calls all versions share, the logger, and the end of the library.

mod calls;
mod context;
pub(crate) mod log;
pub(crate) mod unload;
mod v10;
mod v11;
mod v12;
mod v6;
mod v7;
mod v8;
mod v9;

pub(crate) use trunkline_sys::nccl_net::{
    NET_RECVS_MAX, NET_SIZE_BYTES_MAX, NetAttr, PTR_CUDA, PTR_DMABUF, PTR_HOST,
};
