//! The C side: one file for each ABI version, the calls all versions share, and the logger.

mod calls;
mod context;
pub(crate) mod log;
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

/// Runs when the library is unloaded or the process ends.
extern "C" fn fini() {
    // A panic here would abort the process that unloads us.
    let _ = std::panic::catch_unwind(crate::world::end);
}

#[used]
// SAFETY: the section holds pointers to functions without arguments, which the dynamic linker calls once at unload.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;
