//! The fence between C and Rust: no panic crosses it, no null is followed, and a failed call sets no output.

use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_engine::in_full;
use trunkline_fabric::LogLevel;
use trunkline_sys::nccl_net::ResultCode;

use crate::status::NetCallError;
use crate::world::world;

/// Runs the body of an exported function.
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
    // Even the report must not unwind into C.
    let _ = catch_unwind(|| log_warning(&format!("{name}: a defect of the plugin; please report it")));
    ResultCode::INTERNAL_ERROR
}

fn log_warning(text: &str) {
    match world() {
        Ok(world) => world.log.log_line(LogLevel::Warn, text),
        Err(_) => crate::abi::log::before_start(text),
    }
}

/// A name that is not there is looked for without memory of its own.
#[cfg(feature = "panics")]
fn panic_if_asked(name: &str) {
    if std::env::var("TRUNKLINE_PANIC").is_ok_and(|asked| asked == name) {
        panic!("asked to panic in {name}");
    }
}

/// A place of the caller's that a result goes to.
pub(crate) struct ResultPlace<T>(*mut T);

impl<T> ResultPlace<T> {
    /// The place `to` points to.
    ///
    /// # Safety
    /// If not null, `to` can be written until the `Out` is dropped.
    #[inline]
    pub(crate) unsafe fn new(to: *mut T) -> Result<Self, NetCallError> {
        if to.is_null() { Err(NetCallError::Argument("null output pointer")) } else { Ok(Self(to)) }
    }

    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: not null, and writable by the contract of `new`; C objects have no destructors to run.
        unsafe { self.0.write(value) };
    }
}

/// `count` elements at `from`, copied out by `each`.
///
/// # Safety
/// If not null, `from` points to `count` readable elements.
#[inline]
pub(crate) unsafe fn read_at<T: Copy>(from: *const T, index: usize) -> Result<T, NetCallError> {
    if from.is_null() {
        return Err(NetCallError::Argument("null array"));
    }
    // SAFETY: inside the array, by the contract of this function.
    let at = unsafe { from.add(index) };
    // SAFETY: readable, by the contract of this function.
    Ok(unsafe { at.read() })
}
