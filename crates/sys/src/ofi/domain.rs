//! Domains. Usually a domain is one NIC.

use core::ffi::{c_int, c_uint, c_void};

use super::{
    AtomicAttr, AvAttr, CntrAttr, CollectiveAttr, CqAttr, Fid, FidAv, FidCntr, FidCq, FidEp, FidPoll, FidStx,
    Info, OpsMr, PollAttr, RxAttr, TxAttr,
};

/// `enum fi_datatype`.
pub type Datatype = c_uint;
/// `enum fi_op`.
pub type AtomicOp = c_uint;
/// `enum fi_collective_op`.
pub type CollectiveOp = c_uint;

/// `struct fid_domain`: an open domain.
#[repr(C)]
pub struct FidDomain {
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsDomain,
    /// Table for registration.
    pub mr: *mut OpsMr,
}

/// `struct fi_ops_domain`: functions of a domain.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsDomain {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Opens an address vector.
    pub av_open: Option<OpenAv>,
    /// Opens a completion queue.
    pub cq_open: Option<OpenCq>,
    /// Opens an endpoint.
    pub endpoint: Option<OpenEndpoint>,
    /// Opens a scalable endpoint, which has several contexts.
    pub scalable_ep: Option<OpenScalableEp>,
    /// Opens a counter.
    pub cntr_open: Option<OpenCntr>,
    /// Opens a poll set; deprecated.
    pub poll_open: Option<OpenPoll>,
    /// Opens a shared sending context.
    pub stx_ctx: Option<OpenStx>,
    /// Opens a shared receiving context.
    pub srx_ctx: Option<OpenSrx>,
    /// Queries the support for an atomic operation.
    pub query_atomic: Option<QueryAtomic>,
    /// Queries the support for a collective operation.
    pub query_collective: Option<QueryCollective>,
    /// Opens an endpoint, with flags.
    pub endpoint2: Option<OpenEndpoint2>,
}

/// `av_open` of [`OpsDomain`]: Opens an address vector.
pub type OpenAv = unsafe extern "C" fn(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    av: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int;
/// `cq_open` of [`OpsDomain`]: Opens a completion queue.
pub type OpenCq = unsafe extern "C" fn(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    cq: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int;
/// `endpoint` of [`OpsDomain`]: Opens an endpoint.
pub type OpenEndpoint = unsafe extern "C" fn(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `scalable_ep` of [`OpsDomain`]: Opens a scalable endpoint, which has several contexts.
pub type OpenScalableEp = unsafe extern "C" fn(
    domain: *mut FidDomain,
    info: *mut Info,
    sep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `cntr_open` of [`OpsDomain`]: Opens a counter.
pub type OpenCntr = unsafe extern "C" fn(
    domain: *mut FidDomain,
    attr: *mut CntrAttr,
    cntr: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int;
/// `poll_open` of [`OpsDomain`]: Opens a poll set; deprecated.
pub type OpenPoll =
    unsafe extern "C" fn(domain: *mut FidDomain, attr: *mut PollAttr, pollset: *mut *mut FidPoll) -> c_int;
/// `stx_ctx` of [`OpsDomain`]: Opens a shared sending context.
pub type OpenStx = unsafe extern "C" fn(
    domain: *mut FidDomain,
    attr: *mut TxAttr,
    stx: *mut *mut FidStx,
    context: *mut c_void,
) -> c_int;
/// `srx_ctx` of [`OpsDomain`]: Opens a shared receiving context.
pub type OpenSrx = unsafe extern "C" fn(
    domain: *mut FidDomain,
    attr: *mut RxAttr,
    rx: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `query_atomic` of [`OpsDomain`]: Queries the support for an atomic operation.
pub type QueryAtomic = unsafe extern "C" fn(
    domain: *mut FidDomain,
    datatype: Datatype,
    op: AtomicOp,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int;
/// `query_collective` of [`OpsDomain`]: Queries the support for a collective operation.
pub type QueryCollective = unsafe extern "C" fn(
    domain: *mut FidDomain,
    coll: CollectiveOp,
    attr: *mut CollectiveAttr,
    flags: u64,
) -> c_int;
/// `endpoint2` of [`OpsDomain`]: Opens an endpoint, with flags.
pub type OpenEndpoint2 = unsafe extern "C" fn(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int;
