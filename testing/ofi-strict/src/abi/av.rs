//! The C interface of address vectors.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use trunkline_sys::ofi::{
    ADDR_NOTAVAIL, Addr, AvAttr, Fid, FidAv, FidDomain, Ops, OpsAv, av_type, class, errno,
};

use super::domain::DomainHandle;
use super::{PANICKED, catch_panics, hand_out, missing, object_ref, take_back};
use crate::address_vector::AddressVector;
use crate::config::FailureStep;
use crate::domain::StrictDomain;
use crate::gate::CallScope;
use crate::wire::{ADDRESS, StrictAddress};

#[repr(C)]
pub(super) struct AvHandle {
    fid: FidAv,
    pub(super) domain: Arc<StrictDomain>,
    pub(super) number: u32,
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

static AV_OPS: OpsAv = OpsAv {
    size: size_of::<OpsAv>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: None,
};

missing! {
    bind(*mut Fid, *mut Fid, u64) -> c_int;
    control(*mut Fid, c_int, *mut c_void) -> c_int;
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    insertsvc(*mut FidAv, *const c_char, *const c_char, *mut Addr, u64, *mut c_void) -> c_int;
    insertsym(*mut FidAv, *const c_char, usize, *const c_char, usize, *mut Addr, u64, *mut c_void) -> c_int;
}

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    out: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let parent: &DomainHandle = unsafe { object_ref(domain) };
        if parent.domain.shared.count_call(FailureStep::AvOpen) {
            return -errno::EIO;
        }
        // SAFETY: NULL, or valid attributes.
        let kind = unsafe { attr.as_ref() }.map_or(av_type::UNSPEC, |attr| attr.r#type);
        let kind = if kind == av_type::UNSPEC { av_type::TABLE } else { kind };
        let number = parent.domain.run_call(CallScope::Domain, |state| {
            let number = state.next_number();
            state.vectors.insert(number, AddressVector::new(kind));
            number
        });
        let fid = Fid { fclass: class::AV, context, ops: (&raw const OPS).cast_mut() };
        let fid = FidAv { fid, ops: (&raw const AV_OPS).cast_mut() };
        // SAFETY: the caller passes a place for the object, which may be written.
        unsafe { hand_out(AvHandle { fid, domain: Arc::clone(&parent.domain), number }, out) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &AvHandle = unsafe { object_ref(fid) };
        let is_used = this.domain.run_call(CallScope::Domain, |state| {
            let is_used = state.vectors.get(&this.number).is_some_and(|vector| !vector.endpoints.is_empty());
            if is_used {
                state.report_violation("close of an address vector that an endpoint uses");
            } else {
                state.vectors.remove(&this.number);
            }
            is_used
        });
        if is_used {
            return -errno::EBUSY;
        }
        // SAFETY: as above, and no other object uses it.
        unsafe { take_back::<AvHandle>(fid) };
        0
    })
}

unsafe extern "C" fn insert(
    av: *mut FidAv,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut Addr,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &AvHandle = unsafe { object_ref(av) };
        if this.domain.shared.count_call(FailureStep::AvInsert) {
            return -errno::EIO;
        }
        let mut added = 0;
        for at in 0..count {
            // SAFETY: the caller passes an array of `count` addresses.
            let place = unsafe { addr.cast::<StrictAddress>().add(at) };
            // SAFETY: as above.
            let address = unsafe { place.read_unaligned() };
            let told = this.domain.run_call(CallScope::Domain, |state| {
                state.vectors.get_mut(&this.number).and_then(|vector| vector.insert(address))
            });
            added += c_int::from(told.is_some());
            if !fi_addr.is_null() {
                // SAFETY: the caller passes an array of `count` numbers to write.
                let place = unsafe { fi_addr.add(at) };
                // SAFETY: as above.
                unsafe { place.write(told.unwrap_or(ADDR_NOTAVAIL)) };
            }
        }
        added
    })
}

unsafe extern "C" fn remove(av: *mut FidAv, fi_addr: *mut Addr, count: usize, _flags: u64) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &AvHandle = unsafe { object_ref(av) };
        for at in 0..count {
            // SAFETY: the caller passes an array of `count` numbers.
            let place = unsafe { fi_addr.add(at) };
            // SAFETY: as above.
            let addr = unsafe { place.read() };
            let is_gone = this.domain.run_call(CallScope::Domain, |state| {
                let is_gone = state.vectors.get_mut(&this.number).is_some_and(|vector| vector.remove(addr));
                if !is_gone {
                    state.report_violation(&format!(
                        "removal of peer {addr:#x}, which is not in the address vector"
                    ));
                }
                is_gone
            });
            if !is_gone {
                return -errno::EINVAL;
            }
        }
        0
    })
}

/// Copies an address as far as it fits, and writes its length; returns whether it fits.
///
/// # Safety
/// `len` may be read and written. `out` is NULL, or has the number of bytes that `len` contains.
pub(super) unsafe fn write_address(address: &StrictAddress, out: *mut c_void, len: *mut usize) -> bool {
    // SAFETY: as this function's caller promises.
    let room = unsafe { len.read() };
    // SAFETY: as above.
    unsafe { len.write(ADDRESS) };
    if !out.is_null() {
        // SAFETY: as this function's caller promises; the address is memory of this crate.
        unsafe { out.cast::<u8>().copy_from_nonoverlapping(address.as_ptr(), room.min(ADDRESS)) };
    }
    room >= ADDRESS && !out.is_null()
}

unsafe extern "C" fn lookup(av: *mut FidAv, fi_addr: Addr, addr: *mut c_void, len: *mut usize) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &AvHandle = unsafe { object_ref(av) };
        let found = this.domain.run_call(CallScope::Domain, |state| {
            state.vectors.get(&this.number).and_then(|vector| vector.lookup_address(fi_addr))
        });
        let Some(address) = found else { return -errno::EINVAL };
        // SAFETY: the caller passes a buffer and its length, as the interface requires.
        unsafe { write_address(&address, addr, len) };
        0
    })
}

unsafe extern "C" fn straddr(
    _av: *mut FidAv,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    catch_panics(buf.cast_const(), || {
        // SAFETY: the caller passes an address.
        let address = unsafe { addr.cast::<StrictAddress>().read_unaligned() };
        let mut text = b"strict-fi/".to_vec();
        for byte in address {
            text.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        text.push(0);
        // SAFETY: the caller passes a buffer and its length, as the interface requires.
        let room = unsafe { len.read() };
        // SAFETY: as above.
        unsafe { len.write(text.len()) };
        let fits = room.min(text.len());
        if fits > 0 {
            text[fits - 1] = 0;
            // SAFETY: as above; the text is memory of this crate.
            unsafe { buf.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), fits) };
        }
        buf.cast_const()
    })
}
