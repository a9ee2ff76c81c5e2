//! Synchronous copies and memsets that complete before they return, for memory that NICs or other processes read. Requested by the code that
//! registers or exports memory, once per allocation. Where the driver rejects this for a single allocation, a warning is printed once per
//! process.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU8, Ordering};

use trunkline_sys::cuda::{self as calls, pointer_attribute, status};

use super::DriverCallError;
use super::cuda::CudaLibrary;

/// The worst warning printed by this process: 0 for none, 1 for contexts with the flag, 2 for no setting at all.
static WARNED: AtomicU8 = AtomicU8::new(0);

/// Which setting makes synchronous copies and memsets of an allocation complete before they return.
#[derive(Clone, Debug, Eq, PartialEq)]
#[must_use = "memory that is not synchronous may be sent before it is written"]
pub(crate) enum SyncMemops {
    /// The allocation has the attribute.
    Allocation,
    /// The driver rejected the attribute; all memory of the device's context, and of the calling thread's, is synchronous instead.
    Context {
        /// The driver's error.
        refused: DriverCallError,
    },
    /// No setting was accepted: the user must synchronize copies explicitly.
    Unset {
        /// The driver's error for the allocation.
        refused: DriverCallError,
        /// The driver's error for the context; `None` if the driver has no such function.
        context: Option<DriverCallError>,
    },
}

impl SyncMemops {
    /// Returns whether a setting was accepted.
    pub(crate) fn is_set(&self) -> bool {
        !matches!(self, Self::Unset { .. })
    }

    /// Returns the warning for the user, unless one at least as severe was returned before; `told` stores the severity.
    fn take_warning(&self, told: &AtomicU8) -> Option<String> {
        let (degree, text) = match self {
            Self::Allocation => return None,
            Self::Context { refused } => (
                1,
                format!(
                    "memory of a GPU that is shared with NICs or other processes does not support CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ({refused}), like memory of \
                     cuMemCreate. CU_CTX_SYNC_MEMOPS was set for its context instead: from now on each synchronous copy and memset of the \
                     context waits for its end. Wait for earlier operations by cudaDeviceSynchronize. Memory of cudaMalloc needs neither"
                ),
            ),
            Self::Unset { refused, context } => {
                let cause = match context {
                    Some(error) => error.to_string(),
                    None => "the driver has no cuCtxSetFlags".to_owned(),
                };
                (
                    2,
                    format!(
                        "memory of a GPU that is shared with NICs or other processes does not support CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ({refused}), and its \
                         context does not support CU_CTX_SYNC_MEMOPS ({cause}). A cudaMemset or cudaMemcpy of such memory has to be synchronised before a send \
                         (cudaStreamSynchronize or cudaDeviceSynchronize), or old bytes are sent. Use memory of cudaMalloc, or a driver for CUDA 12.1 \
                         or newer"
                    ),
                )
            }
        };
        let is_news = told.fetch_max(degree, Ordering::Relaxed) < degree;
        is_news.then_some(text)
    }
}

impl CudaLibrary {
    /// Makes synchronous copies and memsets of an allocation complete before they return: by its attribute, or by the flag of contexts where the
    /// driver rejects the attribute (as UCX does). Setting the attribute waits for earlier operations on the allocation; setting the flag does not.
    /// Prints the warning.
    pub(crate) fn request_sync_memops(&self, device: u32, addr: usize) -> SyncMemops {
        let asked = match self.set_sync_memops(device, addr) {
            Ok(()) => SyncMemops::Allocation,
            Err(refused) => match self.flag_contexts(device) {
                Some(Ok(())) => SyncMemops::Context { refused },
                context => SyncMemops::Unset { refused, context: context.and_then(Result::err) },
            },
        };
        if let Some(text) = asked.take_warning(&WARNED) {
            eprintln!("trunkline: warning: {text}");
        }
        asked
    }

    fn set_sync_memops(&self, device: u32, addr: usize) -> Result<(), DriverCallError> {
        let on: c_uint = 1;
        let code = self.in_context(device, || {
            // SAFETY: the value of this attribute is an unsigned int, which is read during the call.
            unsafe {
                (self.calls().pointer_set_attribute)(
                    (&raw const on).cast(),
                    pointer_attribute::SYNC_MEMOPS,
                    addr as u64,
                )
            }
        })?;
        self.check_status("cuPointerSetAttribute", code)
    }

    /// Sets the flag for the thread's context, if it has one, and for the device's primary context. Returns `None` if the driver has no such
    /// function.
    fn flag_contexts(&self, device: u32) -> Option<Result<(), DriverCallError>> {
        let get = self.calls().ctx_get_flags?;
        let set = self.calls().ctx_set_flags?;
        let flag = || {
            let mut flags = 0;
            // SAFETY: the call writes a number to a local variable.
            let code = unsafe { get(&raw mut flags) };
            if code != status::SUCCESS || flags & calls::CTX_SYNC_MEMOPS != 0 {
                return code;
            }
            // SAFETY: the call takes a number: the flags of the context, and `CTX_SYNC_MEMOPS`.
            unsafe { set(flags & calls::CTX_FLAGS_MASK | calls::CTX_SYNC_MEMOPS) }
        };
        let own = match flag() {
            status::INVALID_CONTEXT => Ok(()),
            code => self.check_status("cuCtxSetFlags", code),
        };
        let primary =
            self.with_device_context(device, flag).and_then(|code| self.check_status("cuCtxSetFlags", code));
        Some(own.and(primary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_is_printed_once() {
        let error =
            |code| DriverCallError { call: "cuPointerSetAttribute", code, name: "?".to_owned(), remedy: "" };
        let context = SyncMemops::Context { refused: error(801) };
        let unset = SyncMemops::Unset { refused: error(801), context: None };
        let told = AtomicU8::new(0);
        assert_eq!(SyncMemops::Allocation.take_warning(&told), None);
        let text = context.take_warning(&told).unwrap();
        assert!(text.contains("CU_CTX_SYNC_MEMOPS was set") && text.contains("(801)"), "{text}");
        assert_eq!(context.take_warning(&told), None, "once per process");
        let text = unset.take_warning(&told).unwrap();
        assert!(text.contains("has to be synchronised before a send"), "{text}");
        assert_eq!([unset.take_warning(&told), context.take_warning(&told)], [None, None]);
        assert!(context.is_set() && !unset.is_set());
    }
}
