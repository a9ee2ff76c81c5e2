//! The C interface of event queues. The provider completes all such calls at once, so event queues are always empty.
//! They exist for programs that require one.

use std::ffi::{c_char, c_int, c_void};

use trunkline_sys::ofi::{EqAttr, EqErrEntry, Fid, FidEq, FidFabric, Ops, OpsEq, class, errno};

use super::{PANICKED, catch_panics, hand_out, missing, take_back};

#[repr(C)]
struct EqHandle {
    fid: FidEq,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(ops_open),
    tostr: None,
    ops_set: None,
};

static EQ_OPS: OpsEq = OpsEq {
    size: size_of::<OpsEq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

missing! {
    bind(*mut Fid, *mut Fid, u64) -> c_int;
    control(*mut Fid, c_int, *mut c_void) -> c_int;
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    write(*mut FidEq, u32, *const c_void, usize, u64) -> isize;
    sread(*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> isize;
}

pub(super) unsafe extern "C" fn open(
    _fabric: *mut FidFabric,
    _attr: *mut EqAttr,
    out: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        let fid = Fid { fclass: class::EQ, context, ops: (&raw const OPS).cast_mut() };
        let fid = FidEq { fid, ops: (&raw const EQ_OPS).cast_mut() };
        // SAFETY: the caller passes a place for the object, which may be written.
        unsafe { hand_out(EqHandle { fid }, out) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open, see `abi`, and no other object uses it.
        unsafe { take_back::<EqHandle>(fid) };
        0
    })
}

unsafe extern "C" fn read(
    _eq: *mut FidEq,
    _event: *mut u32,
    _buf: *mut c_void,
    _len: usize,
    _flags: u64,
) -> isize {
    -(errno::EAGAIN as isize)
}

unsafe extern "C" fn readerr(_eq: *mut FidEq, _buf: *mut EqErrEntry, _flags: u64) -> isize {
    -(errno::EAGAIN as isize)
}

unsafe extern "C" fn strerror(
    _eq: *mut FidEq,
    _prov_errno: c_int,
    _err_data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    c"see fi_strerror".as_ptr()
}
