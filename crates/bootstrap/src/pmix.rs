//! A PMIx client by `dlopen`: hands one value of rank 0 to all processes. Called when a job meets, and the only file
//! here that calls C.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use libloading::Library;
use thiserror::Error;
use trunkline_sys::pmix::{
    CommitFn, ErrorStringFn, FenceFn, FinalizeFn, GLOBAL, GetFn, InitFn, Proc, PutFn, STRING, SUCCESS, Value,
};

/// The key under which rank 0's place is put.
const KEY: &CStr = c"trunkline-store";
/// Names of the library, newest first.
const NAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

/// PMIx did not do what it must.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The library is not there.
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
        /// What the library says.
        why: String,
    },
    /// The key is there and holds something else.
    #[error("PMIx gave a value of another type than text")]
    Type,
}

/// The functions in use.
struct PmixLibrary {
    init: InitFn,
    put: PutFn,
    commit: CommitFn,
    fence: FenceFn,
    get: GetFn,
    finalize: FinalizeFn,
    error_string: ErrorStringFn,
}

/// Rank 0 gives a value, everybody gets it. The library stays in memory, because its threads may.
pub(crate) fn hand_round(mine: Option<&str>) -> Result<String, PmixError> {
    let pmix = PmixLibrary::load()?;
    let mut me = Proc::ZERO;
    // SAFETY: `me` is a whole `pmix_proc_t`, and no information is handed over.
    let status = unsafe { (pmix.init)(&raw mut me, ptr::null(), 0) };
    pmix.check_status("PMIx_Init", status)?;
    let handed = pmix.exchange_text(&me, mine);
    // SAFETY: `PMIx_Init` has succeeded, once.
    let status = unsafe { (pmix.finalize)(ptr::null(), 0) };
    let value = handed?;
    pmix.check_status("PMIx_Finalize", status)?;
    Ok(value)
}

impl PmixLibrary {
    fn load() -> Result<Self, PmixError> {
        let mut opened = Err(PmixError::Type);
        for name in NAMES {
            // SAFETY: the library of the launcher that started this process; its constructors run here as in any
            // program that is linked with it.
            opened = unsafe { Library::new(name) }.map_err(PmixError::Load);
            if opened.is_ok() {
                break;
            }
        }
        let library = opened?;
        // SAFETY: these functions have had this form since version 2 of the standard.
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
        // The functions stay where they are for good.
        std::mem::forget(library);
        Ok(pmix)
    }

    /// What stands between init and finalize.
    fn exchange_text(&self, me: &Proc, mine: Option<&str>) -> Result<String, PmixError> {
        if let Some(text) = mine {
            let text = CString::new(text).map_err(|_| PmixError::Type)?;
            let mut value = Value::text(text.as_ptr());
            // SAFETY: key and text end with a zero byte, and the call copies both.
            let status = unsafe { (self.put)(GLOBAL, KEY.as_ptr(), &raw mut value) };
            self.check_status("PMIx_Put", status)?;
            // SAFETY: between init and finalize.
            let status = unsafe { (self.commit)() };
            self.check_status("PMIx_Commit", status)?;
        }
        // SAFETY: no processes named means all of the job.
        let status = unsafe { (self.fence)(ptr::null(), 0, ptr::null(), 0) };
        self.check_status("PMIx_Fence", status)?;
        let first = Proc { rank: 0, ..*me };
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: `first` and the key live during the call; `value` takes a pointer that then is ours.
        let status = unsafe { (self.get)(&raw const first, KEY.as_ptr(), ptr::null(), 0, &raw mut value) };
        self.check_status("PMIx_Get", status)?;
        // Nobody may leave while another still asks.
        // SAFETY: as above.
        let status = unsafe { (self.fence)(ptr::null(), 0, ptr::null(), 0) };
        self.check_status("PMIx_Fence", status)?;
        // SAFETY: the call succeeded, so this is null or a value that nobody frees: some hundred bytes a process.
        let value = unsafe { value.as_ref() }.ok_or(PmixError::Type)?;
        if value.kind != STRING || value.string().is_null() {
            return Err(PmixError::Type);
        }
        // SAFETY: of kind text, so a pointer to bytes that end with zero.
        let text = unsafe { CStr::from_ptr(value.string()) };
        Ok(text.to_string_lossy().into_owned())
    }

    fn check_status(&self, call: &'static str, status: c_int) -> Result<(), PmixError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number and returns a text that lives as long as the library.
        let text: *const c_char = unsafe { (self.error_string)(status) };
        let why = if text.is_null() {
            status.to_string()
        } else {
            // SAFETY: not null, so a text that ends with zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(PmixError::Call { call, why })
    }
}
