//! Posts on the endpoints of the provider in `world`: recorded, and completed as the world is configured.

use std::ffi::c_void;
use std::sync::atomic::Ordering::SeqCst;

use trunkline_sys::ofi::{self, Addr, FidEp, Iovec};

use crate::objects::{queue_of, world_of};
use crate::world::{Echo, Ended, Post, World};

unsafe fn ranges(iov: *const Iovec, desc: *mut *mut c_void, count: usize) -> Vec<(usize, usize, usize)> {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let each = |at: usize| unsafe {
        let range = *iov.add(at);
        (range.iov_base.addr(), range.iov_len, (*desc.add(at)).addr())
    };
    (0..count).map(each).collect()
}

unsafe fn note(ep: *mut FidEp, post: impl FnOnce() -> Post) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = unsafe { world_of(ep) };
    world.call(|| {
        let answer = *world.answer.lock().unwrap();
        if answer == 0 && !world.quiet.load(SeqCst) {
            world.posts.lock().unwrap().push(post());
        }
        answer
    })
}

unsafe fn rma(ep: *mut FidEp, call: &'static str, message: *const ofi::MsgRma, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        let it = *message;
        assert_eq!(it.rma_iov_count, 1);
        let remote = *it.rma_iov;
        let post = || Post {
            call,
            ranges: ranges(it.msg_iov, it.desc, it.iov_count),
            peer: it.addr,
            remote: Some((remote.addr, remote.len, remote.key)),
            context: it.context.addr(),
            data: it.data,
            flags,
            ..Post::default()
        };
        let world = world_of(ep);
        if flags & ofi::caps::REMOTE_CQ_DATA != 0 && *world.writes_data.lock().unwrap() != 0 {
            return *world.writes_data.lock().unwrap();
        }
        let answer = note(ep, post);
        if answer == 0 && !world.quiet.load(SeqCst) {
            world.queues.lock().unwrap().insert(it.context.addr(), queue_of(ep));
            echo(&world, call, &it, flags);
        }
        answer
    }
}

/// Completes an operation that ends by itself.
fn echo(world: &World, call: &str, it: &ofi::MsgRma, flags: u64) {
    let reads = world.echo_reads.lock().unwrap().filter(|_| call == "read");
    let echo = reads.unwrap_or(*world.echo.lock().unwrap());
    let op_context = it.context;
    let mut ended = world.ended.lock().unwrap();
    match echo {
        Echo::Silent => {}
        Echo::Badly(err) => {
            ended.push_back(Ended::Badly(ofi::CqErrEntry { op_context, err, ..ofi::CqErrEntry::ZERO }));
        }
        Echo::Whole | Echo::Untold => {
            let own = ofi::CqTaggedEntry { op_context, ..ofi::CqTaggedEntry::ZERO };
            ended.push_back(Ended::Well(own, 0));
            if echo == Echo::Whole && flags & ofi::caps::REMOTE_CQ_DATA != 0 {
                let flags = ofi::caps::REMOTE_WRITE | ofi::caps::REMOTE_CQ_DATA;
                let told = ofi::CqTaggedEntry { flags, data: it.data, ..ofi::CqTaggedEntry::ZERO };
                ended.push_back(Ended::Well(told, 0));
            }
        }
    }
}

unsafe fn tagged(ep: *mut FidEp, call: &'static str, message: *const ofi::MsgTagged, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        let it = *message;
        let post = || Post {
            call,
            ranges: ranges(it.msg_iov, it.desc, it.iov_count),
            peer: it.addr,
            context: it.context.addr(),
            data: it.data,
            tag: it.tag,
            ignore: it.ignore,
            flags,
            ..Post::default()
        };
        note(ep, post)
    }
}

unsafe fn plain(ep: *mut FidEp, call: &'static str, message: *const ofi::Msg, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        let it = *message;
        let post = || Post {
            call,
            ranges: ranges(it.msg_iov, it.desc, it.iov_count),
            peer: it.addr,
            context: it.context.addr(),
            data: it.data,
            flags,
            ..Post::default()
        };
        note(ep, post)
    }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, message: *const ofi::MsgRma, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { rma(ep, "read", message, flags) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, message: *const ofi::MsgRma, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { rma(ep, "write", message, flags) }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    at: *const c_void,
    len: usize,
    peer: Addr,
    addr: u64,
    key: u64,
) -> isize {
    let remote = Some((addr, len, key));
    let post = || Post { call: "inject", ranges: vec![(at.addr(), len, 0)], peer, remote, ..Post::default() };
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { note(ep, post) }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    at: *const c_void,
    len: usize,
    data: u64,
    peer: Addr,
    addr: u64,
    key: u64,
) -> isize {
    let remote = Some((addr, len, key));
    let ranges = || vec![(at.addr(), len, 0)];
    let post = || Post { call: "injectdata", ranges: ranges(), peer, data, remote, ..Post::default() };
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { note(ep, post) }
}

unsafe extern "C" fn tinject(ep: *mut FidEp, at: *const c_void, len: usize, peer: Addr, tag: u64) -> isize {
    let post = || Post { call: "tinject", ranges: vec![(at.addr(), len, 0)], peer, tag, ..Post::default() };
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { note(ep, post) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut FidEp,
    at: *const c_void,
    len: usize,
    data: u64,
    peer: Addr,
    tag: u64,
) -> isize {
    let ranges = || vec![(at.addr(), len, 0)];
    let post = || Post { call: "tinjectdata", ranges: ranges(), peer, data, tag, ..Post::default() };
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { note(ep, post) }
}

unsafe extern "C" fn tsendmsg(ep: *mut FidEp, message: *const ofi::MsgTagged, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { tagged(ep, "tsend", message, flags) }
}

unsafe extern "C" fn trecvmsg(ep: *mut FidEp, message: *const ofi::MsgTagged, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { tagged(ep, "trecv", message, flags) }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, message: *const ofi::Msg, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { plain(ep, "send", message, flags) }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, message: *const ofi::Msg, flags: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { plain(ep, "recv", message, flags) }
}

pub unsafe extern "C" fn cancel(fid: *mut ofi::Fid, context: *mut c_void) -> isize {
    let post = || Post { call: "cancel", context: context.addr(), ..Post::default() };
    // SAFETY: the caller passes an endpoint.
    unsafe { note(fid.cast(), post) }
}

pub static RMA: ofi::OpsRma = ofi::OpsRma {
    size: size_of::<ofi::OpsRma>(),
    read: None,
    readv: None,
    readmsg: Some(readmsg),
    write: None,
    writev: None,
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: None,
    injectdata: Some(injectdata),
};

pub static TAGGED: ofi::OpsTagged = ofi::OpsTagged {
    size: size_of::<ofi::OpsTagged>(),
    recv: None,
    recvv: None,
    recvmsg: Some(trecvmsg),
    send: None,
    sendv: None,
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: None,
    injectdata: Some(tinjectdata),
};

pub static MSG: ofi::OpsMsg = ofi::OpsMsg {
    size: size_of::<ofi::OpsMsg>(),
    recv: None,
    recvv: None,
    recvmsg: Some(recvmsg),
    send: None,
    sendv: None,
    sendmsg: Some(sendmsg),
    inject: None,
    senddata: None,
    injectdata: None,
};
