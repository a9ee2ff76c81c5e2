//! Which NICs access GPU memory, and why others do not. Called by `info`. It opens GPU drivers if a NIC could access
//! their memory, as the plugin does; with libfabric it registers a little of it as a test.

use serde::Serialize;
use trunkline_mem::gpu::VendorDrivers;
use trunkline_ofi::OfiFabric;
use trunkline_runtime::{GpuNote, meet_verbs};
use trunkline_verbs::VerbsFabric;

/// A NIC or a driver.
#[derive(Debug, Serialize)]
pub(super) struct GpuMemoryRow {
    name: String,
    /// For a NIC, whether GPU memory may be registered; for a driver, whether it is available.
    present: bool,
    note: String,
}

impl GpuMemoryRow {
    pub(super) fn row_cells(&self) -> [String; 3] {
        let state = if self.present { "yes" } else { "no" };
        [self.name.clone(), state.to_owned(), self.note.clone()]
    }
}

impl From<GpuNote> for GpuMemoryRow {
    fn from(GpuNote { nic, reached, note }: GpuNote) -> Self {
        Self { name: nic, present: reached, note }
    }
}

/// Limits the memory that the NICs access to the kinds in use here, and returns a row per cause.
pub(super) fn limit_verbs_memory(fabric: VerbsFabric) -> (VerbsFabric, Vec<GpuMemoryRow>) {
    let gpus = if fabric.reaches_devices() { VendorDrivers::open_all() } else { VendorDrivers::default() };
    let (fabric, notes) = meet_verbs(fabric, &gpus);
    (fabric, notes.into_iter().map(GpuMemoryRow::from).chain(driver_rows(&gpus)).collect())
}

/// Limits the memory of libfabric's NICs, which are tested with a registration.
pub(super) fn limit_ofi_memory(fabric: OfiFabric) -> (OfiFabric, Vec<GpuMemoryRow>) {
    if !fabric.reaches_devices() {
        // One row for all NICs.
        let (fabric, notes) = trunkline_runtime::meet_ofi(fabric, &VendorDrivers::default());
        let row = |note: GpuNote| GpuMemoryRow { name: "ofi".to_owned(), ..note.into() };
        return (fabric, notes.into_iter().take(1).map(row).collect());
    }
    let gpus = VendorDrivers::open_all();
    let (fabric, notes) = trunkline_runtime::meet_ofi(fabric, &gpus);
    (fabric, notes.into_iter().map(GpuMemoryRow::from).chain(driver_rows(&gpus)).collect())
}

/// A row for each driver, missing ones included.
fn driver_rows(gpus: &VendorDrivers) -> Vec<GpuMemoryRow> {
    let drivers = gpus.open_drivers().iter().map(|gpu| GpuMemoryRow {
        name: format!("driver of {}", gpu.vendor()),
        present: true,
        note: match gpu.exports_memory() {
            Ok(true) => format!("{}; exports memory as dma-bufs", gpu.driver_version()),
            Ok(false) => format!("{}; exports no memory as dma-bufs", gpu.driver_version()),
            Err(error) => format!("{}; {error}", gpu.driver_version()),
        },
    });
    let missing = gpus.unavailable_drivers().iter().map(|missing| GpuMemoryRow {
        name: "driver".to_owned(),
        present: false,
        note: missing.to_string(),
    });
    drivers.chain(missing).collect()
}

/// The single row of a fabric that accesses host memory only.
pub(super) fn of_none(fabric: &str) -> Vec<GpuMemoryRow> {
    let note = "host memory only; TRUNKLINE_FABRIC=verbs or ofi selects NICs, which may access GPU memory"
        .to_owned();
    vec![GpuMemoryRow { name: fabric.to_owned(), present: false, note }]
}
