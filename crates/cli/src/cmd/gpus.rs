//! Which NICs reach memory of GPUs, and why others do not. Asked by `info`; opens drivers of GPUs where a NIC could reach
//! their memory, as the plugin does, which with libfabric tries a little of it.

use serde::Serialize;
use trunkline_mem::gpu::Gpus;
use trunkline_ofi::OfiFabric;
use trunkline_runtime::{GpuNote, meet_verbs};
use trunkline_verbs::VerbsFabric;

/// A NIC or a driver.
#[derive(Debug, Serialize)]
pub(super) struct GpuRow {
    name: String,
    /// Of a NIC, whether memory of GPUs may be registered; of a driver, whether there is one.
    present: bool,
    note: String,
}

impl GpuRow {
    pub(super) fn columns(&self) -> [String; 3] {
        let state = if self.present { "yes" } else { "no" };
        [self.name.clone(), state.to_owned(), self.note.clone()]
    }
}

impl From<GpuNote> for GpuRow {
    fn from(GpuNote { nic, reached, note }: GpuNote) -> Self {
        Self { name: nic, present: reached, note }
    }
}

/// Limits the memory that the NICs reach to the kinds in use here, and returns the cause.
pub(super) fn meet(fabric: VerbsFabric) -> (VerbsFabric, Vec<GpuRow>) {
    let gpus = if fabric.reaches_devices() { Gpus::open() } else { Gpus::default() };
    let (fabric, notes) = meet_verbs(fabric, &gpus);
    (fabric, notes.into_iter().map(GpuRow::from).chain(drivers(&gpus)).collect())
}

/// The same of libfabric's NICs, which are tried.
pub(super) fn meet_ofi(fabric: OfiFabric) -> (OfiFabric, Vec<GpuRow>) {
    if !fabric.reaches_devices() {
        // One row for all of them.
        let (fabric, notes) = trunkline_runtime::meet_ofi(fabric, &Gpus::default());
        let row = |note: GpuNote| GpuRow { name: "ofi".to_owned(), ..note.into() };
        return (fabric, notes.into_iter().take(1).map(row).collect());
    }
    let gpus = Gpus::open();
    let (fabric, notes) = trunkline_runtime::meet_ofi(fabric, &gpus);
    (fabric, notes.into_iter().map(GpuRow::from).chain(drivers(&gpus)).collect())
}

/// A row for each driver, and for each that is missing.
fn drivers(gpus: &Gpus) -> Vec<GpuRow> {
    let drivers = gpus.all().iter().map(|gpu| GpuRow {
        name: format!("driver of {}", gpu.vendor()),
        present: true,
        note: match gpu.exports() {
            Ok(true) => format!("{}; exports memory as dma-bufs", gpu.version()),
            Ok(false) => format!("{}; exports no memory as dma-bufs", gpu.version()),
            Err(error) => format!("{}; {error}", gpu.version()),
        },
    });
    let missing = gpus.missing().iter().map(|missing| GpuRow {
        name: "driver".to_owned(),
        present: false,
        note: missing.to_string(),
    });
    drivers.chain(missing).collect()
}

/// The one row of a fabric that reaches the host's memory alone.
pub(super) fn of_none(fabric: &str) -> Vec<GpuRow> {
    let note = "memory of the host alone; NICs may reach GPUs: TRUNKLINE_FABRIC=verbs, or ofi".to_owned();
    vec![GpuRow { name: fabric.to_owned(), present: false, note }]
}
