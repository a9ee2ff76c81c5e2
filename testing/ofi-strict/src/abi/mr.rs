//! The C interface of registrations.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use trunkline_sys::ofi::{
    Fid, FidMr, Iovec, KEY_NOTAVAIL, MR_DMABUF, MrAttr, MrDmabuf, Ops, OpsMr, class, control, errno, hmem,
};

use super::domain::DomainHandle;
use super::endpoint::EndpointHandle;
use super::{PANICKED, catch_panics, hand_out, missing, object_ref, take_back};
use crate::config::FailureStep;
use crate::device;
use crate::domain::StrictDomain;
use crate::gate::CallScope;
use crate::memory::ProgramRange;
use crate::registry::{BrokenRule, RegistrationRequest, StrictMrId};
use crate::state::DomainContents;

#[repr(C)]
struct MrHandle {
    fid: FidMr,
    domain: Arc<StrictDomain>,
    id: StrictMrId,
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

static MR_OPS: OpsMr =
    OpsMr { size: size_of::<OpsMr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

missing! {
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
}

/// Returns the registration table of domains.
pub(super) fn mr_table() -> *mut OpsMr {
    (&raw const MR_OPS).cast_mut()
}

unsafe extern "C" fn reg(
    fid: *mut Fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let iov = Iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: as `regv`, with one range.
    unsafe { regv(fid, &raw const iov, 1, access, offset, requested_key, flags, out, context) }
}

unsafe extern "C" fn regv(
    fid: *mut Fid,
    iov: *const Iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let attr =
        MrAttr { mr_iov: iov, iov_count: count, access, offset, requested_key, context, ..MrAttr::ZERO };
    // SAFETY: the interface has the same requirements for both functions; `attr` lives during the call.
    unsafe { regattr(fid, &raw const attr, flags, out) }
}

unsafe extern "C" fn regattr(fid: *mut Fid, attr: *const MrAttr, flags: u64, out: *mut *mut FidMr) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let parent: &DomainHandle = unsafe { object_ref(fid) };
        if parent.domain.shared.count_call(FailureStep::MrRegattr) {
            return -errno::EIO;
        }
        // SAFETY: the caller passes valid attributes.
        let attr = unsafe { &*attr };
        let is_taken = if parent.domain.shared.config.hmem { hmem::CUDA } else { hmem::SYSTEM };
        let is_device = attr.iface != hmem::SYSTEM;
        if is_device && attr.iface != is_taken || flags & MR_DMABUF != 0 && !is_device {
            return -errno::EOPNOTSUPP;
        }
        if attr.iov_count != 1 || attr.offset != 0 || flags & !MR_DMABUF != 0 {
            return -errno::EINVAL;
        }
        // SAFETY: the caller passes valid attributes, with one range.
        let (range, bytes) = match unsafe { read_range(attr, flags, is_device) } {
            Ok(named) => named,
            Err(error) => return -error,
        };
        let wanted =
            RegistrationRequest { range, rights: attr.access, requested_key: attr.requested_key, bytes };
        let made = parent.domain.run_call(CallScope::Domain, |state| {
            state.memory.register(wanted).map_err(|broken| state.report_broken(&broken))
        });
        let (id, key) = match made {
            Ok(made) => made,
            Err(error) => return -error,
        };
        let fid = Fid { fclass: class::MR, context: attr.context, ops: (&raw const OPS).cast_mut() };
        // A descriptor is a number instead of a pointer, so that an invalid one is detected without an access.
        let fid = FidMr { fid, mem_desc: id.0 as *mut c_void, key: key.unwrap_or(KEY_NOTAVAIL) };
        // SAFETY: the caller passes a place for the object, which may be written.
        unsafe { hand_out(MrHandle { fid, domain: Arc::clone(&parent.domain), id }, out) };
        0
    })
}

/// Returns the range, and for device memory the address of its bytes.
///
/// # Safety
/// The attributes contain one range, or with [`MR_DMABUF`] one part of a dma-buf.
unsafe fn read_range(
    attr: &MrAttr,
    flags: u64,
    is_device: bool,
) -> Result<(ProgramRange, Option<usize>), c_int> {
    if flags & MR_DMABUF != 0 {
        // SAFETY: as this function's caller promises.
        let part = unsafe { attr.mr_iov.cast::<MrDmabuf>().read() };
        let base = (part.base_addr as usize).wrapping_add(part.offset as usize);
        let bytes = device::bytes_of_dmabuf(part.fd, part.offset, part.len)?;
        return Ok((ProgramRange { base, len: part.len }, Some(bytes)));
    }
    // SAFETY: as above.
    let iov = unsafe { attr.mr_iov.read() };
    let range = ProgramRange { base: iov.iov_base as usize, len: iov.iov_len };
    let bytes = if is_device { Some(device::bytes_of(range)?) } else { None };
    Ok((range, bytes))
}

impl MrHandle {
    /// Runs a call that may break a rule; returns its result or its error number.
    fn checked_call<R>(
        &self,
        act: impl FnOnce(&mut DomainContents) -> Result<R, BrokenRule>,
    ) -> Result<R, c_int> {
        self.domain
            .run_call(CallScope::Domain, |state| act(state).map_err(|broken| state.report_broken(&broken)))
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &MrHandle = unsafe { object_ref(fid) };
        if let Err(error) = this.checked_call(|state| state.memory.close(this.id)) {
            return -error;
        }
        // SAFETY: as above, and no other object uses it.
        unsafe { take_back::<MrHandle>(fid) };
        0
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &MrHandle = unsafe { object_ref(fid) };
        if this.domain.shared.count_call(FailureStep::MrBind) {
            return -errno::EIO;
        }
        // SAFETY: the caller passes an open object, and every object begins with a `Fid`.
        if unsafe { &*other }.fclass != class::EP || flags != 0 {
            return -errno::EINVAL;
        }
        // SAFETY: the object is open, see `abi`, and its class shows its type.
        let endpoint: &EndpointHandle = unsafe { object_ref(other) };
        let is_ours = Arc::ptr_eq(&endpoint.domain, &this.domain);
        let result = this.checked_call(|state| {
            if !is_ours {
                let line = "bind of a registration to an endpoint of another domain";
                return Err(BrokenRule::with_rule(errno::EINVAL, line));
            }
            let is_enabled = state.endpoints.get(&endpoint.number).is_some_and(|one| one.is_enabled());
            state.memory.bind_endpoint(this.id, endpoint.number, is_enabled)
        });
        result.map_or_else(|error| -error, |()| 0)
    })
}

unsafe extern "C" fn command(fid: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
    catch_panics(PANICKED, || {
        if command != control::ENABLE {
            return -errno::ENOSYS;
        }
        let result = {
            // SAFETY: the object is open and has this function's table, see `abi`.
            let this: &MrHandle = unsafe { object_ref(fid) };
            if this.domain.shared.count_call(FailureStep::MrEnable) {
                return -errno::EIO;
            }
            this.checked_call(|state| {
                if state.says_again() {
                    return Err(BrokenRule::without_rule(errno::EAGAIN));
                }
                state.memory.enable_registration(this.id)
            })
        };
        let key = match result {
            Ok(key) => key,
            Err(error) => return -error,
        };
        // SAFETY: the object is open, and no reference to it exists here any more.
        let place = unsafe { &raw mut (*fid.cast::<FidMr>()).key };
        // SAFETY: as above; callers read the field through the object, one thread at a time.
        unsafe { place.write(key) };
        0
    })
}
