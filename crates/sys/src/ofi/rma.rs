//! One-sided operations: reads, writes and atomics.

use core::ffi::{c_int, c_void};

use super::{Addr, AtomicOp, Datatype, FidEp, Iovec};

/// `struct fi_rma_iov`: a remote range.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaIov {
    /// Its address or offset, as [`mr_mode::VIRT_ADDR`](super::mr_mode::VIRT_ADDR) says.
    pub addr: u64,
    /// Its bytes.
    pub len: usize,
    /// The registration's.
    pub key: u64,
}

/// `struct fi_msg_rma`: a read or write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MsgRma {
    /// Local ranges.
    pub msg_iov: *const Iovec,
    /// Their descriptors, or NULL.
    pub desc: *mut *mut c_void,
    /// How many.
    pub iov_count: usize,
    /// The peer.
    pub addr: Addr,
    /// Remote ranges.
    pub rma_iov: *const RmaIov,
    /// How many.
    pub rma_iov_count: usize,
    /// What its completion tells.
    pub context: *mut c_void,
    /// Remote CQ data.
    pub data: u64,
}

/// `struct fi_ops_rma`: reads and writes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsRma {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Reads into a range.
    pub read: Option<RmaRead>,
    /// Reads into ranges.
    pub readv: Option<RmaReadv>,
    /// Reads, with flags.
    pub readmsg: Option<RmaReadmsg>,
    /// Writes a range.
    pub write: Option<RmaWrite>,
    /// Writes ranges.
    pub writev: Option<RmaWritev>,
    /// Writes, with flags.
    pub writemsg: Option<RmaWritemsg>,
    /// Writes a copy; no completion.
    pub inject: Option<RmaInject>,
    /// Writes with remote CQ data.
    pub writedata: Option<RmaWritedata>,
    /// Writes a copy with remote CQ data.
    pub injectdata: Option<RmaInjectdata>,
}

/// `read` of [`OpsRma`]: Reads into a range.
pub type RmaRead = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize;
/// `readv` of [`OpsRma`]: Reads into ranges.
pub type RmaReadv = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize;
/// `readmsg` of [`OpsRma`]: Reads, with flags.
pub type RmaReadmsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize;
/// `write` of [`OpsRma`]: Writes a range.
pub type RmaWrite = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize;
/// `writev` of [`OpsRma`]: Writes ranges.
pub type RmaWritev = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize;
/// `writemsg` of [`OpsRma`]: Writes, with flags.
pub type RmaWritemsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize;
/// `inject` of [`OpsRma`]: Writes a copy; no completion.
pub type RmaInject = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    dest: Addr,
    addr: u64,
    key: u64,
) -> isize;
/// `writedata` of [`OpsRma`]: Writes with remote CQ data.
pub type RmaWritedata = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize;
/// `injectdata` of [`OpsRma`]: Writes a copy with remote CQ data.
pub type RmaInjectdata = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: Addr,
    addr: u64,
    key: u64,
) -> isize;

/// `struct fi_ioc`: a local range of atomic elements.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ioc {
    /// Where.
    pub addr: *mut c_void,
    /// How many.
    pub count: usize,
}

/// `struct fi_rma_ioc`: a remote one.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaIoc {
    /// As in [`RmaIov`].
    pub addr: u64,
    /// How many.
    pub count: usize,
    /// The registration's.
    pub key: u64,
}

/// `struct fi_msg_atomic`: an atomic operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MsgAtomic {
    /// Local operands.
    pub msg_iov: *const Ioc,
    /// Their descriptors, or NULL.
    pub desc: *mut *mut c_void,
    /// How many.
    pub iov_count: usize,
    /// The peer.
    pub addr: Addr,
    /// Remote ones.
    pub rma_iov: *const RmaIoc,
    /// How many.
    pub rma_iov_count: usize,
    /// Kind of element.
    pub datatype: Datatype,
    /// What is done.
    pub op: AtomicOp,
    /// What its completion tells.
    pub context: *mut c_void,
    /// Remote CQ data.
    pub data: u64,
}

/// `struct fi_ops_atomic`: atomic operations.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsAtomic {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Changes elements.
    pub write: Option<AtomicWrite>,
    /// Changes elements, by ranges.
    pub writev: Option<AtomicWritev>,
    /// Changes elements, with flags.
    pub writemsg: Option<AtomicWritemsg>,
    /// Changes elements by copies.
    pub inject: Option<AtomicInject>,
    /// Changes elements and tells what they were.
    pub readwrite: Option<AtomicReadwrite>,
    /// The same, by ranges.
    pub readwritev: Option<AtomicReadwritev>,
    /// The same, with flags.
    pub readwritemsg: Option<AtomicReadwritemsg>,
    /// Changes elements if they compare.
    pub compwrite: Option<AtomicCompwrite>,
    /// The same, by ranges.
    pub compwritev: Option<AtomicCompwritev>,
    /// The same, with flags.
    pub compwritemsg: Option<AtomicCompwritemsg>,
    /// Whether changing is there, and of how many elements.
    pub writevalid: Option<AtomicValid>,
    /// Whether changing and telling is.
    pub readwritevalid: Option<AtomicFetchValid>,
    /// Whether comparing is.
    pub compwritevalid: Option<AtomicCompareValid>,
}

/// `write` of [`OpsAtomic`]: Changes elements.
pub type AtomicWrite = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
    context: *mut c_void,
) -> isize;
/// `writev` of [`OpsAtomic`]: Changes elements, by ranges.
pub type AtomicWritev = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
    context: *mut c_void,
) -> isize;
/// `writemsg` of [`OpsAtomic`]: Changes elements, with flags.
pub type AtomicWritemsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize;
/// `inject` of [`OpsAtomic`]: Changes elements by copies.
pub type AtomicInject = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
) -> isize;
/// `readwrite` of [`OpsAtomic`]: Changes elements and tells what they were.
pub type AtomicReadwrite = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
    context: *mut c_void,
) -> isize;
/// `readwritev` of [`OpsAtomic`]: The same, by ranges.
pub type AtomicReadwritev = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
    context: *mut c_void,
) -> isize;
/// `readwritemsg` of [`OpsAtomic`]: The same, with flags.
pub type AtomicReadwritemsg = unsafe extern "C" fn(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize;
/// `compwrite` of [`OpsAtomic`]: Changes elements if they compare.
pub type AtomicCompwrite = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    compare: *const c_void,
    compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
    context: *mut c_void,
) -> isize;
/// `compwritev` of [`OpsAtomic`]: The same, by ranges.
pub type AtomicCompwritev = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
    comparev: *const Ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    dest: Addr,
    addr: u64,
    key: u64,
    datatype: Datatype,
    op: AtomicOp,
    context: *mut c_void,
) -> isize;
/// `compwritemsg` of [`OpsAtomic`]: The same, with flags.
pub type AtomicCompwritemsg = unsafe extern "C" fn(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    comparev: *const Ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize;
/// `writevalid` of [`OpsAtomic`]: Whether changing is there, and of how many elements.
pub type AtomicValid =
    unsafe extern "C" fn(ep: *mut FidEp, datatype: Datatype, op: AtomicOp, count: *mut usize) -> c_int;
/// `readwritevalid` of [`OpsAtomic`]: Whether changing and telling is.
pub type AtomicFetchValid =
    unsafe extern "C" fn(ep: *mut FidEp, datatype: Datatype, op: AtomicOp, count: *mut usize) -> c_int;
/// `compwritevalid` of [`OpsAtomic`]: Whether comparing is.
pub type AtomicCompareValid =
    unsafe extern "C" fn(ep: *mut FidEp, datatype: Datatype, op: AtomicOp, count: *mut usize) -> c_int;

/// `FI_UINT32`.
pub const UINT32: Datatype = 5;
/// `FI_UINT64`.
pub const UINT64: Datatype = 7;
/// `FI_SUM`.
pub const ATOMIC_SUM: AtomicOp = 2;
/// `FI_ATOMIC_READ`.
pub const ATOMIC_READ: AtomicOp = 10;
/// `FI_ATOMIC_WRITE`.
pub const ATOMIC_WRITE: AtomicOp = 11;
/// `FI_CSWAP`.
pub const ATOMIC_CSWAP: AtomicOp = 12;
