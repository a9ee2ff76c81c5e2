//! Two-sided messages: plain and tagged.

use core::ffi::c_void;

use super::{Addr, FidEp, Iovec};

/// `struct fi_msg`: a message, or a receive.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Msg {
    /// Local ranges.
    pub msg_iov: *const Iovec,
    /// Their descriptors, or NULL.
    pub desc: *mut *mut c_void,
    /// Number of entries.
    pub iov_count: usize,
    /// The peer.
    pub addr: Addr,
    /// Context, which the completion returns.
    pub context: *mut c_void,
    /// Remote CQ data.
    pub data: u64,
}

/// `struct fi_msg_tagged`: the same with a tag.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MsgTagged {
    /// Local ranges.
    pub msg_iov: *const Iovec,
    /// Their descriptors, or NULL.
    pub desc: *mut *mut c_void,
    /// Number of entries.
    pub iov_count: usize,
    /// The peer.
    pub addr: Addr,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that a receive ignores.
    pub ignore: u64,
    /// Context, which the completion returns.
    pub context: *mut c_void,
    /// Remote CQ data.
    pub data: u64,
}

/// `struct fi_ops_msg`: two-sided messages.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsMsg {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Receives into a range.
    pub recv: Option<Recv>,
    /// Receives into ranges.
    pub recvv: Option<Recvv>,
    /// Receives, with flags.
    pub recvmsg: Option<Recvmsg>,
    /// Sends a range.
    pub send: Option<Send>,
    /// Sends ranges.
    pub sendv: Option<Sendv>,
    /// Sends, with flags.
    pub sendmsg: Option<Sendmsg>,
    /// Copies the buffer and sends it; without completion.
    pub inject: Option<Inject>,
    /// Sends with remote CQ data.
    pub senddata: Option<Senddata>,
    /// Copies the buffer and sends it with remote CQ data; without completion.
    pub injectdata: Option<Injectdata>,
}

/// `recv` of [`OpsMsg`]: Receives into a range.
pub type Recv = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: Addr,
    context: *mut c_void,
) -> isize;
/// `recvv` of [`OpsMsg`]: Receives into ranges.
pub type Recvv = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: Addr,
    context: *mut c_void,
) -> isize;
/// `recvmsg` of [`OpsMsg`]: Receives, with flags.
pub type Recvmsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize;
/// `send` of [`OpsMsg`]: Sends a range.
pub type Send = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: Addr,
    context: *mut c_void,
) -> isize;
/// `sendv` of [`OpsMsg`]: Sends ranges.
pub type Sendv = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    context: *mut c_void,
) -> isize;
/// `sendmsg` of [`OpsMsg`]: Sends, with flags.
pub type Sendmsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize;
/// `inject` of [`OpsMsg`]: Copies the buffer and sends it; without completion.
pub type Inject = unsafe extern "C" fn(ep: *mut FidEp, buf: *const c_void, len: usize, dest: Addr) -> isize;
/// `senddata` of [`OpsMsg`]: Sends with remote CQ data.
pub type Senddata = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: Addr,
    context: *mut c_void,
) -> isize;
/// `injectdata` of [`OpsMsg`]: Copies the buffer and sends it with remote CQ data; without completion.
pub type Injectdata =
    unsafe extern "C" fn(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, dest: Addr) -> isize;

/// `struct fi_ops_tagged`: tagged messages.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsTagged {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Receives into a range.
    pub recv: Option<Trecv>,
    /// Receives into ranges.
    pub recvv: Option<Trecvv>,
    /// Receives, with flags.
    pub recvmsg: Option<Trecvmsg>,
    /// Sends a range.
    pub send: Option<Tsend>,
    /// Sends ranges.
    pub sendv: Option<Tsendv>,
    /// Sends, with flags.
    pub sendmsg: Option<Tsendmsg>,
    /// Copies the buffer and sends it; without completion.
    pub inject: Option<Tinject>,
    /// Sends with remote CQ data.
    pub senddata: Option<Tsenddata>,
    /// Copies the buffer and sends it with remote CQ data; without completion.
    pub injectdata: Option<Tinjectdata>,
}

/// `recv` of [`OpsTagged`]: Receives into a range.
pub type Trecv = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: Addr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize;
/// `recvv` of [`OpsTagged`]: Receives into ranges.
pub type Trecvv = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: Addr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize;
/// `recvmsg` of [`OpsTagged`]: Receives, with flags.
pub type Trecvmsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize;
/// `send` of [`OpsTagged`]: Sends a range.
pub type Tsend = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: Addr,
    tag: u64,
    context: *mut c_void,
) -> isize;
/// `sendv` of [`OpsTagged`]: Sends ranges.
pub type Tsendv = unsafe extern "C" fn(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    tag: u64,
    context: *mut c_void,
) -> isize;
/// `sendmsg` of [`OpsTagged`]: Sends, with flags.
pub type Tsendmsg = unsafe extern "C" fn(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize;
/// `inject` of [`OpsTagged`]: Copies the buffer and sends it; without completion.
pub type Tinject =
    unsafe extern "C" fn(ep: *mut FidEp, buf: *const c_void, len: usize, dest: Addr, tag: u64) -> isize;
/// `senddata` of [`OpsTagged`]: Sends with remote CQ data.
pub type Tsenddata = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: Addr,
    tag: u64,
    context: *mut c_void,
) -> isize;
/// `injectdata` of [`OpsTagged`]: Copies the buffer and sends it with remote CQ data; without completion.
pub type Tinjectdata = unsafe extern "C" fn(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: Addr,
    tag: u64,
) -> isize;
