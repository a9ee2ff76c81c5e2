//! The C types of libfabric, as 1.17 has them, which is the oldest that is supported.
//!
//! Read by `crates/ofi`, which opens the library at run time, and by `testing/ofi-strict`, which is a provider for it. Holds what
//! an application, the library and a provider share: attributes, objects, and the tables in objects through which the inline
//! functions of the headers go. `cargo xtask bindings` compares all of it with `rdma/fabric.h` and its neighbours.
//!
//! *Versions of symbols.* A library of any later version has, beside its own, the symbols that 1.17 has, and these take and
//! give structures as they are here. The newest in 1.17 is `FABRIC_1.6`; [`VERSIONS`] says at which version each function is
//! to be looked up. `fi_getinfo`, `fi_freeinfo` and `fi_dupinfo` are at `FABRIC_1.3` and must be used at one version, all three.
//!
//! *What later versions put behind what is here* (compared with 2.6, whose own `fi_getinfo` is `FABRIC_1.10`):
//! [`EpAttr`] `xpu_ctx`; [`DomainAttr`] `max_ep_auth_key`, `max_group_id`, `max_cntr_value`, `max_err_cntr_value`,
//! `max_xpu_ctx_cnt`; [`MrAttr`] `hmem_data`, `page_size`, `base_mr`, `sub_mr_cnt`; [`CqErrEntry`] `src_addr`; [`CqAttr`] and
//! [`CntrAttr`] `xpu_ctx`; the tables [`OpsAv`], [`OpsDomain`], [`OpsEp`], [`OpsCq`], [`OpsCntr`] have further slots, which
//! their `size` tells. Nothing moved. Providers read and write what is behind only if the application asked for a version that
//! has it, so that [`API`] is what goes with these structures. Who wants to register dma-bufs asks for 1.20 or later, and then
//! passes the longer [`MrAttrLater`] and [`CqErrEntryLater`]. Bits that 2.x dropped or gave another meaning are left out.

mod av;
mod calls;
mod domain;
mod endpoint;
pub mod errno;
mod fid;
mod flags;
mod info;
mod message;
mod mr;
mod nic;
mod opaque;
mod provider;
mod queue;
mod rma;
mod since_1_18;

use core::ffi::c_void;

pub use av::*;
pub use calls::*;
pub use domain::*;
pub use endpoint::*;
pub use fid::*;
pub use flags::*;
pub use info::*;
pub use message::*;
pub use mr::*;
pub use nic::*;
pub use opaque::*;
pub use provider::*;
pub use queue::*;
pub use rma::*;
pub use since_1_18::*;

/// `struct iovec`: a range of memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Iovec {
    /// Where it begins.
    pub iov_base: *mut c_void,
    /// Its bytes.
    pub iov_len: usize,
}

/// `struct fi_context`: room for the provider, see [`mode::CONTEXT`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context {
    /// The provider's.
    pub internal: [*mut c_void; 4],
}

/// `struct fi_context2`: more room for the provider, see [`mode::CONTEXT2`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context2 {
    /// The provider's.
    pub internal: [*mut c_void; 8],
}
