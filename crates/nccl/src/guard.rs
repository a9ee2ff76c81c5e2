//! The fence between C and Rust: no panic crosses it, no null is followed, and a failed call sets no output.

use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_engine::in_full;
use trunkline_fabric::Level;
use trunkline_sys::nccl_net::ResultCode;

use crate::status::CallError;
use crate::world::world;

/// Runs the body of an exported function.
#[inline]
pub(crate) fn guard(name: &'static str, body: impl FnOnce() -> Result<(), CallError>) -> ResultCode {
    let body = || {
        #[cfg(feature = "panics")]
        panic_if_asked(name);
        body()
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ResultCode::SUCCESS,
        Ok(Err(CallError::Told(code))) => code,
        Ok(Err(error)) => refused(name, &error),
        Err(_) => panicked(name),
    }
}

#[cold]
fn refused(name: &str, error: &CallError) -> ResultCode {
    log(&format!("{name}: {}", in_full(error)));
    error.code()
}

#[cold]
fn panicked(name: &str) -> ResultCode {
    // Even the report must not unwind into C.
    let _ = catch_unwind(|| log(&format!("{name}: a defect of the plugin; please report it")));
    ResultCode::INTERNAL_ERROR
}

fn log(text: &str) {
    match world() {
        Ok(world) => world.log.line(Level::Warn, text),
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
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// The place `to` points to.
    ///
    /// # Safety
    /// If not null, `to` can be written until the `Out` is dropped.
    #[inline]
    pub(crate) unsafe fn new(to: *mut T) -> Result<Self, CallError> {
        if to.is_null() { Err(CallError::Argument("null output pointer")) } else { Ok(Self(to)) }
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
pub(crate) unsafe fn read_at<T: Copy>(from: *const T, index: usize) -> Result<T, CallError> {
    if from.is_null() {
        return Err(CallError::Argument("null array"));
    }
    // SAFETY: inside the array, by the contract of this function.
    let at = unsafe { from.add(index) };
    // SAFETY: readable, by the contract of this function.
    Ok(unsafe { at.read() })
}
