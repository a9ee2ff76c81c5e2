//! The C interface of reads and writes.

use std::ffi::c_void;

use trunkline_sys::ofi::{Addr, FidEp, Iovec, MsgRma, OpsRma, errno};

use super::endpoint::EndpointHandle;
use super::object_ref;
use super::submit::{OpBuffers, PostLabel, post_operation};
use crate::memory;
use crate::outgoing::PeerAction;
use crate::registry::BrokenRule;

static OPS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// Returns the table of reads and writes.
pub(super) fn rma_table() -> *mut OpsRma {
    (&raw const OPS).cast_mut()
}

/// Posts a read or write with flags, whose message contains the remote range.
///
/// # Safety
/// The object is open and has this table, see `abi`; the message meets the requirements of the interface.
unsafe fn post_message(
    ep: *mut FidEp,
    msg: *const MsgRma,
    flags: u64,
    what: fn(u64, u64) -> PeerAction,
) -> isize {
    // SAFETY: the caller passes a valid message, which lives during the call.
    let msg = unsafe { &*msg };
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(msg.msg_iov, msg.desc, msg.iov_count) };
    // SAFETY: as above; NULL if there is no remote range.
    let remote = unsafe { msg.rma_iov.as_ref() }.filter(|_| msg.rma_iov_count == 1);
    let Some(remote) = remote.filter(|remote| memory::total_len(&buffers.ranges) == Some(remote.len)) else {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(ep) };
        let line = "a read or write needs one remote range with the total length of its local ranges";
        return this.checked_call(|_| Err(BrokenRule::with_rule(errno::EINVAL, line))) as isize;
    };
    let label = PostLabel::with_flags(msg.addr, msg.context, msg.data, flags);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, what(remote.addr, remote.key), buffers, label) }
}

fn read_of(addr: u64, key: u64) -> PeerAction {
    PeerAction::Read { key, addr }
}

fn write_of(addr: u64, key: u64) -> PeerAction {
    PeerAction::Write { key, addr }
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe {
        post_operation(
            ep,
            read_of(addr, key),
            OpBuffers::from_buffer(buf, len, desc),
            PostLabel::for_plain(src, context),
        )
    }
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, read_of(addr, key), buffers, PostLabel::for_plain(src, context)) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_message(ep, msg, flags, read_of) }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe {
        post_operation(
            ep,
            write_of(addr, key),
            OpBuffers::from_buffer(buf, len, desc),
            PostLabel::for_plain(dest, context),
        )
    }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, write_of(addr, key), buffers, PostLabel::for_plain(dest, context)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_message(ep, msg, flags, write_of) }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    dest: Addr,
    addr: u64,
    key: u64,
) -> isize {
    let buffers = OpBuffers::from_buffer(buf, len, std::ptr::null_mut());
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, write_of(addr, key), buffers, PostLabel::for_inject(dest)) }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: Addr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let label = PostLabel::for_plain(dest, context).with_data(data);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, write_of(addr, key), OpBuffers::from_buffer(buf, len, desc), label) }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: Addr,
    addr: u64,
    key: u64,
) -> isize {
    let buffers = OpBuffers::from_buffer(buf, len, std::ptr::null_mut());
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, write_of(addr, key), buffers, PostLabel::for_inject(dest).with_data(data)) }
}
