//! The interface to C and C++: the one exported function, the tables of both versions, and their functions. It
//! converts arguments, and decides nothing.

mod boot;
mod calls;
mod cxx_containers;
mod guard;
mod status;
mod table;
mod v4;
mod v6;

use core::ffi::{c_int, c_void};

use trunkline_sys::nvshmem::{CudaTable, v4 as sys4, v6 as sys6};

use crate::error::CallError;

/// NVSHMEM's entry point: creates a transport in the version that the host uses. The table of CUDA functions is not
/// used: the driver that the process has loaded is called directly.
///
/// # Safety
/// If not null, `out` points to a writable pointer to a transport of the version `api_version`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvshmemt_init(
    out: *mut *mut c_void,
    cuda: *mut CudaTable,
    api_version: c_int,
) -> c_int {
    let _ = cuda;
    guard::guard_call("nvshmemt_init", || {
        // SAFETY: by this function's contract.
        let out = unsafe { guard::OutPointer::new(out) }?;
        let made = match api_version / 10_000 {
            major if major == sys4::VERSION / 10_000 => v4::make_transport(api_version)?.cast(),
            major if major == sys6::VERSION / 10_000 => v6::make_transport(api_version)?.cast(),
            _ => return Err(CallError::Version(api_version)),
        };
        out.write_value(made);
        Ok(())
    })
    .0
}
