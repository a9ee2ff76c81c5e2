//! The C interface of domains.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use trunkline_sys::ofi::{
    CntrAttr, Fid, FidCntr, FidDomain, FidEp, FidPoll, FidStx, Info, Ops, OpsDomain, PollAttr, RxAttr,
    TxAttr, class, errno,
};

use super::{PANICKED, av, catch_panics, cq, endpoint, hand_out, info, missing, mr, object_ref, take_back};
use crate::config::FailureStep;
use crate::domain::{StrictDomain, StrictFabric};
use crate::gate::CallScope;
use crate::offer;

#[repr(C)]
pub(super) struct DomainHandle {
    fid: FidDomain,
    pub(super) domain: Arc<StrictDomain>,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(ops_open),
    tostr: None,
    ops_set: None,
};

static DOMAIN_OPS: OpsDomain = OpsDomain {
    size: size_of::<OpsDomain>(),
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(endpoint::open),
    scalable_ep: Some(scalable_ep),
    cntr_open: Some(cntr_open),
    poll_open: Some(poll_open),
    stx_ctx: Some(stx_ctx),
    srx_ctx: Some(srx_ctx),
    query_atomic: None,
    query_collective: None,
    endpoint2: None,
};

missing! {
    bind(*mut Fid, *mut Fid, u64) -> c_int;
    control(*mut Fid, c_int, *mut c_void) -> c_int;
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    scalable_ep(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int;
    cntr_open(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, *mut c_void) -> c_int;
    poll_open(*mut FidDomain, *mut PollAttr, *mut *mut FidPoll) -> c_int;
    stx_ctx(*mut FidDomain, *mut TxAttr, *mut *mut FidStx, *mut c_void) -> c_int;
    srx_ctx(*mut FidDomain, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> c_int;
}

/// # Safety
/// `info` is a result of `fi_getinfo`, and `out` may be written.
pub(super) unsafe fn create_domain(
    shared: &Arc<StrictFabric>,
    info: *const Info,
    out: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    if shared.count_call(FailureStep::Domain) {
        return -errno::EIO;
    }
    // SAFETY: as this function's caller promises.
    let wishes = unsafe { info::read_hints(info) };
    let nic = wishes.domain.as_deref().and_then(|name| name.strip_prefix(offer::NAME)?.parse().ok());
    let Some(nic) = nic.filter(|nic| *nic < shared.config.nics) else { return -errno::ENODEV };
    let fid = Fid { fclass: class::DOMAIN, context, ops: (&raw const OPS).cast_mut() };
    let domain = shared.open_domain(nic, wishes.threading);
    let fid = FidDomain { fid, ops: (&raw const DOMAIN_OPS).cast_mut(), mr: mr::mr_table() };
    // SAFETY: as this function's caller promises.
    unsafe { hand_out(DomainHandle { fid, domain }, out) };
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &DomainHandle = unsafe { object_ref(fid) };
        let is_used = this.domain.run_call(CallScope::Domain, |state| {
            let endpoints = state.endpoints.len();
            let others = state.queues.len() + state.vectors.len() + state.memory.live_count();
            let is_used = endpoints + others > 0;
            if is_used {
                state.report_violation(&format!(
                    "close of a domain with {endpoints} endpoints and {others} other objects"
                ));
            }
            is_used
        });
        if is_used {
            return -errno::EBUSY;
        }
        this.domain.write_account("domain");
        // SAFETY: as above, and no other object uses it.
        unsafe { take_back::<DomainHandle>(fid) };
        0
    })
}
