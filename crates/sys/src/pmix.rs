//! The C types of PMIx, version 2 and later, for a client that exchanges one value between the processes of a job.

use core::ffi::{c_char, c_int};

/// `PMIX_MAX_NSLEN` and a terminating zero.
pub const NSPACE_BYTES: usize = 256;
/// `PMIX_SUCCESS`.
pub const SUCCESS: c_int = 0;
/// `PMIX_GLOBAL`: readable by processes of all hosts.
pub const GLOBAL: u8 = 3;
/// `PMIX_STRING`.
pub const STRING: u16 = 3;

/// `pmix_proc_t`: a process by the name of its job and its rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Proc {
    /// Name of the job, zero-terminated.
    pub nspace: [c_char; NSPACE_BYTES],
    /// Rank of the process.
    pub rank: u32,
}

impl Proc {
    /// All bytes zero.
    pub const ZERO: Self = Self { nspace: [0; NSPACE_BYTES], rank: 0 };
}

/// `pmix_value_t`: a type and a union. Of the union, only the string pointer is described; the remaining words give
/// it the size of the largest member in any supported version.
#[repr(C)]
pub struct Value {
    /// Type of the union's member.
    pub kind: u16,
    data: [*mut c_char; 7],
}

impl Value {
    /// A value that points to a zero-terminated string. The caller keeps the string alive.
    #[must_use]
    pub const fn text(text: *const c_char) -> Self {
        let mut data = [core::ptr::null_mut(); 7];
        data[0] = text.cast_mut();
        Self { kind: STRING, data }
    }

    /// Returns the string pointer; only meaningful if `kind` is [`STRING`].
    #[must_use]
    pub const fn string(&self) -> *const c_char {
        self.data[0]
    }
}

/// `pmix_info_t`: opaque; Trunkline passes only NULL.
#[repr(C)]
pub struct Info {
    _private: [u8; 0],
}

/// `PMIx_Init`.
pub type InitFn = unsafe extern "C" fn(me: *mut Proc, info: *const Info, count: usize) -> c_int;
/// `PMIx_Put`.
pub type PutFn = unsafe extern "C" fn(scope: u8, key: *const c_char, value: *mut Value) -> c_int;
/// `PMIx_Commit`.
pub type CommitFn = unsafe extern "C" fn() -> c_int;
/// `PMIx_Fence`.
pub type FenceFn =
    unsafe extern "C" fn(procs: *const Proc, procs_count: usize, info: *const Info, count: usize) -> c_int;
/// `PMIx_Get`.
pub type GetFn = unsafe extern "C" fn(
    proc: *const Proc,
    key: *const c_char,
    info: *const Info,
    count: usize,
    value: *mut *mut Value,
) -> c_int;
/// `PMIx_Finalize`.
pub type FinalizeFn = unsafe extern "C" fn(info: *const Info, count: usize) -> c_int;
/// `PMIx_Error_string`.
pub type ErrorStringFn = unsafe extern "C" fn(status: c_int) -> *const c_char;

const _: () = {
    assert!(size_of::<Proc>() == 260);
    assert!(core::mem::offset_of!(Proc, rank) == 256);
    assert!(core::mem::offset_of!(Value, data) == 8);
};
