//! The C interface of completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_sys::ofi::{
    Addr, CqAttr, CqDataEntry, CqEntry, CqErrEntry, CqMsgEntry, CqTaggedEntry, Fid, FidCq, FidDomain, Ops,
    OpsCq, class, control, cq_format, errno, wait,
};

use super::domain::DomainHandle;
use super::info::QUEUE;
use super::{PANICKED, catch_panics, hand_out, missing, object_ref, take_back};
use crate::config::FailureStep;
use crate::domain::StrictDomain;
use crate::gate::CallScope;
use crate::queue::{QueueWait, StrictCompletion, StrictQueue};

/// Most entries read per call.
const READ_MAX: usize = 4096;
/// Interval at which a waiting call polls.
const NAP: Duration = Duration::from_millis(1);

#[repr(C)]
pub(super) struct CqHandle {
    fid: FidCq,
    pub(super) domain: Arc<StrictDomain>,
    pub(super) number: u32,
    format: u32,
    /// The descriptor on which readers wait, or -1. The queue owns it.
    descriptor: c_int,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(command),
    ops_open: Some(ops_open),
    tostr: None,
    ops_set: None,
};

static CQ_OPS: OpsCq = OpsCq {
    size: size_of::<OpsCq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

missing! {
    bind(*mut Fid, *mut Fid, u64) -> c_int;
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    signal(*mut FidCq) -> c_int;
}

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    out: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let parent: &DomainHandle = unsafe { object_ref(domain) };
        if parent.domain.shared.count_call(FailureStep::CqOpen) {
            return -errno::EIO;
        }
        // SAFETY: NULL, or valid attributes.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or(CqAttr::ZERO);
        let format = if attr.format == cq_format::UNSPEC { cq_format::CONTEXT } else { attr.format };
        if format > cq_format::TAGGED {
            return -errno::EINVAL;
        }
        let waits = match attr.wait_obj {
            wait::NONE => None,
            wait::UNSPEC | wait::FD => match QueueWait::new() {
                Ok(waits) => Some(waits),
                Err(_) => return -errno::EMFILE,
            },
            _ => return -errno::ENOSYS,
        };
        let descriptor = waits.as_ref().map_or(-1, |waits| waits.all.as_raw_fd());
        let size = if attr.size == 0 { QUEUE } else { attr.size };
        let number = parent.domain.run_call(CallScope::Domain, |state| {
            let number = state.next_number();
            state.queues.insert(number, StrictQueue::new(size, waits));
            number
        });
        let fid = Fid { fclass: class::CQ, context, ops: (&raw const OPS).cast_mut() };
        let fid = FidCq { fid, ops: (&raw const CQ_OPS).cast_mut() };
        let made = CqHandle { fid, domain: Arc::clone(&parent.domain), number, format, descriptor };
        // SAFETY: the caller passes a place for the object, which may be written.
        unsafe { hand_out(made, out) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &CqHandle = unsafe { object_ref(fid) };
        let is_used = this.domain.run_call(CallScope::Queue(this.number), |state| {
            let is_used = state.queues.get(&this.number).is_some_and(|queue| !queue.endpoints.is_empty());
            if is_used {
                state.report_violation("close of a completion queue that an endpoint uses");
            } else {
                state.queues.remove(&this.number);
            }
            is_used
        });
        if is_used {
            return -errno::EBUSY;
        }
        // SAFETY: as above, and no other object uses it.
        unsafe { take_back::<CqHandle>(fid) };
        0
    })
}

unsafe extern "C" fn command(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &CqHandle = unsafe { object_ref(fid) };
        match command {
            control::GETWAIT if this.descriptor >= 0 => {
                // SAFETY: for this command and `FI_WAIT_FD` the argument points to an `int`.
                unsafe { arg.cast::<c_int>().write(this.descriptor) };
                0
            }
            control::GETWAITOBJ => {
                let kind = if this.descriptor >= 0 { wait::FD } else { wait::NONE };
                // SAFETY: for this command the argument points to an `enum fi_wait_obj`.
                unsafe { arg.cast::<u32>().write(kind) };
                0
            }
            _ => -errno::ENOSYS,
        }
    })
}

/// Whether waiting on the queue's descriptor would miss a completion or possible progress.
///
/// # Safety
/// `fid` is an open object of this provider.
pub(super) unsafe fn is_busy(fid: *const Fid) -> bool {
    // SAFETY: as this function's caller promises.
    let head = unsafe { &*fid };
    if head.fclass != class::CQ {
        return false;
    }
    // SAFETY: as above; the class shows its type.
    let this: &CqHandle = unsafe { object_ref(fid) };
    this.domain.run_call(CallScope::Queue(this.number), |state| {
        let Some(queue) = state.queues.get(&this.number) else { return false };
        let restless = |endpoint: &u32| state.endpoints.get(endpoint).is_some_and(|one| one.is_restless());
        !queue.is_empty() || queue.endpoints.iter().any(restless)
    })
}

impl CqHandle {
    /// Makes progress on the bound endpoints, and removes completions. Returns an error number if there are none.
    fn take_completions(&self, count: usize) -> Result<Vec<StrictCompletion>, i32> {
        self.domain.run_call(CallScope::Queue(self.number), |state| {
            if state.says_again() {
                return Err(errno::EAGAIN);
            }
            let endpoints =
                state.queues.get(&self.number).map_or(Vec::new(), |queue| queue.endpoints.clone());
            state.progress_endpoints(&endpoints);
            let Some(queue) = state.queues.get_mut(&self.number) else { return Err(errno::EINVAL) };
            let taken: Vec<_> = std::iter::from_fn(|| queue.pop()).take(count.min(READ_MAX)).collect();
            match () {
                () if !taken.is_empty() => Ok(taken),
                () if queue.has_error_next() => Err(errno::EAVAIL),
                () if count == 0 && !queue.is_empty() => Ok(taken),
                () => Err(errno::EAGAIN),
            }
        })
    }

    /// Reads completions into the caller's buffer.
    ///
    /// # Safety
    /// `buf` has space for `count` entries of the queue's format, and `src`, unless it is NULL, for their sources.
    unsafe fn read_into(&self, buf: *mut c_void, count: usize, src: *mut Addr) -> isize {
        let taken = match self.take_completions(count) {
            Ok(taken) => taken,
            Err(error) => return -(error as isize),
        };
        for (at, completion) in taken.iter().enumerate() {
            // SAFETY: as this function's caller promises.
            unsafe { write_entry(buf, at, self.format, completion) };
            if !src.is_null() {
                // SAFETY: as above.
                let place = unsafe { src.add(at) };
                // SAFETY: as above.
                unsafe { place.write(completion.src) };
            }
        }
        taken.len().cast_signed()
    }

    /// Repeats [`Self::read_into`] for some milliseconds, or without limit if `timeout` is negative.
    ///
    /// # Safety
    /// As [`Self::read_into`].
    unsafe fn wait_into(&self, buf: *mut c_void, count: usize, src: *mut Addr, timeout: c_int) -> isize {
        if self.descriptor < 0 {
            return -(errno::ENOSYS as isize);
        }
        let end = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            // SAFETY: as this function's caller promises.
            let result = unsafe { self.read_into(buf, count, src) };
            if result != -(errno::EAGAIN as isize) || end.is_some_and(|end| Instant::now() >= end) {
                return result;
            }
            std::thread::sleep(NAP);
        }
    }
}

/// # Safety
/// `buf` has space for an entry of the format at this index.
unsafe fn write_entry(buf: *mut c_void, at: usize, format: u32, completion: &StrictCompletion) {
    let op_context = completion.context as *mut c_void;
    let StrictCompletion { flags, len, data, tag, .. } = *completion;
    match format {
        cq_format::CONTEXT => {
            // SAFETY: as this function's caller promises, here and below.
            let place = unsafe { buf.cast::<CqEntry>().add(at) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(CqEntry { op_context }) };
        }
        cq_format::MSG => {
            // SAFETY: as above.
            let place = unsafe { buf.cast::<CqMsgEntry>().add(at) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(CqMsgEntry { op_context, flags, len }) };
        }
        cq_format::DATA => {
            // SAFETY: as above.
            let place = unsafe { buf.cast::<CqDataEntry>().add(at) };
            let entry = CqDataEntry { op_context, flags, len, buf: ptr::null_mut(), data };
            // SAFETY: as above.
            unsafe { place.write_unaligned(entry) };
        }
        _ => {
            // SAFETY: as above.
            let place = unsafe { buf.cast::<CqTaggedEntry>().add(at) };
            let entry = CqTaggedEntry { op_context, flags, len, buf: ptr::null_mut(), data, tag };
            // SAFETY: as above.
            unsafe { place.write_unaligned(entry) };
        }
    }
}

unsafe extern "C" fn read(cq: *mut FidCq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as `readfrom`, without sources.
    unsafe { readfrom(cq, buf, count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(cq: *mut FidCq, buf: *mut c_void, count: usize, src: *mut Addr) -> isize {
    catch_panics(PANICKED as isize, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &CqHandle = unsafe { object_ref(cq) };
        // SAFETY: the caller passes buffers of `count` entries, as the interface requires.
        unsafe { this.read_into(buf, count, src) }
    })
}

unsafe extern "C" fn sread(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as `sreadfrom`, without sources.
    unsafe { sreadfrom(cq, buf, count, ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    src: *mut Addr,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    catch_panics(PANICKED as isize, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &CqHandle = unsafe { object_ref(cq) };
        // SAFETY: the caller passes buffers of `count` entries, as the interface requires.
        unsafe { this.wait_into(buf, count, src, timeout) }
    })
}

unsafe extern "C" fn readerr(cq: *mut FidCq, buf: *mut CqErrEntry, _flags: u64) -> isize {
    catch_panics(PANICKED as isize, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &CqHandle = unsafe { object_ref(cq) };
        let taken = this.domain.run_call(CallScope::Queue(this.number), |state| {
            state.queues.get_mut(&this.number).and_then(StrictQueue::pop_error)
        });
        let Some(completion) = taken else { return -(errno::EAGAIN as isize) };
        // SAFETY: the caller passes an entry to write.
        let entry = unsafe { &mut *buf };
        *entry = CqErrEntry {
            op_context: completion.context as *mut c_void,
            flags: completion.flags,
            len: completion.len,
            data: completion.data,
            tag: completion.tag,
            olen: completion.excess,
            err: completion.error,
            prov_errno: completion.error,
            // No further data exists; the caller's buffer remains as it is.
            err_data: entry.err_data,
            ..CqErrEntry::ZERO
        };
        1
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut FidCq,
    prov_errno: c_int,
    _err_data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    let text = match prov_errno {
        errno::EKEYREJECTED => c"the key is unknown to the peer",
        errno::EACCES => c"the peer's registration does not permit this access",
        errno::ETRUNC => c"the message is longer than its receive",
        errno::ECANCELED => c"the operation was cancelled",
        errno::ECONNREFUSED => c"no endpoint has the peer's address",
        errno::ECONNRESET => c"the peer closed the connection",
        errno::EFAULT => c"the memory is no longer mapped",
        _ => c"see fi_strerror",
    };
    text.as_ptr()
}
