//! The boundary between C and Rust: no panic crosses it, no null pointer is dereferenced, and a failed call sets no
//! output and prints one line.

use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_engine::in_full;
use trunkline_sys::nvshmem::StatusCode;

use crate::error::{CallError, Result};
use crate::plugin::print_line;

/// Runs the body of a function that C calls.
#[inline]
pub(super) fn guard_call(name: &'static str, body: impl FnOnce() -> Result<()>) -> StatusCode {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => StatusCode::SUCCESS,
        Ok(Err(error)) => report_refusal(name, &error),
        Err(_) => report_panic(name),
    }
}

#[cold]
fn report_refusal(name: &str, error: &CallError) -> StatusCode {
    print_line(&format!("{name}: {}", in_full(error)));
    error.status_code()
}

#[cold]
fn report_panic(name: &str) -> StatusCode {
    // Even the report must not unwind into C.
    let report = || print_line(&format!("{name}: internal error (a panic) of the library; please report it"));
    let _ = catch_unwind(report);
    StatusCode::INTERNAL
}

/// A place of the caller for a result.
pub(super) struct OutPointer<T>(*mut T);

impl<T> OutPointer<T> {
    /// Wraps the place to which `to` points.
    ///
    /// # Safety
    /// If not null, `to` is writable until the `OutPointer` is dropped.
    pub(super) unsafe fn new(to: *mut T) -> Result<Self> {
        if to.is_null() { Err(CallError::Argument("null output pointer")) } else { Ok(Self(to)) }
    }

    /// Writes the result.
    pub(super) fn write_value(&self, value: T) {
        // SAFETY: not null, and writable by the contract of `new`; C objects have no destructors to run.
        unsafe { self.0.write(value) };
    }
}

/// Reads the value to which a pointer of the caller points.
///
/// # Safety
/// If not null, `from` points to a readable `T`.
#[inline]
pub(super) unsafe fn read_pointer<T: Copy>(from: *const T, what: &'static str) -> Result<T> {
    if from.is_null() {
        return Err(CallError::Argument(what));
    }
    // SAFETY: not null, and readable by the contract of this function.
    Ok(unsafe { from.read_unaligned() })
}

/// Borrows the value to which a pointer of the caller points.
///
/// # Safety
/// If not null, `from` points to a `T` that no thread writes during `'a`.
#[inline]
pub(super) unsafe fn borrow<'a, T>(from: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: by the contract of this function.
    unsafe { from.as_ref() }.ok_or(CallError::Argument(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_stops_a_panic() {
        assert_eq!(guard_call("rma", || panic!("a defect")), StatusCode::INTERNAL);
        assert_eq!(guard_call("rma", || Err(CallError::Argument("wrong"))), StatusCode::INVALID_VALUE);
        assert_eq!(guard_call("rma", || Ok(())), StatusCode::SUCCESS);
    }

    #[test]
    fn null_pointers_are_neither_written_nor_read() {
        // SAFETY: the pointer is null, which the contract permits.
        let out = unsafe { OutPointer::<u64>::new(std::ptr::null_mut()) };
        assert!(matches!(out, Err(CallError::Argument(_))));
        // SAFETY: as above.
        let value = unsafe { read_pointer::<u64>(std::ptr::null(), "no value") };
        assert!(matches!(value, Err(CallError::Argument("no value"))));
    }
}
