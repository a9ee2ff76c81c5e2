//! The C interface of two-sided messages, plain and tagged.

use std::ffi::c_void;

use trunkline_sys::ofi::{Addr, FidEp, Iovec, Msg, MsgTagged, OpsMsg, OpsTagged};

use super::submit::{OpBuffers, PostLabel, post_operation, post_receive};
use crate::outgoing::PeerAction;

static PLAIN: OpsMsg = OpsMsg {
    size: size_of::<OpsMsg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

static TAGGED: OpsTagged = OpsTagged {
    size: size_of::<OpsTagged>(),
    recv: Some(trecv),
    recvv: Some(trecvv),
    recvmsg: Some(trecvmsg),
    send: Some(tsend),
    sendv: Some(tsendv),
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: Some(tsenddata),
    injectdata: Some(tinjectdata),
};

/// Returns the table of plain messages.
pub(super) fn plain_table() -> *mut OpsMsg {
    (&raw const PLAIN).cast_mut()
}

/// Returns the table of tagged messages.
pub(super) fn tagged_table() -> *mut OpsTagged {
    (&raw const TAGGED).cast_mut()
}

const SEND: PeerAction = PeerAction::Send { tag: None };

fn tagged_send(tag: u64) -> PeerAction {
    PeerAction::Send { tag: Some(tag) }
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: Addr,
    context: *mut c_void,
) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe {
        post_receive(ep, OpBuffers::from_buffer(buf, len, desc), None, PostLabel::for_plain(src, context))
    }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: Addr,
    context: *mut c_void,
) -> isize {
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_receive(ep, buffers, None, PostLabel::for_plain(src, context)) }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: the caller passes a valid message, which lives during the call.
    let msg = unsafe { &*msg };
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(msg.msg_iov, msg.desc, msg.iov_count) };
    let label = PostLabel::with_flags(msg.addr, msg.context, msg.data, flags);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_receive(ep, buffers, None, label) }
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: Addr,
    context: *mut c_void,
) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe {
        post_operation(ep, SEND, OpBuffers::from_buffer(buf, len, desc), PostLabel::for_plain(dest, context))
    }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    context: *mut c_void,
) -> isize {
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, SEND, buffers, PostLabel::for_plain(dest, context)) }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: the caller passes a valid message, which lives during the call.
    let msg = unsafe { &*msg };
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(msg.msg_iov, msg.desc, msg.iov_count) };
    let label = PostLabel::with_flags(msg.addr, msg.context, msg.data, flags);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, SEND, buffers, label) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, dest: Addr) -> isize {
    let buffers = OpBuffers::from_buffer(buf, len, std::ptr::null_mut());
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, SEND, buffers, PostLabel::for_inject(dest)) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: Addr,
    context: *mut c_void,
) -> isize {
    let label = PostLabel::for_plain(dest, context).with_data(data);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, SEND, OpBuffers::from_buffer(buf, len, desc), label) }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: Addr,
) -> isize {
    let buffers = OpBuffers::from_buffer(buf, len, std::ptr::null_mut());
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, SEND, buffers, PostLabel::for_inject(dest).with_data(data)) }
}

unsafe extern "C" fn trecv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: Addr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe {
        post_receive(
            ep,
            OpBuffers::from_buffer(buf, len, desc),
            Some((tag, ignore)),
            PostLabel::for_plain(src, context),
        )
    }
}

unsafe extern "C" fn trecvv(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: Addr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_receive(ep, buffers, Some((tag, ignore)), PostLabel::for_plain(src, context)) }
}

unsafe extern "C" fn trecvmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: the caller passes a valid message, which lives during the call.
    let msg = unsafe { &*msg };
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(msg.msg_iov, msg.desc, msg.iov_count) };
    let label = PostLabel::with_flags(msg.addr, msg.context, msg.data, flags);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_receive(ep, buffers, Some((msg.tag, msg.ignore)), label) }
}

unsafe extern "C" fn tsend(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: Addr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe {
        post_operation(
            ep,
            tagged_send(tag),
            OpBuffers::from_buffer(buf, len, desc),
            PostLabel::for_plain(dest, context),
        )
    }
}

unsafe extern "C" fn tsendv(
    ep: *mut FidEp,
    iov: *const Iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: Addr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(iov, desc, count) };
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, tagged_send(tag), buffers, PostLabel::for_plain(dest, context)) }
}

unsafe extern "C" fn tsendmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: the caller passes a valid message, which lives during the call.
    let msg = unsafe { &*msg };
    // SAFETY: the lists have the lengths that the caller passes, as the interface requires.
    let buffers = unsafe { OpBuffers::from_list(msg.msg_iov, msg.desc, msg.iov_count) };
    let label = PostLabel::with_flags(msg.addr, msg.context, msg.data, flags);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, tagged_send(msg.tag), buffers, label) }
}

unsafe extern "C" fn tinject(ep: *mut FidEp, buf: *const c_void, len: usize, dest: Addr, tag: u64) -> isize {
    let buffers = OpBuffers::from_buffer(buf, len, std::ptr::null_mut());
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, tagged_send(tag), buffers, PostLabel::for_inject(dest)) }
}

unsafe extern "C" fn tsenddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: Addr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let label = PostLabel::for_plain(dest, context).with_data(data);
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, tagged_send(tag), OpBuffers::from_buffer(buf, len, desc), label) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: Addr,
    tag: u64,
) -> isize {
    let buffers = OpBuffers::from_buffer(buf, len, std::ptr::null_mut());
    // SAFETY: the arguments of the caller, as the interface requires; see `abi`.
    unsafe { post_operation(ep, tagged_send(tag), buffers, PostLabel::for_inject(dest).with_data(data)) }
}
