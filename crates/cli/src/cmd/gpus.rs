//! Which NICs reach memory of GPUs, and why others do not. Asked by `info`; opens drivers of GPUs where a NIC could reach
//! their memory, as the plugin does, which with libfabric tries a little of it.

use serde::Serialize;
use trunkline_fabric::{DeviceReach, Nic};
use trunkline_mem::gpu::Gpus;
use trunkline_ofi::OfiFabric;
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

/// Leaves of what the NICs reach what is of use here, and says how that came about.
pub(super) fn meet(fabric: VerbsFabric) -> (VerbsFabric, Vec<GpuRow>) {
    let gpus = if fabric.reaches_devices() { Gpus::open() } else { Gpus::default() };
    let alone: Vec<DeviceReach> = nics_of(&fabric).map(|nic| nic.caps.devices).collect();
    let fabric = fabric.with_gpus(&gpus);
    let nics = nics_of(&fabric).zip(alone).map(|(nic, alone)| GpuRow {
        name: nic.name.clone(),
        present: nic.caps.devices.any(),
        note: note(nic.caps.devices, alone, &gpus),
    });
    let rows = nics.chain(drivers(&gpus)).collect();
    (fabric, rows)
}

/// The same of libfabric's NICs, which are tried.
pub(super) fn meet_ofi(fabric: OfiFabric) -> (OfiFabric, Vec<GpuRow>) {
    if !fabric.reaches_devices() {
        let note = format!("provider {} grants no memory of GPUs (FI_HMEM)", fabric.provider());
        return (fabric, vec![GpuRow { name: "ofi".to_owned(), present: false, note }]);
    }
    let gpus = Gpus::open();
    let fabric = fabric.with_gpus(&gpus);
    let notes = |name: &str| {
        let notes = fabric.notes().iter().filter_map(|(_, note)| note.strip_prefix(&format!("NIC {name}: ")));
        notes.collect::<Vec<_>>().join("; ")
    };
    let nics = trunkline_fabric::Fabric::nics(&fabric).iter().map(|nic| GpuRow {
        name: nic.name.clone(),
        present: nic.caps.devices.any(),
        note: tried(nic.caps.devices, &notes(&nic.name)),
    });
    let rows = nics.chain(drivers(&gpus)).collect();
    (fabric, rows)
}

/// What came of trying a NIC.
fn tried(reach: DeviceReach, refused: &str) -> String {
    match (reach.any(), refused) {
        (true, "") => reached(reach),
        (true, refused) => format!("{}; not {refused}", reached(reach)),
        (false, "") => "granted, but there is no driver".to_owned(),
        (false, refused) => refused.to_owned(),
    }
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

fn nics_of(fabric: &VerbsFabric) -> impl Iterator<Item = &Nic> {
    trunkline_fabric::Fabric::nics(fabric).iter()
}

/// By which ways.
fn ways(reach: DeviceReach) -> String {
    let all = [
        (reach.dmabuf, "as dma-bufs"),
        (reach.nvidia, "by address (nvidia-peermem)"),
        (reach.amd, "by address (AMD's peer memory)"),
    ];
    all.into_iter().filter(|(on, _)| *on).map(|(_, way)| way).collect::<Vec<_>>().join(", ")
}

/// The same, and whether it is flushed.
fn reached(reach: DeviceReach) -> String {
    let flush = if reach.needs_flush { "" } else { "; flushes are switched off (NCCL_GDR_FLUSH_DISABLE)" };
    format!("{}{flush}", ways(reach))
}

/// What a NIC reaches with these drivers, or why it reaches nothing although `alone` it could.
fn note(reach: DeviceReach, alone: DeviceReach, gpus: &Gpus) -> String {
    match (reach.any(), alone.any()) {
        (true, _) => reached(reach),
        (false, true) if gpus.all().is_empty() => format!("{}, but there is no driver", ways(alone)),
        (false, true) => {
            format!("{}, but the driver does not: load nvidia-peermem, or use a newer driver", ways(alone))
        }
        (false, false) => {
            "kernel, rdma-core or the NIC's driver register no dma-bufs, and no module for peer memory is \
                           loaded (modprobe nvidia-peermem)"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_says_what_it_reaches_or_why_not() {
        let none = DeviceReach { needs_flush: true, ..DeviceReach::default() };
        let all = DeviceReach { dmabuf: true, nvidia: true, amd: false, needs_flush: true };
        let gpus = Gpus::default();
        assert_eq!(note(all, all, &gpus), "as dma-bufs, by address (nvidia-peermem)");
        assert!(note(none, all, &gpus).ends_with("but there is no driver"));
        assert!(note(none, none, &gpus).contains("modprobe nvidia-peermem"));
        assert!(note(DeviceReach { needs_flush: false, ..all }, all, &gpus).contains("switched off"));
        let refused = "memory of NVIDIA GPUs as a dma-buf: invalid argument";
        assert_eq!(tried(none, refused), refused);
        let one = DeviceReach { dmabuf: false, ..all };
        assert_eq!(tried(one, refused), format!("by address (nvidia-peermem); not {refused}"));
        assert!(tried(none, "").contains("no driver"));
    }
}
