//! The functions of libionic (AMD's RDMA devices) that select the pipeline of a queue pair, from `ionic_dv.h` of
//! rdma-core 59.

use core::ffi::{CStr, c_int};

use super::{Context, Pd, Qp};

/// Name of the library.
pub const LIBRARY: &CStr = c"libionic.so.1";

/// `ionic_dv_ctx_get_udma_mask`: returns one bit per pipeline of a device; 0 for devices of other vendors.
pub type CtxGetUdmaMask = unsafe extern "C" fn(context: *mut Context) -> u8;
/// `ionic_dv_pd_set_udma_mask`: later queue pairs of the domain use one of these pipelines. Returns an error number,
/// or 0.
pub type PdSetUdmaMask = unsafe extern "C" fn(pd: *mut Pd, mask: u8) -> c_int;
/// `ionic_dv_qp_get_udma_idx`: returns the number of a queue pair's pipeline.
pub type QpGetUdmaIdx = unsafe extern "C" fn(qp: *mut Qp) -> u8;

/// The functions.
#[derive(Clone, Copy)]
pub struct Calls {
    /// `ionic_dv_ctx_get_udma_mask`.
    pub ctx_get_udma_mask: CtxGetUdmaMask,
    /// `ionic_dv_pd_set_udma_mask`.
    pub pd_set_udma_mask: PdSetUdmaMask,
    /// `ionic_dv_qp_get_udma_idx`.
    pub qp_get_udma_idx: QpGetUdmaIdx,
}
