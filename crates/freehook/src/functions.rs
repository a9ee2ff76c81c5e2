//! The functions that free GPU memory, each in place of its vendor's function. All their arguments are machine words
//! (pointers, addresses, handles, lengths), and they return a status. Programs call them; each calls the vendor's
//! function.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::next::{Next, Vendor};
use crate::trunkline_free_count;

/// `cudaErrorInitializationError`.
const CUDA_RUNTIME: Vendor =
    Vendor { libraries: &[c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"], uninitialized: 3 };
/// `CUDA_ERROR_NOT_INITIALIZED`.
const CUDA_DRIVER: Vendor = Vendor { libraries: &[c"libcuda.so.1"], uninitialized: 3 };
/// `hipErrorNotInitialized`.
const HIP: Vendor =
    Vendor { libraries: &[c"libamdhip64.so.7", c"libamdhip64.so.6", c"libamdhip64.so.5"], uninitialized: 3 };
/// `ZE_RESULT_ERROR_UNINITIALIZED`.
const LEVEL_ZERO: Vendor = Vendor { libraries: &[c"libze_loader.so.1"], uninitialized: 0x7800_0001 };

fn count_free() {
    trunkline_free_count.fetch_add(1, Ordering::Release);
}

/// Maps each argument to the type of a machine word.
macro_rules! word {
    ($argument:ident) => {
        usize
    };
}

macro_rules! count_frees {
    ($($vendor:ident: $name:ident($($argument:ident),+);)+) => { $(
        #[doc = concat!("`", stringify!($name), "` of the vendor, counted once it has returned.")]
        ///
        /// # Safety
        /// The contract of the vendor's function.
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: usize),+) -> c_int {
            static NEXT: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                &$vendor,
            );
            let Some(next) = NEXT.find() else {
                count_free();
                return $vendor.uninitialized;
            };
            // SAFETY: the vendor's function of this name has these words as its arguments and returns an int.
            let free = unsafe {
                std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($(word!($argument)),+) -> c_int>(next)
            };
            // SAFETY: the caller fulfils the contract of the vendor's function.
            let status = unsafe { free($($argument),+) };
            // Counted after the free, because Trunkline then queries the driver, and memory that is still allocated
            // stays exported.
            count_free();
            status
        }
    )+ };
}

count_frees! {
    CUDA_RUNTIME: cudaFree(memory);
    CUDA_RUNTIME: cudaFreeAsync(memory, stream);
    CUDA_RUNTIME: cudaFreeAsync_ptsz(memory, stream);
    CUDA_DRIVER: cuMemFree_v2(memory);
    CUDA_DRIVER: cuMemFreeAsync(memory, stream);
    CUDA_DRIVER: cuMemFreeAsync_ptsz(memory, stream);
    CUDA_DRIVER: cuMemUnmap(address, length);
    CUDA_DRIVER: cuMemRelease(handle);
    HIP: hipFree(memory);
    HIP: hipFreeAsync(memory, stream);
    HIP: hipMemUnmap(address, length);
    HIP: hipMemRelease(handle);
    LEVEL_ZERO: zeMemFree(context, memory);
    LEVEL_ZERO: zeVirtualMemUnmap(context, address, length);
}
