//! The C interface of the provider and its fabric.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::Arc;

use trunkline_sys::ofi::{
    API, Context, FabricAttr, Fid, FidDomain, FidFabric, FidPep, FidWait, Info, LIBRARY, Ops, OpsFabric,
    Provider, Version, WaitAttr, class, errno, version,
};

use super::{PANICKED, catch_panics, domain, eq, hand_out, info, missing, object_ref, take_back};
use crate::config::{FailureStep, StrictConfig};
use crate::domain::StrictFabric;
use crate::offer::{self, OfferRefusal};
use crate::report::ViolationReport;

/// The provider's own version.
pub(super) const VERSION: u32 = version(1, 0);

#[repr(C)]
struct FabricHandle {
    fid: FidFabric,
    shared: Arc<StrictFabric>,
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

static FABRIC_OPS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain: Some(open_domain),
    passive_ep: Some(passive_ep),
    eq_open: Some(eq::open),
    wait_open: Some(wait_open),
    trywait: Some(trywait),
    domain2: None,
};

missing! {
    bind(*mut Fid, *mut Fid, u64) -> c_int;
    control(*mut Fid, c_int, *mut c_void) -> c_int;
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    passive_ep(*mut FidFabric, *mut Info, *mut *mut FidPep, *mut c_void) -> c_int;
    wait_open(*mut FidFabric, *mut WaitAttr, *mut *mut FidWait) -> c_int;
}

/// Returns the provider. libfabric calls this function when it has loaded the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut Provider {
    let provider = || {
        Box::into_raw(Box::new(Provider {
            version: VERSION,
            fi_version: library_version().unwrap_or(API),
            context: Context { internal: [ptr::null_mut(); 4] },
            name: c"strict".as_ptr(),
            getinfo: Some(getinfo),
            fabric: Some(open_fabric),
            cleanup: Some(cleanup),
        }))
    };
    catch_panics(ptr::null_mut(), provider)
}

/// Returns the version of the library that loads us, because a library rejects providers of another major version.
/// Later versions only append fields to structures, see `info.rs`.
fn library_version() -> Option<u32> {
    let name: &CStr = LIBRARY;
    // SAFETY: the name is zero-terminated, and the flags load no library.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the library is open, and the name is zero-terminated.
    let symbol = unsafe { libc::dlsym(handle, c"fi_version".as_ptr()) };
    // SAFETY: the symbol is a function of this type, see `Calls`.
    let asks = ptr::NonNull::new(symbol).map(|at| unsafe { transmute::<ptr::NonNull<c_void>, Version>(at) });
    // SAFETY: `fi_version` needs no initialization of the library.
    let said = asks.map(|asks| unsafe { asks() });
    // SAFETY: opened above; the library that loaded us remains loaded.
    unsafe { libc::dlclose(handle) };
    said
}

unsafe extern "C" fn cleanup() {}

unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const Info,
    out: *mut *mut Info,
) -> c_int {
    catch_panics(PANICKED, || {
        let config = match StrictConfig::from_env() {
            Ok(config) => config,
            Err(wrong) => {
                ViolationReport::new(&StrictConfig::default()).write_line(&format!("strict: {wrong}"));
                return -errno::EINVAL;
            }
        };
        // SAFETY: the hints are NULL or valid, as the interface requires.
        let wishes = unsafe { info::read_hints(hints) };
        let list = match offer::make_offers(&wishes, &config) {
            Ok(offers) => info::write_offers(&offers, &config),
            Err(refusal) => {
                if let OfferRefusal::Because(line) = refusal {
                    ViolationReport::new(&config).write_line(&format!("strict: fi_getinfo: {line}"));
                }
                return -errno::ENODATA;
            }
        };
        if list.is_null() {
            return -errno::ENOMEM;
        }
        // SAFETY: the caller passes a place for the list, which may be written.
        unsafe { out.write(list) };
        0
    })
}

unsafe extern "C" fn open_fabric(
    attr: *mut FabricAttr,
    out: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        let Ok(config) = StrictConfig::from_env() else { return -errno::EINVAL };
        // SAFETY: NULL, or valid attributes.
        let name = unsafe { attr.as_ref() }.map_or(ptr::null_mut(), |attr| attr.name);
        // SAFETY: NULL, or a zero-terminated text.
        if unsafe { info::read_text(name) }.is_some_and(|name| name != offer::NAME) {
            return -errno::EINVAL;
        }
        let shared = Arc::new(StrictFabric::new(config));
        if shared.count_call(FailureStep::Fabric) {
            return -errno::EIO;
        }
        // SAFETY: `at_exit` takes ownership of the argument, and is called once at exit. The library stays loaded
        // until then (`build.rs`).
        unsafe { on_exit(at_exit, Arc::into_raw(Arc::clone(&shared)).cast_mut().cast()) };
        let fid = Fid { fclass: class::FABRIC, context, ops: (&raw const OPS).cast_mut() };
        let fid = FidFabric { fid, ops: (&raw const FABRIC_OPS).cast_mut(), api_version: API };
        // SAFETY: the caller passes a place for the object, which may be written.
        unsafe { hand_out(FabricHandle { fid, shared }, out) };
        0
    })
}

unsafe extern "C" {
    /// A function of the C library: registers a function that is called with a pointer when the process exits.
    fn on_exit(function: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

unsafe extern "C" fn at_exit(_status: c_int, shared: *mut c_void) {
    catch_panics((), || {
        // SAFETY: the pointer that was passed to `on_exit`, and this is its only use.
        let shared = unsafe { Arc::from_raw(shared.cast::<StrictFabric>().cast_const()) };
        shared.account_at_exit();
    });
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &FabricHandle = unsafe { object_ref(fid) };
        if this.shared.open_domains() > 0 {
            this.shared.report.report_violation("close of a fabric with open domains");
            return -errno::EBUSY;
        }
        // SAFETY: as above, and no other object uses it.
        unsafe { take_back::<FabricHandle>(fid) };
        0
    })
}

unsafe extern "C" fn open_domain(
    fabric: *mut FidFabric,
    info: *mut Info,
    out: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &FabricHandle = unsafe { object_ref(fabric) };
        // SAFETY: `info` is a result of `fi_getinfo`, as the interface requires.
        unsafe { domain::create_domain(&this.shared, info, out, context) }
    })
}

unsafe extern "C" fn trywait(_fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    catch_panics(PANICKED, || {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let place = unsafe { fids.add(at) };
            // SAFETY: as above.
            let fid = unsafe { place.read() };
            // SAFETY: the interface permits only open objects of this fabric.
            if unsafe { super::cq::is_busy(fid) } {
                return -errno::EAGAIN;
            }
        }
        0
    })
}
