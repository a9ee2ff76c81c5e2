//! Reads and writes in C.

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

/// The table of reads and writes.
pub(super) fn rma_table() -> *mut OpsRma {
    (&raw const OPS).cast_mut()
}

/// One of either with flags, whose remote range is told beside its local ones.
///
/// # Safety
/// See `edge`; the message is as the interface says.
unsafe fn post_message(
    ep: *mut FidEp,
    msg: *const MsgRma,
    flags: u64,
    what: fn(u64, u64) -> PeerAction,
) -> isize {
    // SAFETY: the caller's message.
    let msg = unsafe { &*msg };
    // SAFETY: as the interface says of the lists.
    let buffers = unsafe { OpBuffers::from_list(msg.msg_iov, msg.desc, msg.iov_count) };
    // SAFETY: as above; NULL if there is none.
    let remote = unsafe { msg.rma_iov.as_ref() }.filter(|_| msg.rma_iov_count == 1);
    let Some(remote) = remote.filter(|remote| memory::total_len(&buffers.ranges) == Some(remote.len)) else {
        // SAFETY: see `edge`.
        let this: &EndpointHandle = unsafe { object_ref(ep) };
        let line = "a read or write whose one remote range is not as long as its local ones";
        return this.checked_call(|_| Err(BrokenRule::with_rule(errno::EINVAL, line))) as isize;
    };
    let label = PostLabel::with_flags(msg.addr, msg.context, msg.data, flags);
    // SAFETY: see `edge`.
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
    // SAFETY: see `edge`.
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
    // SAFETY: as the interface says of the lists.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: see `edge`.
    unsafe { post_operation(ep, read_of(addr, key), buffers, PostLabel::for_plain(src, context)) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: see `edge`.
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
    // SAFETY: see `edge`.
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
    // SAFETY: as the interface says of the lists.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: see `edge`.
    unsafe { post_operation(ep, write_of(addr, key), buffers, PostLabel::for_plain(dest, context)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: see `edge`.
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
    // SAFETY: see `edge`.
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
    // SAFETY: see `edge`.
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
    // SAFETY: see `edge`.
    unsafe { post_operation(ep, write_of(addr, key), buffers, PostLabel::for_inject(dest).with_data(data)) }
}
