//! The calls of libionic (AMD's RDMA devices) that say on which pipeline a queue pair goes, as `ionic_dv.h` of rdma-core 59 has
//! them.

use core::ffi::{CStr, c_int};

use super::{Context, Pd, Qp};

/// Name of the library.
pub const LIBRARY: &CStr = c"libionic.so.1";

/// `ionic_dv_ctx_get_udma_mask`: a bit for each pipeline of a device; 0 for one of another kind.
pub type CtxGetUdmaMask = unsafe extern "C" fn(context: *mut Context) -> u8;
/// `ionic_dv_pd_set_udma_mask`: queue pairs that are made of the domain from now on go on one of these; an error number, or 0.
pub type PdSetUdmaMask = unsafe extern "C" fn(pd: *mut Pd, mask: u8) -> c_int;
/// `ionic_dv_qp_get_udma_idx`: the pipeline that a queue pair is on, as the number of its bit.
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
