//! Completion queues and their entries, event queues and counters.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::size_of;
use core::ptr;

use super::{Addr, Fid, FidWait};

/// `enum fi_wait_obj`: kind of a wait object.
pub type WaitObj = c_uint;
/// `enum fi_cq_format`: format of a completion queue's entries.
pub type CqFormat = c_uint;
/// `enum fi_cq_wait_cond`.
pub type CqWaitCond = c_uint;
/// `enum fi_cntr_events`.
pub type CntrEvents = c_uint;

/// `enum fi_wait_obj`.
pub mod wait {
    /// `FI_WAIT_NONE`: no wait object.
    pub const NONE: u32 = 0;
    /// `FI_WAIT_UNSPEC`: the provider chooses; waits use its own functions.
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

/// `struct fi_cq_attr`: attributes of a completion queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqAttr {
    /// Most entries, or 0 for the provider's default.
    pub size: usize,
    /// Whether `signaling_vector` is valid.
    pub flags: u64,
    /// Format of the entries: [`cq_format`].
    pub format: CqFormat,
    /// Kind of the wait object: [`wait`].
    pub wait_obj: WaitObj,
    /// Core that its interrupts should use.
    pub signaling_vector: c_int,
    /// Whether waits may have a threshold of several entries.
    pub wait_cond: CqWaitCond,
    /// For [`wait::SET`]; deprecated.
    pub wait_set: *mut FidWait,
}

impl CqAttr {
    /// All fields zero or null.
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

/// `struct fi_cq_entry`: a completion with the context only.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqEntry {
    /// The operation's context.
    pub op_context: *mut c_void,
}

impl CqEntry {
    /// All fields zero or null.
    pub const ZERO: Self = Self { op_context: ptr::null_mut() };
}

/// `struct fi_cq_msg_entry`: a completion with flags and length.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqMsgEntry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// Kind of the operation: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes received, by a receive or by a peer's write.
    pub len: usize,
}

impl CqMsgEntry {
    /// All fields zero or null.
    pub const ZERO: Self = Self { op_context: ptr::null_mut(), flags: 0, len: 0 };
}

/// `struct fi_cq_data_entry`: a completion with buffer and remote CQ data.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqDataEntry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// Kind of the operation: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes received, by a receive or by a peer's write.
    pub len: usize,
    /// Address of the message in a multi-receive buffer.
    pub buf: *mut c_void,
    /// Remote CQ data; valid if the flags contain `FI_REMOTE_CQ_DATA`.
    pub data: u64,
}

impl CqDataEntry {
    /// All fields zero or null.
    pub const ZERO: Self =
        Self { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };
}

/// `struct fi_cq_tagged_entry`: a completion with all fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqTaggedEntry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// Kind of the operation: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes received, by a receive or by a peer's write.
    pub len: usize,
    /// Address of the message in a multi-receive buffer.
    pub buf: *mut c_void,
    /// Remote CQ data; valid if the flags contain `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// Tag of a tagged receive.
    pub tag: u64,
}

impl CqTaggedEntry {
    /// All fields zero or null.
    pub const ZERO: Self =
        Self { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0, tag: 0 };
}

/// `struct fi_cq_err_entry`: a failed operation. Later versions append the source's address, and write it only if the
/// application requested such a version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqErrEntry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// Kind of the operation that failed: bits of [`caps`](super::caps).
    pub flags: u64,
    /// Bytes received, by a receive or by a peer's write.
    pub len: usize,
    /// Address of the message in a multi-receive buffer.
    pub buf: *mut c_void,
    /// Remote CQ data; valid if the flags contain `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// Tag of a tagged receive.
    pub tag: u64,
    /// Bytes of a message that did not fit into the buffer.
    pub olen: usize,
    /// Cause: a positive number of [`errno`](super::errno).
    pub err: c_int,
    /// Cause, as a number of the provider.
    pub prov_errno: c_int,
    /// Buffer for further data. If it is NULL, the call sets a buffer of the provider, valid until the next read
    /// of the queue.
    pub err_data: *mut c_void,
    /// Bytes of that buffer; for the provider's buffer, bytes of data.
    pub err_data_size: usize,
}

impl CqErrEntry {
    /// All fields zero or null.
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
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsCq,
}

/// `struct fi_ops_cq`: functions of a completion queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsCq {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Reads entries; returns their number, [`EAGAIN`](super::errno::EAGAIN) if there are none, or
    /// [`EAVAIL`](super::errno::EAVAIL) if an error is next.
    pub read: Option<CqRead>,
    /// The same, with the sources of the messages.
    pub readfrom: Option<CqReadfrom>,
    /// Reads an error entry; returns 1, or [`EAGAIN`](super::errno::EAGAIN) if there is none.
    pub readerr: Option<CqReaderr>,
    /// Waits for entries; timeout in milliseconds.
    pub sread: Option<CqSread>,
    /// The same, with the sources of the messages.
    pub sreadfrom: Option<CqSreadfrom>,
    /// Wakes the waiting threads.
    pub signal: Option<CqSignal>,
    /// Formats an error as text.
    pub strerror: Option<CqStrerror>,
}

/// `read` of [`OpsCq`]: Reads entries; returns their number, [`EAGAIN`](super::errno::EAGAIN) if there are none, or
/// [`EAVAIL`](super::errno::EAVAIL) if an error is next.
pub type CqRead = unsafe extern "C" fn(cq: *mut FidCq, buf: *mut c_void, count: usize) -> isize;
/// `readfrom` of [`OpsCq`]: The same, with the sources of the messages.
pub type CqReadfrom =
    unsafe extern "C" fn(cq: *mut FidCq, buf: *mut c_void, count: usize, src: *mut Addr) -> isize;
/// `readerr` of [`OpsCq`]: Reads an error entry; returns 1, or [`EAGAIN`](super::errno::EAGAIN) if there is none.
pub type CqReaderr = unsafe extern "C" fn(cq: *mut FidCq, buf: *mut CqErrEntry, flags: u64) -> isize;
/// `sread` of [`OpsCq`]: Waits for entries; timeout in milliseconds.
pub type CqSread = unsafe extern "C" fn(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize;
/// `sreadfrom` of [`OpsCq`]: The same, with the sources of the messages.
pub type CqSreadfrom = unsafe extern "C" fn(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    src: *mut Addr,
    cond: *const c_void,
    timeout: c_int,
) -> isize;
/// `signal` of [`OpsCq`]: Wakes the waiting threads.
pub type CqSignal = unsafe extern "C" fn(cq: *mut FidCq) -> c_int;
/// `strerror` of [`OpsCq`]: Formats an error as text.
pub type CqStrerror = unsafe extern "C" fn(
    cq: *mut FidCq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char;

/// `struct fi_eq_attr`: attributes of an event queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EqAttr {
    /// Most events, or 0 for the provider's default.
    pub size: usize,
    /// Whether the application may write events, and whether `signaling_vector` is valid.
    pub flags: u64,
    /// Kind of the wait object: [`wait`].
    pub wait_obj: WaitObj,
    /// Core that its interrupts should use.
    pub signaling_vector: c_int,
    /// For [`wait::SET`]; deprecated.
    pub wait_set: *mut FidWait,
}

impl EqAttr {
    /// All fields zero or null.
    pub const ZERO: Self =
        Self { size: 0, flags: 0, wait_obj: 0, signaling_vector: 0, wait_set: ptr::null_mut() };
}

/// `struct fi_eq_err_entry`: an operation that failed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EqErrEntry {
    /// The object concerned.
    pub fid: *mut Fid,
    /// Context of that object.
    pub context: *mut c_void,
    /// Further information.
    pub data: u64,
    /// Cause: a positive number of [`errno`](super::errno).
    pub err: c_int,
    /// Cause, as a number of the provider.
    pub prov_errno: c_int,
    /// Buffer for further data, or NULL.
    pub err_data: *mut c_void,
    /// Bytes of that buffer.
    pub err_data_size: usize,
}

impl EqErrEntry {
    /// All fields zero or null.
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
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsEq,
}

/// `struct fi_ops_eq`: functions of an event queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsEq {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Reads an event.
    pub read: Option<EqRead>,
    /// Reads an error.
    pub readerr: Option<EqReaderr>,
    /// Writes an event.
    pub write: Option<EqWrite>,
    /// Waits for an event; timeout in milliseconds.
    pub sread: Option<EqSread>,
    /// Formats an error as text.
    pub strerror: Option<EqStrerror>,
}

/// `read` of [`OpsEq`]: Reads an event.
pub type EqRead =
    unsafe extern "C" fn(eq: *mut FidEq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
/// `readerr` of [`OpsEq`]: Reads an error.
pub type EqReaderr = unsafe extern "C" fn(eq: *mut FidEq, buf: *mut EqErrEntry, flags: u64) -> isize;
/// `write` of [`OpsEq`]: Writes an event.
pub type EqWrite =
    unsafe extern "C" fn(eq: *mut FidEq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
/// `sread` of [`OpsEq`]: Waits for an event; timeout in milliseconds.
pub type EqSread = unsafe extern "C" fn(
    eq: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize;
/// `strerror` of [`OpsEq`]: Formats an error as text.
pub type EqStrerror = unsafe extern "C" fn(
    eq: *mut FidEq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char;

/// `struct fi_cntr_attr`: attributes of a counter.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CntrAttr {
    /// The counted events: 0 for completions.
    pub events: CntrEvents,
    /// Kind of the wait object: [`wait`].
    pub wait_obj: WaitObj,
    /// For [`wait::SET`]; deprecated.
    pub wait_set: *mut FidWait,
    /// Always 0.
    pub flags: u64,
}

impl CntrAttr {
    /// All fields zero or null.
    pub const ZERO: Self = Self { events: 0, wait_obj: 0, wait_set: ptr::null_mut(), flags: 0 };
}

/// `struct fid_cntr`: a counter.
#[repr(C)]
pub struct FidCntr {
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsCntr,
}

/// `struct fi_ops_cntr`: functions of a counter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsCntr {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Returns the number of successful operations.
    pub read: Option<CntrRead>,
    /// Returns the number of failed operations.
    pub readerr: Option<CntrReaderr>,
    /// Adds to the number of successful operations.
    pub add: Option<CntrAdd>,
    /// Sets the number of successful operations.
    pub set: Option<CntrSet>,
    /// Waits for a value; timeout in milliseconds.
    pub wait: Option<CntrWait>,
    /// Adds to the number of failed operations.
    pub adderr: Option<CntrAdderr>,
    /// Sets the number of failed operations.
    pub seterr: Option<CntrSeterr>,
}

/// `read` of [`OpsCntr`]: Returns the number of successful operations.
pub type CntrRead = unsafe extern "C" fn(cntr: *mut FidCntr) -> u64;
/// `readerr` of [`OpsCntr`]: Returns the number of failed operations.
pub type CntrReaderr = unsafe extern "C" fn(cntr: *mut FidCntr) -> u64;
/// `add` of [`OpsCntr`]: Adds to the number of successful operations.
pub type CntrAdd = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;
/// `set` of [`OpsCntr`]: Sets the number of successful operations.
pub type CntrSet = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;
/// `wait` of [`OpsCntr`]: Waits for a value; timeout in milliseconds.
pub type CntrWait = unsafe extern "C" fn(cntr: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int;
/// `adderr` of [`OpsCntr`]: Adds to the number of failed operations.
pub type CntrAdderr = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;
/// `seterr` of [`OpsCntr`]: Sets the number of failed operations.
pub type CntrSeterr = unsafe extern "C" fn(cntr: *mut FidCntr, value: u64) -> c_int;

const _: () = {
    assert!(size_of::<CqTaggedEntry>() == 48);
    assert!(size_of::<CqErrEntry>() == 80);
    assert!(size_of::<CqAttr>() == 40);
};
