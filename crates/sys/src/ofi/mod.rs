//! The C types of libfabric 1.17, the oldest version that is supported.
//!
//! Read by `crates/ofi`, which opens the library at run time, and by `testing/ofi-strict`, a provider for the
//! library. Contains the attributes, objects and function tables that an application, the library and a provider
//! share. The headers' inline functions call through those tables. `cargo xtask bindings` compares all of it with
//! `rdma/fabric.h` and related headers.
//!
//! *Versions of symbols.* Every later library also has the symbols of 1.17, which use the structures of this module.
//! The newest symbol version of 1.17 is `FABRIC_1.6`; [`VERSIONS`] contains the version under which each function is
//! resolved. `fi_getinfo`, `fi_freeinfo` and `fi_dupinfo` have version `FABRIC_1.3`, and all three must be used at
//! the same version.
//!
//! *Fields that later versions append* (compared with 2.6, whose own `fi_getinfo` is `FABRIC_1.10`):
//! - [`EpAttr`][]: `xpu_ctx`.
//! - [`DomainAttr`]: `max_ep_auth_key`, `max_group_id`, `max_cntr_value`, `max_err_cntr_value`, `max_xpu_ctx_cnt`.
//! - [`MrAttr`]: `hmem_data`, `page_size`, `base_mr`, `sub_mr_cnt`.
//! - [`CqErrEntry`][]: `src_addr`.
//! - [`CqAttr`] and [`CntrAttr`]: `xpu_ctx`.
//! - The tables [`OpsAv`], [`OpsDomain`], [`OpsEp`], [`OpsCq`], [`OpsCntr`]: further slots, within their `size`.
//!
//! No field moved. Providers access appended fields only if the application requested a version that has them.
//! [`API`] is therefore the version to request with these structures. To register dma-bufs, an application requests
//! 1.20 or later and passes the longer [`MrAttrLater`] and [`CqErrEntryLater`]. Bits that 2.x removed or redefined
//! are omitted.

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
    /// First byte.
    pub iov_base: *mut c_void,
    /// Bytes.
    pub iov_len: usize,
}

/// `struct fi_context`: space for the provider, see [`mode::CONTEXT`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context {
    /// Private to the provider.
    pub internal: [*mut c_void; 4],
}

/// `struct fi_context2`: more space for the provider, see [`mode::CONTEXT2`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context2 {
    /// Private to the provider.
    pub internal: [*mut c_void; 8],
}
