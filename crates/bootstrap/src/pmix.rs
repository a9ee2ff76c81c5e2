//! A PMIx client by `dlopen`: distributes one value of rank 0 to all processes. Called when a job is joined, and the
//! only file of this crate that calls C.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use libloading::Library;
use thiserror::Error;
use trunkline_sys::pmix::{
    CommitFn, ErrorStringFn, FenceFn, FinalizeFn, GLOBAL, GetFn, InitFn, Proc, PutFn, STRING, SUCCESS, Value,
};

/// The key of rank 0's address.
const KEY: &CStr = c"trunkline-store";
/// Names of the library, newest first.
const NAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

/// A failure of PMIx.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The library cannot be loaded.
    #[error(
        "cannot load libpmix.so.2, which finds rank 0 under this launcher ({0}); install it (Debian: libpmix2) or set \
         MASTER_ADDR to rank 0's host and MASTER_PORT to a port (mpiexec -x MASTER_ADDR=... -x MASTER_PORT=...)"
    )]
    Load(libloading::Error),
    /// A call failed.
    #[error("{call} failed: {why}")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's text for the error.
        why: String,
    },
    /// The value has an unexpected type.
    #[error("PMIx returned rank 0's address with a type that is not text")]
    Type,
}

/// The functions of the library that are used.
struct PmixLibrary {
    init: InitFn,
    put: PutFn,
    commit: CommitFn,
    fence: FenceFn,
    get: GetFn,
    finalize: FinalizeFn,
    error_string: ErrorStringFn,
}

/// Puts rank 0's value, and returns it at every process. The library is never unloaded, because its threads may still
/// run.
pub(crate) fn hand_round(mine: Option<&str>) -> Result<String, PmixError> {
    let pmix = PmixLibrary::load()?;
    let mut me = Proc::ZERO;
    // SAFETY: `me` is a whole `pmix_proc_t`, and the null array of information has the count 0.
    let status = unsafe { (pmix.init)(&raw mut me, ptr::null(), 0) };
    pmix.check_status("PMIx_Init", status)?;
    let handed = pmix.exchange_text(&me, mine);
    // SAFETY: `PMIx_Init` has succeeded, once; the null array has the count 0.
    let status = unsafe { (pmix.finalize)(ptr::null(), 0) };
    let value = handed?;
    pmix.check_status("PMIx_Finalize", status)?;
    Ok(value)
}

impl PmixLibrary {
    fn load() -> Result<Self, PmixError> {
        let mut opened = Err(PmixError::Type);
        for name in NAMES {
            // SAFETY: this is the library of the launcher that started this process; its constructors run here as in
            // any program that is linked with it.
            opened = unsafe { Library::new(name) }.map_err(PmixError::Load);
            if opened.is_ok() {
                break;
            }
        }
        let library = opened?;
        // SAFETY: these functions have had this signature since version 2 of the standard.
        let init = unsafe { library.get::<InitFn>(b"PMIx_Init\0") };
        // SAFETY: as above.
        let put = unsafe { library.get::<PutFn>(b"PMIx_Put\0") };
        // SAFETY: as above.
        let commit = unsafe { library.get::<CommitFn>(b"PMIx_Commit\0") };
        // SAFETY: as above.
        let fence = unsafe { library.get::<FenceFn>(b"PMIx_Fence\0") };
        // SAFETY: as above.
        let get = unsafe { library.get::<GetFn>(b"PMIx_Get\0") };
        // SAFETY: as above.
        let finalize = unsafe { library.get::<FinalizeFn>(b"PMIx_Finalize\0") };
        // SAFETY: as above.
        let error_string = unsafe { library.get::<ErrorStringFn>(b"PMIx_Error_string\0") };
        let pmix = Self {
            init: *init.map_err(PmixError::Load)?,
            put: *put.map_err(PmixError::Load)?,
            commit: *commit.map_err(PmixError::Load)?,
            fence: *fence.map_err(PmixError::Load)?,
            get: *get.map_err(PmixError::Load)?,
            finalize: *finalize.map_err(PmixError::Load)?,
            error_string: *error_string.map_err(PmixError::Load)?,
        };
        // The function pointers must stay valid, so the library is never unloaded.
        std::mem::forget(library);
        Ok(pmix)
    }

    /// Exchanges the value; called between init and finalize.
    fn exchange_text(&self, me: &Proc, mine: Option<&str>) -> Result<String, PmixError> {
        if let Some(text) = mine {
            let text = CString::new(text).map_err(|_| PmixError::Type)?;
            let mut value = Value::text(text.as_ptr());
            // SAFETY: key and text are NUL-terminated, and the call copies both.
            let status = unsafe { (self.put)(GLOBAL, KEY.as_ptr(), &raw mut value) };
            self.check_status("PMIx_Put", status)?;
            // SAFETY: called between init and finalize.
            let status = unsafe { (self.commit)() };
            self.check_status("PMIx_Commit", status)?;
        }
        // SAFETY: called between init and finalize; no processes named means all of the job.
        let status = unsafe { (self.fence)(ptr::null(), 0, ptr::null(), 0) };
        self.check_status("PMIx_Fence", status)?;
        let first = Proc { rank: 0, ..*me };
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: `first` and the key live during the call; `value` receives a pointer that this process then owns.
        let status = unsafe { (self.get)(&raw const first, KEY.as_ptr(), ptr::null(), 0, &raw mut value) };
        self.check_status("PMIx_Get", status)?;
        // Without this fence, a process could finalize while another one still reads the value.
        // SAFETY: as for the first fence.
        let status = unsafe { (self.fence)(ptr::null(), 0, ptr::null(), 0) };
        self.check_status("PMIx_Fence", status)?;
        // SAFETY: the call succeeded, so this is null or a valid value, which is never freed: a leak of some hundred
        // bytes per process.
        let value = unsafe { value.as_ref() }.ok_or(PmixError::Type)?;
        if value.kind != STRING || value.string().is_null() {
            return Err(PmixError::Type);
        }
        // SAFETY: the value has the text type and is not null, so it points to a NUL-terminated text.
        let text = unsafe { CStr::from_ptr(value.string()) };
        Ok(text.to_string_lossy().into_owned())
    }

    fn check_status(&self, call: &'static str, status: c_int) -> Result<(), PmixError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function accepts any number and returns a text that stays valid while the library is loaded.
        let text: *const c_char = unsafe { (self.error_string)(status) };
        let why = if text.is_null() {
            status.to_string()
        } else {
            // SAFETY: not null, so a NUL-terminated text.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(PmixError::Call { call, why })
    }
}
