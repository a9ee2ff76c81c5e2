//! The pipelines of a device whose vendor's library reports some (AMD's, through libionic): their numbers, and
//! the placement of queue pairs on them. Called when links are created; any other device counts as one pipeline.

use std::ffi::CStr;
use std::io;
use std::sync::{Mutex, PoisonError};

use trunkline_sys::verbs::ionic::{Calls, LIBRARY};
use trunkline_sys::verbs::{Context, Pd, Qp as RawQp};

use crate::device::check_code;

/// Opens the vendor's library, if it is installed.
pub(crate) fn open_ionic() -> Option<Calls> {
    // SAFETY: the library of an rdma-core provider; its constructors run here as when rdma-core loads it.
    let library = unsafe { libloading::os::unix::Library::new(LIBRARY.to_str().ok()?) }.ok()?;
    let calls = load_calls(&library);
    // Never closed, as rdma-core's own library: the provider may have handlers in this process.
    std::mem::forget(library);
    calls
}

fn load_calls(library: &libloading::os::unix::Library) -> Option<Calls> {
    // SAFETY: the symbol of this name is a function of that type.
    let ctx_get_udma_mask = unsafe { library.get(symbol_name(c"ionic_dv_ctx_get_udma_mask")) }.ok()?;
    // SAFETY: as above.
    let pd_set_udma_mask = unsafe { library.get(symbol_name(c"ionic_dv_pd_set_udma_mask")) }.ok()?;
    // SAFETY: as above.
    let qp_get_udma_idx = unsafe { library.get(symbol_name(c"ionic_dv_qp_get_udma_idx")) }.ok()?;
    Some(Calls {
        ctx_get_udma_mask: *ctx_get_udma_mask,
        pd_set_udma_mask: *pd_set_udma_mask,
        qp_get_udma_idx: *qp_get_udma_idx,
    })
}

fn symbol_name(name: &CStr) -> &[u8] {
    name.to_bytes_with_nul()
}

/// The pipelines of one device.
pub(crate) struct DevicePipelines {
    calls: Option<Calls>,
    /// For each pipeline the number of its bit in the library's masks.
    bits: Vec<u8>,
    /// Held while a queue pair is created, because the mask is set for the whole domain.
    making: Mutex<()>,
}

impl DevicePipelines {
    /// Finds the pipelines. `context` is an open device.
    pub(crate) fn from_context(calls: Option<Calls>, context: *mut Context) -> Self {
        // SAFETY: the device is open; the call returns 0 for one of another vendor.
        let mask = calls.map_or(0, |calls| unsafe { (calls.ctx_get_udma_mask)(context) });
        let bits = (0..8).filter(|bit| mask >> bit & 1 == 1).collect();
        Self { calls, bits, making: Mutex::default() }
    }

    /// Returns the number of pipelines, at least 1.
    pub(crate) fn pipeline_count(&self) -> u32 {
        // The mask has eight bits, so there are at most eight.
        self.bits.len().max(1) as u32
    }

    /// Creates a queue pair of a domain on that pipeline, or on any.
    ///
    /// # Errors
    /// Those of `make`, and the library's.
    pub(crate) fn create_on<T>(
        &self,
        pd: *mut Pd,
        pipeline: Option<u32>,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let bit = pipeline.and_then(|at| self.bits.get(at as usize).copied());
        let (Some(calls), Some(bit)) = (self.calls, bit) else { return make() };
        let all = self.bits.iter().fold(0, |all, bit| all | 1 << bit);
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: an open domain of a device that the library supports, because it has reported pipelines for it.
        check_code(unsafe { (calls.pd_set_udma_mask)(pd, 1 << bit) })?;
        let made = make();
        // SAFETY: as above.
        check_code(unsafe { (calls.pd_set_udma_mask)(pd, all) })?;
        made
    }

    /// Returns the pipeline of a queue pair.
    pub(crate) fn qp_pipeline(&self, qp: *mut RawQp) -> u32 {
        let Some(calls) = self.calls.filter(|_| !self.bits.is_empty()) else { return 0 };
        // SAFETY: an open queue pair of a device that the library supports, because it has reported pipelines for it.
        let bit = unsafe { (calls.qp_get_udma_idx)(qp) };
        self.bits.iter().position(|known| *known == bit).map_or(0, |at| at as u32)
    }
}
