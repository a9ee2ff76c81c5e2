//! Completion queues, what they hold, event queues and counters.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::size_of;
use core::ptr;

use super::{Addr, Fid, FidWait};

/// `enum fi_wait_obj`: what can be waited for.
pub type WaitObj = c_uint;
/// `enum fi_cq_format`: what the entries of a queue hold.
pub type CqFormat = c_uint;
/// `enum fi_cq_wait_cond`.
pub type CqWaitCond = c_uint;
/// `enum fi_cntr_events`.
pub type CntrEvents = c_uint;

/// `enum fi_wait_obj`.
pub mod wait {
    /// `FI_WAIT_NONE`: nothing.
    pub const NONE: u32 = 0;
    /// `FI_WAIT_UNSPEC`: as the provider likes, by its own calls.
    pub const UNSPEC: u32 = 1;
    /// `FI_WAIT_SET`.
    pub const SET: u32 = 2;
    /// `FI_WAIT_FD`: a descriptor.
    pub const FD: u32 = 3;
    /// `FI_WAIT_MUTEX_COND`.
    pub const MUTEX_COND: u32 = 4;
    /// `FI_WAIT_YIELD`.
    pub const YIELD: u32 = 5;
    /// `FI_WAIT_POLLFD`.
    pub const POLLFD: u32 = 6;
}

/// `enum fi_cq_format`.
pub mod cq_format {
    /// `FI_CQ_FORMAT_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_CQ_FORMAT_CONTEXT`: [`CqEntry`](super::CqEntry).
    pub const CONTEXT: u32 = 1;
    /// `FI_CQ_FORMAT_MSG`: [`CqMsgEntry`](super::CqMsgEntry).
    pub const MSG: u32 = 2;
    /// `FI_CQ_FORMAT_DATA`: [`CqDataEntry`](super::CqDataEntry).
    pub const DATA: u32 = 3;
    /// `FI_CQ_FORMAT_TAGGED`: [`CqTaggedEntry`](super::CqTaggedEntry).
    pub const TAGGED: u32 = 4;
}

/// `struct fi_cq_attr`: what kind of completion queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqAttr {
    /// Most entries, or 0.
    pub size: usize,
    /// Whether `signaling_vector` counts.
    pub flags: u64,
    /// What its entries hold: [`cq_format`].
    pub format: CqFormat,
    /// What can be waited for: [`wait`].
    pub wait_obj: WaitObj,
    /// A core for its interrupts.
    pub signaling_vector: c_int,
    /// Whether waits may ask for several entries.
    pub wait_cond: CqWaitCond,
    /// For [`wait::SET`]; deprecated.
    pub wait_set: *mut FidWait,
}

impl CqAttr {
    /// Nothing.
    pub const ZERO: Self = Self {
        size: 0,
        flags: 0,
        format: 0,
        wait_obj: 0,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: ptr::null_mut(),
    };
}

/// `struct fi_cq_entry`: a completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqEntry {
    /// As the operation was posted with.
    pub op_context: *mut c_void,
}

impl CqEntry {
    /// Nothing.
    pub const ZERO: Self = Self { op_context: ptr::null_mut() };
}

/// `struct fi_cq_msg_entry`: a completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqMsgEntry {
    /// As the operation was posted with.
    pub op_context: *mut c_void,
    /// What completed: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes, of what came in.
    pub len: usize,
}

impl CqMsgEntry {
    /// Nothing.
    pub const ZERO: Self = Self { op_context: ptr::null_mut(), flags: 0, len: 0 };
}

/// `struct fi_cq_data_entry`: a completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqDataEntry {
    /// As the operation was posted with.
    pub op_context: *mut c_void,
    /// What completed: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes, of what came in.
    pub len: usize,
    /// Where it is, in a buffer of many messages.
    pub buf: *mut c_void,
    /// Remote CQ data, if the flags say so.
    pub data: u64,
}

impl CqDataEntry {
    /// Nothing.
    pub const ZERO: Self =
        Self { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };
}

/// `struct fi_cq_tagged_entry`: a completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqTaggedEntry {
    /// As the operation was posted with.
    pub op_context: *mut c_void,
    /// What completed: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes, of what came in.
    pub len: usize,
    /// Where it is, in a buffer of many messages.
    pub buf: *mut c_void,
    /// Remote CQ data, if the flags say so.
    pub data: u64,
    /// Of a tagged receive.
    pub tag: u64,
}

impl CqTaggedEntry {
    /// Nothing.
    pub const ZERO: Self =
        Self { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0, tag: 0 };
}

/// `struct fi_cq_err_entry`: an operation that failed. Later versions have the source's address behind it, and
/// write that if they are asked for by a later version of the interface.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqErrEntry {
    /// As the operation was posted with.
    pub op_context: *mut c_void,
    /// What failed: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes, of what came in.
    pub len: usize,
    /// Where it is, in a buffer of many messages.
    pub buf: *mut c_void,
    /// Remote CQ data, if the flags say so.
    pub data: u64,
    /// Of a tagged receive.
    pub tag: u64,
    /// Bytes of a message that found no room.
    pub olen: usize,
    /// What went wrong: [`errno`](super::errno), positive.
    pub err: c_int,
    /// The same in the provider's numbers.
    pub prov_errno: c_int,
    /// A place for more, or NULL; then the provider's own, until the queue is read again.
    pub err_data: *mut c_void,
    /// Its bytes; of the provider's what is there.
    pub err_data_size: usize,
}

impl CqErrEntry {
    /// Nothing.
    pub const ZERO: Self = Self {
        op_context: ptr::null_mut(),
        flags: 0,
        len: 0,
        buf: ptr::null_mut(),
        data: 0,
        tag: 0,
        olen: 0,
        err: 0,
        prov_errno: 0,
        err_data: ptr::null_mut(),
        err_data_size: 0,
    };
}

/// `struct fid_cq`: a completion queue.
#[repr(C)]
pub struct FidCq {
    /// As any object.
    pub fid: Fid,
    /// Its own calls.
    pub ops: *mut OpsCq,
}

/// `struct fi_ops_cq`: what can be done with a completion queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsCq {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Takes entries; how many, [`EAGAIN`](super::errno::EAGAIN), or [`EAVAIL`](super::errno::EAVAIL) if an error
    /// is next.
    pub read: Option<CqRead>,
    /// The same with their sources.
    pub readfrom: Option<CqReadfrom>,
    /// Takes an error: 1, or [`EAGAIN`](super::errno::EAGAIN).
    pub readerr: Option<CqReaderr>,
    /// Waits for entries, in milliseconds.
    pub sread: Option<CqSread>,
    /// The same with their sources.
    pub sreadfrom: Option<CqSreadfrom>,
    /// Wakes who waits.
    pub signal: Option<CqSignal>,
    /// An error as text.
    pub strerror: Option<CqStrerror>,
}

/// `read` of [`OpsCq`]: Takes entries; how many, [`EAGAIN`](super::errno::EAGAIN), or
/// [`EAVAIL`](super::errno::EAVAIL) if an error is next.
pub type CqRead = unsafe extern "C" fn(cq: *mut FidCq, buf: *mut c_void, count: usize) -> isize;
/// `readfrom` of [`OpsCq`]: The same with their sources.
pub type CqReadfrom =
    unsafe extern "C" fn(cq: *mut FidCq, buf: *mut c_void, count: usize, src: *mut Addr) -> isize;
/// `readerr` of [`OpsCq`]: Takes an error: 1, or [`EAGAIN`](super::errno::EAGAIN).
pub type CqReaderr = unsafe extern "C" fn(cq: *mut FidCq, buf: *mut CqErrEntry, flags: u64) -> isize;
/// `sread` of [`OpsCq`]: Waits for entries, in milliseconds.
pub type CqSread = unsafe extern "C" fn(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize;
/// `sreadfrom` of [`OpsCq`]: The same with their sources.
pub type CqSreadfrom = unsafe extern "C" fn(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    src: *mut Addr,
    cond: *const c_void,
    timeout: c_int,
) -> isize;
/// `signal` of [`OpsCq`]: Wakes who waits.
pub type CqSignal = unsafe extern "C" fn(cq: *mut FidCq) -> c_int;
/// `strerror` of [`OpsCq`]: An error as text.
pub type CqStrerror = unsafe extern "C" fn(
    cq: *mut FidCq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char;

/// `struct fi_eq_attr`: what kind of event queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EqAttr {
    /// Most events, or 0.
    pub size: usize,
    /// Whether the application may write, and whether `signaling_vector` counts.
    pub flags: u64,
    /// What can be waited for: [`wait`].
    pub wait_obj: WaitObj,
    /// A core for its interrupts.
    pub signaling_vector: c_int,
    /// For [`wait::SET`]; deprecated.
    pub wait_set: *mut FidWait,
}

impl EqAttr {
    /// Nothing.
    pub const ZERO: Self =
        Self { size: 0, flags: 0, wait_obj: 0, signaling_vector: 0, wait_set: ptr::null_mut() };
}

/// `struct fi_eq_err_entry`: something that failed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EqErrEntry {
    /// What it is about.
    pub fid: *mut Fid,
    /// Of its maker.
    pub context: *mut c_void,
    /// More about it.
    pub data: u64,
    /// What went wrong: [`errno`](super::errno), positive.
    pub err: c_int,
    /// The same in the provider's numbers.
    pub prov_errno: c_int,
    /// A place for more, or NULL.
    pub err_data: *mut c_void,
    /// Its bytes.
    pub err_data_size: usize,
}

impl EqErrEntry {
    /// Nothing.
    pub const ZERO: Self = Self {
        fid: ptr::null_mut(),
        context: ptr::null_mut(),
        data: 0,
        err: 0,
        prov_errno: 0,
        err_data: ptr::null_mut(),
        err_data_size: 0,
    };
}

/// `struct fid_eq`: an event queue.
#[repr(C)]
pub struct FidEq {
    /// As any object.
    pub fid: Fid,
    /// Its own calls.
    pub ops: *mut OpsEq,
}

/// `struct fi_ops_eq`: what can be done with an event queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsEq {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Takes an event.
    pub read: Option<EqRead>,
    /// Takes an error.
    pub readerr: Option<EqReaderr>,
    /// Puts in an event.
    pub write: Option<EqWrite>,
    /// Waits for one, in milliseconds.
    pub sread: Option<EqSread>,
    /// An error as text.
    pub strerror: Option<EqStrerror>,
}

/// `read` of [`OpsEq`]: Takes an event.
pub type EqRead =
    unsafe extern "C" fn(eq: *mut FidEq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
/// `readerr` of [`OpsEq`]: Takes an error.
pub type EqReaderr = unsafe extern "C" fn(eq: *mut FidEq, buf: *mut EqErrEntry, flags: u64) -> isize;
/// `write` of [`OpsEq`]: Puts in an event.
pub type EqWrite =
    unsafe extern "C" fn(eq: *mut FidEq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
/// `sread` of [`OpsEq`]: Waits for one, in milliseconds.
pub type EqSread = unsafe extern "C" fn(
    eq: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize;
/// `strerror` of [`OpsEq`]: An error as text.
pub type EqStrerror = unsafe extern "C" fn(
    eq: *mut FidEq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char;

/// `struct fi_cntr_attr`: what kind of counter.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CntrAttr {
    /// What it counts: completions, which is 0.
    pub events: CntrEvents,
    /// What can be waited for: [`wait`].
    pub wait_obj: WaitObj,
    /// For [`wait::SET`]; deprecated.
    pub wait_set: *mut FidWait,
    /// None.
    pub flags: u64,
}

impl CntrAttr {
    /// Nothing.
    pub const ZERO: Self = Self { events: 0, wait_obj: 0, wait_set: ptr::null_mut(), flags: 0 };
}

/// `struct fid_cntr`: a counter.
#[repr(C)]
pub struct FidCntr {
    /// As any object.
    pub fid: Fid,
    /// Its own calls.
    pub ops: *mut OpsCntr,
}

/// `struct fi_ops_cntr`: what can be done with a counter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsCntr {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// What succeeded.
    pub read: Option<CntrRead>,
    /// What failed.
    pub readerr: Option<CntrReaderr>,
    /// Adds.
    pub add: Option<CntrAdd>,
    /// Sets.
    pub set: Option<CntrSet>,
    /// Waits for a value, in milliseconds.
    pub wait: Option<CntrWait>,
    /// Adds to what failed.
    pub adderr: Option<CntrAdderr>,
    /// Sets what failed.
    pub seterr: Option<CntrSeterr>,
}

/// `read` of [`OpsCntr`]: What succeeded.
pub type CntrRead = unsafe extern "C" fn(cntr: *mut FidCntr) -> u64;
/// `readerr` of [`OpsCntr`]: What failed.
pub type CntrReaderr = unsafe extern "C" fn(cntr: *mut FidCntr) -> u64;
/// `add` of [`OpsCntr`]: Adds.
pub type CntrAdd = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;
/// `set` of [`OpsCntr`]: Sets.
pub type CntrSet = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;
/// `wait` of [`OpsCntr`]: Waits for a value, in milliseconds.
pub type CntrWait = unsafe extern "C" fn(cntr: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int;
/// `adderr` of [`OpsCntr`]: Adds to what failed.
pub type CntrAdderr = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;
/// `seterr` of [`OpsCntr`]: Sets what failed.
pub type CntrSeterr = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;

const _: () = {
    assert!(size_of::<CqTaggedEntry>() == 48);
    assert!(size_of::<CqErrEntry>() == 80);
    assert!(size_of::<CqAttr>() == 40);
};
