//! The pipelines of a device, where its maker's library says that it has some (AMD's, through libionic): which there are, and
//! how a queue pair gets on one. Called when links are made; elsewhere a device counts as one pipeline.

use std::ffi::CStr;
use std::io;
use std::sync::{Mutex, PoisonError};

use trunkline_sys::verbs::ionic::{Calls, LIBRARY};
use trunkline_sys::verbs::{Context, Pd, Qp as RawQp};

use crate::device::check_code;

/// The maker's library, if it is installed.
pub(crate) fn open_ionic() -> Option<Calls> {
    // SAFETY: the library of an rdma-core provider; its constructors run here as when rdma-core loads it.
    let library = unsafe { libloading::os::unix::Library::new(LIBRARY.to_str().ok()?) }.ok()?;
    let calls = load_calls(&library);
    // Never closed, as rdma-core's own is not: the provider may have handlers in this process.
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

/// Those of one device.
pub(crate) struct DevicePipelines {
    calls: Option<Calls>,
    /// The number of the bit of each.
    bits: Vec<u8>,
    /// The domain stands for one of them while a queue pair is made.
    making: Mutex<()>,
}

impl DevicePipelines {
    /// Finds them. `context` is an open device.
    pub(crate) fn from_context(calls: Option<Calls>, context: *mut Context) -> Self {
        // SAFETY: the device is open; of another maker's the call says so by 0.
        let mask = calls.map_or(0, |calls| unsafe { (calls.ctx_get_udma_mask)(context) });
        let bits = (0..8).filter(|bit| mask >> bit & 1 == 1).collect();
        Self { calls, bits, making: Mutex::default() }
    }

    /// How many, at least 1.
    pub(crate) fn pipeline_count(&self) -> u32 {
        // At most eight.
        self.bits.len().max(1) as u32
    }

    /// Makes a queue pair of a domain on that pipeline, or on any.
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
        // SAFETY: a domain of a device that the library knows.
        check_code(unsafe { (calls.pd_set_udma_mask)(pd, 1 << bit) })?;
        let made = make();
        // SAFETY: as above.
        check_code(unsafe { (calls.pd_set_udma_mask)(pd, all) })?;
        made
    }

    /// The pipeline that a queue pair is on.
    pub(crate) fn qp_pipeline(&self, qp: *mut RawQp) -> u32 {
        let Some(calls) = self.calls.filter(|_| !self.bits.is_empty()) else { return 0 };
        // SAFETY: a queue pair of a device that the library knows.
        let bit = unsafe { (calls.qp_get_udma_idx)(qp) };
        self.bits.iter().position(|known| *known == bit).map_or(0, |at| at as u32)
    }
}
