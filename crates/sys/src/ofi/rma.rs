//! One-sided operations: reads, writes and atomics.

use core::ffi::{c_int, c_void};

use super::{Addr, AtomicOp, Datatype, FidEp, Iovec};

/// `struct fi_rma_iov`: a remote range.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaIov {
    /// Its address or offset, depending on [`mr_mode::VIRT_ADDR`](super::mr_mode::VIRT_ADDR).
    pub addr: u64,
    /// Bytes of the range.
    pub len: usize,
    /// Key of the registration.
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
    /// Number of entries.
    pub iov_count: usize,
    /// The peer.
    pub addr: Addr,
    /// Remote ranges.
    pub rma_iov: *const RmaIov,
    /// Number of entries.
    pub rma_iov_count: usize,
    /// Context, which the completion returns.
    pub context: *mut c_void,
    /// Remote CQ data.
    pub data: u64,
}

/// `struct fi_ops_rma`: functions for reads and writes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsRma {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
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
    /// Copies the buffer and writes it; without completion.
    pub inject: Option<RmaInject>,
    /// Writes with remote CQ data.
    pub writedata: Option<RmaWritedata>,
    /// Copies the buffer and writes it with remote CQ data; without completion.
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
/// `inject` of [`OpsRma`]: Copies the buffer and writes it; without completion.
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
/// `injectdata` of [`OpsRma`]: Copies the buffer and writes it with remote CQ data; without completion.
pub type RmaInjectdata = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: Addr,
    addr: u64,
    key: u64,
) -> isize;

/// `struct fi_ioc`: a local range of atomic operands.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ioc {
    /// First element.
    pub addr: *mut c_void,
    /// Number of elements.
    pub count: usize,
}

/// `struct fi_rma_ioc`: a remote range of atomic operands.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaIoc {
    /// Address or offset of the first element, as in [`RmaIov`].
    pub addr: u64,
    /// Number of elements.
    pub count: usize,
    /// Key of the registration.
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
    /// Number of entries.
    pub iov_count: usize,
    /// The peer.
    pub addr: Addr,
    /// Remote operands.
    pub rma_iov: *const RmaIoc,
    /// Number of entries.
    pub rma_iov_count: usize,
    /// Type of the elements.
    pub datatype: Datatype,
    /// Kind of the operation.
    pub op: AtomicOp,
    /// Context, which the completion returns.
    pub context: *mut c_void,
    /// Remote CQ data.
    pub data: u64,
}

/// `struct fi_ops_atomic`: functions for atomic operations.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsAtomic {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Applies an operation to elements at the peer.
    pub write: Option<AtomicWrite>,
    /// Applies an operation to elements at the peer; the operands are in several local ranges.
    pub writev: Option<AtomicWritev>,
    /// Applies an operation to elements at the peer, with flags; local and remote elements are in several ranges.
    pub writemsg: Option<AtomicWritemsg>,
    /// Copies the operands, then applies an operation to elements at the peer; without completion.
    pub inject: Option<AtomicInject>,
    /// Applies an operation to elements at the peer and returns their old values.
    pub readwrite: Option<AtomicReadwrite>,
    /// As `readwrite`; operands and old values are in several local ranges.
    pub readwritev: Option<AtomicReadwritev>,
    /// As `readwritev`, with flags; the elements at the peer are in several ranges, too.
    pub readwritemsg: Option<AtomicReadwritemsg>,
    /// Replaces elements at the peer where a comparison with given values holds, and returns their old values.
    pub compwrite: Option<AtomicCompwrite>,
    /// As `compwrite`; new, compared and old values are in several local ranges.
    pub compwritev: Option<AtomicCompwritev>,
    /// As `compwritev`, with flags; the elements at the peer are in several ranges, too.
    pub compwritemsg: Option<AtomicCompwritemsg>,
    /// Stores in `count` the most elements of one `write` with this datatype and operation; fails if unsupported.
    pub writevalid: Option<AtomicValid>,
    /// Stores in `count` the most elements of one `readwrite` with this datatype and operation; fails if unsupported.
    pub readwritevalid: Option<AtomicFetchValid>,
    /// Stores in `count` the most elements of one `compwrite` with this datatype and operation; fails if unsupported.
    pub compwritevalid: Option<AtomicCompareValid>,
}

/// `write` of [`OpsAtomic`]: Applies an operation to elements at the peer.
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
/// `writev` of [`OpsAtomic`]: Applies an operation to elements at the peer; the operands are in several local ranges.
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
/// `writemsg` of [`OpsAtomic`]: Applies an operation to elements at the peer, with flags; local and remote elements
/// are in several ranges.
pub type AtomicWritemsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize;
/// `inject` of [`OpsAtomic`]: Copies the operands, then applies an operation to elements at the peer; without
/// completion.
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
/// `readwrite` of [`OpsAtomic`]: Applies an operation to elements at the peer and returns their old values.
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
/// `readwritev` of [`OpsAtomic`]: As `readwrite`; operands and old values are in several local ranges.
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
/// `readwritemsg` of [`OpsAtomic`]: As `readwritev`, with flags; the elements at the peer are in several ranges, too.
pub type AtomicReadwritemsg = unsafe extern "C" fn(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize;
/// `compwrite` of [`OpsAtomic`]: Replaces elements at the peer where a comparison with given values holds, and
/// returns their old values.
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
/// `compwritev` of [`OpsAtomic`]: As `compwrite`; new, compared and old values are in several local ranges.
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
/// `compwritemsg` of [`OpsAtomic`]: As `compwritev`, with flags; the elements at the peer are in several ranges, too.
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
/// `writevalid` of [`OpsAtomic`]: Stores in `count` the most elements of one `write` with this datatype and
/// operation; fails if unsupported.
pub type AtomicValid =
    unsafe extern "C" fn(ep: *mut FidEp, datatype: Datatype, op: AtomicOp, count: *mut usize) -> c_int;
/// `readwritevalid` of [`OpsAtomic`]: Stores in `count` the most elements of one `readwrite` with this datatype and
/// operation; fails if unsupported.
pub type AtomicFetchValid =
    unsafe extern "C" fn(ep: *mut FidEp, datatype: Datatype, op: AtomicOp, count: *mut usize) -> c_int;
/// `compwritevalid` of [`OpsAtomic`]: Stores in `count` the most elements of one `compwrite` with this datatype and
/// operation; fails if unsupported.
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
