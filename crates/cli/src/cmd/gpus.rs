//! Which NICs reach memory of GPUs, and why others do not. Asked by `info`; opens drivers of GPUs where a NIC could reach
//! their memory, as the plugin does, and allocates nothing.

use serde::Serialize;
use trunkline_fabric::{DeviceReach, Nic};
use trunkline_mem::gpu::Gpus;
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
    let rows = nics.chain(drivers).chain(missing).collect();
    (fabric, rows)
}

/// The one row of a fabric that reaches the host's memory alone.
pub(super) fn of_none(fabric: &str) -> Vec<GpuRow> {
    let note = "memory of the host alone; RDMA devices may reach GPUs: TRUNKLINE_FABRIC=verbs".to_owned();
    vec![GpuRow { name: fabric.to_owned(), present: false, note }]
}

fn nics_of(fabric: &VerbsFabric) -> impl Iterator<Item = &Nic> {
    trunkline_fabric::Fabric::nics(fabric).iter()
}

/// What a NIC reaches with these drivers, or why it reaches nothing although `alone` it could.
fn note(reach: DeviceReach, alone: DeviceReach, gpus: &Gpus) -> String {
    let ways = |reach: DeviceReach| {
        let all = [
            (reach.dmabuf, "as dma-bufs"),
            (reach.nvidia, "by address (nvidia-peermem)"),
            (reach.amd, "by address (AMD's peer memory)"),
        ];
        all.into_iter().filter(|(on, _)| *on).map(|(_, way)| way).collect::<Vec<_>>().join(", ")
    };
    let flush = if reach.needs_flush { "" } else { "; flushes are switched off (NCCL_GDR_FLUSH_DISABLE)" };
    match (reach.any(), alone.any()) {
        (true, _) => format!("{}{flush}", ways(reach)),
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
    }
}
