//! The boundary between C and Rust: no panic crosses it, no null pointer is dereferenced, and a failed call sets no
//! output.

use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_engine::in_full;
use trunkline_fabric::LogLevel;
use trunkline_sys::nccl_net::ResultCode;

use crate::status::NetCallError;
use crate::world::world;

/// Runs the body of an exported function; logs its error, and returns the code.
#[inline]
pub(crate) fn guard_call(name: &'static str, body: impl FnOnce() -> Result<(), NetCallError>) -> ResultCode {
    let body = || {
        #[cfg(feature = "panics")]
        panic_if_asked(name);
        body()
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ResultCode::SUCCESS,
        Ok(Err(NetCallError::Told(code))) => code,
        Ok(Err(error)) => report_refusal(name, &error),
        Err(_) => report_panic(name),
    }
}

#[cold]
fn report_refusal(name: &str, error: &NetCallError) -> ResultCode {
    log_warning(&format!("{name}: {}", in_full(error)));
    error.result_code()
}

#[cold]
fn report_panic(name: &str) -> ResultCode {
    // A panic in the report must not unwind into C, either.
    let _ = catch_unwind(|| log_warning(&format!("{name}: a defect of the plugin; please report it")));
    ResultCode::INTERNAL_ERROR
}

fn log_warning(text: &str) {
    match world() {
        Ok(world) => world.log.log_line(LogLevel::Warn, text),
        Err(_) => crate::abi::log::before_start(text),
    }
}

/// Panics if `TRUNKLINE_PANIC` names this function. Reading an unset variable does not allocate.
#[cfg(feature = "panics")]
fn panic_if_asked(name: &str) {
    if std::env::var("TRUNKLINE_PANIC").is_ok_and(|asked| asked == name) {
        panic!("TRUNKLINE_PANIC requests a panic in {name}");
    }
}

/// An output parameter of the caller.
pub(crate) struct ResultPlace<T>(*mut T);

impl<T> ResultPlace<T> {
    /// Checks the output pointer `to`.
    ///
    /// # Safety
    /// If not null, `to` can be written until the `ResultPlace` is dropped.
    #[inline]
    pub(crate) unsafe fn new(to: *mut T) -> Result<Self, NetCallError> {
        if to.is_null() { Err(NetCallError::Argument("null output pointer")) } else { Ok(Self(to)) }
    }

    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: `new` has checked that it is not null, and it is writable by the contract of `new`. C objects have
        // no destructors, so overwriting is sound.
        unsafe { self.0.write(value) };
    }
}

/// Reads element `index` of the array `from`.
///
/// # Safety
/// If not null, `from` points to an array with more than `index` readable elements.
#[inline]
pub(crate) unsafe fn read_at<T: Copy>(from: *const T, index: usize) -> Result<T, NetCallError> {
    if from.is_null() {
        return Err(NetCallError::Argument("null array"));
    }
    // SAFETY: element `index` is inside the array, by the contract of this function.
    let at = unsafe { from.add(index) };
    // SAFETY: `at` points to a readable element, by the contract of this function.
    Ok(unsafe { at.read() })
}
