//! Reads and writes in C.

use std::ffi::c_void;

use trunkline_sys::ofi::{Addr, FidEp, Iovec, MsgRma, OpsRma, errno};

use super::endpoint::EpObject;
use super::object;
use super::submit::{Buffers, Label, post};
use crate::memory;
use crate::outgoing::What;
use crate::registry::Broken;

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
pub(super) fn table() -> *mut OpsRma {
    (&raw const OPS).cast_mut()
}

/// One of either with flags, whose remote range is told beside its local ones.
///
/// # Safety
/// See `edge`; the message is as the interface says.
unsafe fn message(ep: *mut FidEp, msg: *const MsgRma, flags: u64, what: fn(u64, u64) -> What) -> isize {
    // SAFETY: the caller's message.
    let msg = unsafe { &*msg };
    // SAFETY: as the interface says of the lists.
    let buffers = unsafe { Buffers::list(msg.msg_iov, msg.desc, msg.iov_count) };
    // SAFETY: as above; NULL if there is none.
    let remote = unsafe { msg.rma_iov.as_ref() }.filter(|_| msg.rma_iov_count == 1);
    let Some(remote) = remote.filter(|remote| memory::total(&buffers.ranges) == Some(remote.len)) else {
        // SAFETY: see `edge`.
        let this: &EpObject = unsafe { object(ep) };
        let line = "a read or write whose one remote range is not as long as its local ones";
        return this.ruled(|_| Err(Broken::rule(errno::EINVAL, line))) as isize;
    };
    let label = Label::flagged(msg.addr, msg.context, msg.data, flags);
    // SAFETY: see `edge`.
    unsafe { post(ep, what(remote.addr, remote.key), buffers, label) }
}

fn read_of(addr: u64, key: u64) -> What {
    What::Read { key, addr }
}

fn write_of(addr: u64, key: u64) -> What {
    What::Write { key, addr }
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
    unsafe { post(ep, read_of(addr, key), Buffers::one(buf, len, desc), Label::plain(src, context)) }
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
    let buffers = unsafe { Buffers::list(iov, desc, count) };
    // SAFETY: see `edge`.
    unsafe { post(ep, read_of(addr, key), buffers, Label::plain(src, context)) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: see `edge`.
    unsafe { message(ep, msg, flags, read_of) }
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
    unsafe { post(ep, write_of(addr, key), Buffers::one(buf, len, desc), Label::plain(dest, context)) }
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
    let buffers = unsafe { Buffers::list(iov, desc, count) };
    // SAFETY: see `edge`.
    unsafe { post(ep, write_of(addr, key), buffers, Label::plain(dest, context)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: see `edge`.
    unsafe { message(ep, msg, flags, write_of) }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    dest: Addr,
    addr: u64,
    key: u64,
) -> isize {
    let buffers = Buffers::one(buf, len, std::ptr::null_mut());
    // SAFETY: see `edge`.
    unsafe { post(ep, write_of(addr, key), buffers, Label::inject(dest)) }
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
    let label = Label::plain(dest, context).with(data);
    // SAFETY: see `edge`.
    unsafe { post(ep, write_of(addr, key), Buffers::one(buf, len, desc), label) }
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
    let buffers = Buffers::one(buf, len, std::ptr::null_mut());
    // SAFETY: see `edge`.
    unsafe { post(ep, write_of(addr, key), buffers, Label::inject(dest).with(data)) }
}
